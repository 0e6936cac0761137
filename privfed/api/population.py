"""Users' data, a table or arrays, with their declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from privfed.api.answer import plain
from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.core.errors import Refused
from privfed.data.declaring.declaration import Declaration as Declared
from privfed.data.declaring.declaration import run_file
from privfed.data.declaring.declare import declare_file, declare_object
from privfed.data.inputs import Input, X
from privfed.data.sources.table import GivenArrays, GivenTable
from privfed.data.sources.table import Table as FileTable
from privfed.data.tables import array_table
from privfed.data.tables.arrow import settled
from privfed.data.tables.cells import as_text
from privfed.data.tables.readable import TableObject

TABLE, TEST_TABLE, TEST_ARRAYS = "the table", "the test table", "the test arrays"
"""Names, in messages, of tables and arrays that were passed."""


class DeclaredPopulation:
    """The first argument of `privfed.train`: a source of examples and its declaration."""

    section: dict[str, Any]
    """The keys of [data], including the source as a class."""
    loss: str
    """The name of the loss that suits the declared label."""

    @property
    def two_classes(self) -> bool:
        """Whether the label is one of two classes."""
        return _two_classes(self.section)

    def __repr__(self) -> str:
        kinds = ("features", "inputs", "categories")
        columns = [name for kind in kinds for name in self.section.get(kind, {})]
        named = ", ".join(columns[:5]) + (", …" if columns[5:] else "")
        return f"<{type(self).__name__} of {self.section['clients']} clients declared: {named}>"


class Table(DeclaredPopulation):
    """A table of clients' rows with its declaration.

    No part of the declaration is read from `rows`: bounds or categories derived from private data
    would be a further release. `privfed.declare` reads them from a public sample.

    Args:
      rows: a pandas, Polars or Arrow table, a Hugging Face `Dataset`, or the path of a CSV, Parquet
        or npz file.
      label: one column, with `labels` (its values by name), `classes` (integers from 0) or
        `label_bounds` (a number to predict); or several columns of 0 and 1 (multi-label).
      clients: the approximate number of clients, a public constant.
      client: the column with the client of each row, the unit of privacy; if left out, rows are
        partitioned among simulated clients.
      test: a public table with the same columns; without one, `holdout="clients"` evaluates on
        randomly chosen clients, which only test and have no guarantee.
      features: bounds (low, high) of numeric columns.
      categories: values of categorical columns.
      dates: first and last date of date columns.
      declared: further keys of [data]: `missing`, `outside`, `population`, …
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


class Arrays(DeclaredPopulation):
    """Clients' arrays by name, with their declaration.

    An example is numbers (`shape`, `bounds`), token ids (`shape`, `tokens`), or several named
    `inputs`, which the model's `forward` receives by their names. Token ids are not scaled.

    Args:
      population: the name of each client -> a pair (x, y) of arrays or tensors, x `[n, *shape]` and
        y `[n]`, or a `torch.utils.data.Dataset` of such pairs. With `inputs`, x is a mapping of
        arrays; with `next_token`, there is x only.
      clients: the approximate number of clients, a public constant.
      shape: the shape of one example.
      bounds: bounds (low, high) of its entries, which are scaled to [-1, 1].
      tokens: the size of the vocabulary, if entries are token ids.
      inputs: name -> keys of one input: `shape`, and one of `bounds`, `tokens` and `mask=True`.
      next_token: whether the label of each position is the next token; if there are several inputs,
        the name of the input with the tokens. Masked positions are not predicted.
      test: a public pair (x, y) or dataset.
      declared: further keys of [data]. One of them declares y: `classes` (integers from 0),
        `labels` (words) or `label_bounds` (numbers). With `label_shape`, y `[n, *label_shape]` has
        a class at each position, and `ignored` (-100) where there is none. `unknown` is the id that
        replaces ids outside of the vocabulary; without it, they are refused.

    Raises:
      Refused: if `population` is not a mapping, or the arrays do not have this shape.
    """

    called: ClassVar[str] = "the arrays"
    """Name of the clients' objects in messages."""

    def __init__(
        self,
        population: Mapping[Any, Any],
        *,
        clients: int,
        shape: Sequence[int] = (),
        bounds: Sequence[float] = (),
        tokens: int = 0,
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        next_token: bool | str = False,
        test: Any = None,
        **declared: Any,
    ) -> None:
        if not isinstance(population, Mapping):
            expected = 'each client\'s arrays by its name, {"a": (x, y), "b": (x, y)}'
            raise Refused(f"population is a {type(population).__name__}; expected {expected}")
        if not isinstance(shape, Sequence):
            raise Refused(
                f"shape is {shape!r}; expected the shape of one example, for example (28, 28)"
            )
        keys: dict[str, Any] = plain({"label": array_table.Y, "clients": clients, **declared})
        if tokens and inputs:
            raise Refused(
                f"tokens is {tokens}, but inputs= declares each input; give the input of tokens "
                f"tokens={tokens} there, and remove tokens="
            )
        if tokens:
            unknown = {"unknown": keys.pop("unknown")} if "unknown" in keys else {}
            inputs = {X: {"shape": shape, "tokens": tokens, **unknown}}
        if inputs:
            _refuse_bounds(tokens, shape, bounds)
            keys["inputs"] = plain(inputs)
        else:
            keys |= {"shape": plain(shape), "features": {X: plain(bounds)}}
        if next_token:
            keys |= {"next_token": X if next_token is True else next_token, "label": ""}
        shapes = _shapes(keys)
        rows = array_table.of_clients(population, shapes, self.called)
        scored = None if test is None else array_table.of_pair(test, shapes, TEST_ARRAYS)
        self.section = {
            "source": GivenArrays.of(rows, scored),
            "client": array_table.CLIENT,
            **keys,
        }
        self.loss = _loss(self.section)


def _refuse_bounds(tokens: int, shape: Sequence[int], bounds: Sequence[float]) -> None:
    """Raises `Refused` for bounds of token ids, and for a shape or bounds in addition to inputs."""
    if tokens and bounds:
        raise Refused(
            f"bounds is {bounds!r}, but tokens= declares ids, which have no bounds; remove bounds="
        )
    given = {name: value for name, value in (("shape", shape), ("bounds", bounds)) if value}
    if given and not tokens:
        raise Refused(
            f"{' and '.join(f'{name} is {value!r}' for name, value in given.items())}, but inputs= "
            f"declares each input; remove {' and '.join(f'{name}=' for name in given)}"
        )


def _shapes(keys: Mapping[str, Any]) -> array_table.ArrayShapes:
    """Returns the declared shapes of arrays. Raises `Refused` for an invalid input."""
    inputs = {}
    for name, each in keys.get("inputs", {}).items():
        try:
            inputs[name] = Input.model_validate(each)
        except ValidationError as error:
            wrong = mistakes(error, f"inputs.{name}", each, Input)
            raise Refused(listed_mistakes(wrong)) from None
    label = keys.get("label_shape", ())
    return array_table.ArrayShapes.of(keys.get("shape", ()), inputs, label, bool(keys["label"]))


def _source(rows: Any, test: Any, missing_words: Sequence[str]) -> dict[str, Any]:
    """Returns the keys of [data] that state where the rows are: in a file, or in an object.

    Entries in `missing_words` count as missing in an object. Raises `Refused` if only one of `rows`
    and `test` is a path.
    """
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
    """Converts the first and the last day of a date column to the form of a run file."""
    if isinstance(days, tuple | list) and len(days) == 2:
        return {"first": str(days[0])[:10], "last": str(days[1])[:10]}
    return days


def _loss(keys: Mapping[str, Any]) -> str:
    """Returns the name of the loss for the declared label."""
    if isinstance(keys["label"], list):
        return "multi_label"
    if keys.get("label_bounds"):
        return "squared_error"
    if keys.get("label_shape") or keys.get("next_token"):
        return "cross_entropy"
    return "binary_cross_entropy" if _two_classes(keys) else "cross_entropy"


def _two_classes(keys: Mapping[str, Any]) -> bool:
    return 2 in (len(keys.get("labels", [])), keys.get("classes", 0))


_SAMPLE = "the sample"
"""Name of a passed sample in messages."""


class Declaration:
    """A declaration inferred from a public sample; the user has to check each line.

    `str` returns the corresponding run file, with a reason on each line. `table` applies the
    declaration to a table of the same form.
    """

    def __init__(self, declared: Declared, sample: Any, called: str) -> None:
        self._declared = declared
        self._sample = sample
        self._called = called

    @property
    def keys(self) -> dict[str, Any]:
        """The declared keys of [data]."""
        return self._declared.section()

    def table(self, rows: Any, *, clients: int, test: Any = None, **changes: Any) -> Table:
        """Returns `rows` with this declaration: see `privfed.Table`.

        Args:
          rows: a table of the same form as the sample, with other clients.
          clients: the approximate number of clients, a public constant.
          test: a public table; without one, randomly chosen clients only test, without a guarantee.
          changes: declarations that replace those of the sample.

        Raises:
          Refused: if `rows` is the sample itself, or a path of the same file.
        """
        if rows is self._sample or self._is_sample(rows):
            raise Refused(
                "rows is the sample itself, but a sample has to be public: bounds and categories "
                "derived from private rows would be a further release. Use a sample of other "
                "clients, or declare by hand: privfed.Table(rows, …)"
            )
        kind = FileTable if isinstance(rows, str | Path) else GivenTable
        keys = {k: v for k, v in self.keys.items() if k in kind.model_fields and k != "path"}
        if test is None and self._declared.client:
            keys["holdout"] = "clients"
        return Table(rows, clients=clients, test=test, **{**keys, **changes})

    def _is_sample(self, rows: Any) -> bool:
        """Whether `rows` and the sample are paths of the same file."""
        paths = [each for each in (rows, self._sample) if isinstance(each, str | Path)]
        return len({Path(path).resolve() for path in paths}) == 1 and len(paths) == 2

    def __str__(self) -> str:
        return run_file(self._called, self._declared)

    __repr__ = __str__


def declare(sample: Any, *, label: str, client: str = "", site: str = "") -> Declaration:
    """Infers the declaration of a table from a PUBLIC `sample` of the same form.

    Args:
      sample: a table of a kind that `privfed.Table` accepts, or its path.
      label: the column to predict.
      client: the column with the client of each row.
      site: the column with the site of each row.

    Returns:
      The declaration, to be checked and applied to the private table.

    Raises:
      Refused: if no model can be trained on such tables.
    """
    if isinstance(sample, str | Path):
        path = Path(sample)
        declared = declare_file(path, label, client, str(path), site=site)
        return Declaration(declared, path, path.name)
    declared = declare_object(TableObject(settled(sample), _SAMPLE), label, client, site)
    return Declaration(declared, sample, _SAMPLE)
