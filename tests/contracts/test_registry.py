"""The registry itself: every part is there, declares what its kind asks for, and is under test."""

import re
from pathlib import Path

import pytest
from contracts.registered import example_of
from lanes import every_case

from privfed.client.objectives.sgd import Sgd
from privfed.core.errors import Refused
from privfed.core.parts import Part, find, refuse_silent
from privfed.core.registry import BUILT_IN, CONTRACTS
from privfed.core.schedules import Constant

EVERY = [(kind, name) for kind, parts in BUILT_IN.items() for name in parts]


def is_a_strict_documented_configuration(kind, name, part):
    assert vars(part).get("__doc__"), "what `privfed list` prints"
    made = example_of(kind, part, name)
    for setting in ("strict", "frozen"):
        assert part.model_config[setting]
    assert part.model_config["extra"] == "forbid"
    for field in part.model_fields:
        with pytest.raises(ValueError, match="frozen"):
            setattr(made, field, getattr(made, field))


def declares_what_its_kind_asks_for(kind, name, part):
    try:
        refuse_silent(kind, part, f"{kind} is {name!r}")
    except Refused as refused:
        raise AssertionError(str(refused)) from refused


@every_case("kind, name", EVERY)
def test_every_registered_part(kind, name):
    part = find(kind, name, kind)
    is_a_strict_documented_configuration(kind, name, part)
    declares_what_its_kind_asks_for(kind, name, part)


class NearMiss(Sgd):
    """An objective whose loss is spelt as no hook is."""

    def loss(self, batch):
        return batch.loss.losses(batch.outputs, batch.y)


def test_a_hook_that_is_misspelt_is_named():
    with pytest.raises(AssertionError, match="did you mean losses"):
        example_of("objective", NearMiss, "near")
    with pytest.raises(Refused, match=r"method loss is no hook.*did you mean losses"):
        refuse_silent("objective", NearMiss, "client.objective is 'near'")


def test_every_kind_has_contracts():
    folder = Path(__file__).parent
    texts = "".join(path.read_text("utf-8") for path in folder.glob("test_*.py"))
    tested = set(re.findall(r'contract_tests\(\s*"(\w+)"', texts))
    assert tested == BUILT_IN.keys() == CONTRACTS.keys()


def test_the_readme_claims_no_more_robust_rules_than_are_registered():
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    claimed = int(re.search(r"\| robust rules \| \[more than (\d+)\]", readme)[1])
    assert claimed < sum(find("rule", name, "").robust for name in BUILT_IN["rule"])


class Nameless(Part):
    rate: float = 1.0


class Required(Part):
    """A part whose key has neither a default nor an example."""

    rate: float


class Loose(Constant):
    """A part that takes any key."""

    model_config = {"extra": "allow"}


@every_case("wrong", [Nameless, Required, Loose])
def test_a_part_that_is_no_strict_documented_configuration_is_rejected(wrong):
    with pytest.raises(AssertionError):
        is_a_strict_documented_configuration("client_schedule", "wrong", wrong)


@every_case("kind", BUILT_IN)
def test_a_part_that_declares_nothing_is_rejected_with_the_message_of_parts_from_outside(kind):
    with pytest.raises(AssertionError, match=rf"{kind} is 'wrong', which (is no|does not declare)"):
        declares_what_its_kind_asks_for(kind, "wrong", Nameless)
