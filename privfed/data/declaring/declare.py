"""Writes a run file from a public sample of a table.

Ranges, categories and classes are inferred from the sample, which must be public: inferring them
from private data would itself be a release. The user corrects by hand what the sample cannot show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from privfed.core.errors import Refused, public_text
from privfed.core.streams import Streams
from privfed.data.declaring.columns import column_kind, decimal_of
from privfed.data.declaring.declaration import (
    Declaration,
    SampleSites,
    label_kind,
    left_out_comments,
    run_file,
)
from privfed.data.sources.table import GivenTable, Table
from privfed.data.tables.cells import Words
from privfed.data.tables.columns import (
    NO_TEXT,
    column_names,
    sample_columns,
    sample_of_arrow,
)
from privfed.data.tables.delimited import Dialect, delimiter_of, encoding_of, known_encoding
from privfed.data.tables.readable import TableObject


def declare(
    sample: Path,
    label: str,
    client: str,
    path: str,
    delimiter: str | None = None,
    encoding: str | None = None,
    site: str = "",
) -> str:
    """Returns a run file (TOML) for tables like `sample`, with the loss that suits its label.

    A comment next to each column states the reason for its declaration. Parameters and errors are
    those of `declare_file`.
    """
    declared = declare_file(sample, label, client, path, delimiter, encoding, site)
    return run_file(sample.name, declared)


def declare_file(
    sample: Path,
    label: str,
    client: str,
    path: str,
    delimiter: str | None = None,
    encoding: str | None = None,
    site: str = "",
) -> Declaration:
    """Infers the declaration of a table from a public sample, and tests whether it fits the sample.

    Args:
      sample: file of the sample.
      label: name of the label's column.
      client: name of the clients' column; empty if there is none.
      path: path that the run file states: a table in the same format as the sample.
      delimiter: delimiter of cells; None infers it.
      encoding: encoding of the file; None infers it.
      site: name of the sites' column, which requires `client`; empty if there is none.

    Returns:
      The declaration.

    Raises:
      Refused: if the sample cannot be read, an argument is invalid or names no column, or tables
        like the sample cannot be used for training.
    """
    dialect = _dialect(sample, delimiter, encoding)
    names = column_names(sample, dialect)
    _refuse_missing(sample, names, label, client, site)
    columns = sample_columns(sample, names, dialect)
    if sample.suffix.lower() not in NO_TEXT and decimal_of(columns.values()) == ",":
        dialect = replace(dialect, decimal=",")
        columns = sample_columns(sample, names, dialect)
    readable = dialect if sample.suffix.lower() != ".npz" else None
    declared = _declaration(sample, columns, label, client, path, dialect, readable, site)
    file = {"path": str(sample)}
    _refuse_unusable(declared, lambda: Table.model_validate({**declared.section(), **file}))
    return declared


def declare_object(sample: TableObject, label: str, client: str, site: str = "") -> Declaration:
    """Infers the declaration of a table passed in Python, as `declare_file` does for a file.

    Further arguments and errors are those of `declare_file`.
    """
    _refuse_missing(sample, sample.names(), label, client, site)
    columns = sample_of_arrow(sample.all_columns(), sample.called, sample.dialect)
    dialect = sample.dialect
    declared = _declaration(sample, columns, label, client, "", dialect, dialect, site)
    keys = {k: v for k, v in declared.section().items() if k in GivenTable.model_fields}
    _refuse_unusable(declared, lambda: GivenTable.of(sample).model_validate(keys))
    return declared


def _refuse_missing(
    sample: object, names: Sequence[str], label: str, client: str, site: str
) -> None:
    """Raises `Refused` if a requested column is not among the `names`, or is requested twice.

    A column of sites is also refused without a column of clients.
    """
    if label == client:
        raise Refused(
            f"--label and --client are both {label!r}, but a client is not a label to predict; "
            "name two columns"
        )
    if site and site in (label, client):
        other = "--label" if site == label else "--client"
        raise Refused(
            f"{other} and --site are both {site!r}, but a site holds many clients; name two columns"
        )
    if site and not client:
        raise Refused(
            f"--site is {site!r}, but no column names each row's client; name that column by "
            "--client"
        )
    requested = {"--label": label, "--client": client, "--site": site}
    for key, name in requested.items():
        if name not in names and (name or key == "--label"):
            raise Refused(
                f"{key} is {name!r}, but {sample} has no such column; expected one of the "
                f"{len(names)} names in the first row",
                private=f"its columns are {names}",
            )


def _declaration(
    sample: object,
    columns: Mapping[str, np.ndarray | Words | str],
    label: str,
    client: str,
    path: str,
    dialect: Dialect,
    readable: Dialect | None,
    site: str,
) -> Declaration:
    """Returns the declaration; words are read as numbers by the dialect `readable`, unless None."""
    reserved = (label, client, site)
    others = {name: column for name, column in columns.items() if name not in reserved}
    return Declaration(
        path,
        client,
        label,
        label_kind(columns[label], f"--label: {sample}"),
        {name: column_kind(column, readable) for name, column in others.items()},
        dialect,
        _count_different(columns[client]) if client else 0,
        _sites(site, columns[client], columns[site]) if site else None,
    )


def _dialect(sample: Path, delimiter: str | None, encoding: str | None) -> Dialect:
    """Returns the dialect of the sample; a `delimiter` or `encoding` of None is inferred.

    Raises `Refused` for an invalid delimiter, an unknown encoding, or an unreadable file.
    """
    if delimiter is not None and len(delimiter) != 1:
        raise Refused(f"--delimiter is {delimiter!r}; expected one character (a tab is $'\\t')")
    if not sample.is_file() or sample.suffix.lower() in NO_TEXT:
        return Dialect()  # reading it reports the error
    try:
        encoding = known_encoding(encoding or encoding_of(sample))
    except ValueError:
        raise Refused(
            f"--encoding is {encoding!r}; expected an encoding that Python knows, for example "
            '"cp1252"'
        ) from None
    except OSError as error:
        raise Refused(
            f"{sample} cannot be read: {public_text(error)}; expected a CSV, Parquet or npz file",
            str(error),
        ) from None
    return Dialect(delimiter or delimiter_of(sample, encoding) or ",", encoding)


def _count_different(column: np.ndarray | Words | str) -> int:
    """Returns the number of distinct words or numbers (empty: one more); 0 for another type."""
    return 0 if isinstance(column, str) else len(np.unique(_codes(column)))


def _codes(column: np.ndarray | Words) -> np.ndarray:
    return column.codes if isinstance(column, Words) else column


def _sites(
    site: str, clients: np.ndarray | Words | str, sites: np.ndarray | Words | str
) -> SampleSites:
    """Returns the sites of the sample, and the largest number of sites of one client.

    If either column is of another type than words or numbers, these are 0 and 1.
    """
    if isinstance(clients, str) or isinstance(sites, str):
        return SampleSites(site, 0, 1)
    (_, whose), (_, at) = (
        np.unique(_codes(column), return_inverse=True) for column in (clients, sites)
    )
    count = int(at.max(initial=-1)) + 1
    most = np.bincount(np.unique(whose * count + at) // count).max(initial=1) if count else 1
    return SampleSites(site, count, int(most))


def _refuse_unusable(declared: Declaration, source: Callable[[], Table | GivenTable]) -> None:
    """Raises `Refused` if `source()`, the sample's declared source, cannot be built or loaded."""
    try:
        source().load(1, Streams(0))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused(
            "this sample cannot be declared as a table for training; write the declaration by "
            "hand, or use another sample",
            private="\n".join([reason, *left_out_comments(declared)]),
        ) from None
    except Refused as refused:
        raise Refused(
            f"this sample cannot be declared as a table for training: {public_text(refused)}",
            refused.private,
        ) from None
