"""A declaration read off a public sample, for tables of the same form: `privfed.declare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privfed.data.declaring.declaration import Declaration as Declared
from privfed.data.declaring.declaration import run_file
from privfed.data.declaring.declare import declare_file, declare_object
from privfed.data.sources.given_table import GivenTable
from privfed.data.sources.table import Table as FileTable
from privfed.data.tables.arrow import settled
from privfed.data.tables.readable import TableObject
from privfed.errors import Refused
from privfed.python.people import Table

_SAMPLE = "the sample"
"""What messages call a sample that was passed."""


class Declaration:
    """What was read off a public sample: bounds, categories, the label's values; check each.

    Shown, it is the run file that it stands for, with a reason at each line. `table` makes people
    of a table of the same form.
    """

    def __init__(self, declared: Declared, sample: Any, called: str) -> None:
        self._declared = declared
        self._sample = sample
        self._called = called

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of [data] that are declared."""
        return self._declared.section()

    def table(self, rows: Any, *, clients: int, test: Any = None, **changes: Any) -> Table:
        """`rows` with this declaration, but for `changes`: see `privfed.Table`.

        Without a public `test` table some of its clients are drawn to be public, and scored on.
        """
        if rows is self._sample or self._is_sample(rows):
            raise Refused(
                "these rows are the sample itself, which is public then, and nobody to protect: "
                "bounds and categories that are read off private rows are a release of their own. "
                "Declare a sample of other people, or by hand: privfed.Table(rows, …)"
            )
        kind = FileTable if isinstance(rows, str | Path) else GivenTable
        keys = {k: v for k, v in self.keys.items() if k in kind.model_fields and k != "path"}
        if test is None and self._declared.client:
            keys["holdout"] = "clients"
        return Table(rows, clients=clients, test=test, **{**keys, **changes})

    def _is_sample(self, rows: Any) -> bool:
        """Whether both are paths, and of one file."""
        paths = [each for each in (rows, self._sample) if isinstance(each, str | Path)]
        return len({Path(path).resolve() for path in paths}) == 1 and len(paths) == 2

    def __str__(self) -> str:
        return run_file(self._called, self._declared)

    __repr__ = __str__


def declare(sample: Any, *, label: str, client: str = "", site: str = "") -> Declaration:
    """Read the declaration of a table off a PUBLIC `sample` of the same form.

    It is a table as `privfed.Table` takes them, or the path of one. Raises `Refused` where nothing
    can be learned from such tables.
    """
    if isinstance(sample, str | Path):
        path = Path(sample)
        declared = declare_file(path, label, client, str(path), site=site)
        return Declaration(declared, path, path.name)
    declared = declare_object(TableObject(settled(sample), _SAMPLE), label, client, site)
    return Declaration(declared, sample, _SAMPLE)
