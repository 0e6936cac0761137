"""The registry itself: every part is there, declares what its kind asks for, and is under test."""

import ast
import functools
import importlib
import re
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from contracts.registered import example_of
from lanes import every_case
from pydantic import ValidationError

from defenses.on_rows.median import Median
from privfed.client.objective import Sgd
from privfed.core.errors import Refused
from privfed.core.parts import Part, find, refuse_silent
from privfed.core.registry import BUILT_IN, CONTRACTS
from privfed.core.schedules import Constant
from privfed.models.losses.cross_entropy import CrossEntropy
from privfed.server.fedopt import FedAvg
from privfed.testing import is_strict_and_documented

ROOT = Path(__file__).resolve().parents[2]
EVERY = [(kind, name) for kind, parts in BUILT_IN.items() for name in parts]


def is_a_strict_documented_configuration(kind, name, part):
    is_strict_and_documented(part, name)
    made = example_of(kind, part, name)
    for key, field in part.model_fields.items():
        value = getattr(made, key)
        with pytest.raises(ValueError, match="frozen"):
            setattr(made, key, value)
        whole = field.annotation is float and not isinstance(value, float)
        assert not whole, f"{part.__qualname__}.{key} is a float; write {float(value)}, not {value}"
    try:
        part.model_validate({key: getattr(made, key) for key in part.model_fields})
    except ValidationError as wrong:  # a default may lie out of range, until another key sets it
        types = [each for each in wrong.errors() if each["type"].endswith("_type")]
        assert not types, f"defaults of {part.__qualname__} have the wrong type: {types}"


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


class Uncalled(Sgd):
    """An objective with a public method that no hook is like."""

    def per_example(self, batch):
        return batch.loss.losses(batch.outputs, batch.y)


def test_a_public_method_that_nothing_calls_is_named():
    with pytest.raises(AssertionError, match=r"per_example is no hook of objective.*underscore"):
        example_of("objective", Uncalled, "uncalled")


class Plural(FedAvg):
    """An optimizer whose step is spelt as a hook of another kind."""

    def steps(self, params, delta, state):
        return params, state


class Undeclared(Sgd):
    """An objective whose declaration is spelt as no declaration is."""

    need_classes: ClassVar[bool] = True


class Weigthed(Median):
    """A rule whose declaration is spelt as no declaration is."""

    bonded: ClassVar[bool] = False


class Keyed(FedAvg):
    """An optimizer with a key that nothing reads."""

    unread_key: float = 0.5


@every_case(
    "kind, wrong, says",
    [
        ("optimizer", Plural, r"Plural\.steps is no hook of optimizer.*did you mean step\?"),
        ("objective", Undeclared, r"need_classes is no declaration.*did you mean needs_classes\?"),
        ("rule", Weigthed, r"Weigthed\.bonded is no declaration.*did you mean bounded\?"),
        ("optimizer", Keyed, r"Keyed\.unread_key is no key of optimizer, so nothing reads it"),
    ],
)
def test_a_name_that_nothing_reads_is_named_with_the_one_that_is_meant(kind, wrong, says):
    with pytest.raises(AssertionError, match=says):
        example_of(kind, wrong, "wrong")


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Field name .* shadows an attribute")

    class Geometric(Median):
        """A rule with a declaration that is a key of the run file."""

        geometric: bool = True

    class Keeping(Sgd):
        """An objective with a property that is a key of the run file."""

        keeps: int = 1

    class Softmax(CrossEntropy):
        """A loss whose protocol has the declaration."""

        softmax: bool = True


@every_case(
    "kind, wrong, name",
    [
        ("rule", Geometric, "geometric"),
        ("objective", Keeping, "keeps"),
        ("loss", Softmax, "softmax"),
    ],
)
def test_a_declaration_that_is_written_as_a_key_is_rejected(kind, wrong, name):
    with pytest.raises(AssertionError, match=rf"write {name}: ClassVar\[\w+\] = "):
        declares_what_its_kind_asks_for(kind, "wrong", wrong)


class Wordy(Sgd):
    """An objective with a declaration that is true whatever it says."""

    needs_classes: ClassVar[bool] = "no"


class Halved(Sgd):
    """An objective that declares half a number."""

    keeps: ClassVar[int] = 0.5


@every_case(
    "kind, wrong, says",
    [
        ("objective", Wordy, "needs_classes is 'no', but every objective declares it as .*bool"),
        ("objective", Halved, "keeps is 0.5, but every objective declares it as .*int"),
    ],
)
def test_a_declaration_of_a_wrong_type_is_rejected(kind, wrong, says):
    with pytest.raises(AssertionError, match=says):
        declares_what_its_kind_asks_for(kind, "wrong", wrong)


class Unmixed(Median):
    """A rule with weights that its base does not compute."""

    def mix(self, geometry, byzantine):
        return torch.ones(geometry.rows).double()


class Unanchored(Sgd):
    """An objective with an anchor at which no gradient is computed."""

    def anchor(self, w, broadcast, state, carried):
        return w


@every_case(
    "kind, wrong, says",
    [
        ("rule", Unmixed, "method mix is never called, since geometric is False; set"),
        ("objective", Unanchored, "method anchor is never called, since anchored is ''; set"),
    ],
)
def test_a_hook_that_a_declaration_switches_off_is_rejected(kind, wrong, says):
    with pytest.raises(AssertionError, match=says):
        declares_what_its_kind_asks_for(kind, "wrong", wrong)


parsed = functools.cache(ast.parse)


def unregistered(sources):
    """Classes of parts in `sources`, by path, that no code names: neither the registry nor any
    code that extends, makes or checks for one.
    """
    trees = {path: parsed(text) for path, text in sources.items()}
    named = {name for tree in trees.values() for node in ast.walk(tree) for name in _names(node)}
    return [
        f"{path}: {node.name}"
        for path, tree in trees.items()
        if not {"flower", "nvflare"} & {*Path(path).parts}  # extras
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.bases and node.name not in named
        if _is_part(path, node.name)
    ]


def _names(node):
    """The names that `node` reads, imports, or spells as "module:name"."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.]+:\w+", text):
            yield text.partition(":")[2]


def _is_part(path, name):
    module = importlib.import_module(".".join(Path(path).with_suffix("").parts))
    return issubclass(getattr(module, name), Part)


def sources():
    """The text of every module of the packages, by path."""
    paths = [
        path
        for package in ("attacks", "defenses", "privfed")
        for path in (ROOT / package).rglob("*.py")
    ]
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


def test_every_part_is_registered():
    texts, registry = sources(), "privfed/core/registry.py"
    assert unregistered(texts) == [], f"add a line to {registry}"
    lines = texts[registry].splitlines()
    texts[registry] = "\n".join(line for line in lines if ":Lookahead" not in line)
    assert unregistered(texts) == ["privfed/server/lookahead.py: Lookahead"]


def test_every_part_has_its_place_in_a_page():
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    text = "\n".join(page.read_text("utf-8") for page in pages if page.name != "parts.md")
    lacking = [
        f"{kind} {name}" for kind, name in EVERY if not re.search(rf"[\"'`:]{name}[\"'`]", text)
    ]
    assert lacking == [], "name the part in the how-to page of its kind"


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


class Whole(FedAvg):
    """A part with an integer for a number."""

    lr: float = 1


class Text(FedAvg):
    """A part with a text for a number."""

    lr: float | None = "1.0"


@every_case(
    "wrong, says",
    [
        (Nameless, "give class Nameless a docstring: its first line is shown by `privfed list`"),
        (Required, "requires 'rate', which declares no example"),
        (Loose, None),
        (Whole, r"Whole\.lr is a float; write 1\.0, not 1"),
        (Text, "defaults of Text have the wrong type"),
    ],
)
def test_a_part_that_is_no_strict_documented_configuration_is_rejected(wrong, says):
    with pytest.raises(AssertionError, match=says):
        is_a_strict_documented_configuration("client_schedule", "wrong", wrong)


@every_case("kind", BUILT_IN)
def test_a_part_that_declares_nothing_is_rejected_with_the_message_of_parts_from_outside(kind):
    with pytest.raises(AssertionError, match=rf"{kind} is 'wrong', which (is no|does not declare)"):
        declares_what_its_kind_asks_for(kind, "wrong", Nameless)
