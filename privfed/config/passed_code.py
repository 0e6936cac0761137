"""A digest of the code of parts that were passed as classes: a resume requires the same code.

A part that is named (`module:name`) is imported again by its name. A class that is passed, for
example from a notebook, is not stored: the ledger states the digest of its sources, which a resume
compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.core.own_code import sources_digest


def passed_code(config: Config) -> dict[str, str]:
    """Returns the SHA-256 of the sources of each part passed as a class, by kind."""
    return {
        kind: digest
        for kind, part in sorted(config.given.items())
        if (digest := sources_digest(_defining(part)))
    }


def refuse_other_code(config: Config, terms: Mapping[str, Any]) -> None:
    """Raises `Refused` if the ledger's `terms` state other code of a part that was passed."""
    stated, passed = terms.get("code", {}), passed_code(config)
    for kind, digest in stated.items():
        if passed.get(kind, digest) != digest:
            raise Refused(
                f"the code of the {kind} that was passed differs from the code with which the run "
                f"began; pass the former {kind}, or start a new run that names this run in "
                "privacy.prior"
            )


def _defining(part: type) -> Iterator[object]:
    """Yields the classes that define a part; for a part made from a function, the function."""
    for base in part.__mro__:
        function = vars(base).get("function")
        yield function.__func__ if isinstance(function, staticmethod) else base
