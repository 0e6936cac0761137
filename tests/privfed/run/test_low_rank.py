"""A run that trains a model's change of low rank: under noise, resumed, checked, and exported."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from small import SMALL, model, small, trained

import privfed
from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.ranks import SINGLE_PROCESS
from privfed.core.streams import Streams
from privfed.grid.cells import cells
from privfed.grid.grid import Grid
from privfed.models import build
from privfed.models.start import is_factor, with_changes
from privfed.plan.plan import plan
from privfed.round.updates import ClientUpdates
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.run.world import shared_world
from privfed.sampling.cohort import Cohort
from privfed.store.tensorfile import pack
from privfed.trained.export import Adapters, export
from privfed.trained.kept_models import score_kept_models

RANK, OUT, FEATURES = 2, 3, 6
SEEDED = ("run.randomness=seeded",)
LORA = ("model.lora.targets=['1']", f"model.lora.rank={RANK}", *SEEDED)
B = "1.weight_lora_B"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("low_rank") / "run"
    trained(path, *LORA)
    return path


def checked(*settings):
    """What `privfed check` prints, without line breaks."""
    words = [word for each in (*SMALL, *settings) for word in ("--set", each)]
    result = CliRunner().invoke(main, ["check", *words], env={"COLUMNS": "4000"})
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def b_alone_is_released(path):
    """Whether the vector that is clipped and noised is B, and nothing else moved."""
    tensors = model(path)
    assert tensors.keys() == {f"model/{B}", "server/momentum"}
    assert tensors["server/momentum"].shape == (RANK * OUT,)
    constants = load_file(path / "constants.safetensors")
    drawn = Streams(0, simulated=True).at("init").derived(b"lora").derived(b"1.weight")
    expected = torch.from_numpy(drawn.normal(RANK * FEATURES) / FEATURES**0.5).float()
    assert torch.equal(constants["model/1.weight_lora_A"].flatten(), expected)
    assert not constants["model/1.weight"].any()


def trains_a_too(monkeypatch):
    real = build.adapt_model

    def adapt_model(module, lora, keys):
        real(module, lora, keys)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(is_factor(name))

    monkeypatch.setattr(build, "adapt_model", adapt_model)


def test_what_noise_falls_on_is_rank_times_out(run):
    b_alone_is_released(run)
    assert bool(model(run)[f"model/{B}"].any())


BESIDE = (*LORA, "model.name=mlp", "model.hidden=[5]", "model.lora.trained=['3']")


def test_noise_that_clients_share_is_for_what_is_sent_and_not_for_the_model():
    masks = ("secure.protocol=masks", "secure.simulate=arithmetic", "privacy.mechanism=skellam")
    config = small(*BESIDE, *masks)
    setup = prepare(config)
    sent, whole = 5 * RANK + 5 * OUT + OUT, setup.network.without_adapters
    assert setup.network.shapes.length == sent
    assert whole == 5 * FEATURES + 5 + 5 * OUT + OUT
    assert setup.plan.event == plan(config, length=sent).event != plan(config, length=whole).event


def test_a_row_is_clipped_over_adapters_and_what_is_trained_beside_them():
    """Each number by itself, and all together, however far training moved them."""
    setup = prepare(small(*BESIDE))
    algorithm, length = setup.algorithm, setup.network.shapes.length
    ids = np.arange(12)
    cohort = Cohort(1, ids, 4.0, algorithm.witness(1))
    world = shared_world(setup, None, None, SINGLE_PROCESS)
    updates = ClientUpdates(algorithm, world, setup.initial_state(), cohort)
    layout = algorithm.wire(algorithm.objective.layout(length))
    for rows in (*(9.0 * torch.eye(length)).split(12), torch.full((12, length), 9.0)):
        sent = updates.bounded(ids[: len(rows)], rows, layout, 0, algorithm.mechanism.init())
        assert sent.bound == 0.4
        assert bool((sent.rows.double().norm(dim=1) <= 0.4).all())


def test_an_a_that_is_trained_though_frozen_is_noticed(tmp_path, monkeypatch):
    trains_a_too(monkeypatch)
    trained(tmp_path / "run", *LORA, "run.rounds=2")
    with pytest.raises(AssertionError):
        b_alone_is_released(tmp_path / "run")


def test_a_run_goes_on_to_the_same_model(run, tmp_path):
    trained(tmp_path / "short", *LORA, "run.rounds=3")
    resume(tmp_path / "short", lambda stored: stored.with_run(rounds=7))
    for name, tensor in model(run).items():
        assert torch.equal(tensor, model(tmp_path / "short")[name])
    with pytest.raises(Refused, match=r"model\.lora was .*'rank': 2.* and is now .*'rank': 1"):
        resume(run, lambda _: small(*LORA, "model.lora.rank=1"))


def test_files_and_python_give_the_merged_model(run, tmp_path):
    """An export, adapters with the weights beside them, and `Run.model` agree."""
    tensors = {name.removeprefix("model/"): t for name, t in model(run).items()}
    constants = load_file(run / "constants.safetensors")
    tensors |= {name.removeprefix("model/"): t for name, t in constants.items()}
    merged = with_changes({name: t for name, t in tensors.items() if name.startswith("1.")})
    assert bool(merged["1.weight"].any())
    made = export(run, tmp_path / "whole.safetensors")
    assert made.difference < 1e-6
    stored = load_file(made.to)
    assert stored.keys() == merged.keys() == {"1.weight", "1.bias"}
    torch.testing.assert_close(stored["1.weight"], merged["1.weight"])
    alone = privfed.export(run, tmp_path / "alone.safetensors", adapters=True)
    assert load_file(tmp_path / "alone.safetensors").keys() == {n for n in tensors if is_factor(n)}
    assert "without the weights that they are added to" in str(alone)
    net = privfed.load(run).model
    assert {name for name, p in net.named_parameters() if p.requires_grad} == {"1.weight"}
    torch.testing.assert_close(net.state_dict()["1.weight"], merged["1.weight"])


def test_another_run_starts_from_the_merged_model(run, tmp_path):
    """And may adapt it again."""
    whole = load_file(export(run, tmp_path / "whole.safetensors").to)["1.weight"]
    start = (f"model.init={run}", f"privacy.prior=['{run}']", "run.rounds=1", *SEEDED)
    start = (*start, "server.lr=0.0")
    trained(tmp_path / "plain", *start)
    torch.testing.assert_close(model(tmp_path / "plain")["model/1.weight"], whole)
    trained(tmp_path / "again", *start, *LORA)
    constants = load_file(tmp_path / "again/constants.safetensors")
    torch.testing.assert_close(constants["model/1.weight"], whole)


def test_exports_that_hold_no_adapters_are_refused(run, tmp_path):
    with pytest.raises(Refused, match=r"adapters are weights by name; expected \.safetensors"):
        export(run, tmp_path / "a.pt2", adapters=True)
    trained(tmp_path / "plain", "run.rounds=1")
    with pytest.raises(Refused, match="the run adapted no weight by a low rank"):
        export(tmp_path / "plain", tmp_path / "a.safetensors", adapters=True)
    assert not [*tmp_path.glob("a.*")]


def test_adapters_that_another_program_would_read_otherwise_are_refused(run, tmp_path, monkeypatch):
    def write(adapters, exportable):
        doubled = {name: 2 * tensor for name, tensor in adapters.tensors.items()}
        return pack(doubled, exportable.facts)

    monkeypatch.setattr(Adapters, "write", write)
    with pytest.raises(Refused, match="other predictions than the run"):
        export(run, tmp_path / "alone.safetensors", adapters=True)
    assert not (tmp_path / "alone.safetensors").exists()


STAYING = {
    "a head": ("3*", {"1.weight_lora_B"}, "18 parameters of this model (3.weight, 3.bias)"),
    "the factors": ("*_lora_B", {"3.weight", "3.bias"}, "10 parameters of this model"),
}


@pytest.mark.parametrize("case", STAYING)
def test_a_part_may_stay_with_clients(case, tmp_path):
    """What is adapted and what is trained beside it: of either, clients may keep their own."""
    pattern, sent, lacks = STAYING[case]
    trained(
        tmp_path / "run", *LORA, "data.setting=cross_silo", "model.name=mlp", "model.hidden=[5]",
        "model.lora.trained=['3']", f"model.local=['{pattern}']", "privacy.mechanism=none",
        "data.size_min=30", "client.epochs=4", "client.lr=0.3",
    )  # fmt: skip
    tensors = {name for name in model(tmp_path / "run") if name.startswith("model/")}
    assert tensors == {f"model/{name}" for name in sent}
    scores = score_kept_models(tmp_path / "run").to_json()
    assert scores["after"]["mean"] > scores["before"]["mean"] + 0.02
    net = privfed.load(tmp_path / "run").model
    trainable = {name for name, p in net.named_parameters() if p.requires_grad}
    assert trainable == {name.removesuffix("_lora_B") for name in sent}
    exported = export(tmp_path / "run", tmp_path / "whole.safetensors")
    assert lacks in exported.facts["lacks"]
    constants = load_file(tmp_path / "run/constants.safetensors")
    whole, start = load_file(exported.to)["1.weight"], constants["model/1.weight"]
    assert torch.equal(whole, start) == ("1.weight_lora_B" not in sent)


def test_check_says_what_is_trained_and_what_is_doubtful(tmp_path):
    text = checked(*LORA)
    assert (
        "rank 2, B alone (A is fixed as initialised): 6 numbers are trained and sent "
        "instead of the 21 of" in text
    )
    assert "24 bytes instead of 84 bytes per client, 3.5 times fewer" in text
    assert "the adapted weights are not pretrained" in text
    assert "products of noise on both" not in text
    both = checked(*LORA, "model.lora.freeze_a=false")
    assert "rank 2, A and B: 18 numbers" in both
    assert "the product of A and B contains products of noise on both" in both
    assert "adapters" not in checked()


def test_keys_of_the_table_are_set_varied_and_refused_by_name(tmp_path):
    assert small(*LORA, "model.lora.alpha=4").start.lora.scale == 2.0
    assert small(*LORA).start.lora.scale == 1.0
    assert "lora" not in small().values()["model"]
    for key, message in (
        ("model.lora.ranks=3", r"unknown key 'ranks' in \[model\.lora\].*did you mean 'rank'"),
        ("model.lora.rank=0", "model.lora.rank is 0; expected a number of at least 1"),
        ("model.lora.alpha=-1", "model.lora.alpha is -1"),
        ("model.lora=3", "model.lora is 3; expected a table of keys and values"),
        ("model.arguments.lora.rank=3", "unknown section 'model.arguments.lora'"),
    ):
        with pytest.raises(Refused, match=message):
            small(*LORA, key)
    (tmp_path / "run.toml").write_text("format = 1\n[model]\nlora = 3\n")
    with pytest.raises(Refused, match=r"model\.lora\.rank is missing"):
        load(tmp_path / "run.toml", ["model.lora.alpha=3"])
    grid = Grid(grid={"model.lora.rank": [1, 2], "model.lora.targets": [["1"]]})
    expanded = cells(tmp_path / "grid.toml", grid)
    assert [cell.config.start.lora.rank for cell in expanded] == [1, 2]
