"""What is refused hangs on what parts declare, never on what they are called."""

import ast
import functools
import re
from pathlib import Path

import numpy as np
import pytest
from custom_parts import Curious
from lanes import every_case
from small import small, trained
from spelling import spellings
from tables import population

from privfed.config.catalog import key_of
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.plan.plan import plan
from privfed.plan.refusals import refusals
from privfed.run.train import train

ROOT = Path(__file__).resolve().parents[2]
NAMES = {name for parts in BUILT_IN.values() for name in parts}
CLASSES = {target.partition(":")[2] for parts in BUILT_IN.values() for target in parts.values()}
PRINTED = {"name", *BUILT_IN}
"""What a name may be called that is on its way to a message."""
NO_PARTS = {  # a key of the part's own has words that some part is named by, too
    ("attacks/updates/fang.py", "krum"),
    ("attacks/updates/min_max.py", "sign"),
    ("privfed/privacy_attacks/reconstruct.py", "cosine"),
    ("privfed/report/console.py", "Text"),
    ("privfed/api/arguments.py", "loss"),  # the key model.loss
    ("privfed/config/assembly.py", "loss"),
    ("privfed/config/catalog.py", "none"),  # the value of keys that name no part
    # data.holdout, where nothing is public
    ("privfed/config/config.py", "none"),
    ("privfed/data/holdout.py", "none"),
    ("privfed/models/peft_format.py", "none"),  # peft's key "bias"
    ("privfed/models/peft_format.py", "gaussian"),  # peft's key "init_lora_weights"
    ("privfed/testing/__init__.py", "groups"),  # the key client.groups
    # what a loss, an objective or a line of metrics calls a number
    ("privfed/grid/tables.py", "loss"),
    ("privfed/client/objectives/fedprox.py", "loss"),
    ("privfed/client/trainer.py", "loss"),
    ("privfed/run/recorder.py", "loss"),
    ("privfed/store/round_logs.py", "loss"),
    ("privfed/core/text.py", "accuracy"),
}
SILOS = (
    *("data.setting=cross_silo", "privacy.mechanism=none", "client.privacy.mechanism=dp_sgd"),
    "client.privacy.noise_multiplier=1.0",
)
SIZED = (
    "by_size",
    "privfed.sampling.samplers:BySize",
    "custom_parts:MySize",
    "custom_parts:BySizeFromScratch",
)
CASES = {
    "sizes read twice": (
        ("privacy.mechanism=none", "aggregation.weights=examples"),
        "cohort.sampler",
        SIZED,
        "examples would count twice",
    ),
    "sizes read under privacy": (
        (),
        "cohort.sampler",
        SIZED,
        "private data",
    ),
    "sizes of silos": (
        SILOS,
        "cohort.sampler",
        SIZED,
        "a silo's number of examples",
    ),
    "canaries in places that no event counts": (
        ("audit.canaries=20", "data.clients=100"),
        "cohort.sampler",
        ("custom_parts:Crowded",),
        "places of real clients",
    ),
    "labels changed twice": (
        ("attack.name=label_flip", "attack.fraction=0.2"),
        "data.shift",
        ("concept", "privfed.data.partitions.shift:Concept", "custom_parts:MyConcept"),
        "both change labels",
    ),
    "an adaptive clip that absence moves": (
        ("privacy.adaptive_clip=true", "cohort.dropout=0.1"),
        "privacy.mechanism",
        (
            "gaussian",
            "privfed.privacy.mechanisms.central_gaussian:CentralGaussian",
            "custom_parts:MyGaussian",
        ),
        "grow without bound",
    ),
    "truncated draws of distributed noise": (
        ("secure.protocol=masks", "privacy.mechanism=skellam"),
        "cohort.sampler",
        ("truncated_poisson", "privfed.sampling.samplers:CappedPoisson", "custom_parts:MyCapped"),
        "no proof with Skellam noise",
    ),
}


@every_case("case", CASES)
def test_a_refusal_holds_in_every_spelling(case):
    keys, key, names, reason = CASES[case]
    for name in names:
        with pytest.raises(Refused, match=reason):
            plan(small(f"{key}={name}", *keys), length=50)


def test_no_name_of_a_part_is_compared():
    """Those that stand in `names[...]`, and those that a string spells out."""
    compared = [
        (str(path.relative_to(ROOT)), line, text)
        for package in ("privfed", "accounting", "attacks", "defenses", "experiments")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in comparisons(path.read_text(encoding="utf-8"))
    ]
    assert [one for one in compared if (one[0], one[2]) not in NO_PARTS] == []


def comparisons(source):
    """Lines that compare a part's name, and which."""
    for node in ast.walk(ast.parse(source)):
        for operand in _operands(node):
            for inner in ast.walk(operand):
                if isinstance(inner, ast.Constant) and inner.value in NAMES | CLASSES:
                    yield node.lineno, inner.value
                if _looks_a_name_up(inner):
                    yield node.lineno, ast.unparse(inner)


def _operands(node):
    """What decides: both sides of a comparison, the keys of a table that is looked into, and the
    classes that a part is asked to be of.
    """
    match node:
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.MatchValue():
            return [node.value]
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, of]):
            return [ast.Constant(name.id) for name in ast.walk(of) if hasattr(name, "id")]
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith", value=value), args=args):
            return [value, *args]
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Dict(keys=keys)), args=args):
            return [*keys, *args]
        case ast.Subscript(value=ast.Dict(keys=keys), slice=index):
            return [*keys, index]
        case ast.Assign(value=value) if _looks_a_name_up(value):
            return [] if getattr(node.targets[0], "id", "") in PRINTED else [value]
    return []


def _looks_a_name_up(node):
    """Whether it is `names["sampler"]`, `names[kind]` or `names.get("sampler")`."""
    of = node.func if isinstance(node, ast.Call) else node
    if not isinstance(of, ast.Subscript | ast.Attribute):
        return False
    table = getattr(of.value, "attr", getattr(of.value, "id", ""))
    if isinstance(of, ast.Attribute):
        return table == "names" and of.attr == "get"
    by_kind = isinstance(of.slice, ast.Name) or isinstance(getattr(of.slice, "value", None), str)
    return table == "names" and by_kind


@every_case(
    "planted",
    [
        "if config.names['sampler'] == 'x': pass",
        "ok = config.names[kind] in ('x', 'y')",
        "if name == 'fixed_size': pass",
        "match name:\n    case 'krum': pass",
        "ok = name not in {'masks'}",
        "if config.names.get('sampler') == 'x': pass",
        "ok = {'by_size': 1}.get(name)",
        "said = config.names['sampler']",
        "ok = config.names['sampler'].startswith('by')",
        "ok = isinstance(part, BySize)",
        "ok = type(part).__name__ == 'BySize'",
    ],
)
def test_the_search_sees_what_it_is_for(planted):
    assert list(comparisons(planted))


def test_both_spellings_are_other_names_for_the_same_run():
    config = small()
    by_path, mine = spellings(config)
    assert by_path.parts == config.parts
    assert by_path.names["sampler"] == "privfed.sampling.samplers:Poisson"
    assert all(isinstance(mine.parts[kind], type(part)) for kind, part in config.parts.items())
    assert all(type(mine.parts[kind]) is not type(part) for kind, part in config.parts.items())
    assert list(refusals(mine)) == list(refusals(config)) == []


def test_a_sampler_that_does_not_say_whether_it_reads_sizes_is_refused():
    with pytest.raises(Refused, match="does not declare reads_sizes"):
        small("cohort.sampler=custom_parts:Silent")


@every_case("key", ["server.optimizer", "server.schedule", "client.schedule", "model.name"])
def test_a_part_that_leaves_its_contract_out_is_refused(key):
    with pytest.raises(Refused, match="does not declare"):
        small(f"{key}=custom_parts:Bare")


@pytest.mark.parametrize(
    "key, reason",
    [
        (
            "data.source=custom_parts:Hospital",
            "attribute found is no declaration.* holds_real_clients",
        ),
        ("model.loss=custom_parts:Graded", "method keep is no hook.* scores"),
    ],
)
def test_what_nothing_reads_is_refused_with_what_is_read(key, reason):
    """Inherited from a built-in part, the opposite would hold silently."""
    with pytest.raises(Refused, match=reason):
        small(key)


def test_a_rule_on_rows_may_have_helpers_but_not_answer_for_sums(tmp_path):
    local = ("privacy.mechanism=local_gaussian", "run.rounds=2")
    assert trained(tmp_path / "run", "aggregation.rule=custom_parts:Helped", *local).updates == 2
    with pytest.raises(Refused, match="a rule on rows, but defines extra"):
        plan(small("aggregation.rule=custom_parts:Answering", *local))


@every_case("kind", ["sampler", "mechanism", "objective", "protocol", "shift"])
def test_every_built_in_part_declares_what_one_from_outside_has_to(kind):
    for target in BUILT_IN[kind].values():
        assert find(kind, target, kind)


def test_who_does_not_declare_it_is_not_shown_how_many_examples_clients_have(tmp_path):
    Curious.seen.clear()
    trained(tmp_path, "cohort.sampler=custom_parts:Curious", "run.rounds=2")
    assert len(Curious.seen) == 2
    assert all(np.all(np.array(sizes) == 1) and len(sizes) == 12 for sizes in Curious.seen)


def test_what_a_part_forgot_is_seen_by_its_event_and_its_work(tmp_path):
    """Where the framework can know better than a declaration, it asks what is really done."""
    source = population(tmp_path / "a.csv")
    with pytest.raises(Refused, match="holds for exactly"):
        train(
            load(None, [*source, "cohort.sampler=custom_parts:Forgetful", "data.clients=9"]),
            tmp_path,
        )
    with pytest.raises(Refused, match="declares private = False"):
        plan(small("privacy.mechanism=custom_parts:Modest"))
    with pytest.raises(Refused, match="declares assigns = False"):
        train(load(None, [*source, "data.partition=custom_parts:Secretly"]), tmp_path / "b")
    with pytest.raises(Refused, match="does not declare varies"):
        small("cohort.availability=custom_parts:Unsaid")


def messages(tree):
    """Strings of a module that are no docstrings."""
    alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in alone:
            yield each.value


@functools.cache
def choices():
    """Strings of every `Literal` in the code: values of keys that name no part."""
    values = {"cpu"}
    for path in (ROOT / "privfed").rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.Subscript) and getattr(each.value, "id", "") == "Literal":
                literals = ast.walk(each.slice)
                values |= {one.value for one in literals if isinstance(one, ast.Constant)}
    return values


@functools.cache
def part_keys():
    return {key_of(kind): kind for kind in BUILT_IN}


def unknown_names(text):
    """Names of parts in `key = "name"` and `use "name"` that no part has."""
    kinds = part_keys()
    for key, name in re.findall(r'([a-z]+(?:\.[a-z_]+)+)(?: =| is) "(\w+)"', text):
        if key in kinds and name not in BUILT_IN[kinds[key]]:
            yield key, name
    for name in re.findall(r'\buse "(\w+)"', text):
        if name not in NAMES | choices():
            yield "use", name


def test_parts_that_messages_offer_exist():
    unknown = [
        (str(path.relative_to(ROOT)), *found)
        for path in sorted((ROOT / "privfed").rglob("*.py"))
        for text in messages(ast.parse(path.read_text(encoding="utf-8")))
        for found in unknown_names(text)
    ]
    assert unknown == []
    assert list(unknown_names('; use "poison", or privacy.mechanism = "gauss"')) == [
        ("privacy.mechanism", "gauss"),
        ("use", "poison"),
    ]
