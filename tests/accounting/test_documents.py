"""Whatever a file holds, parsing it ends in a value or in a ValueError."""

import ast
from pathlib import Path

import pytest
from lanes import every_case

import accounting
import privfed
from accounting.documents import DEEPEST, from_json, from_toml


@every_case("depth", [DEEPEST + 1, 900, 200_000])
def test_what_is_nested_too_deep_is_no_value(depth):
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ValueError, match="nested more than 100 levels"):
            from_json(text)
    for text in ("a = " + "[" * depth + "]" * depth, ".".join("a" * min(depth, 2000)) + " = 1"):
        with pytest.raises(ValueError, match="nested more than 100 levels"):
            from_toml(text)


def test_what_is_not_too_deep_is_read_whole():
    assert from_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert from_json("[" * DEEPEST + "]" * DEEPEST)
    assert from_toml("a = [1, 2]\n[b.c]\nd = 3") == {"a": [1, 2], "b": {"c": {"d": 3}}}
    assert from_json(f'"{"[" * 900}"') == "[" * 900


@every_case("text", ["", "[1", "\x00", "1" * 5000])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


PARSERS = ("json.loads", "json.load", "tomllib.loads")


def parses(path):
    """Whether the module at `path` calls a parser of JSON or TOML itself."""
    text = path.read_text()
    if not any(name in text for name in PARSERS):
        return False
    calls = (node.func for node in ast.walk(ast.parse(text)) if _calls(node))
    return any(ast.unparse(call) in PARSERS for call in calls)


def _calls(node):
    return isinstance(node, ast.Call)


def test_nothing_else_parses_what_lies_in_files():
    folders = [Path(package.__file__).parent for package in (accounting, privfed)]
    modules = [path for folder in folders for path in folder.rglob("*.py") if parses(path)]
    assert [path.name for path in modules] == ["documents.py", "leaf.py"]
