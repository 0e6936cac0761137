"""What the reference is made of covers all that there is: keys, parts, commands, codes, files."""

import json
import re
import tomllib
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from pkgutil import walk_packages

import click
import pytest
from house import ROOT
from lanes import every_case
from pages import (
    GENERATED,
    MAKERS,
    api,
    commands,
    failures,
    files,
    keys,
    matrix,
    parts,
    rooms,
    studies,
)
from pages.docstrings import escaped
from pages.links import relocated
from pages.markdown import prose, table

import privfed
from privfed.cli.main import main
from privfed.config.sections import SECTIONS
from privfed.core import errors
from privfed.core import failures as endings
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.data.tables.dates import Dates
from privfed.grid.grid import Grid, Method, Tuning
from privfed.grid.pictures.figures import Figure
from privfed.models.start import Lora
from privfed.plan.matrix import combinations
from privfed.store.run_directory import RunDirectory

DOCS = ROOT / "docs"


def sections(page):
    """Heading -> the first cells of its table's rows -> all of their cells."""
    tables = {}
    for line in page.splitlines():
        if line.startswith("#"):
            rows = tables.setdefault(line.lstrip("# "), {})
        elif line.startswith("| ") and not line.startswith(("| key |", "| option |", "| name |")):
            first, *rest = re.split(r" \| ", line.strip("| "))
            rows[first] = rest
    return tables


def expected_of_a_run():
    """Heading -> its keys, out of the classes themselves."""
    for name, section in SECTIONS.items():
        yield f"[{name}]", {*section.keys.model_fields, *section.parts}
        for key, (kind, _) in section.parts.items():
            for part in BUILT_IN[kind]:
                if fields := find(kind, part, key).model_fields:
                    yield f"{name}.{key} = {json.dumps(part)}", {*fields}
    yield "A column of data.dates", {*Dates.model_fields}
    yield "[model.lora]", {*Lora.model_fields}


def test_every_key_of_a_run_file_is_listed():
    listed = {head: set(rows) for head, rows in sections(keys.run_file()).items()}
    expected = {head: {f"`{key}`" for key in names} for head, names in expected_of_a_run()}
    assert listed == expected


def test_every_key_of_a_grid_file_is_listed():
    listed = {head: set(rows) for head, rows in sections(keys.grid_file()).items()}
    classes = {
        "The file itself": Grid,
        "[[method]]": Method,
        "[tune]": Tuning,
        "[[figure]]": Figure,
    }
    expected = {head: {f"`{key}`" for key in of.model_fields} for head, of in classes.items()}
    assert listed == expected


@pytest.mark.parametrize("page", [keys.run_file, keys.grid_file])
def test_every_key_has_a_form_and_a_meaning(page):
    for head, rows in sections(page()).items():
        for key, (form, default, meaning) in rows.items():
            assert form, (head, key)
            assert default is not None
            assert meaning.endswith((".", ":")), (head, key)
            assert "any value" not in form or head.startswith(("[[", "The", "[tune")), (head, key)


def test_forms_are_said_in_words():
    integer = {"type": "integer", "minimum": 1, "maximum": 5}
    assert keys.form(integer) == "integer, at least 1, at most 5"
    assert keys.form({"type": "array", "items": integer, "minItems": 1}) == (
        "list of integers, at least 1, at most 5, 1 at least"
    )
    assert keys.form({"anyOf": [{"type": "number"}, {"type": "null"}]}) == "number"
    assert keys.form({"enum": ["a", "b"]}) == '`"a"`, `"b"`'


def test_every_part_is_listed_with_what_its_kind_declares():
    listed = sections(parts.by_kind())
    assert len(listed) == len(BUILT_IN)
    for (head, rows), (kind, names) in zip(listed.items(), BUILT_IN.items(), strict=True):
        assert [re.search(r"`(\w+) <", row)[1] for row in rows] == list(names), head
        for cells in rows.values():
            assert all(cells), head
            assert len(cells) == 1 + len(parts.COLUMNS.get(kind, ()))


@every_case(
    ("kind", "name", "column", "words"),
    [
        ("objective", "scaffold", "sends", "2 d"),
        ("objective", "scaffold", "state", "d"),
        ("objective", "worker_momentum", "sends", "d"),
        ("objective", "worker_momentum", "state", "d"),
        ("objective", "mime", "receives", "4 d"),
        ("sampler", "poisson", "amplification", "yes"),
        ("sampler", "full", "amplification", "no"),
        ("sampler", "cyclic", "amplification", "no"),
        ("sampler", "fixed_size", "relation", "replace-one"),
        ("sampler", "by_size", "relation", "refused under privacy"),
        ("rule", "krum", "needs", "rows"),
        ("rule", "fltrust", "needs", "rows and `root`"),
        ("rule", "mean", "needs", "one sum"),
        ("attack", "alie", "a run's ε", "void: it reads protected data"),
        ("attack", "label_flip", "a run's ε", "nominal"),
        ("protocol", "none", "view of each party", "the server sees every client's row"),
    ],
)
def test_columns_say_what_parts_declare(kind, name, column, words):
    assert parts.COLUMNS[kind][column](find(kind, name, kind)) == words


def test_every_command_and_option_is_listed():
    listed = sections(commands.commands())
    expected = {}
    waiting = [("privfed", main)]
    while waiting:
        path, command = waiting.pop()
        if isinstance(command, click.Group):
            waiting += [(f"{path} {name}", below) for name, below in command.commands.items()]
        else:
            options = (each for each in command.params if isinstance(each, click.Option))
            expected[path] = {name for option in options for name in option.opts}
    named = {
        head: {name for row in rows for name in re.findall("`([^`]+)`", row)}
        for head, rows in listed.items()
    }
    assert named == expected
    assert all(cells[-1] for rows in listed.values() for cells in rows.values())


def _below(error):
    return [error, *(below for each in error.__subclasses__() for below in _below(each))]


def test_every_exit_code_and_kind_of_error_is_listed():
    raised = _below(errors.PrivfedError)
    constants = {
        value
        for name, value in vars(endings).items()
        if re.fullmatch("[A-Z_]{4,}", name) and isinstance(value, int)
    }
    codes = {0, *constants, *(error.exit_code for error in raised)}
    assert {
        int(code) for code in re.findall(r"^\| `(\d+)`", failures.exit_codes(), re.MULTILINE)
    } == codes
    kinds = set(re.findall(r"^\| `(\w+)`", failures.error_kinds(), re.MULTILINE))
    assert kinds == {*endings.KINDS} >= {error.kind for error in raised}


def test_the_error_that_is_shown_is_real():
    shown = json.loads(re.search("```json\n(.*)\n```", failures.error_example(), re.DOTALL)[1])
    assert shown["exit"] == 2
    assert shown["error"]["key"] == "client.lr"


def test_every_file_of_a_run_directory_is_listed():
    directory = RunDirectory(Path("run"))
    places = {
        str(place.relative_to("run"))
        for held in vars(directory).values()
        for name in ("path", "folder", "")
        if isinstance(place := getattr(held, name, None) if name else held, Path)
    } - {"."}
    listed = {name.rstrip("/") for name in files.FILES}
    assert places <= listed
    assert {"config.toml", "ledger.jsonl", "private/settled.f32"} <= places


def test_every_package_that_is_depended_on_is_said_to_be_for_something():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    rows = re.findall(r"^\| `([\w.-]+)` \| (.+) \|$", files.dependencies(), re.MULTILINE)
    named = {name for name, why in rows if why.strip()}
    assert named >= {re.split("[<>=]", package)[0] for package in project["dependencies"]}
    extras = [line for line in files.dependencies().splitlines() if line.endswith("|  |")]
    assert extras == []


@every_case("package", ["accounting", "attacks", "defenses"])
def test_every_public_module_is_documented(package):
    page = api.modules(package)
    folder = import_module(package)
    public = [
        module.name
        for module in walk_packages(folder.__path__, f"{package}.")
        if not module.ispkg and _defines_something(import_module(module.name))
    ]
    assert sorted(re.findall(r"automodule:: ([\w.]+)", page)) == sorted(public)
    assert {name.count(".") for name in public} == {1, 2}, "rooms are gone through"


def _defines_something(module):
    return any(
        getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
        for name, value in vars(module).items()
        if isclass(value) or isfunction(value)
    )


def test_the_python_interface_is_documented_by_what_it_is_for():
    page = api.public_names("privfed")
    named = re.findall(r"^\.\. auto\w+:: privfed\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(privfed.__all__)
    assert (
        page.index(":: privfed.train")
        < page.index(":: privfed.Rule")
        < page.index(":: privfed.Refused")
    )


def test_every_part_of_privfed_is_documented_in_full():
    page = api.parts_in_full()
    for kind, names in BUILT_IN.items():
        for name, target in names.items():
            if target.startswith("privfed."):
                part = find(kind, name, kind)
                assert page.count(f":: {part.__module__}.{part.__name__}\n") == 1, name


def test_every_study_has_a_page_a_claim_and_a_verdict():
    named = {path.stem for path in DOCS.glob("studies/*.md")} - {"index"}
    assert named == {folder.name for folder in studies.folders()}
    for folder in studies.folders():
        assert f"experiments/{folder.name}/README.md" in (
            DOCS / "studies" / f"{folder.name}.md"
        ).read_text("utf-8")
        title, claim, verdict = studies.in_short(folder)
        assert title
        assert claim.endswith((".", "?"))
        assert verdict.endswith(".")
        assert ">" not in claim + verdict


def test_pages_ask_for_what_is_made():
    pages = [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]
    asked = {match[1] for path in pages for match in GENERATED.finditer(path.read_text("utf-8"))}
    assert asked == {*MAKERS}


def test_the_picture_has_every_room_and_what_it_uses():
    drawn = rooms.picture()
    folders = {path.parent.name for path in (ROOT / "privfed").glob("*/__init__.py")}
    for room in (*folders, *rooms.BESIDE, "experiments"):
        assert f">{room}</text>" in drawn
    assert "privacy_attacks → attacks" in drawn
    assert "cli → defenses" not in drawn
    order = [room for layer in rooms.layers() for room in layer]
    assert order.index("cli") < order.index("run") < order.index("round")


def test_a_readme_is_linked_where_its_page_is():
    page = DOCS / "studies" / "banded.md"
    readme = ROOT / "experiments" / "banded" / "README.md"
    text = (
        "[a](../fedprox/README.md) ![b](accuracy.svg) [c](https://example.org/x) "
        "[d](#e) [f](gone.md)"
    )
    moved = relocated(text, readme, page)
    assert moved == (
        "[a](fedprox.md) ![b](../../experiments/banded/accuracy.svg) [c](https://example.org/x) "
        "[d](#e) [f](gone.md)"
    )
    assert relocated("[x](../benchmarks/README.md#y)", readme, page) == "[x](../benchmarks.md#y)"


def test_formulas_in_docstrings_are_no_markup():
    text = escaped("*Event*: `Poisson`(q), |x|^2 * y_, a * b\n\n>>> 2 * 3 | 4\n6")
    assert text == "*Event*: ``Poisson``\\ (q), \\|x\\|^2 \\* y\\_, a \\* b\n\n>>> 2 * 3 | 4\n6"
    assert escaped("a\n\n| b | c |\n|---|---|\n| 1 | `x` |") == (
        "a\n\n.. list-table::\n   :header-rows: 1\n\n   * - b\n     - c\n   * - 1\n     - ``x``"
    )
    assert prose("a[0] `b[0]` <c>") == "a\\[0\\] `b[0]` \\<c>"
    assert (
        prose("`p`/C/*.png, or `p`/*.png: *so* 2 * n")
        == "`p`/C/\\*.png, or `p`/\\*.png: *so* 2 \\* n"
    )
    assert table(["a"], [["x | y"]]).splitlines()[-1] == "| x \\| y |"


def test_tables_of_marks_fit_their_page_by_a_style_of_their_own():
    chosen = list(combinations({}, {"objective": ["sgd"], "sampler": ["full", "poisson"]}))
    page = matrix._table(chosen, "objective", "sampler", {})
    assert page.startswith(":::{container} marks\n| `client.objective` | `full` | `poisson` |")
    assert ".marks th" in (DOCS / "_static/house.css").read_text()


def test_a_matrix_has_a_mark_for_each_combination():
    some = {
        "protocol": ["none", "masks"],
        "rule": ["mean", "krum"],
        "mechanism": ["none", "gaussian"],
    }
    made = list(combinations({}, some))
    assert [matrix.MARKS.get(each.verdict, "refused") for each in made] == [
        *("none", "proof", "none", "refused"),
        *("none", "proof", "refused", "refused"),
    ]


@pytest.mark.slow
def test_the_matrix_is_complete():
    page = matrix.matrix()
    for kind in ("rule", "mechanism", "objective", "sampler", "attack", "protocol"):
        assert all(f"`{name}`" in page or f"= {name}" in page for name in BUILT_IN[kind])


def cited(text):
    """Sections of the rules of proof that `text` cites: "section 9.1", "sections 5 and 9.1"."""
    for named in re.findall(
        r"[Rr]ules of\s+proof,\s+sections?\s+([\d.]+(?:(?:,| and)\s+[\d.]+)*)", text
    ):
        yield from (each.rstrip(".") for each in re.findall(r"\d+(?:\.\d+)*", named))


def test_every_cited_rule_of_proof_exists():
    page = (DOCS / "explanation/rules_of_proof.md").read_text("utf-8")
    written = set(re.findall(r"^##+ (\d+(?:\.\d+)?)", page, re.MULTILINE))
    code = [
        path
        for room in ("privfed", "accounting", "defenses")
        for path in (ROOT / room).rglob("*.py")
    ]
    found = {each for path in code for each in cited(path.read_text("utf-8"))}
    assert list(cited("rules of proof, sections 5 and 9.1, S1).")) == ["5", "9.1"]
    assert len(found) >= 5
    assert found <= written, "cite a section of docs/explanation/rules_of_proof.md"


def test_the_glossary_has_the_terms_of_the_field_in_order():
    page = (DOCS / "reference/glossary.md").read_text("utf-8")
    terms = re.findall(r"^(\w[^\n]*)\n  \S", page, re.MULTILINE)
    assert len(terms) >= 60
    assert len(set(terms)) == len(terms)
    assert {"adjacency relation", "noise multiplier", "unit of privacy", "zero-out"} <= {*terms}
