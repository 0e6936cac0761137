"""The splits of a Hugging Face data set on disk: as `save_to_disk` writes it, or Parquet files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.documents import from_json
from privfed.errors import Refused, public_text

if TYPE_CHECKING:
    import pyarrow

_EXPECTED = "expected what datasets' save_to_disk() or to_parquet() writes"


def read_split(path: Path, split: str, names: Sequence[str]) -> pyarrow.Table:
    """The columns `names` of a split: of a saved data set, or of Parquet files named for it.

    Raises `Refused` where there is none, and where a column is missing.
    """
    import pyarrow

    with _readable(path):
        tables = [_columns(file, names) for file in split_files(path, split)]
        return pyarrow.concat_tables(tables)


def split_files(path: Path, split: str) -> list[Path]:
    """The files of a split, in their order; where there are no splits, all. Raises `Refused`."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Refused(
            f"data: {path} does not exist (from {Path.cwd()}); {_EXPECTED}. Nothing is fetched by "
            "name: save the data set first, datasets.load_dataset(NAME).save_to_disk(FOLDER), and "
            "set data.path = FOLDER"
        )
    folder = path / split if (path / "dataset_dict.json").is_file() else path
    files = _saved(folder) if (folder / "state.json").is_file() else _parquet(folder, split)
    if not files:
        raise Refused(f"data.split is {split!r}, and {path} holds no such split; {_EXPECTED}")
    return files


def _parquet(folder: Path, split: str) -> list[Path]:
    """The Parquet files of a split: those in its own folder, or named for it; of none, all."""
    patterns = (f"{split}.parquet", f"{split}-*.parquet") if split else ("*.parquet",)
    inside = sorted((folder / split).glob("*.parquet")) if split else []
    globs = [place.glob(each) for place in (folder, folder / "data") for each in patterns]
    return inside + sorted(file for files in globs for file in files)


def _saved(folder: Path) -> list[Path]:
    """The files of a saved data set, as its state lists them; none lies outside its folder.

    Raises `Refused` for another state.
    """
    path = folder / "state.json"
    try:
        state = from_json(path.read_text(encoding="utf-8"))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, error) from None
    if not names or any(Path(name).name != name for name in names):
        raise Refused(f"data: {path} lists no files, or files of other folders; {_EXPECTED}")
    return [folder / name for name in names]


def _columns(file: Path, names: Sequence[str]) -> pyarrow.Table:
    """The columns `names` of one file, mapped where it is Arrow's.

    Such a file says itself where in it values begin and end, and no file is UTF-8 for certain:
    that is looked at before any value is read.
    """
    import pyarrow
    from pyarrow import parquet

    if file.suffix == ".arrow":
        table = pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all()
        _refuse_absent(file, table.column_names, names)
        columns = table.select(names)
    else:
        _refuse_absent(file, parquet.read_schema(file).names, names)
        columns = parquet.read_table(file, columns=[*names])
    columns.validate(full=True)
    return columns


def _refuse_absent(file: Path, present: Sequence[str], names: Sequence[str]) -> None:
    """Raise `Refused` unless each of `names` is one column of those that are `present`."""
    for name in names:
        if present.count(name) != 1:
            raise Refused(
                f"data: {file} has {present.count(name)} columns {name!r} among its "
                f"{len(present)}; expected one",
                private=f"they are {', '.join(present)}",
            )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn whatever is wrong with the files as files into one refusal."""
    import pyarrow

    try:
        yield
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> Refused:
    return Refused(
        f"data: {path} cannot be read ({public_text(error)}); {_EXPECTED}", private=str(error)
    )
