"""The function `privfed.survival`, which releases survival curves."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from privfed.api.answer import Answer, as_path, from_here


def survival(
    run: str | PathLike[str],
    *,
    time: str = "",
    event: str = "",
    until: float | None = None,
    bins: int = 20,
    edges: Sequence[float] | None = None,
    occurred: Sequence[str | int | bool] = (1,),
    group: str = "",
    epsilon: float | None = None,
    delta: float | None = None,
    actuarial: bool = False,
    out: str | PathLike[str] | None = None,
    keys: Sequence[str] = (),
) -> Answer:
    """Releases a survival table of all clients, charged once, as `privfed survive` does.

    Args:
      run: a run file that describes the population; or the directory of an earlier release, which
        is only read again.
      time: the column of times until the event or censoring.
      event: the column that states whether the event occurred.
      until: the end of the last bin; the first begins at 0.
      bins: with `until`: the number of bins of equal width.
      edges: instead of `until`: the ends of the bins, ascending.
      occurred: entries of `event` that state an event.
      group: the column of groups, whose values [data.categories] declares.
      epsilon: epsilon of the release; None: the share `budget.statistics` of the run file.
      delta: delta of the release; None: that of the run file.
      actuarial: whether a censored client is at risk for half of its bin, as in the actuarial
        estimate; False: for all of it, as in Kaplan-Meier of binned times.
      out: the new run directory; by default a new folder in runs/.
      keys: keys of the run file to change, as "section.key=value".

    Returns:
      The `curves`, `log_rank` and `hazard_ratios`, the noised `events` and `censored`, and the
      `guarantee`.

    Raises:
      Refused: if the release has no proof, or a column or the bins are not declared.
    """
    from privfed.analytics.release import make_release
    from privfed.analytics.survival.release import survival_of, survival_request
    from privfed.report.survival import survival_tables
    from privfed.store.folders import new_folder

    path = from_here(as_path(run, "run"))
    if path.is_dir():
        return Answer.of(survival_of(path, actuarial).write(), survival_tables)
    asking = survival_request(time, event, until, bins, edges, occurred, group, epsilon, delta)
    folder = new_folder("survival") if out is None else from_here(as_path(out, "out"))
    make_release(path, keys, asking, folder)
    return Answer.of(survival_of(folder, actuarial).write(), survival_tables)
