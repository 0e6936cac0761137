"""A run as an object: its records, what goes on with it, and across processes."""

import abc
import copy
import inspect
import io
import json
import pickle
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
import typing
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from commands import run as command
from lanes import every_case
from patients import DECLARED, SEEDED, SMALL, net, patients
from small import same_run, small
from torch import nn

import privfed
from accounting.guarantee import guarantee, large_delta
from accounting.ledger import Ledger
from privfed.client.objectives.fedprox import FedProx
from privfed.core.own_code import sources_digest
from privfed.core.streams import drawing_alone
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian

NOISED = {"cohort": {"size": 20}, "rounds": 4, "privacy": {"noise_multiplier": 1.0}}
"""Arguments of `SMALL`, without a budget that noise has to be solved for."""
FRAME, PUBLIC = patients(60), patients(20, seed=1)


def population(frame=FRAME, **changes):
    return privfed.Table(frame, **{"test": PUBLIC, **DECLARED, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("runs") / "a b"
    return privfed.train(population(), model=net(), out=out, **SMALL)


def test_the_guarantee_is_the_audits(run):
    audited = json.loads(command("audit", run.path, "--json").stdout)
    bound = run.guarantee
    assert (bound.epsilon, bound.delta) == (audited["epsilon"], 1e-3)
    assert bound.sentence == audited["meaning"]
    assert (bound.unit, bound.relation, bound.rounds) == ("client", "add/remove", 4)
    assert "8.0000 at δ = 0.001" in str(bound)
    assert bound.sentence in str(bound)
    assert "<table>" in bound._repr_html_()
    assert dict(run.audit())["epsilon"] == bound.epsilon
    assert "<pre" in run.audit()._repr_html_()


@pytest.mark.parametrize(("delta", "shown"), [(0.5, "0.5"), (1 / 60, "0.0166667")])
def test_a_delta_of_at_least_one_over_clients_is_warned_of_and_stays_stated(delta, shown, tmp_path):
    large = {**NOISED, "delta": delta}
    why = f"δ = {shown} is not below 1 / clients (1/60)"
    with pytest.warns(UserWarning, match=re.escape(why)) as warned:
        run = privfed.train(population(), model="mlp", out=tmp_path / "run", **large)
    assert warned[0].filename == __file__
    assert why in run.guarantee.sentence
    assert why in " ".join(str(run.guarantee).split())
    assert why in run.summary["warning"]
    assert why in run.audit()["meaning"]
    assert why in " ".join(str(run.audit()).split())
    assert why in privfed.check(population(), model="mlp", **large)["warning"]
    with pytest.warns(UserWarning, match=re.escape(why)) as warned:
        run.resume(rounds=5)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("delta", "keys"),
    [
        (1 / 61, {}),
        (0.5, {"privacy": {"mechanism": "none"}}),  # nothing is promised
    ],
)
def test_no_other_delta_is_warned_of(delta, keys, tmp_path):
    run = privfed.train(population(), model="mlp", out=tmp_path / "run",
                        **{**NOISED, "delta": delta, **keys})  # fmt: skip
    assert "warning" not in run.summary
    assert "1 / clients" not in run.guarantee.sentence


def test_one_over_clients_is_too_large_whatever_its_rounding():
    assert all(large_delta(1 / n, n) for n in range(1, 200))
    assert not any(large_delta(1 / (n + 1), n) for n in range(200))


def pixels(count, top, shape=(2, 2)):
    """A pair of images with values from 0 to `top`, and labels."""
    rng = np.random.default_rng(top)
    return rng.integers(0, top + 1, (count, *shape)).astype(np.float32), rng.integers(0, 3, count)


def images(top, bounds, test):
    people = {f"c{n}": pixels(3, top) for n in range(60)}
    return privfed.Arrays(people, shape=(2, 2), bounds=bounds, clients=60, classes=3, test=test)


def test_public_inputs_beyond_the_declared_bounds_are_warned_of_with_the_bounds(tmp_path):
    public = pixels(100, 255)
    share = float((public[0] > 1).mean())
    why = (
        f"{share:.0%} of the numbers 'x' in the public test set are outside their declared bounds "
        f"[0, 1] and are clipped; declare bounds=(0, {public[0].max():g})"
    )
    with pytest.warns(UserWarning, match=re.escape(why)) as warned:
        checked = privfed.check(images(255, (0, 1), public), **NOISED)
    assert warned[0].filename == __file__
    assert checked["warning"] == why
    assert why in " ".join(str(checked).split())
    with pytest.warns(UserWarning, match=re.escape(why)) as warned:
        run = privfed.train(images(255, (0, 1), public), out=tmp_path / "run", **NOISED)
    assert warned[0].filename == __file__
    assert run.summary["warning"] == why
    privfed.check(images(255, (0, 255), public), **NOISED)
    privfed.check(images(255, (0, 1), pixels(100, 1)), **NOISED)  # no client's number is compared


@every_case("holdout", ["clients", "examples"])
def test_bounds_of_private_tables_are_never_compared(holdout):
    declared = {**DECLARED, "features": {"age": (18, 30), "bmi": (0, 25)}}
    seen = warnings_of(privfed.Table(FRAME, **declared), data={"holdout": holdout})
    assert "declared bounds" not in seen


def test_bounds_of_examples_that_clients_hold_out_are_never_compared():
    seen = warnings_of(images(255, (0, 1), None), data={"holdout": "examples"})
    assert "declared bounds" not in seen


def warnings_of(population, **keys):
    """Every warning of `privfed.check`, and that of its answer."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        checked = privfed.check(population, model="mlp", **keys, **NOISED)
    return " ".join([*(str(each.message) for each in seen), checked.get("warning") or ""])


def test_named_inputs_beyond_their_bounds_are_warned_of():
    rng = np.random.default_rng(0)

    def held(count):
        values = {"age": rng.uniform(0, 90, (count, 1)), "ids": rng.integers(0, 5, (count, 3))}
        return values, rng.integers(0, 3, count)

    def declared(high):
        people = {f"c{n}": held(2) for n in range(60)}
        inputs = {"age": {"shape": [1], "bounds": [0, high]}, "ids": {"shape": [3], "tokens": 5}}
        return privfed.Arrays(people, inputs=inputs, clients=60, classes=3, test=held(50))

    with pytest.warns(UserWarning, match=r"numbers 'age' in the public .* \[0, 1\] .* for 'age'$"):
        privfed.check(declared(1), model=Named, **NOISED)
    privfed.check(declared(90), model=Named, **NOISED)


class Named(nn.Module):
    """A network of two named inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(4, 3)

    def forward(self, age, ids):
        return self.head(torch.cat([age, self.table(ids).mean(1)], 1))


def test_columns_of_a_public_table_beyond_their_bounds_are_warned_of():
    narrow = {"age": (18, 30), "bmi": (0, 25)}
    with pytest.warns(UserWarning, match=r"'age' \(and of 1 other columns\) .* \[18, 30\]"):
        privfed.check(population(features=narrow), model="mlp", **NOISED)
    outlier = PUBLIC.assign(age=PUBLIC["age"].mask(PUBLIC.index == 0, 120.0))
    test = pd.concat([outlier, PUBLIC, PUBLIC])  # outliers of up to 1 % are what clipping is for
    assert "warning" not in dict(privfed.check(population(test=test), model="mlp", **NOISED))


def test_the_command_shows_the_warning_too(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    PUBLIC.to_csv(tmp_path / "public.csv", index=False)
    declared = {**DECLARED, "features": {"age": (18, 30), "bmi": (11, 42)}}
    table = privfed.Table(tmp_path / "rows.csv", test=tmp_path / "public.csv", **declared)
    with pytest.warns(UserWarning, match="'age'"):
        run = privfed.train(table, model="mlp", out=tmp_path / "run", **NOISED)
    (tmp_path / "run.toml").write_text(run.config.toml())
    shown = " ".join(command("check", tmp_path / "run.toml").stdout.split())
    assert "in the public test set are outside their declared bounds [18, 30]" in shown
    trained = command("train", tmp_path / "run.toml", "--out", tmp_path / "again").stdout
    assert " ".join(trained.split()).count("declared bounds [18, 30]") == 2, "before and after"


def test_records_are_rows_that_pandas_takes(run):
    metrics, ledger = pd.DataFrame(run.metrics), pd.DataFrame(run.ledger)
    assert list(ledger["round"]) == [1, 2, 3, 4]
    assert ledger["hash"].is_unique
    assert metrics["epsilon"].iloc[-1] == run.summary["epsilon"] == run.guarantee.epsilon
    assert repr(run) == (
        f"<privfed run {run.path}: auc {run.summary['auc']:.4g}, ε 8.0000 at δ = 0.001, 4 rounds>"
    )


def test_the_model_is_a_module_with_the_trained_weights(run):
    module = run.model
    assert isinstance(module, nn.Sequential)
    assert not module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    table = population(PUBLIC, test=None)
    keys = {k: v for k, v in table.section.items() if k not in ("source", "clients")}
    public = table.section["source"].model_validate(keys).load_inputs()
    accuracy = ((module(public.x)[:, 0] > 0) == (public.y == 1)).float().mean()
    assert float(accuracy) == pytest.approx(run.evaluate().accuracy)


def test_tables_name_a_run_from_where_one_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [privfed.train(population(), model="mlp", out=out, **SMALL) for out in ("a", "b")]
    tables = [runs[0].evaluate(), runs[0].export("model.safetensors"), privfed.audit(runs)]
    assert not [table for table in map(str, tables) if str(tmp_path) in table]


def test_a_run_without_privacy_is_shown_with_an_infinite_epsilon():
    run = privfed.train(population(), privacy={"mechanism": "none"}, rounds=2, cohort={"size": 20},
                        temporary=True)  # fmt: skip
    assert "ε ∞ at" in repr(run)


def test_without_gradients_a_run_is_used_as_with_them(run, tmp_path):
    with torch.no_grad():
        assert len(run.predict(PUBLIC)) == len(PUBLIC)
        assert privfed.train(population(), model=net(), out=tmp_path / "run", **SMALL).summary[
            "rounds"
        ]


def test_predictions_come_as_the_rows_came(run, tmp_path):
    rows = PUBLIC.drop(columns=["readmitted", "patient"]).set_index(np.arange(100, 160))
    predicted = run.predict(rows)
    assert list(predicted.index) == list(rows.index)
    assert {*predicted["prediction"]} <= {"no", "yes"}
    rows.to_csv(tmp_path / "rows.csv", index=False)
    from_file = run.predict(tmp_path / "rows.csv", out=tmp_path / "out.csv")
    assert from_file["probability_yes"].to_pylist() == pytest.approx(predicted["probability_yes"])
    assert len(pd.read_csv(tmp_path / "out.csv")) == len(rows)
    other = run.evaluate(PUBLIC)
    assert other["accuracy"] == run.evaluate()["accuracy"]
    assert "not covered" in other.note
    assert "accuracy" in str(other)


def test_what_an_answer_does_not_know_is_an_attribute_error(run):
    with pytest.raises(AttributeError, match="there is no 'acuracy'; known are"):
        run.evaluate().acuracy  # noqa: B018


def test_an_edited_ledger_proves_nothing(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "copy")
    ledger = tmp_path / "copy" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("poisson", "full"))
    with pytest.raises(privfed.Broken, match=r"ledger\.jsonl, line 1"):
        privfed.load(tmp_path / "copy").guarantee  # noqa: B018


ELSEWHERE = """
import sys, pickle, privfed
path, objects = sys.argv[1:]
run = privfed.load(path)
print(run.guarantee.epsilon, len(run.ledger), len(run.metrics) > 0, run.audit().ledger_ok)
for ask in (lambda: run.model, lambda: run.evaluate(), lambda: run.resume(rounds=5)):
    try:
        ask()
    except privfed.Refused as refused:
        print("refused:", "pass" in str(refused))
module, frame, public, declared = pickle.load(open(objects, "rb"))
run = privfed.load(path, model=module, data=privfed.Table(frame, test=public, **declared))
print(run.evaluate().accuracy)
print(len(run.resume(rounds=5, epsilon=20).ledger), run.model[0].out_features)
"""


@pytest.mark.slow
def test_another_process_reads_it_and_goes_on_with_the_objects_passed_again(tmp_path):
    run = privfed.train(population(), model=net(), out=tmp_path / "run", **SMALL)
    before = run.summary["accuracy"]
    torch.manual_seed(9)  # other weights: the checkpoint has the trained ones
    (tmp_path / "objects").write_bytes(pickle.dumps((net(), FRAME, PUBLIC, DECLARED)))
    words = [sys.executable, "-c", ELSEWHERE, str(run.path), str(tmp_path / "objects")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(run.ledger) == 5  # it went on in this very directory
    (event, *_) = Ledger.load(run.path / "ledger.jsonl").run_spending
    spent, *refused, scored, grown, _ = done.stdout.split("\n")
    assert spent == f"{guarantee({event: 4}, 1e-3).epsilon} 4 True True"
    assert refused == ["refused: True"] * 3
    assert float(scored) == before
    assert grown == "5 5"


def test_the_command_line_audits_it_and_refuses_what_it_has_no_objects_for(run):
    assert command("audit", run.path).exit_code == 0
    for words in (["train", "--resume", run.path], ["export", run.path, "--to=x.onnx"]):
        refused = command(*words)
        assert refused.exit_code == 2
        assert "was passed as an object" in refused.stderr or "were passed" in refused.stderr


class Locked(nn.Linear):
    """A network with what cannot be copied."""

    def __init__(self):
        super().__init__(4, 1)
        self.lock = threading.Lock()


class Other(nn.Module):
    """The layout of `net`, and other code."""

    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        return self.layers(x)


class Changed(Other):
    """The same name, layout and form; another forward."""

    def forward(self, x):
        return -self.layers(x)


Changed.__qualname__ = Other.__qualname__
Changed.__name__ = Other.__name__


def test_other_objects_than_those_it_began_with_are_refused(tmp_path):
    run = privfed.train(population(), model=Other(), out=tmp_path / "run", **SMALL)
    for module, what in ((net(7), "layout"), (net(), "layout"), (Changed(), "code")):
        with pytest.raises(privfed.Refused, match=f"another {what} than at the start"):
            privfed.load(run.path, model=module, data=population())
    one_less = FRAME.drop(index=0)
    moved = FRAME.assign(age=FRAME["age"].where(FRAME.index != 7, 30.0))
    for frame in (one_less, moved):
        with pytest.raises(privfed.Refused, match="not those with which the run began"):
            privfed.load(run.path, model=Other(), data=population(frame))
    with pytest.raises(privfed.Refused, match="population is a DataFrame without a declaration"):
        privfed.load(run.path, data=FRAME)
    with pytest.raises(privfed.Refused, match=r"server.lr names no part; expected one of data"):
        privfed.load(run.path, server={"lr": 3})
    with pytest.raises(privfed.Refused, match="server is 3"):
        privfed.load(run.path, server=3)
    assert privfed.load(run.path, model=Other(), data=population()).config.data.clients == 60
    (run.path / "private" / "population").unlink()
    with pytest.raises(privfed.Refused, match="its private/, which identifies them, is missing"):
        privfed.load(run.path, model=Other(), data=population()).resume(rounds=5)


def test_what_says_who_the_people_are_is_secret_and_keyed(run, tmp_path):
    secret = run.path / "private" / "population"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    twin = privfed.train(population(), model=net(), out=tmp_path / "twin", **SMALL)
    ours, theirs = (r.path.joinpath("private/population").read_text().split() for r in (run, twin))
    assert {*ours}.isdisjoint(theirs)  # the same people: the digest alone tells nobody
    public = [
        path for path in run.path.rglob("*") if path.is_file() and "private" not in path.parts
    ]
    for path in public:
        content = path.read_bytes()
        assert not any(word.encode() in content for word in ours), path
        assert b"0-17" not in content, path  # a patient's name


def test_the_weights_of_a_module_are_a_public_start(run):
    terms = Ledger.load(run.path / "ledger.jsonl").terms
    assert terms["lineage"] == {"runs": [], "unknown": True}
    assert terms["start"]
    assert "does not cover what the starting model (" in run.guarantee.sentence
    assert f"SHA-256 {terms['start'][:16]}" in command("audit", run.path).stdout


def carried(module, how):
    if how == "itself":
        return module
    if how == "deepcopy":
        return copy.deepcopy(module)
    if how == "inside another":
        return nn.Sequential(module)
    if how == "pickle":
        return pickle.loads(pickle.dumps(module))
    if how == "torch.save":
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=False)
    fresh = net()
    if how == "state dict":
        fresh.load_state_dict(module.state_dict())
    elif how == "one layer":
        fresh[0].load_state_dict(module[0].state_dict())
    elif how == "fine-tuned":
        fresh = module
        with torch.no_grad():
            fresh[0].weight += 1
    return fresh


HOW = ["itself", "deepcopy", "inside another", "pickle", "torch.save", "state dict", "one layer",
       "fine-tuned"]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_a_start_that_a_run_trained_on_these_people_has_to_be_counted(run, how, tmp_path):
    module = carried(run.model, how)
    with pytest.raises(privfed.Refused) as refused:
        privfed.train(population(), model=module, out=tmp_path / "new", **SMALL)
    assert f'privacy.prior = ["{run.path}"]' in str(refused.value)
    assert not (tmp_path / "new").exists()
    counted = privfed.check(population(), model=module, rounds=1, cohort={"size": 20},
                            privacy={"prior": [run.path], "noise_multiplier": 3})  # fmt: skip
    assert counted.prior == [str(run.path)]


def test_others_start_freely(run, tmp_path):
    module = run.model
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    fresh = net()
    fresh.load_state_dict(module.state_dict())  # constants: nobody's
    assert privfed.check(population(), model=fresh, **SMALL).epsilon <= 8
    others = patients(60, seed=4).rename(columns={"patient": "case"})
    stranger = population(
        others, client="case", test=patients(9, seed=5).rename(columns={"patient": "case"})
    )
    assert privfed.check(stranger, model=net(), **SMALL).epsilon <= 8


def test_a_run_that_began_afresh_and_is_counted_leaves_nothing_uncovered(tmp_path):
    first = privfed.train(population(), model="mlp", out=tmp_path / "first", **SMALL)
    module = first.model
    prior = {"prior": [first.path], "noise_multiplier": 1.0, "delta": 1e-3}
    second = privfed.train(population(), model=module, rounds=2, cohort={"size": 20}, privacy=prior,
                           out=tmp_path / "second")  # fmt: skip
    assert "starting model" not in second.guarantee.sentence
    assert second.guarantee.epsilon > first.guarantee.epsilon
    with torch.no_grad():
        module[1].weight += 1  # whoever did that may have used anything
    third = privfed.check(population(), model=module, rounds=2, cohort={"size": 20}, privacy=prior)
    assert third.uncovered


def test_a_public_backbone_is_not_taken_for_a_runs(tmp_path):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(5)
            self.backbone, self.head = nn.Linear(4, 6), nn.Linear(6, 1)
            with torch.no_grad():
                self.backbone.weight.copy_(torch.randn(6, 4, generator=generator))

        def forward(self, x):
            return self.head(self.backbone(x).tanh())

    model = {"name": Frozen(), "frozen": ["backbone"]}
    run = privfed.train(population(), model=model, out=tmp_path / "run", **SMALL)
    assert torch.equal(run.model.backbone.weight, Frozen().backbone.weight)
    assert privfed.check(population(), model={"name": Frozen(), "frozen": ["backbone"]}, **SMALL)


def test_interrupted_it_says_how_to_go_on_and_goes_on_as_if_never_stopped(tmp_path):
    class Interrupts:
        def before(self, *_): ...
        def choosing(self, *_): ...
        def aborted(self, *_): ...
        def after(self, record): ...
        def after_round(self, round):
            if round == 2:
                raise KeyboardInterrupt

    uncut = privfed.train(population(), model="mlp", out=tmp_path / "uncut", **SMALL, **SEEDED)
    watched = {"out": tmp_path / "cut", "observers": [Interrupts()]}
    with pytest.raises(KeyboardInterrupt) as stopped:
        privfed.train(population(), model="mlp", **watched, **SMALL, **SEEDED)
    assert "privfed.load(" in stopped.value.__notes__[0]
    cut = privfed.load(tmp_path / "cut", data=population()).resume()
    for name, tensor in uncut.model.state_dict().items():
        assert torch.equal(tensor, cut.model.state_dict()[name])
    assert repr(privfed.load(tmp_path / "cut")).startswith(f"<privfed run {tmp_path / 'cut'}: auc")


def test_torchs_threads_are_as_before(tmp_path):
    torch.set_num_threads(2)
    try:
        privfed.train(population(), model="mlp", out=tmp_path / "run", **SMALL)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_temporary_run_is_removed_with_it():
    run = privfed.train(population(), model="mlp", temporary=True, **SMALL)
    path = run.path
    assert run.guarantee.epsilon <= 8
    del run
    assert not path.exists()
    with pytest.raises(privfed.Refused, match="out and temporary are both given"):
        privfed.train(temporary=True, out="runs/x")


def test_what_cannot_be_sent_to_other_processes_is_refused(monkeypatch):
    with pytest.raises(privfed.Refused, match=r"passed \(model, source\) cannot"):
        privfed.train(population(), model=net(), run={"workers": 2})
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(privfed.Refused, match="can start only the command line"):
        privfed.train()


def test_runs_are_audited_together(run, tmp_path):
    prior = {"prior": [run.path], "noise_multiplier": 1.0, "delta": 1e-3}
    second = privfed.train(population(), model="mlp", rounds=2, cohort={"size": 20}, privacy=prior,
                           out=tmp_path / "second")  # fmt: skip
    together = privfed.audit([run.path, second.path])
    assert together.epsilon == pytest.approx(second.guarantee.epsilon)
    with pytest.raises(privfed.Refused, match="head is for a single run"):
        privfed.audit([run.path, second.path], head="00")
    assert privfed.audit(second.path, accountant="rdp").accountant == "rdp"
    exported = second.export(tmp_path / "model.safetensors")
    assert exported.checked > 0


class Silent(CentralGaussian):
    """It would release sums as they are."""


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "mlp"
    return privfed.train(population(), model="mlp", out=out, **SMALL)


@every_case(
    ("swapped", "expected"),
    [
        ({"privacy": {"mechanism": Silent}}, "privacy.mechanism is 'gaussian' in this run"),
        ({"cohort": {"sampler": "fixed_size"}}, "a run already knows its parts by name"),
        ({"client": {"objective": FedProx}}, "client.objective is 'sgd' in this run"),
        ({"privacy": {"mechanism": CentralGaussian(clip=77.0)}}, "was started with other keys"),
        ({"model": nn.Linear(4, 1)}, "model.name is 'mlp' in this run"),
    ],
)
def test_a_run_goes_on_with_its_own_parts_alone(mlp, swapped, expected):
    with pytest.raises(privfed.Refused, match=expected):
        privfed.load(mlp.path, **swapped)


def test_a_part_whose_code_changed_is_refused(tmp_path, monkeypatch):
    class Mine(privfed.ServerOptimizer):
        def init(self, params):
            return {}

        def step(self, params, delta, state):
            return params + self.lr * delta, state

    source, text = inspect.getsource, {"now": "class Mine: step = 1"}
    monkeypatch.setattr(inspect, "getsource", lambda o: text["now"] if o is Mine else source(o))
    run = privfed.train(rounds=2, server={"optimizer": Mine(lr=0.5)}, out=tmp_path / "run")
    assert "optimizer" in Ledger.load(run.path / "ledger.jsonl").terms["code"]
    assert privfed.load(run.path, server={"optimizer": Mine}).config.optimizer.lr == 0.5
    text["now"] = "class Mine: step = 2"
    with pytest.raises(privfed.Refused, match="the code of the optimizer that was passed differs"):
        privfed.load(run.path, server={"optimizer": Mine})


def test_a_function_cannot_hide_a_trained_start(run, tmp_path):
    trained = run.model
    for build in (lambda: trained, lambda: copy.deepcopy(trained)):
        with pytest.raises(privfed.Refused, match="weights that a run of privfed trained"):
            privfed.train(population(), model=build, out=tmp_path / "new", **SMALL)


def test_a_run_stays_itself_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = privfed.train(population(), model="mlp", out="run", **SMALL)
    assert repr(run).startswith("<privfed run run: ")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.guarantee.epsilon == run.summary["epsilon"]
    assert pickle.loads(pickle.dumps(run)).path == run.path == tmp_path / "run"
    assert privfed.audit([run]).epsilon == run.guarantee.epsilon
    assert str(tmp_path) not in sys.path


def test_a_run_without_noise_is_shown(tmp_path):
    sizes = {"rounds": 2, "cohort": {"size": 20}, "privacy": {"mechanism": "none"}}
    run = privfed.train(population(), model="mlp", out=tmp_path / "run", **sizes)
    assert run.summary["epsilon"] == run.metrics[-1]["epsilon"] == float("inf")
    assert "ε ∞" in repr(run)
    assert "nothing is promised" in run.guarantee.sentence


def test_scores_are_of_the_test_set_that_the_run_has(tmp_path):
    public = PUBLIC.copy()
    run = privfed.train(population(test=public), model="mlp", out=tmp_path / "run", **SMALL)
    public["readmitted"] = public["readmitted"].map({"yes": "no", "no": "yes"})
    with pytest.raises(privfed.Refused, match="not those with which the run began"):
        run.evaluate()


def test_people_of_a_file_are_not_passed_again_and_may_come_as_arrays(tmp_path):
    FRAME.to_csv(tmp_path / "p.csv", index=False)
    PUBLIC.to_csv(tmp_path / "t.csv", index=False)
    table = privfed.Table(tmp_path / "p.csv", test=tmp_path / "t.csv", **DECLARED)
    run = privfed.train(table, out=tmp_path / "run", **SMALL)
    with pytest.raises(privfed.Refused, match="a run finds such a file by itself"):
        privfed.load(run.path, data=table)
    with pytest.raises(privfed.Refused, match=r"data.source is 'table' in this run"):
        privfed.load(run.path, data=population())
    arrays = {name: (np.zeros((1, 4)), ["no"]) for name in "abcdefghij"}
    declared = {"shape": (4,), "bounds": (0, 1), "labels": ["no", "yes"], "clients": 10}
    stranger = privfed.Arrays(arrays, holdout="clients", **declared)
    with pytest.raises(privfed.Refused, match="on one that may share clients with it"):
        privfed.check(stranger, model=run.model, cohort={"size": 3}, delta=1e-2)


def test_rows_of_those_who_train_are_no_public_test_set():
    for rows in (FRAME.drop(columns="patient"), FRAME.drop(columns="patient").iloc[::3]):
        with pytest.raises(
            privfed.Refused, match="most rows of the test set are also rows of training clients"
        ):
            privfed.check(population(test=rows), **SMALL)
    assert privfed.check(population(test=PUBLIC.drop(columns="patient")), **SMALL)
    declared = privfed.declare(FRAME, label="readmitted", client="patient")
    with pytest.raises(privfed.Refused, match="rows is the sample itself"):
        declared.table(FRAME, clients=60, holdout="clients")


@every_case(
    ("module", "expected"),
    [
        (nn.Linear(4, 1, device="meta"), 'on the device "meta"'),
        (net().bfloat16(), r"bfloat16; call .float"),
        (Locked(), "cannot be copied"),
    ],
)
def test_networks_that_nobody_can_train_are_refused(module, expected):
    with pytest.raises(privfed.Refused, match=expected):
        privfed.check(population(), model=module, **SMALL)


@every_case(
    ("ask", "expected"),
    [
        (lambda: privfed.load(3), "path is 3; expected a path"),
        (lambda: privfed.train(out=3), "out is 3; expected a path"),
        (lambda: privfed.audit([]), "no run is given"),
        (lambda: privfed.train(observers=[print]), "has no method choosing, before"),
        (lambda: privfed.calibrate(delta=1e-5, rounds=9, epsilon="2"), "epsilon is '2'"),
        (lambda: privfed.calibrate(delta=1e-5, rounds=1.5, epsilon=2), r"rounds is 1\.5"),
    ],
)
def test_arguments_of_another_kind_are_refused(ask, expected):
    with pytest.raises(privfed.Refused, match=expected):
        ask()


def fixed():
    return nn.Linear(4, 2)


def asked(features, width):
    return nn.Linear(*features, width)


def loss_in_plan(model, people=None, **keys):
    """The loss that the plan of a run shows."""
    shown = privfed.check(people or population(), model=model, **SMALL, **keys)
    (row,) = [line for line in str(shown).splitlines() if line.startswith(" loss ")]
    return row.split()[1]


@every_case(
    ("model", "loss"),
    [
        (nn.Linear(4, 2), "cross_entropy"),
        (nn.Linear(4, 1), "binary_cross_entropy"),
        (fixed, "cross_entropy"),
        (asked, "binary_cross_entropy"),
        (nn.LazyLinear(2), "cross_entropy"),
        (nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(1, 3), nn.Linear(3, 2)), "cross_entropy"),
        ({"name": nn.Linear(4, 1), "loss": "binary_cross_entropy"}, "binary_cross_entropy"),
        ("mlp", "binary_cross_entropy"),
    ],
)
def test_the_loss_for_two_classes_follows_from_the_outputs_and_is_shown(model, loss):
    assert loss_in_plan(model) == loss


def test_the_loss_of_images_of_two_classes_follows_from_the_outputs():
    people = {f"c{n}": (np.zeros((3, 2, 2)), np.array([0, 1, 1])) for n in range(60)}
    declared = {"shape": (2, 2), "bounds": (0, 1), "clients": 60, "classes": 2}
    arrays = privfed.Arrays(people, test=people["c0"], holdout="examples", **declared)
    assert loss_in_plan(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), arrays) == "cross_entropy"
    one = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    assert loss_in_plan(one, arrays) == "binary_cross_entropy"


@every_case(
    ("model", "message"),
    [
        (
            nn.Linear(4, 3),
            r"3 outputs, but .*\"binary_cross_entropy\"\) or two .*\"cross_entropy\"",
        ),
        ({"name": nn.Linear(4, 2), "loss": "binary_cross_entropy"}, "takes one for each"),
        ({"name": nn.Linear(4, 1), "loss": "cross_entropy"}, "takes one for both"),
    ],
)
def test_other_outputs_for_two_classes_are_refused_with_the_losses_that_exist(model, message):
    with pytest.raises(privfed.Refused, match=message):
        privfed.check(population(), model=model, **SMALL)


def test_the_loss_of_an_inferred_run_is_stored_and_resumed(tmp_path):
    run = privfed.train(population(), model=fixed(), out=tmp_path / "run", **NOISED)
    assert run.config.names["loss"] == "cross_entropy"
    assert run.resume(rounds=5).config.names["loss"] == "cross_entropy"
    assert "accuracy" in run.summary


def test_a_run_says_that_it_stopped_at_its_budget_and_whose_epsilon_it_is(tmp_path):
    run = privfed.train(rounds=4, out=tmp_path / "run").resume(rounds=9, epsilon=4)
    assert "stopped at its budget>" in repr(run)
    assert "one client (partition 'iid'), add/remove" in str(run.guarantee)


def test_people_and_declarations_show_what_they_are():
    assert repr(population()) == "<Table of 60 clients declared: age, bmi, sex>"
    declared = privfed.declare(PUBLIC, label="readmitted", client="patient")
    assert "population" not in str(declared)
    assert declared.table(FRAME, clients=60).section["holdout"] == "clients"


def test_only_a_users_own_sources_are_digested():
    assert sources_digest(nn.Linear.__mro__) == ""
    assert sources_digest([typing.Generic, abc.ABC, privfed.Table]) == ""  # a version names these
    assert sources_digest([Other]) == sources_digest([Other, typing.Generic])
    assert sources_digest(Other.__mro__) != sources_digest(Changed.__mro__)


def test_a_lambda_is_identified_by_itself_and_not_by_its_statement():
    first, third = lambda t: 0.5**t, lambda: 0
    second = [lambda t: 0.5**t][0]
    assert sources_digest([first]) == sources_digest([second]) != sources_digest([third])
    assert sources_digest([first]) != sources_digest([lambda t: 0.6**t])


def halved(round):
    return 0.5**round


def test_a_schedule_is_a_function_of_the_round_and_passed_again_to_resume(tmp_path):
    def called(round):
        rounds.append(round)
        return np.float32(0.5**round)

    rounds = []
    keys = {"server": {"schedule": halved}, "epsilon": 8, **SEEDED}
    run = privfed.train(rounds=3, out=tmp_path / "a", client={"schedule": called}, **keys)
    assert {*rounds} == {1, 2, 3}
    assert run.config.names["server_schedule"] == f"{__name__}:halved"
    again = privfed.train(
        rounds=3, out=tmp_path / "b", client={"schedule": lambda t: 0.5**t}, **keys
    )
    assert again.metrics == run.metrics
    with pytest.raises(privfed.Refused, match="was passed in Python: pass it again"):
        privfed.load(again.path).resume(rounds=4)
    with pytest.raises(
        privfed.Refused, match="code of the client_schedule that was passed differs"
    ):
        privfed.load(again.path, client={"schedule": lambda t: 0.4**t})
    resumed = privfed.load(again.path, client={"schedule": lambda t: 0.5**t})
    assert resumed.resume(rounds=4, epsilon=20).summary["charges"] == 4


@every_case(
    "schedule, message",
    [
        (
            lambda: 1,
            r"failed in round 1: TypeError: .*\(\) takes 0 .*called with the round, from 1",
        ),
        (lambda t: -1, "returns -1 in round 1; expected a factor"),
        (lambda t: None if t == 3 else 1, "returns None in round 3; expected a factor"),
        (lambda t: 3 - t, "client.schedule has a learning rate of 0 in the last round, 3"),
        (3, "client.schedule is 3; expected a name"),
    ],
)
def test_a_wrong_schedule_is_refused_before_anything_is_written(tmp_path, schedule, message):
    with pytest.raises(privfed.Refused, match=message):
        privfed.train(rounds=3, out=tmp_path / "run", client={"schedule": schedule})
    assert not (tmp_path / "run").exists()


def test_runs_in_threads_are_those_of_one_thread(tmp_path):
    """Also where threads build the model of one run, by draws from torch's own generators."""
    config, ended = small("run.randomness=seeded"), {}
    privfed.train(config, out=tmp_path / "alone")

    def in_thread(number):
        run = privfed.train(config, out=tmp_path / f"{number}")
        for _ in range(3):
            run.evaluate()
        ended[number] = run.guarantee.epsilon

    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 4
    for number in ended:
        same_run(tmp_path / "alone", tmp_path / f"{number}")


def test_a_thread_draws_from_torchs_generators_alone():
    drawn = []

    def draws(seed):
        for _ in range(200):
            with drawing_alone():
                torch.manual_seed(seed)
                time.sleep(0)
                drawn.append((seed, float(torch.rand(1))))

    threads = [threading.Thread(target=draws, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*drawn}) == 3
