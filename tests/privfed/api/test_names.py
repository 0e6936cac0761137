"""What `import privfed` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import privfed


def test_importing_takes_no_torch():
    heavy = "('torch', 'pandas', 'pydantic')"
    code = f"import privfed, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there_typed_and_listed():
    tree = ast.parse(Path(privfed.__file__).read_text("utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    places = {
        alias.asname: f"{node.module}:{alias.name}" for node in typed.body for alias in node.names
    }
    assert places == privfed._PLACES  # what type checkers see is what there is
    for name in privfed.__all__:
        assert getattr(privfed, name).__doc__, name
        assert name in dir(privfed)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        privfed.trian  # noqa: B018
