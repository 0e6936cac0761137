"""Inversion and property inference on runs: as the trainer trains, view by view, as users call."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import population, trainer
from lanes import every_case
from small import SMALL, trained

from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.models.networks import Cnn
from privfed.models.recipes import Logistic, Mlp
from privfed.privacy_attacks.inversion import InversionOptions, invert
from privfed.privacy_attacks.properties import infer
from privfed.privacy_attacks.reconstruct import first_layer, update_function
from privfed.privacy_attacks.subject import (
    View,
    default_epsilons,
    examples_of,
    noise_for,
    subject,
    views,
)

DIGITS = (
    "data.clients=120",
    "privacy.clip=0.4",
    "cohort.sampler=full",  # its noise is calibrated in a moment
    "run.rounds=10",
    "run.threads=1",
)
SETTINGS = [word for option in SMALL for word in ("--set", option)]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    path = tmp_path_factory.mktemp("a file") / "run.toml"
    path.write_text("format = 1\n")
    return path


def digits(empty, *overrides):
    return subject(empty, [*DIGITS, *overrides])


def attack(*words):
    return CliRunner().invoke(main, ["attack", *(str(word) for word in words)])


@every_case("way", ["stacked", "loop"])
@every_case("model", [Logistic(), Mlp(hidden=[7])])
def test_a_simulated_update_is_the_trainers(way, model):
    federation = population((6, 4, 9))
    local = trainer(
        federation, way=way, epochs=3, batch_size=9, **({"model": model} if model else {})
    )
    ids = np.arange(3)
    keys = Streams(0, simulated=True).at("shuffle", 1, ids)
    rows, _ = local.train(ids, {"params": local.network.initial_params}, None, keys)
    update = update_function(local.network, local.network.initial_params, local.lr, steps=3)
    for client, row in zip(ids, rows, strict=True):
        x, y = examples_of(federation, int(client))
        assert torch.allclose(update(x, y), row, atol=1e-5)
        assert row.norm() > 0.1


def test_several_steps_are_differentiable_in_the_examples():
    federation = population((5,))
    network = trainer(federation, model=Mlp(hidden=[6])).network
    x, y = examples_of(federation, 0)
    x, y = x.double().requires_grad_(), y
    start = network.initial_params.double()

    def length(x):
        return update_function(network, start, 0.3, 2)(x, y).square().sum()

    assert torch.autograd.gradcheck(length, x)


def test_a_view_is_clipped_noised_and_averaged():
    updates = torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0]])
    one = torch.Generator().manual_seed(0)
    assert torch.equal(View("", "").observed(updates, one), updates[0])
    clipped = View("", "", clip=1.0).observed(updates, one)
    assert torch.allclose(clipped, torch.tensor([0.6, 0.8]), atol=1e-5)
    both = View("", "", clients=2, clip=1.0).observed(updates, one)
    assert torch.allclose(both, torch.tensor([0.3, 0.9]), atol=1e-5)
    many = View("", "", std=2.0).observed(torch.zeros(1, 10_000), one)
    assert float(many.std()) == pytest.approx(2.0, rel=0.05)


def test_noise_is_the_runs_own_calibration(empty):
    for mechanism in ("gaussian", "local_gaussian"):
        target = digits(empty, f"privacy.mechanism={mechanism}", "privacy.epsilon=3.0")
        plan = target.setup.plan
        assert noise_for(plan, 3.0) == pytest.approx(plan.noise_multiplier)
        assert noise_for(plan, 30.0) < plan.noise_multiplier
        shown = {
            view.epsilon: view
            for view in views(plan, default_epsilons(plan)[-1:], 120)
            if view.epsilon
        }
        clip = target.config.mechanism.clip
        assert shown[3.0].std == pytest.approx(clip * plan.noise_multiplier)
    assert "server" in shown[3.0].who  # who adds noise itself hides from the server too


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_digits_are_read_off_unless_noise_or_a_large_sum_hides_them(empty, model):
    target = digits(empty, f"model.name={model}", "privacy.epsilon=4.0")
    inverted = invert(target, InversionOptions(columns=4, epsilons=(4.0, 1e3, 1e5)))
    quality = {each.view.name: float(np.mean(each.psnr)) for each in inverted.views}
    labels = {each.view.name: each.labels for each in inverted.views}
    guess = quality["no update"]
    assert quality["as sent"] > 80
    assert quality["clipped to 0.4"] > 80
    assert min(inverted.norms) > 0.4, "the clip has to bite"
    noised = [quality[f"ε = {level}"] for level in ("100,000", "1,000", "4")]
    assert all(np.diff(noised) < -0.5), noised
    assert noised[0] > guess + 10
    assert noised[-1] < guess
    assert quality["sum of 120 clients"] < min(quality["sum of 2 clients"] - 10, guess + 5)
    assert labels["as sent"] == labels["clipped to 0.4"] == 1.0


def test_one_example_is_exact_after_any_number_of_steps(empty):
    target = digits(empty, "model.name=mlp", "privacy.mechanism=none")
    inverted = invert(target, InversionOptions(columns=2, steps=5))
    assert min(inverted.views[1].psnr) > 80
    assert [each.view.name for each in inverted.views][:2] == ["no update", "as sent"]


def test_several_examples_are_told_apart_where_neurons_are_many(empty):
    target = digits(empty, "model.name=mlp", "model.hidden=[400]", "privacy.mechanism=none")
    inverted = invert(target, InversionOptions(columns=2, examples=3))
    guess, seen = inverted.views[:2]
    assert len(seen.psnr) == 6
    assert np.mean(seen.psnr) > np.mean(guess.psnr) + 2
    assert seen.labels == 1.0


@pytest.mark.parametrize("method", ["cosine", "dlg"])
def test_a_search_finds_what_is_there(empty, method):
    target = digits(empty, "privacy.mechanism=none")
    inverted = invert(target, InversionOptions(columns=1, method=method, iterations=60))
    quality = {each.view.name: each.psnr[0] for each in inverted.views}
    assert quality["as sent"] > quality["no update"] + 5
    again = invert(target, InversionOptions(columns=1, method=method, iterations=60))
    assert torch.equal(inverted.views[1].x, again.views[1].x)


def test_a_convolution_is_no_linear_first_layer():
    local = trainer(population((3,)), model=Cnn(channels=[4]), shape=(1, 8, 8))
    assert first_layer(local.network, local.network.initial_params, (1, 8, 8)) is None
    flat = trainer(population((3,)), model=Mlp(hidden=[4]), shape=(2, 3)).network
    weight, bias = first_layer(flat, flat.initial_params, (2, 3))
    assert (weight.shape, bias.shape) == ((4, 6), (4,))


def test_labels_of_skewed_clients_are_told_better_than_guessed(empty):
    skewed = ("data.partition=dirichlet", "data.concentration=0.3", "privacy.epsilon=4.0")
    inferred = infer(digits(empty, *skewed), 30, (4.0, 1e6))
    off = {each.view.name: float(np.mean(each.distance)) for each in inferred.estimates}
    told = {each.view.name: float(np.mean(each.majority)) for each in inferred.estimates}
    for view in ("as sent", "clipped to 0.4"):
        assert off[view] < 0.15 < off["no update"] - 0.4
        assert told[view] > 0.8 > told["no update"] + 0.4
    assert off["clipped to 0.4"] < off["ε = 1,000,000"] < off["ε = 4"]
    assert off["sum of 2 clients"] < off["sum of 10 clients"]
    assert told["ε = 4"] < 0.6
    assert torch.allclose(inferred.truth.sum(1), torch.ones(30))


def test_one_full_step_tells_labels_exactly(empty):
    """A zero start predicts every label alike, whoever is asked."""
    one = ("client.batch_size=1000", "client.epochs=1", "privacy.mechanism=none")
    inferred = infer(digits(empty, *one), 20, ())
    assert max(inferred.estimates[1].distance) < 1e-4
    assert all(inferred.estimates[1].majority)


def test_inversion_command(tmp_path, empty):
    out = tmp_path / "what came out"
    settings = [word for option in DIGITS for word in ("--set", option)]
    shown = attack("inversion", empty, *settings, "--epsilon", "10", "--out", out)
    assert shown.exit_code == 0, shown.output
    output = " ".join(shown.output.split())
    assert "no ε covers its results" in output
    assert "exact" in output
    assert sorted(path.name for path in out.iterdir()) == ["contact_sheet.png", "inversion.json"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert (out / "contact_sheet.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((out / "inversion.json").read_text())
    assert stored["simulation"] is True
    assert [view["epsilon"] for view in stored["views"] if view["epsilon"]] == [10.0]
    again = attack("inversion", empty, "--out", out)
    assert again.exit_code == 2
    assert "not an empty folder" in again.output


def test_commands_on_a_run_directory(tmp_path):
    run = tmp_path / "a run"
    trained(run, "run.rounds=2")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    kinds = {"inversion": ("--columns", "2"), "property": ("--clients", "5")}
    for kind, options in kinds.items():
        out = tmp_path / kind
        shown = attack(kind, run, *options, "--epsilon", "5", "--out", out, "--json")
        assert shown.exit_code == 0, shown.output
        printed = json.loads(shown.stdout)
        assert (printed["attack"], printed["round"], printed["run"]) == (kind, 2, str(run))
        assert printed["out"] == str(out)
        assert [path.name for path in out.iterdir()] == [f"{kind}.json"]  # vectors are no pictures
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    refused = attack("inversion", run, "--set", "run.seed=2")
    assert refused.exit_code == 2
    assert "run directory" in refused.output


@every_case(
    ("words", "said"),
    [
        (["--client", "999"], "--client is 999"),
        (["--examples", "60"], "no client holds 60 or more examples; lower"),
        (["--set", "client.objective=fedprox"], "plain local SGD"),
        (
            [
                *("--set", "client.objective=worker_momentum"),
                *("--set", "data.setting=cross_silo"),
            ],
            "keep state between rounds",
        ),
        (["--set", "model.loss=squared_error"], "squared_error"),
        (["--set", "privacy.mechanism=none", "--epsilon", "4"], "no noise to calibrate"),
    ],
)
def test_refusals(tmp_path, monkeypatch, empty, words, said):
    monkeypatch.chdir(tmp_path)
    answer = attack("inversion", empty, *SETTINGS, *words)
    assert answer.exit_code == 2, answer.output
    assert said in answer.output
    assert not Path("runs").exists()


def test_tokens_are_refused(tmp_path):
    text = tmp_path / "plays.txt"
    text.write_text("ALL:\nspeak, speak to me now\n\nBO:\nno no not now\n\n" * 40)
    run = tmp_path / "run.toml"
    run.write_text("format = 1\n")
    keys = ("data.source=text", f"data.path={text}", "data.clients=2", "model.name=lstm")
    with pytest.raises(Refused, match="no gradient by a token"):
        subject(
            run,
            [
                *keys,
                "client.lr=0.5",
                "cohort.size=1",
                "privacy.mechanism=none",
                "data.holdout=examples",
            ],
        )
