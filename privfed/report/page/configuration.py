"""The chapters of a page on a run's configuration and on its verification."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from privfed.config.config import Config
from privfed.config.reading import load
from privfed.config.sections import SECTIONS
from privfed.core import __version__
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.text import number
from privfed.report.page.blocks import Block, Chapter, Facts, Figures, Paragraph, ShellLine
from privfed.report.page.run_facts import PageFacts

_LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting")


def provenance_chapter(facts: PageFacts) -> Chapter:
    """Returns the chapter by which readers verify the run: command, ledger head, and versions."""
    head = str(facts.audit.ledger_head)
    words = (
        "One command re-computes every ε on this page from the ledger, and compares the run's "
        "files with the ledger. Give it a head that was recorded elsewhere to check that no "
        "earlier charge was removed."
    )
    pairs = {
        "run": str(facts.record.path),
        "ledger head": f"{head} at {facts.audit.charges} charges",
        "configuration": f"SHA-256 {facts.audit.terms.get('config', '—')}",
        "page made by": environment(),
    }
    run = shlex.quote(str(facts.record.path))
    blocks: list[Block] = [
        Paragraph(words),
        ShellLine(f"privfed audit {run} --head {head}"),
        Facts(pairs),
        Paragraph("To give the guarantee to others in a file that they can verify:"),
        ShellLine(f"privfed report {run} --claim claim.json"),
    ]
    return Chapter("verify", "Verification", blocks)


def environment() -> str:
    """Returns, as one text, the versions of the programs that write the page."""
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    return f"privfed {__version__}, Python {platform.python_version()}, {libraries}"


_ABSENT = object()


def configuration_chapter(facts: PageFacts) -> Chapter:
    """Returns the chapter with every key of the run, and its default if the value differs."""
    values, usual = dict(_keys(facts.record.keys)), _usual(facts.config)
    marked = {key for key, value in values.items() if usual.get(key, _ABSENT) != value}
    lines = [
        [
            key,
            _written(value),
            f"changed; default {_written(usual[key])}" if key in usual else "new",
        ]
        if key in marked and usual
        else [key, _written(value), ""]
        for key, value in values.items()
    ]
    places = frozenset(n for n, key in enumerate(values) if key in marked and usual)
    words = (
        f"{len(places)} of {len(values)} keys differ from the default run; the last column states "
        "their defaults."
        if usual
        else "Parts that the configuration names are not available, so defaults are not shown."
    )
    table = Figures("The resolved configuration", ["key", "value", "default"], lines, marked=places)
    return Chapter("configuration", "Configuration", [Paragraph(words), table])


def _keys(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields "section.key" and value of each key of a run file; `before` is the path so far."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{before}{name}.")
        elif before:
            yield before + name, value


def _usual(config: Config | None) -> dict[str, Any]:
    """Returns the default of each key ("section.key"); empty if a part is not available.

    The default is the value in the default run (`load(None)`) or, for keys of a part that the
    default run does not have, the default that the part declares.
    """
    if config is None:
        return {}
    try:
        default = load(None)
    except Refused:
        return {}
    usual = {
        f"{s}.{key}": value for s, keys in default.values().items() for key, value in keys.items()
    }
    for name, section in SECTIONS.items():
        for kind, _ in section.parts.values():
            part = getattr(config, kind)
            if type(part) is not type(getattr(default, kind)):
                usual |= {f"{name}.{key}": value for key, value in _defaults(part)}
    return usual


def _defaults(part: Part) -> Iterator[tuple[str, Any]]:
    for key, field in type(part).model_fields.items():
        if not field.is_required():
            yield key, field.get_default(call_default_factory=True)


def _written(value: Any) -> str:
    """Formats a value: booleans in lower case, texts in quotes, floats as `number` does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
