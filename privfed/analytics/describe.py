"""Describes a federation: releases statistics of its table, and reads them from a run directory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privfed.analytics.described_table import DescribedTable
from privfed.analytics.description_run import source_of_questions
from privfed.analytics.estimates import Sums
from privfed.analytics.number_estimates import interval
from privfed.analytics.release import ReleasedSums, make_release, released_sums
from privfed.analytics.statistics_file import STATISTICS, Statistics, write_statistics
from privfed.core.parts import Part
from privfed.run.outcome import Observer


@dataclass(frozen=True)
class DescriptionRequest:
    """The budget of a description, and the columns to describe.

    Attributes:
      epsilon: epsilon of the release; None: its fraction of the run's budget is
        `budget.statistics`.
      delta: delta of the release; None: that of the run file.
      columns: names of columns to describe in addition to those that the run file declares.
      rows_per_client: largest number of a client's rows that are counted.
      buckets: number of hash buckets for the words of undeclared columns.
      letters: number of leading UTF-8 bytes of these words that can be recovered.
    """

    epsilon: float | None
    delta: float | None = None
    columns: tuple[str, ...] = ()
    rows_per_client: int = 1
    buckets: int = 32
    letters: int = 12

    def keys(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of [data] for the source `described_table`.

        See `privfed.analytics.release.Request.keys`.
        """
        return {
            "source": "described_table",
            **source_of_questions(data, self.columns),
            "rows_per_client": self.rows_per_client,
            "buckets": self.buckets,
            "letters": self.letters,
        }


def describe(
    run_file: Path,
    overrides: Iterable[str],
    asking: DescriptionRequest,
    out: Path,
    observers: Sequence[Observer] = (),
) -> Statistics:
    """Releases statistics of a run file's population into the new directory `out`.

    Each client sends one vector of counts (`privfed.analytics.questions`), of norm at most 1, from
    whose noised sum all statistics follow; see `privfed.analytics.release.make_release`.

    Args:
      run_file: the run file.
      overrides: "key=value" settings that replace those of the run file.
      asking: the budget, and the columns to describe.
      out: the new run directory.
      observers: receive the events of the run.

    Raises:
      Refused: if no guarantee can be proved for the release or it cannot be made; nothing is
        written then.
    """
    make_release(run_file, overrides, asking, out, observers)
    return statistics_of(out)


def statistics_of(path: Path) -> Statistics:
    """Computes the statistics that the run at `path` released, and writes `statistics.json` there.

    No client's data are read.

    Raises:
      Refused: if the run released nothing, or was not a run of `privfed describe`.
    """
    released = released_sums(path, (DescribedTable,), "describe")
    source = released.config.source
    assert isinstance(source, DescribedTable)
    sums = Sums.of(source.questions, released.total, released.noise)
    statistics = _stated(released, sums, path)
    write_statistics(path / STATISTICS, statistics)
    return statistics


def _stated(released: ReleasedSums, sums: Sums, path: Path) -> Statistics:
    config, plan, ledger, noise = released.config, released.plan, released.ledger, released.noise
    source, guarantee = config.source, released.guarantee
    assert isinstance(source, DescribedTable)
    clients, sizes = sums.clients()
    total, variance = sums.rows()
    return Statistics(
        epsilon=guarantee.epsilon if math.isfinite(guarantee.epsilon) else "inf",
        delta=guarantee.delta,
        unit=plan.event.unit,
        relation=plan.event.relation,
        mechanism=config.names["mechanism"],
        population=config.data.population,
        rows_per_client=source.rows_per_client,
        note=plan.simulation,
        ledger_head=ledger.head().hex(),
        run=str(path),
        noise=noise,
        clients=clients,
        rows=interval(max(total, 0.0), total, math.sqrt(variance), 0.0),
        rows_of_clients=sizes,
        columns=sums.columns(),
        earlier=source.earlier,
        data={key: value for key, value in config.values()["data"].items() if key in _DECLARED},
        privacy={
            "mechanism": config.names["mechanism"],
            **_set(config.mechanism, _OF_MECHANISM),
            **_set(config.privacy, {"accountant", "against"}),
        },
        secure={
            **({"protocol": config.names["protocol"]} if config.secured else {}),
            **_set(config.secure),
            **_set(config.protocol),
        },
        randomness=config.run.randomness,
        seed=config.run.seed,
    )


def _set(part: object, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the values of a part's fields that are not None and differ from the defaults.

    `keys` restricts the fields; None: all fields.
    """
    assert isinstance(part, Part)
    values = part.model_dump(mode="json", exclude_none=True)
    fields = type(part).model_fields
    chosen = values.keys() if keys is None else values.keys() & {*keys}
    changed = {key for key in chosen if values[key] != fields[key].default}
    return {key: value for key, value in values.items() if key in changed}


_OF_MECHANISM = {"sizing", "noise_sampler", "tolerance", "pair_noise", "colluders"}
"""Fields of mechanisms that a run file written from the statistics copies."""
_DECLARED = (
    *("path", "client", "site", "delimiter", "decimal", "encoding", "missing_words", "population"),
    *("clients", "sites", "sites_per_client", "site_partition", "test_path", "holdout"),
    *("holdout_fraction", "dates"),
)
"""Keys of [data] that a run file written from the statistics copies from the described one."""
