"""What is refused hangs on what parts declare, never on what they are called."""

import ast
from pathlib import Path

import numpy as np
import pytest
from small import small, trained
from spelling import spellings
from spelt import Curious

from privfed.errors import Refused
from privfed.parts import BUILT_IN, find
from privfed.plan import plan
from privfed.refusals import refusals

ROOT = Path(__file__).resolve().parents[2]
NAMES = {name for parts in BUILT_IN.values() for name in parts}
NO_PARTS = {  # a key of the part's own has words that some part is named by, too
    ("attacks/fang.py", "krum"),
    ("privfed/inference/reconstruct.py", "cosine"),
}
SILOS = (
    *("data.setting=cross_silo", "privacy.mechanism=none", "client.privacy.mechanism=dp_sgd"),
    "client.privacy.noise_multiplier=1.0",
)
CASES = {
    "sizes read twice": (
        ("privacy.mechanism=none", "aggregation.weights=examples"),
        "cohort.sampler",
        ("by_size", "privfed.samplers:BySize", "spelt:MySize"),
        "counts examples twice",
    ),
    "sizes read under privacy": (
        (),
        "cohort.sampler",
        ("by_size", "privfed.samplers:BySize", "spelt:MySize"),
        "private data",
    ),
    "sizes of silos": (
        SILOS,
        "cohort.sampler",
        ("by_size", "privfed.samplers:BySize", "spelt:MySize"),
        "how many examples a silo has",
    ),
    "canaries in others' places": (
        ("audit.canaries=20", "data.clients=100"),
        "cohort.sampler",
        ("fixed_size", "privfed.samplers:FixedSize", "spelt:MyFixed", "spelt:MyCapped"),
        "places of real clients",
    ),
    "labels changed twice": (
        ("attack.name=label_flip", "attack.fraction=0.2"),
        "data.shift",
        ("concept", "privfed.data.shift:Concept", "spelt:MyConcept"),
        "both change labels",
    ),
    "an adaptive clip that absence moves": (
        ("privacy.adaptive_clip=true", "cohort.dropout=0.1"),
        "privacy.mechanism",
        ("gaussian", "privfed.privacy.gaussian:CentralGaussian", "spelt:MyGaussian"),
        "grow without end",
    ),
    "truncated draws of distributed noise": (
        ("secure.protocol=masks", "privacy.mechanism=skellam"),
        "cohort.sampler",
        ("truncated_poisson", "privfed.samplers:CappedPoisson", "spelt:MyCapped"),
        "no proof with distributed noise",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_holds_in_every_spelling(case):
    keys, key, names, reason = CASES[case]
    for name in names:
        with pytest.raises(Refused, match=reason):
            plan(small(f"{key}={name}", *keys))


def test_no_name_of_a_part_is_compared():
    """Those that stand in `names[...]`, and those that a string spells out."""
    compared = [
        (str(path.relative_to(ROOT)), line, text)
        for package in ("privfed", "accounting", "attacks", "defenses")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in comparisons(path.read_text(encoding="utf-8"))
    ]
    assert [one for one in compared if (one[0], one[2]) not in NO_PARTS] == []


def comparisons(source):
    """Lines that compare a part's name, and which."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        else:
            continue
        for operand in operands:
            for inner in ast.walk(operand):
                if isinstance(inner, ast.Constant) and inner.value in NAMES:
                    yield node.lineno, inner.value
                if isinstance(inner, ast.Subscript) and _of_names(inner):
                    yield node.lineno, ast.unparse(inner)


def _of_names(node):
    looked_up = getattr(node.value, "attr", getattr(node.value, "id", ""))
    by_kind = isinstance(node.slice, ast.Name) or isinstance(
        getattr(node.slice, "value", None), str
    )
    return looked_up == "names" and by_kind


@pytest.mark.parametrize(
    "planted",
    [
        "if config.names['sampler'] == 'x': pass",
        "ok = config.names[kind] in ('x', 'y')",
        "if name == 'fixed_size': pass",
        "match name:\n    case 'krum': pass",
        "ok = name not in {'masks'}",
    ],
)
def test_the_search_sees_what_it_is_for(planted):
    assert list(comparisons(planted))


def test_both_spellings_are_other_names_for_the_same_run():
    config = small()
    by_path, mine = spellings(config)
    assert by_path.parts == config.parts
    assert by_path.names["sampler"] == "privfed.samplers:Poisson"
    assert all(isinstance(mine.parts[kind], type(part)) for kind, part in config.parts.items())
    assert all(type(mine.parts[kind]) is not type(part) for kind, part in config.parts.items())
    assert list(refusals(mine)) == list(refusals(config)) == []


def test_a_sampler_that_does_not_say_whether_it_reads_sizes_is_refused():
    with pytest.raises(Refused, match="does not declare reads_sizes"):
        small("cohort.sampler=spelt:Silent")


@pytest.mark.parametrize("kind", ["sampler", "mechanism", "objective", "protocol", "shift"])
def test_every_built_in_part_declares_what_one_from_outside_has_to(kind):
    for target in BUILT_IN[kind].values():
        assert find(kind, target, kind)


def test_who_does_not_declare_it_is_not_shown_how_many_examples_clients_have(tmp_path):
    Curious.seen.clear()
    trained(tmp_path, "cohort.sampler=spelt:Curious", "run.rounds=2")
    assert len(Curious.seen) == 2
    assert all(np.all(np.array(sizes) == 1) and len(sizes) == 12 for sizes in Curious.seen)
