"""Checks of external parts in a run file, before any of their code runs.

Building a configuration imports the parts that it names, and an import runs their code. A run file
from a coordinator is therefore examined as text first.
"""

from __future__ import annotations

import ast
import hashlib
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from accounting.documents import from_toml
from privfed.config.reading import keys_of_outside_parts
from privfed.core.errors import Refused
from privfed.deploy.site.policy import DIGEST, Code, LocalPolicy, Refusal

_MODEL = "model.name"


def outside_part(policy: LocalPolicy, text: str) -> Refusal | None:
    """Returns a refusal if building the run file `text` could run unlisted code; None otherwise.

    The model may be an external `module:name` if the policy lists the digest of the module's file.
    The digest does not cover files that the module imports. All other parts must be built-in.
    This check imports no part.
    """
    try:
        keys = keys_of_outside_parts(text, "the run file")
        others = [key for key in keys if key != _MODEL]
        if others:
            return Refusal(
                Code.PART,
                f"{', '.join(others)} names an external part, but this site allows only built-in "
                "parts; the run has to use those",
            )
        if _MODEL in keys:
            return unlisted_model_refusal(policy, str(from_toml(text)["model"]["name"]))
    except (Refused, ValueError, TypeError, AttributeError) as error:
        return Refusal(Code.PART, f"the run file cannot be read: {error}")
    return None


def unlisted_model_refusal(policy: LocalPolicy, name: str) -> Refusal | None:
    """Returns a refusal of the external model `name`; None if this site may run it.

    A model may run if a single file defines it exactly once and the policy lists that file's
    digest. The run file must name it as "module:name", because a name that an installed package
    registers does not identify the file of its code.
    """
    module, colon, _ = name.partition(":")
    path = _file_of(module) if colon else None
    if path is None:
        return Refusal(
            Code.MODEL,
            f"model.name is {name!r}, but that module is not a single file here (packages have "
            "several files); put the function that makes the model into one file, and list the "
            "file's digest in allow.models",
        )
    if not _defines(path, name.partition(":")[2]):
        return Refusal(
            Code.MODEL,
            f"model.name is {name!r}, but {path} does not define that function or class exactly "
            "once, and a digest covers no imports; define the model in that file",
        )
    digest = file_digest(path)
    if digest not in policy.allow.models:
        return Refusal(
            Code.MODEL,
            f"model.name is in {path}, but allow.models of the policy does not list the file's "
            f"digest {digest}; read the file, and add the digest to allow.models",
        )
    return None


def model_file_digest(name: str) -> str:
    """Returns the digest of the file of the external model `name` ("module:name").

    Returns "" for any other name, and if the module is not a single file (`_file_of`).
    """
    path = _file_of(name.partition(":")[0]) if ":" in name else None
    return file_digest(path) if path else ""


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of the file at `path` as policies state it: "sha256:" and 64 digits."""
    return DIGEST + hashlib.sha256(path.read_bytes()).hexdigest()


def _defines(path: Path, name: str) -> bool:
    """Whether the file has exactly one function or class `name` at its top level.

    False also if an assignment at the top level, or an import, states `name`, if the file is no
    valid Python, or if it has an `import *`, which could replace `name`. Runs no code of the file.
    """
    kinds = ast.FunctionDef | ast.ClassDef
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    defined = [node for node in body if isinstance(node, kinds) and node.name == name]
    rebound = {
        other.id
        for node in body
        if not isinstance(node, kinds)
        for other in ast.walk(node)
        if isinstance(other, ast.Name) and isinstance(other.ctx, ast.Store)
    }
    imported = {
        (alias.asname or alias.name)
        for node in ast.walk(ast.Module(body, []))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return len(defined) == 1 and not {name, "*"} & (rebound | imported)


def _file_of(module: str) -> Path | None:
    """Returns the single file that an import of `module` runs; None if there is no such file.

    Modules in packages are excluded, because the package's code would run first. Nothing is
    imported.
    """
    if not module.isidentifier():
        return None
    try:
        spec = find_spec(module) or PathFinder.find_spec(module, [str(Path.cwd())])
    except ValueError:  # a loaded module that has no file
        return None
    if spec is None or spec.submodule_search_locations is not None or not spec.has_location:
        return None
    path = Path(spec.origin or "")
    return path if path.suffix == ".py" and path.is_file() else None
