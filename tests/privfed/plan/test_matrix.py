"""Every combination is proved or refused with a reason, and what is allowed trains."""

import functools
import itertools
import json
import math
import re

import pytest
from click.testing import CliRunner
from small import SMALL, small

from accounting.ledger import Ledger
from privfed.cli.main import main
from privfed.config.reading import as_written, overridden
from privfed.core.errors import Refused
from privfed.plan.matrix import (
    Combination,
    built_in,
    combination,
    combinations,
    general_reason,
    numbered_reasons,
)
from privfed.plan.plan import plan
from privfed.run.train import train

BASE = ("data.setting=cross_silo", "data.clients=20", "run.rounds=2")
BASE += ("aggregation.root=2", "aggregation.rule=fltrust", "privacy.mechanism=none")
KINDS = ("rule", "protocol", "mechanism", "sampler", "objective", "attack")
ORDINARY = {
    "rule": "mean",
    "protocol": "none",
    "mechanism": "gaussian",
    "sampler": "full",
    "objective": "sgd",
    "compression": "none",
    "attack": "none",
}
HELPS = re.compile(
    r"\b(use|set|raise|lower|remove|expected|choose|change|add|declare)\b", re.IGNORECASE
)


@functools.cache
def base():
    return as_written(None, [*SMALL, *BASE])


def sound(one: Combination) -> None:
    """A proof, or reasons that say what would work."""
    if one.event is not None:
        assert not one.reasons
        assert one.event.relation
        assert one.verdict in ("proved", "no privacy", "void")
        return
    assert one.reasons
    assert any(HELPS.search(reason) for reason in one.reasons), one


def trains(one: Combination, folder) -> None:
    """Two rounds, charged with the event that the matrix states."""
    keys = ["secure.simulate=arithmetic"] if _masked(one) else []
    keys += ["client.groups=3"] if one.choice.get("objective") == "afl" else []
    config = overridden(one.config, keys) if keys else one.config
    outcome = train(config, folder)
    charges = Ledger.load(folder / "ledger.jsonl").charges
    assert len(charges) == 2, one.choice
    assert outcome.updates + len(outcome.aborts) == 2
    if one.choice.get("mechanism", "") not in ("skellam", "discrete_gaussian"):
        assert charges[0].event.release == one.event.release, one.choice


def _masked(one: Combination) -> bool:
    return one.config.names["protocol"] != "none"


def pairs(*kinds):
    """Every pair of values of two of these kinds, the others ordinary."""
    values, seen = built_in(*kinds), set()
    for first, second in itertools.combinations(kinds, 2):
        for one, two in itertools.product(values[first], values[second]):
            choice = {**ORDINARY, first: one, second: two}
            if (key := tuple(choice.values())) not in seen:
                seen.add(key)
                yield choice


FEW_RULES = ("mean", "geometric_median", "krum", "median", "fltrust", "dnc")


@pytest.mark.parametrize("rules", [FEW_RULES, pytest.param(None, marks=pytest.mark.slow)])
def test_every_rule_protocol_mechanism_and_sampler(rules):
    kinds = built_in("rule", "protocol", "mechanism", "sampler")
    if rules:
        kinds["rule"] = rules
    every = list(combinations(base(), kinds))
    assert len(every) == math.prod(map(len, kinds.values()))
    for one in every:
        sound(one)
    allowed = [one for one in every if one.event is not None]
    assert (50 if rules else 200) < len(allowed) < 1000
    for one in allowed:
        rule, central = one.choice["rule"], one.choice["mechanism"] in ("gaussian", "banded", "blt")
        if central or one.choice["protocol"] != "none":
            assert rule not in ("krum", "median", "fltrust", "dnc"), "rows under noise or masks"
        if one.choice["mechanism"] in ("skellam", "discrete_gaussian"):
            assert one.choice["protocol"] in ("masks", "committee", "regions", "bfv")


@pytest.mark.parametrize(("step", "least"), [(9, 66), pytest.param(3, 200, marks=pytest.mark.slow)])
def test_part_of_all_pairs_is_proved_or_refused_and_some_of_what_is_allowed_trains(
    tmp_path, step, least
):
    allowed = []
    for choice in itertools.islice(pairs(*KINDS), 0, None, step):
        one = combination(base(), choice)
        sound(one)
        if one.event is not None:
            allowed.append(one)
    assert len(allowed) > least
    for number, one in enumerate(allowed[::20]):
        trains(one, tmp_path / str(number))


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_compression_with_every_other_part(tmp_path, step):
    choices = [
        {**ORDINARY, "compression": name, kind: other}
        for kind in KINDS
        for name in built_in("compression")["compression"]
        for other in built_in(kind)[kind]
    ]
    pairs_with = [combination(base(), choice) for choice in choices[::step]]
    for each in pairs_with:
        sound(each)
    allowed = [each for each in pairs_with if each.event is not None]
    assert len(allowed) > 300 / step
    for number, each in enumerate(allowed[::80]):
        trains(each, tmp_path / str(number))


@pytest.mark.slow
def test_every_pair_that_is_allowed_trains(tmp_path):
    every = [combination(base(), choice) for choice in pairs(*KINDS, "compression")]
    for one in every:
        sound(one)
    for number, one in enumerate(one for one in every if one.event is not None):
        trains(one, tmp_path / str(number))


def test_a_refusal_is_that_of_the_run():
    one = combination(base(), {**ORDINARY, "rule": "krum"})
    with pytest.raises(Refused) as refused:
        plan(small("aggregation.rule=krum", "cohort.sampler=full", "cohort.size=0"))
    assert one.reasons[0] == str(refused.value).splitlines()[0]
    assert one.verdict == "refused"


def test_attackers_who_read_void_what_is_proved():
    void = combination(base(), {**ORDINARY, "attack": "alie"})
    assert (void.verdict, void.private) == ("void", True)
    assert combination(base(), {**ORDINARY, "attack": "label_flip"}).verdict == "proved"
    assert combination(base(), {**ORDINARY, "mechanism": "none"}).verdict == "no privacy"


def test_reasons_that_differ_by_a_name_share_a_number():
    alike = [combination(base(), {**ORDINARY, "rule": rule}) for rule in ("krum", "median", "dnc")]
    assert list(numbered_reasons(alike).values()) == [1]
    assert "…" in general_reason(alike[0])


@pytest.mark.slow
def test_the_matrix_is_printed_and_is_json():
    args = ["check", "--matrix", *(word for key in (*SMALL, *BASE) for word in ("--set", key))]
    shown = CliRunner().invoke(main, args)
    assert shown.exit_code == 0, shown.output
    for word in ("geometric_median", "secure.protocol = masks", "a number: refused for the reason"):
        assert word in shown.output
    printed = json.loads(CliRunner().invoke(main, [*args, "--json"]).output)["cells"]
    assert {one["is"] for one in printed} >= {"proved", "refused", "no privacy"}
    assert all(one["reasons"] for one in printed if one["is"] == "refused")
