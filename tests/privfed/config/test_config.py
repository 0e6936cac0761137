"""Configurations: every key of the interface, every mistake with one clear message."""

import math
from typing import ClassVar

import pytest
from lanes import every_case
from pydantic import Field

from accounting.choosing.repetitions import Repetitions
from privfed.client.objective import Sgd
from privfed.config.reading import load, overridden, read_resolved
from privfed.config.resolved import Chosen, Resolved
from privfed.config.sections import SECTIONS
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.plan.plan import plan

INTERFACE = """
format = 1
[run]
rounds = 100
randomness = "secret"
seed = 0
device = "auto"
workers = 1
threads = 1
trainer = "auto"
chunk = 0
evaluate_every = 5
simulation_metrics = false
checkpoint_every = 10
[data]
source = "digits"
partition = "iid"
clients = 500
holdout = "test"
holdout_fraction = 0.2
setting = "cross_device"
[model]
name = "logistic"
init = ""
loss = "cross_entropy"
[client]
objective = "sgd"
lr = 0.1
schedule = "constant"
epochs = 1
batch_size = 10
stragglers = 0.0
[client.privacy]
mechanism = "none"
[server]
optimizer = "fedavgm"
lr = 1.0
schedule = "constant"
[cohort]
sampler = "poisson"
size = 50
dropout = 0.0
[privacy]
mechanism = "gaussian"
epsilon = 4.0
delta = 1e-4
clip = 1.0
adaptive_clip = false
accountant = "tightest"
against = "server"
prior = []
[aggregation]
rule = "mean"
before = []
weights = "auto"
[secure]
protocol = "none"
capacity = 0
minimum = 0
simulate = "messages"
[attack]
name = "none"
fraction = 0.0
selection = "once"
stage = "auto"
[audit]
canaries = 0
confidence = 0.95
"""


@pytest.fixture
def run_file(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def test_the_interfaces_own_example_is_a_run(run_file):
    config = load(run_file(INTERFACE))
    assert config.sampler.size == 50
    assert config.mechanism.clip == 1.0
    assert plan(config).guarantee.epsilon <= 4.0


@every_case(
    "overrides",
    [
        [],
        ["privacy.epsilon=inf"],
        ["privacy.mechanism=none", "model.name=mlp"],
        ["data.source=synthetic", "data.alpha=0.5"],
        ["privacy.noise_multiplier=2"],
    ],
)
def test_what_is_written_reads_back_equal(overrides):
    config = plan(load(None, overrides)).config
    assert read_resolved(config.toml()) == config


def test_what_a_plan_solved_for_reads_back_equal():
    chosen = Chosen(Repetitions(1.0, 0.1), "a" * 64)
    for solved in (Resolved(2.5), Resolved(2.5, 3, None, 4), Resolved(0.0, 0, chosen)):
        assert Resolved.read(solved.to_json()) == solved


def test_a_resolved_file_used_as_a_run_file_is_calibrated_afresh(run_file):
    path = run_file(plan(load(None)).config.toml())
    assert plan(load(path, ["privacy.epsilon=1"])).guarantee.epsilon <= 1.0
    assert 7.9 < plan(load(path, ["privacy.epsilon=8"])).guarantee.epsilon <= 8.0


def test_every_section_and_key_has_a_default():
    values = load(None).values()
    assert values.keys() == SECTIONS.keys()
    assert values["privacy"]["epsilon"] == 4.0


@every_case(
    "overrides, message",
    [
        (["server.momentm=0.5"], r"server\.momentm is not a known key.*did you mean 'momentum'"),
        (
            ["server.optimizer=fedavg", "server.momentum=0.5"],
            r"belongs to server\.optimizer = 'feda",
        ),
        (["data.concentration=0.5"], r"belongs to data\.partition = 'dirichlet'"),
        (["runn.rounds=3"], "unknown section 'runn'.*did you mean 'run'"),
        (["run.rounds=ten"], r"run\.rounds is 'ten'; expected an integer"),
        (["run.rounds=1.5"], r"run\.rounds is 1\.5"),
        (["run.rounds=true"], r"run\.rounds is True"),
        (["run.rounds=0"], r"run\.rounds is 0"),
        (["privacy.clip=-1"], r"privacy\.clip is -1; expected a number from .* to .*, or .auto.$"),
        (["privacy.delta=1"], r"privacy\.delta is 1; expected a number below 1"),
        (["privacy.delta=1.5"], r"privacy\.delta"),
        (["privacy.delta=0"], r"privacy\.delta"),
        (["privacy.epsilon=0"], r"privacy\.epsilon"),
        (["privacy.epsilon=nan"], r"privacy\.epsilon"),
        (["client.lr=inf"], r"client\.lr"),
        (["privacy.accountant=gdp"], r"privacy\.accountant"),
        (["server.optimizer=fedavgmm"], "expected one of fedadagrad, .*did you mean 'fedavgm'"),
        (["server.optimizer=3"], r"server\.optimizer is 3; expected a name"),
        (["server.optimizer=os:getcwd"], "is no part"),
        (["server.optimizer=:x"], "cannot be imported"),
        (["model.name=mlp", "model.hidden=[0]"], r"model\.hidden\.0"),
        (["server.lr=1\nfoo=3"], r"server\.lr is"),
        (["server.optimizer=no.such:Thing"], "cannot be imported"),
        (["attack.name=aile"], "did you mean 'alie'"),
        (["run.workers=0"], r"run\.workers is 0"),
        (["data.holdout=some"], "data.holdout is 'some'; expected .*'clients'"),
        (["aggregation.before=['nmm']"], r"aggregation\.before.*did you mean 'nnm'"),
        (["run.device=tpu"], r"run\.device"),
        (["data.setting=silo"], r"data\.setting"),
        (["audit.confidence=1.5"], r"audit\.confidence"),
        (["run.rounds=1000000"], r"run\.rounds"),
        (["privacy.noise_multiplier=inf"], r"privacy\.noise_multiplier"),
        (["rounds=3"], "expected section.key=value"),
        (["run.rounds"], "expected section.key=value"),
    ],
)
def test_a_mistake_is_named_with_what_was_expected(overrides, message):
    with pytest.raises(Refused, match=message):
        load(None, overrides)


def test_all_mistakes_come_in_one_message():
    with pytest.raises(Refused) as refused:
        load(None, ["run.rounds=0", "privacy.clip=-1", "server.foo=1"])
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    "text, message",
    [
        ("format = 2", "format = 2.*update privfed"),
        ("format = 'x'", "format = 'x'"),
        ("[run", "not valid TOML"),
        ("[rum]\nrounds = 1", r"unknown section \[rum\]"),
        ("run = 3", "expected a section"),
        ("[privacy]\nepsilon = 1.0\nnoise_multiplier = 1.0", "exactly one"),
    ],
)
def test_a_broken_run_file_is_refused(run_file, text, message):
    with pytest.raises(Refused, match=message):
        load(run_file(text))


def test_a_missing_or_unreadable_run_file_is_refused(tmp_path):
    with pytest.raises(Refused, match="does not exist"):
        load(tmp_path / "none.toml")
    with pytest.raises(Refused, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="cannot be read"):
        load(tmp_path / "binary.toml")


def test_setting_one_of_epsilon_and_noise_clears_the_other(run_file):
    path = run_file("[privacy]\nepsilon = 2.0")
    privacy = load(path, ["privacy.noise_multiplier=1.5"]).privacy
    assert (privacy.epsilon, privacy.noise_multiplier) == (None, 1.5)
    privacy = load(path, ["privacy.noise_multiplier=1.5", "privacy.epsilon=3"]).privacy
    assert (privacy.epsilon, privacy.noise_multiplier) == (3.0, None)


def test_naming_another_part_drops_what_only_the_former_knew(run_file):
    path = run_file('[server]\noptimizer = "fedavgm"\nmomentum = 0.5\nlr = 0.3')
    config = load(path, ["server.optimizer=fedavg"])
    assert config.values()["server"] == {"optimizer": "fedavg", "lr": 0.3, "schedule": "constant"}
    assert load(path, ["privacy.mechanism=none", "privacy.epsilon=2"]).names["mechanism"] == "none"
    with pytest.raises(Refused, match="momentum"):
        load(path, ["server.optimizer=fedavg", "server.momentum=0.5"])


def test_overrides_on_a_resolved_configuration_keep_its_noise():
    resolved = plan(load(None)).config
    again = overridden(resolved, ["run.rounds=130"])
    assert again.noise_multiplier == resolved.noise_multiplier
    assert again.run.rounds == 130


def test_the_source_chooses_the_partition_unless_told():
    assert load(None).names["partition"] == "iid"
    assert load(None, ["data.source=synthetic"]).names["partition"] == "natural"
    shuffled = load(None, ["data.source=synthetic", "data.partition=iid"])
    assert shuffled.names["partition"] == "iid"


class Remembers(Sgd):
    keeps: ClassVar[int] = 1


class Doubled(Part):
    """A server optimizer of the user's own."""

    in_client_rates: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    gain: float = Field(2.0, gt=0)

    def init(self, params):
        return {}

    def step(self, params, delta, state):
        return params + self.gain * delta, {}

    def at(self, factor):
        return self.model_copy(update={"gain": self.gain * factor})


def test_a_part_from_outside_is_module_colon_name(run_file):
    name = f"{__name__}:Doubled"
    config = load(None, [f"server.optimizer={name}", "server.gain=3.0"])
    assert config.optimizer.gain == 3.0
    assert load(run_file(config.toml())) == config
    with pytest.raises(Refused, match=r"server\.gain is -1"):
        load(None, [f"server.optimizer={name}", "server.gain=-1"])


def test_the_digest_covers_all_that_a_resume_may_not_change():
    base = load(None)
    same = load(None, ["run.rounds=999", "privacy.epsilon=9"])
    assert same.digest() == base.digest()
    for change in ("run.seed=1", "privacy.clip=0.7", "server.lr=0.1", "data.clients=501"):
        assert load(None, [change]).digest() != base.digest(), change


@every_case(
    "overrides, message",
    [
        (["cohort.size=501"], r"cohort\.size is 501, but data\.clients is 500"),
        (["aggregation.rule=median"], "needs every client's row.*use"),
        (["aggregation.weights=examples"], "number of examples is private"),
        ([f"client.objective={__name__}:Remembers"], "so the same clients have to return"),
        (
            ["privacy.mechanism=none", "aggregation.rule=median", "aggregation.weights=examples"],
            "gives all rows equal weight",
        ),
        (["privacy.epsilon=1e-9", "privacy.delta=1e-10"], "noise multiplier above"),
    ],
)
def test_a_combination_without_proof_is_refused_with_what_would_work(overrides, message):
    with pytest.raises(Refused, match=message):
        plan(load(None, overrides))


def test_plans_solve_for_noise_or_take_it():
    assert plan(load(None)).guarantee.epsilon <= 4.0
    fixed = plan(load(None, ["privacy.noise_multiplier=1.5"]))
    assert (fixed.noise_multiplier, fixed.budget) == (1.5, None)
    free = plan(load(None, ["privacy.epsilon=inf"]))
    assert free.noise_multiplier == 0.0
    assert free.guarantee.epsilon == math.inf
    off = plan(load(None, ["privacy.mechanism=none"]))
    assert (off.noise_multiplier, off.budget, off.guarantee.epsilon) == (None, None, math.inf)
    assert off.by_examples
    assert not plan(
        load(None, ["privacy.mechanism=none", "aggregation.weights=uniform"])
    ).by_examples


def test_a_cohort_larger_than_any_float_is_refused_like_any_other():
    with pytest.raises(Refused, match=r"but data\.clients is 500"):
        plan(load(None, [f"cohort.size={10**400}"]))
