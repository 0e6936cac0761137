"""Defaults that suit a task: what they are, where they come from, and that a newcomer learns."""

import json
import tomllib

import pytest
import torch
from click.testing import CliRunner
from lanes import every_case
from small import small

from experiments.first_run.study import first_run
from privfed.cli.main import main
from privfed.config.reading import load, read_resolved
from privfed.core.errors import Refused
from privfed.models.form import Task
from privfed.models.losses.squared_error import SquaredError
from privfed.plan.plan import plan
from privfed.run.train import train

TABLE = """
[data]
source = "table"
path = "rows.csv"
client = "site"
label = "days"
label_bounds = [0, 10]
clients = 40
holdout = "clients"
[data.features]
age = [0, 1]
{feature} = [0, 1]
[data.categories]
sex = ["f", "m"]
[model]
loss = "squared_error"
[cohort]
size = 10
"""
NUMBERS = ("client.lr", "server.lr", "server.momentum", "privacy.clip")


def declared(tmp_path, *overrides, feature="weight"):
    path = tmp_path / "run.toml"
    path.write_text(TABLE.format(feature=feature))
    return load(path, overrides)


def numbers(config):
    values = config.values()
    return tuple(values[key.split(".")[0]].get(key.split(".")[1]) for key in NUMBERS)


@every_case("sampler", ["poisson", "fixed_size", "truncated_poisson"])
@every_case(
    ("clients", "cohort"),
    [(1, 1), (2, 1), (3, 1), (5, 1), (60, 18), (149, 44), (500, 150), (10_000, 150)],
)
def test_the_cohort_follows_from_the_clients_declared(clients, cohort, sampler):
    keys = [f"data.clients={clients}", f"cohort.sampler={sampler}", "privacy.noise_multiplier=1"]
    planned = plan(load(None, keys))
    assert planned.config.sampler.size == cohort
    assert planned.cost.witness.rate == cohort / clients
    written = tomllib.loads(planned.config.toml())
    assert written["cohort"]["size"] == cohort


def test_a_sum_over_too_few_clients_is_refused_by_their_number():
    keys = ["data.clients=3", "secure.protocol=masks"]
    with pytest.raises(
        Refused, match=r'of rounds .1 expected among 3 clients.: .*sampler = "full"$'
    ):
        plan(load(None, keys))


@pytest.mark.parametrize("private", [False, True], ids=["no privacy", "epsilon 4"])
def test_the_defaults_learn_diabetes(tmp_path, private):
    """Well below the mean absolute error of the median, which is 65.6."""
    found = first_run("diabetes", private, 0, tmp_path)
    assert found.measure == "mae"
    assert 60 < found.constant < 70
    assert found.value < 0.8 * found.constant
    assert found.loss < 0.8 * found.constant_loss
    assert not found.diverged


@every_case("squared_norm", [1.0, 3.0, 64.0])
def test_a_squared_error_never_grows_along_a_local_step(squared_norm):
    """At the corners of the cube, where the bound is met: every step is a contraction."""
    rate = SquaredError().defaults(Task(squared_norm, 10.0))["client.lr"]
    width = int(squared_norm)
    x = torch.randint(0, 2, (50, 8, width), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    x = torch.cat([x, torch.ones(50, 8, 1)], -1).double()
    x[0] = 1.0  # eight equal examples: the curvature is the bound
    factors = torch.linalg.eigvalsh(torch.eye(width + 1) - rate * 2 * x.mT @ x / 8)
    assert factors.min() > -2e-3, "rounded to three digits"
    assert factors.max() < 1 + 1e-9
    assert abs(factors[0].min()) < 2e-3, "no smaller rate than needed"


def test_steps_follow_from_what_is_declared(tmp_path):
    assert numbers(declared(tmp_path)) == (1 / 8, 0.2, 0.9, 0.02)
    pattern = numbers(declared(tmp_path, feature='"w*"'))
    assert pattern[0] == pytest.approx(1 / 2002, rel=0.01), "how many match, only the file knows"
    archive = numbers(declared(tmp_path, "data.path=rows.npz"))
    assert archive == pattern


def test_what_is_written_goes_before_and_other_parts_keep_their_own(tmp_path):
    assert numbers(declared(tmp_path, "client.lr=0.3", "privacy.clip=1.0")) == (0.3, 0.2, 0.9, 1.0)
    adam = declared(tmp_path, "server.optimizer=fedadam")
    assert numbers(adam) == (1 / 8, 0.1, None, 0.02)
    assert numbers(declared(tmp_path, "server.optimizer=fedavg"))[1] == 1.0
    plain = declared(tmp_path, "privacy.mechanism=none")
    assert numbers(plain) == (1 / 8, 0.2, 0.9, None)


def test_a_resolved_run_holds_numbers_and_keeps_them(tmp_path):
    config = declared(tmp_path)
    again = read_resolved(config.toml())
    assert again == config
    older = config.toml().replace("lr = 0.125", "lr = 0.5")
    assert numbers(read_resolved(older))[0] == 0.5


@every_case(
    ("label", "loss"),
    [
        ('label = "days"\nlabel_bounds = [0, 10]', "squared_error"),
        ('label = ["days", "nights"]', "multi_label"),
        ('label = "days"\nclasses = 4', "cross_entropy"),
        ('label = "days"\nlabels = ["no", "yes"]', "cross_entropy"),
    ],
)
def test_the_loss_of_a_run_file_follows_from_the_label_unless_it_is_written(label, loss, tmp_path):
    text = TABLE.format(feature="weight").replace('label = "days"\nlabel_bounds = [0, 10]', label)
    path = tmp_path / "run.toml"
    path.write_text(text.replace('[model]\nloss = "squared_error"\n', ""))
    config = load(path)
    assert config.names["loss"] == loss
    assert f'loss = "{loss}"' in config.toml()
    if loss != "multi_label":
        assert load(path, ["model.loss=multi_label"]).names["loss"] == "multi_label"


def test_the_default_run_is_what_it_was():
    assert numbers(load(None)) == (0.5, 0.5, 0.9, 0.4)


@every_case("cohort, clip", [(15, 0.04), (75, 0.2), (150, 0.4), (300, 0.4), (1, 0.01)])
def test_a_clip_lets_in_no_more_noise_than_that_of_the_default_run(cohort, clip):
    config = load(None, [f"cohort.size={cohort}"])
    assert config.mechanism.clip == clip


def test_a_bad_file_is_refused_for_what_is_wrong_with_it(tmp_path):
    refused = CliRunner().invoke(main, ["check", "--set", "model.loss=multi_label", "--set",
                                        "model.k=0", "--set", "cohort.size=0"])  # fmt: skip
    assert refused.exit_code == 2
    assert "model.k is 0" in refused.output
    assert "cohort.size is 0" in refused.output


def test_check_shows_the_rates():
    shown = CliRunner().invoke(main, ["check", "--set", "client.lr=0.125"])
    assert "at rate 0.125, fedavgm at rate 0.5" in " ".join(shown.output.split())


def test_a_run_that_does_worse_than_a_constant_says_so_once_and_at_its_end(tmp_path):
    words = [f"--set={one}" for one in (
        "data.source=synthetic", "data.clients=12", "data.size_max=20", "data.iid=true",
        "cohort.size=6", "client.lr=200.0", "server.lr=3.0", "privacy.mechanism=none",
        "run.rounds=10", "run.evaluate_every=1", "run.randomness=seeded",
    )]  # fmt: skip
    result = CliRunner().invoke(main, ["train", *words, "--json", f"--out={tmp_path / 'run'}"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.stderr.split())
    assert text.count("WARNING: the model's loss has been above the baseline") == 1
    assert text.count("lower client.lr or server.lr") == 2, "while it runs, and in the summary"
    stated = json.loads(result.stdout)["diverged"]
    assert stated["evaluations"] >= 3
    assert stated["loss"] > stated["constant"]
    assert json.loads((tmp_path / "run/report/summary.json").read_text())["diverged"] == stated


def test_a_run_that_learns_says_nothing_of_it(tmp_path):
    easy = ("data.iid=true", "data.clients=60", "cohort.size=30", "client.lr=0.1")
    still = ("privacy.mechanism=none", "run.randomness=seeded")
    outcome = train(small(*easy, *still), tmp_path / "run")
    assert outcome.to_json()["diverged"] is None
    assert set(outcome.constant) == {"accuracy", "loss"}
    assert outcome.measures["loss"] < outcome.constant["loss"]
