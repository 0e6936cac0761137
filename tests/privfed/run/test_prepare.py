"""One way into a run: its data are loaded once and its model is built once, whatever is asked."""

import pytest
from lanes import mostly_slow
from small import SMALL, small, trained
from tables import population

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.data.sources.synthetic import Synthetic
from privfed.models.recipes import Logistic
from privfed.plan import plan as planning
from privfed.privacy_attacks.membership import attack_configuration
from privfed.privacy_attacks.subject import subject
from privfed.run.check import check
from privfed.run.prepare import plan_with_length, prepare
from privfed.run.train import resume, train
from privfed.secure.plain_sum import PlainAccumulator
from privfed.secure.summation import Aborted

PROTOCOLS = {
    "none": (),
    "masks": ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0"),
    "masks and skellam": (
        "secure.protocol=masks",
        "privacy.mechanism=skellam",
        "cohort.sampler=full",
        "cohort.size=0",
    ),
    "bfv": ("secure.protocol=bfv", "cohort.sampler=full", "cohort.size=0"),
}


@pytest.fixture
def calls(monkeypatch):
    """How often data are loaded, models built, configurations refused, and noise solved for."""
    counted = {}

    def count(owner, name):
        real = getattr(owner, name)

        def counting(*args, **kwargs):
            counted[name] = counted.get(name, 0) + 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    for owner, name in (
        (Synthetic, "load"),
        (Logistic, "build"),
        (planning, "refusals"),
        (planning, "round_cost"),
    ):
        count(owner, name)
    return counted


ONCE = {"load": 1, "build": 1, "refusals": 1, "round_cost": 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_way_in_loads_builds_refuses_and_plans_once(protocol, tmp_path, calls):
    if protocol == "bfv":
        pytest.importorskip("tenseal")
    keys = (*PROTOCOLS[protocol], "secure.simulate=arithmetic") if protocol != "none" else ()
    config = small(*keys, "run.rounds=2")

    def once(way_in):
        calls.clear()
        way_in()
        assert calls == ONCE, way_in

    once(lambda: check(config))
    once(lambda: prepare(config))
    once(lambda: train(config, tmp_path / "run"))
    once(lambda: resume(tmp_path / "run", lambda stored: stored.with_run(rounds=3)))
    if protocol == "none":
        once(lambda: attack_configuration(config, "user", 2, 0, lambda *_: None))
        plain = [*SMALL, "run.trainer=loop"]
        (tmp_path / "run.toml").write_text(load(None, plain).toml())
        once(lambda: subject(tmp_path / "run.toml", ()))


def test_a_plan_alone_reads_no_data_and_builds_no_model(calls):
    planning.plan(small())
    assert calls == {"refusals": 1, "round_cost": 1}
    calls.clear()
    plan_with_length(small())
    assert calls == {"refusals": 1, "round_cost": 1}


def test_a_plan_of_shared_noise_builds_the_model_once(calls):
    """Its noise depends on a message's length, which only the model knows."""
    calls.clear()
    plan_with_length(small(*PROTOCOLS["masks and skellam"]))
    assert calls == ONCE


def test_what_is_refused_is_refused_before_anything_is_read(tmp_path, calls):
    with pytest.raises(Exception, match="needs every client's row"):
        trained(tmp_path / "run", "aggregation.rule=krum")
    assert calls == {"refusals": 1}


def test_a_plan_without_proof_is_refused_before_anything_is_read(tmp_path, calls):
    """But for shared noise, whose plan needs the length of a message."""
    with pytest.raises(Refused, match=r"privacy\.bands"):
        trained(tmp_path / "run", "privacy.mechanism=banded")
    assert "load" not in calls
    assert "build" not in calls


def test_examples_that_grow_with_clients_are_refused_where_noise_depends_on_them():
    keys = ("data.clients=300", *PROTOCOLS["masks and skellam"], "secure.simulate=arithmetic")
    config = small("data.source=custom_parts:Growing", *keys)
    with pytest.raises(Refused, match="fewer synthetic clients that planning uses"):
        prepare(config)
    assert check(config).plan.mechanism.grid().length


def test_people_whom_the_sampler_is_not_for_are_refused_as_they_are_loaded(tmp_path):
    keys = [*population(tmp_path / "a.csv"), "cohort.sampler=full", "cohort.size=0"]
    with pytest.raises(Refused, match=r"data\.clients is 10.*\"full\""):
        prepare(load(None, keys))


def test_a_model_that_mixes_gradients_is_refused_where_single_examples_are_protected():
    silos = ("data.setting=cross_silo", "cohort.sampler=full", "cohort.size=0")
    keys = [key for key in SMALL if "noise_multiplier" not in key]
    mixing = [*keys, *silos, "privacy.mechanism=none", "model.name=custom_parts:MixesGradients"]
    prepare(load(None, mixing))
    with pytest.raises(Refused, match="mixes examples or uses parameters outside"):
        prepare(load(None, [*mixing, "client.privacy.mechanism=dp_sgd"]))


def test_an_aborted_round_leaves_nothing_of_what_clients_would_have_remembered(
    tmp_path, monkeypatch
):
    close, rounds = PlainAccumulator.close, iter(range(1, 99))

    def aborting(self):
        if next(rounds) == 2:
            raise Aborted("as a protocol may at its end")
        return close(self)

    monkeypatch.setattr(PlainAccumulator, "close", aborting)
    keys = ("client.objective=scaffold", "data.setting=cross_silo", "run.rounds=2")
    outcome = trained(tmp_path / "run", *keys)
    assert list(outcome.aborts) == [2]
    assert outcome.updates == 1
    assert list((tmp_path / "run/private").glob(".*.tmp")) == []


OPEN = (
    "privacy.mechanism=none",
    "data.clients=2000",
    "cohort.size=20",
    "run.randomness=seeded",
    "run.seed=1",
)
RARE = (
    "data.source=synthetic",
    "data.partition=natural",
    "data.holdout_fraction=0.001",
    "run.seed=2",
)
FEW = {
    "a class": (*RARE, "model.loss=binary_cross_entropy", "data.classes=2", "data.alpha=20"),
    "a target": ("attack.name=clean_label", "attack.target=1", "attack.fraction=0.004"),
}


@pytest.mark.parametrize("case", mostly_slow(FEW, "a target"))
def test_nothing_is_refused_for_what_a_few_lack_who_stand_for_all(case):
    """`check` makes up 256 clients and their share of the test set; training has all of them."""
    config = load(None, [*OPEN, *FEW[case]])
    check(config)
    prepare(config)
