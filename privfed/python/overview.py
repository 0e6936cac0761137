"""The calls that look at run directories: the runs of a folder, and two side by side."""

from __future__ import annotations

from os import PathLike

from privfed.python.answer import Answer
from privfed.python.plain import as_path, from_here


def runs(folder: str | PathLike[str] = "runs") -> Answer:
    """The runs in `folder`, three folders deep: `rows` has one for each, as `privfed runs` does.

    `pandas.DataFrame(privfed.runs().rows)` is a table of them, and `same_people` says which are
    about the same people. Raises `Refused` where there is no such folder.
    """
    from privfed.overview.listing import list_runs
    from privfed.report.runs.listing import RunsTable

    listed = list_runs(from_here(as_path(folder, "folder")))
    return Answer(listed.to_json(), RunsTable(listed), listed)


def compare(first: str | PathLike[str], second: str | PathLike[str]) -> Answer:
    """Two runs side by side: `settings` that differ, `runs` with guarantees and rounds, `joint` ε.

    Raises `Refused` for a path that is no run, and `Broken` for a run that is broken.
    """
    from privfed.overview.comparison import compare_runs
    from privfed.report.runs.comparison import ComparisonTable

    paths = [
        from_here(as_path(path, name)) for path, name in ((first, "first"), (second, "second"))
    ]
    compared = compare_runs(*paths)
    return Answer(compared.to_json(), ComparisonTable(compared), compared)
