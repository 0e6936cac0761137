"""Arguments as a run file's keys, and parts passed as objects."""

import subprocess
import sys

import numpy as np
import pytest
import tomli_w
import torch
from commands import run as command
from lanes import every_case
from patients import DECLARED, SMALL, net, patients
from small import small
from toys import FirstRow, Signs

import privfed
from privfed.api.arguments import other_rows


def test_every_key_is_an_argument_by_its_section():
    checked = privfed.check(
        privacy={"clip": np.float64(0.3)},
        client={"lr": 0.25, "privacy": {"mechanism": "none"}},
        server={"optimizer": "fedadam", "lr": 0.01},
        model={"name": "mlp", "hidden": (8,)},
        rounds=np.int64(5),
        epsilon=3,
    )
    config = checked.plan.config
    assert config.mechanism.clip == 0.3
    assert config.client.lr == 0.25
    assert config.names["optimizer"] == "fedadam"
    assert config.model.hidden == [8]
    assert (config.run.rounds, config.privacy.epsilon) == (5, 3)
    again = privfed.check(config)
    assert again.plan.config.values() == config.values()


def test_a_run_file_is_read_and_changed(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[server]\noptimizer = "fedadam"\nbeta1 = 0.5\n[run]\nrounds = 3\n')
    config = privfed.check(path, server={"optimizer": "fedavg"}).plan.config
    assert (config.names["optimizer"], config.run.rounds) == ("fedavg", 3)  # beta1 went with it


@every_case(
    "sections",
    [
        {"privacy": {"clip": -1}},
        {"privacy": {"clp": 1}},
        {"server": {"optimizer": "fedadm"}},
        {"cohort": {"sampler": "poisson", "size": 900}},
        {"aggregation": {"rule": "median"}},
    ],
)
def test_bad_arguments_say_what_the_command_line_says(sections, tmp_path):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(sections))
    shown = command("check", tmp_path / "run.toml")
    with pytest.raises(privfed.Refused) as refused:
        privfed.check(**sections)
    assert shown.exit_code == 2
    assert shown.stderr.strip() == f"privfed: {refused.value}".strip()


@every_case(
    ("arguments", "expected"),
    [
        ({"privcy": {}}, "unknown argument 'privcy'; expected one of .*did you mean 'privacy'"),
        ({"device": "cuda"}, r"unknown argument 'device'; .* pass run=dict\(device=…\)$"),
        ({"lr": 1}, r"'lr'; .* pass client=dict\(lr=…\) or server=dict\(lr=…\)$"),
        ({"privacy": 4}, "privacy is 4; expected its keys"),
        ({"client": {"privacy": 4}}, "client.privacy is 4; expected its keys"),
        ({"epsilon": 1, "privacy": {"epsilon": 2}}, "epsilon and privacy.epsilon are both given"),
        ({"server": {"optimizer": Signs(lr=1), "lr": 2}}, "server.lr is given separately"),
        ({"model": 7}, "model.name is 7; expected a name"),
        ({"server": {"optimizer": torch.nn.Linear}}, "server.optimizer is .*which is no part"),
    ],
)
def test_other_mistakes_are_refused_by_name(arguments, expected):
    with pytest.raises(privfed.Refused, match=expected):
        privfed.check(**arguments)


class Here(privfed.ServerOptimizer):
    """A part of a class that no other process can import: it has a place in a function's test."""

    beta: float = 0.5

    def init(self, params):
        return {}

    def step(self, params, delta, state):
        return params + self.lr * self.beta * delta, state


def test_an_instance_of_a_part_brings_its_keys(tmp_path):
    run = privfed.train(rounds=2, server={"optimizer": Signs(lr=0.25)}, out=tmp_path / "run")
    assert run.config.names["optimizer"] == "toys:Signs"
    assert run.config.optimizer == Signs(lr=0.25)
    assert privfed.load(tmp_path / "run").config.optimizer == Signs(lr=0.25)  # by its name
    rows = privfed.check(
        privacy={"mechanism": "none"}, aggregation={"rule": FirstRow, "byzantine": 1}
    )
    assert rows.plan.config.names["rule"] == "toys:FirstRow"


def test_a_part_that_nobody_can_import_is_passed_again(tmp_path):
    class Local(Here):
        """Within a function: `module:name` does not find it."""

    part = Local(beta=0.25, lr=0.5)
    run = privfed.train(rounds=2, server={"optimizer": part}, out=tmp_path / "run")
    assert run.config.optimizer == part
    stored = privfed.load(tmp_path / "run")
    assert stored.guarantee == run.guarantee
    assert stored.audit().epsilon == run.guarantee.epsilon
    with pytest.raises(privfed.Refused, match="cannot be imported"):
        stored.resume(rounds=3)
    on = privfed.load(tmp_path / "run", server={"optimizer": Local}).resume(rounds=3, epsilon=9)
    assert on.config.optimizer == part
    assert len(on.ledger) == 3


def test_a_part_that_leaves_out_a_declaration_is_refused():
    class Silent(privfed.Sampler):
        """It does not say how it draws."""

    with pytest.raises(privfed.Refused, match=r"not declare sample, witness; .*declares: add"):
        privfed.check(cohort={"sampler": Silent(size=5)})


class Idle(privfed.Attack):
    """An attack that overrides nothing."""


class Flipping(privfed.Attack):
    """An attack that sets what its base has as a property, and returns one value for two."""

    corrupts = True

    def corrupt(self, view, state, rng):
        return -view.byzantine


def test_an_attack_that_overrides_nothing_is_told_what_to_override():
    with pytest.raises(
        privfed.Refused, match=r"Idle', which overrides nothing; override one of: corrupt, .*poison"
    ):
        privfed.check(attack={"name": Idle, "fraction": 0.1})


class Neg(privfed.Attack):
    """An attack that corrupts rows, and does not declare it."""

    def corrupt(self, view, state, rng):
        return -view.byzantine, state


@every_case("keys", [{}, {"fraction": 0.1}])
def test_an_attack_that_declares_no_effect_is_told_what_to_declare(keys):
    keyed = {"__annotations__": {"corrupts": bool}, "corrupts": True}
    with pytest.warns(UserWarning, match="shadows an attribute"):  # a key, by its annotation
        annotated = type("Annotated", (Neg,), {"__module__": __name__, **keyed})
    undeclared = (
        "Neg', which overrides corrupt, but declares neither `poisons` nor `corrupts`; write "
        "corrupts = True in the class, without an annotation"
    )
    as_key = r"Annotated', whose corrupts is a key .* write corrupts: ClassVar\[bool\]"
    for attack, stated in ((Neg, undeclared), (annotated, as_key)):
        with pytest.raises(privfed.Refused, match=stated):
            privfed.check(attack={"name": attack, **keys})


class Short(privfed.ServerOptimizer):
    """An optimizer that returns a part of the model."""

    def init(self, params):
        return {}

    def step(self, params, delta, state):
        return (params + self.lr * delta)[:3], state


def test_an_optimizer_that_returns_another_shape_is_named(tmp_path):
    stated = r"Short\.step returns a tensor of shape \(3,\), but one of shape \(\d+,\) is expected"
    with pytest.raises(privfed.Refused, match=stated):
        privfed.train(server={"optimizer": Short()}, rounds=1, out=tmp_path / "run")


@every_case(
    ("base", "declared"),
    [("Attack", "corrupts"), ("Rule", "remembers"), ("ServerOptimizer", "plain")],
)
def test_a_property_of_a_base_may_be_set_as_a_value(base, declared):
    part = type("Mine", (getattr(privfed, base),), {declared: True})
    assert getattr(part, declared) is True
    assert declared not in part.model_fields


def step_alone(self, params, delta, state):
    return params + delta


@every_case(
    ("init", "step", "expected"),
    [
        ({}, step_alone, r"Mine.step returns a tensor of .*, but \(a tensor, a dict of"),
        (None, step_alone, "Mine.init returns None, but a dict of tensors is expected; return"),
        ({}, lambda *of: (of[1], None), r"Mine.step returns \(Tensor, NoneType\), but \(a ten"),
        ({}, lambda *of: (of[1][:3], {}), r"Mine.step returns a tensor of shape \(3,\), but one"),
    ],
)
def test_a_server_optimizer_that_returns_something_else_is_refused_by_its_hook(
    init, step, expected
):
    hooks = {"init": lambda self, params: init, "step": step}
    part = type("Mine", (privfed.ServerOptimizer,), hooks)
    with pytest.raises(privfed.Refused, match=expected):
        privfed.train(server={"optimizer": part}, rounds=1, temporary=True)


def test_an_attack_that_returns_something_else_is_refused_by_its_hook():
    with pytest.raises(privfed.Refused, match=r"Flipping\.corrupt returns a tensor of .*, but \(a"):
        privfed.train(attack={"name": Flipping, "fraction": 0.1}, rounds=1, temporary=True)


def test_a_layer_that_cannot_be_batched_is_named():
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = torch.nn.RNN(8, 2, batch_first=True), torch.nn.Linear(2, 10)

        def forward(self, x):
            return self.out(self.cell(x.view(-1, 8, 8))[0][:, -1])

    shown = " ".join(str(privfed.check(model=Recurrent(), rounds=1)).split())
    assert (
        "cannot be stacked: PyTorch's vmap has no batched form of its layer 'cell' (RNN))" in shown
    )


@every_case("rows", ["rows.csv", (np.zeros((2, 6)), np.zeros(2, int))])
def test_other_rows_of_a_source_without_files_are_refused(rows):
    with pytest.raises(privfed.Refused, match="the source 'synthetic' of this run reads no data"):
        other_rows(rows)(small())


def test_every_base_can_be_extended():
    assert issubclass(privfed.Rule, privfed.SumRule.__mro__[1])
    for base in ("Objective", "ServerOptimizer", "Rule", "Attack", "Sampler", "Mechanism"):
        part = type("Mine", (getattr(privfed, base),), {})
        assert part.model_config["frozen"]


def test_a_function_makes_a_model_afresh(tmp_path):
    def build(features, width, hidden=3):
        return net(hidden) if width == 1 else None

    population = privfed.Table(patients(60), test=patients(9, seed=1), **DECLARED)
    model = {"name": build, "arguments": {"hidden": 4}}
    run = privfed.train(population, model=model, out=tmp_path / "run", **SMALL)
    assert run.model[0].out_features == 4
    assert not run.guarantee.note
    assert "starting model" not in run.guarantee.sentence  # nothing came with it
    again = privfed.load(tmp_path / "run", model=build)
    assert torch.equal(again.model[0].weight, run.model[0].weight)


def test_calibrate_is_the_command():
    flags = ["--epsilon=2", "--delta=1e-5", "--rounds=100", "--sampling-rate=0.1"]
    flags.append("--accountant=rdp")
    shown = command("calibrate", *flags, "--json")
    solved = privfed.calibrate(
        epsilon=2, delta=1e-5, rounds=100, sampling_rate=0.1, accountant="rdp"
    )
    assert f'"noise_multiplier": {solved.noise_multiplier!r}' in shown.stdout.replace("\n", " ")
    assert "2.0000 at δ = 1e-05" in str(solved)
    large = privfed.calibrate(epsilon=2, delta=0.5, rounds=9, population=60, cohort=10,
                              accountant="rdp")  # fmt: skip
    assert "δ = 0.5 is not below 1 / clients (1/60)" in large["warning"]
    with pytest.raises(privfed.Refused, match="unknown argument 'cohrt'"):
        privfed.calibrate(epsilon=2, delta=1e-5, rounds=9, cohrt=7)
    with pytest.raises(privfed.Refused, match="unknown argument 'clients'; it is 'population'"):
        privfed.calibrate(epsilon=2, delta=1e-5, rounds=9, clients=700)
    with pytest.raises(privfed.Refused, match="unknown argument 'rate'; expected one of"):
        privfed.calibrate(epsilon=2, delta=1e-5, rounds=9, rate=0.1)
    assert "Did you mean '--population'?" in command("calibrate", "--clients", 700).stderr


@pytest.mark.slow
def test_an_experiment_of_a_script_is_the_command(tmp_path):
    script = tmp_path / "script.py"  # without a guard: a worker must not run it again
    script.write_text(
        "import privfed, sys\n"
        "print('once')\n"
        "ahead = privfed.experiment('grid.toml', dry_run=True)\n"
        "assert not list(sys.path and __import__('pathlib').Path('.').glob('*.csv'))\n"
        "done = privfed.experiment('grid.toml', jobs=2, progress=False)\n"
        "print(done.done, len(done.rows), done.rows[0]['status'], ahead['cells'] is not None)\n"
    )
    (tmp_path / "grid.toml").write_text(
        'base = "run.toml"\nseeds = [0]\n[grid]\n"privacy.epsilon" = [4.0, 8.0]\n'
    )
    (tmp_path / "run.toml").write_text(
        '[run]\nrounds = 2\n[data]\nsource = "synthetic"\nclients = 20\n[cohort]\nsize = 5\n'
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["once", "2 2 done True"]
