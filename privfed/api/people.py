"""DeclaredPeople as a user passes them: a table or arrays, with all that is declared of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from privfed.api.answer import plain
from privfed.core.errors import Refused
from privfed.data.declaring.declaration import Declaration as Declared
from privfed.data.declaring.declaration import run_file
from privfed.data.declaring.declare import declare_file, declare_object
from privfed.data.sources.table import GivenTable
from privfed.data.sources.table import Table as FileTable
from privfed.data.tables import array_table
from privfed.data.tables.arrow import settled
from privfed.data.tables.cells import as_text
from privfed.data.tables.readable import TableObject

TABLE, TEST_TABLE = "the table", "the test table"
ARRAYS, TEST_ARRAYS = "the arrays", "the test arrays"
"""What messages call what was passed."""


class DeclaredPeople:
    """What the first argument of `privfed.train` is: a source of examples, and its declaration."""

    section: dict[str, Any]
    """The keys of [data], the source among them as a class."""
    loss: str
    """The loss that suits its label."""

    def __repr__(self) -> str:
        columns = [*self.section.get("features", {}), *self.section.get("categories", {})]
        named = ", ".join(columns[:5]) + (", …" if columns[5:] else "")
        return f"<{type(self).__name__} of {self.section['clients']} clients declared: {named}>"


class Table(DeclaredPeople):
    """A table of people, and what is declared of it.

    `rows` is a pandas, Polars or Arrow table, a Hugging Face `Dataset`, or the path of a CSV,
    Parquet or npz file. `client` names the column that says whose a row is (the unit of privacy),
    and `clients` is about how many there are, a public constant. `features` maps columns to their
    bounds (low, high), `categories` to their values, `dates` to their first and last; `label` is
    one column with `labels` (its values by name), `classes` (whole numbers from 0) or
    `label_bounds` (a number to predict), or several columns of 0 and 1. `test` is a public table
    with the same columns; without one, `holdout="clients"` scores on clients drawn to be public.
    Further keys of [data] are arguments too: `missing`, `outside`, `population`, …

    Nothing of it is ever read off `rows`: bounds or categories found in private data would be a
    release of their own. `privfed.declare` reads them off a public sample.
    """

    def __init__(
        self,
        rows: Any,
        *,
        label: str | Sequence[str],
        clients: int,
        client: str = "",
        test: Any = None,
        features: Mapping[str, Sequence[float]] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        dates: Mapping[str, Any] | None = None,
        **declared: Any,
    ) -> None:
        keys = plain(
            {
                "label": label,
                "clients": clients,
                "client": client,
                "features": features or {},
                "categories": categories or {},
                "dates": {name: _span(days) for name, days in (dates or {}).items()},
                **declared,
            }
        )
        if "labels" in keys:
            keys["labels"] = [as_text(value) for value in keys["labels"]]
        self.section = {**_source(rows, test, keys.get("missing_words", [])), **keys}
        self.loss = _loss(keys)


class Arrays(DeclaredPeople):
    """Clients' arrays by name, and what is declared of them.

    `people` maps the name of each client to a pair (x, y) of arrays or tensors, x `[n, *shape]` and
    y `[n]`, or to a `torch.utils.data.Dataset` of such pairs. `shape` is that of one example and
    `bounds` those of its numbers, which a model sees scaled onto [-1, 1]; y holds `classes` (whole
    numbers from 0), words of `labels`, or numbers within `label_bounds`. `clients` is about how
    many clients there are, a public constant, and `test` a public pair or dataset. Further keys of
    [data] are arguments too.
    """

    def __init__(
        self,
        people: Mapping[Any, Any],
        *,
        shape: Sequence[int],
        bounds: Sequence[float],
        clients: int,
        test: Any = None,
        **declared: Any,
    ) -> None:
        if not isinstance(people, Mapping):
            raise Refused(f"people is a {type(people).__name__}; expected clients by name, a dict")
        if not isinstance(shape, Sequence):
            raise Refused(f"shape is {shape!r}; expected that of one example, as (28, 28)")
        rows = array_table.of_clients(people, shape, ARRAYS)
        scored = None if test is None else array_table.of_pair(test, shape, TEST_ARRAYS)
        self.section = {
            "source": GivenTable.of(rows, scored),
            "shape": plain(shape),
            "features": {array_table.X: plain(bounds)},
            "label": array_table.Y,
            "client": array_table.CLIENT,
            "clients": plain(clients),
            **plain(declared),
        }
        self.loss = _loss(self.section)


def _source(rows: Any, test: Any, missing_words: Sequence[str]) -> dict[str, Any]:
    """The keys of [data] that say where rows come from: a file, or an object."""
    if isinstance(rows, PathLike | str) != isinstance(test, PathLike | str) and test is not None:
        kinds = f"{type(rows).__name__} and {type(test).__name__}"
        raise Refused(f"rows and test are {kinds}; expected both as paths, or both as tables")
    if isinstance(rows, PathLike | str):
        public = {"test_path": fspath(test)} if test is not None else {}
        return {"source": "table", "path": fspath(rows), **public}
    words = tuple(missing_words)
    scored = None if test is None else TableObject(settled(test), TEST_TABLE, words)
    return {"source": GivenTable.of(TableObject(settled(rows), TABLE, words), scored)}


def _span(days: Any) -> Any:
    """The first and the last day of dates, as a run file has them."""
    if isinstance(days, tuple | list) and len(days) == 2:
        return {"first": str(days[0])[:10], "last": str(days[1])[:10]}
    return days


def _loss(keys: Mapping[str, Any]) -> str:
    """The loss for a label that is declared so."""
    if isinstance(keys["label"], list):
        return "multi_label"
    if keys.get("label_bounds"):
        return "squared_error"
    two = 2 in (len(keys.get("labels", [])), keys.get("classes", 0))
    return "binary_cross_entropy" if two else "cross_entropy"


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
