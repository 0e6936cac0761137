"""The description of a federation: planned, charged, released, and read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from accounting import durable
from accounting.documents import Encoded
from accounting.guarantee import Guarantee, spent
from accounting.ledger import Ledger
from privfed.analytics.counted_table import CountedTable
from privfed.analytics.described_table import DescribedTable
from privfed.analytics.description_run import DescriptionRequest, by_column, description_of
from privfed.analytics.estimates import Sums
from privfed.analytics.number_estimates import interval
from privfed.analytics.statistics_file import STATISTICS, Statistics, write_statistics
from privfed.config.config import Config
from privfed.core.errors import Refused, resume_command
from privfed.core.parts import Part
from privfed.core.text import dump
from privfed.plan.plan import Plan, solve_plan
from privfed.plan.rule import message_length
from privfed.run.outcome import Observer
from privfed.run.train import train
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import under, unpack


def describe(
    run_file: Path,
    overrides: Iterable[str],
    asking: DescriptionRequest,
    out: Path,
    observers: Sequence[Observer] = (),
) -> Statistics:
    """Releases statistics of a run file's population into the new directory `out`.

    *Releases*: the noised sum of one vector per client (`privfed.analytics.questions`), of norm at
    most 1, and nothing else. All statistics follow from that sum and from public constants. *Unit
    and adjacency*: a client with all its rows, under the adjacency relation of the run file's
    sampler. The event is one round of the run file's mechanism with full participation, without
    amplification. The directory is that of a run: `privfed audit` recomputes epsilon from its
    ledger, and later runs count it by `privacy.prior`.

    Args:
      run_file: the run file.
      overrides: "key=value" settings.
      asking: budget and questions.
      out: the new run directory.
      observers: receive the events of the run.

    Raises:
      Refused: if the release has no proof or cannot be made; nothing is written then.
    """
    train(description_of(run_file, overrides, asking), out, observers)
    return statistics_of(out)


def statistics_of(path: Path) -> Statistics:
    """Returns the statistics that the run at `path` released, and writes them into that folder.

    No data are read.

    Raises:
      Refused: if the run released nothing, or was not a description.
    """
    released = released_counts(path, DescribedTable, "describe")
    source = released.config.source
    assert isinstance(source, DescribedTable)
    sums = Sums.of(source.questions, released.total, released.noise)
    statistics = _stated(released, sums, path)
    write_statistics(path / STATISTICS, statistics)
    return statistics


@dataclass(frozen=True, eq=False)
class ReleasedCounts:
    """A released sum of clients' count vectors.

    Attributes:
      config: the run.
      plan: its plan.
      ledger: its ledger.
      total: the noised sum, shape `[length]`.
      noise: standard deviation of the noise on each entry of `total`.
    """

    config: Config
    plan: Plan
    ledger: Ledger
    total: NDArray[np.float64]
    noise: float

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the run's charges."""
        privacy = self.config.privacy
        return spent(self.ledger, privacy.delta, privacy.accountant)

    def cost(self, path: Path) -> dict[str, Any]:
        """Returns the fields of a `CountsRelease` in the run directory `path`."""
        return {
            "guarantee": self.guarantee,
            "mechanism": self.config.names["mechanism"],
            "note": self.plan.simulation,
            "ledger_head": self.ledger.head().hex(),
            "run": str(path),
            "noise": self.noise,
        }


@dataclass(frozen=True)
class CountsRelease(Encoded):
    """A release whose estimates are post-processing of one table of counts, and its cost.

    Attributes:
      guarantee: the guarantee of the release with the earlier runs that it counts.
      mechanism: the name of the mechanism.
      note: why epsilon is nominal; None for a real release.
      ledger_head: the head of the run's ledger.
      run: the run directory.
      noise: standard deviation of the noise on each cell.
    """

    file: ClassVar[str]
    """The file of estimates in the run directory."""
    guarantee: Guarantee
    mechanism: str
    note: str | None
    ledger_head: str
    run: str
    noise: float

    def write(self) -> Self:
        """Writes the estimates into the run directory, and returns them."""
        content = dump(self.to_json(), indent=1) + "\n"
        durable.write_atomically(Path(self.run) / self.file, content.encode())
        return self


def released_counts(path: Path, counted: type[CountedTable], command: str) -> ReleasedCounts:
    """Returns the counts that the run at `path` released. No data are read.

    Args:
      path: the run directory.
      counted: the source that the run must have.
      command: the command that makes such runs, for messages.

    Raises:
      Refused: if the run released nothing, or has another source.
    """
    directory = RunDirectory.open(path)
    config, ledger = directory.config.read(), Ledger.load(directory.ledger)
    if not isinstance(config.source, counted):
        raise Refused(f"{path} is not a run of `privfed {command}`; name a directory of such a run")
    tensors, about = unpack(directory.checkpoint.path)
    _refuse_other_releases(path, int(about["updates"]), len(ledger.charges))
    average = under(tensors, "model/")["counts"].double().numpy()
    length, parts = config.source.questions.length, config.data.sites_per_client
    plan = solve_plan(config, length=message_length(config, length))
    total = average * float(config.sampler.size) * parts
    return ReleasedCounts(config, plan, ledger, total, noise_on_sum(plan, length) * parts)


def _refuse_other_releases(path: Path, updates: int, charges: int) -> None:
    """Raises `Refused` for a run that released nothing, or more than one vector."""
    if not charges:
        raise Refused(
            f"{path} was interrupted before anything was charged; resume it by "
            f"{resume_command(path)}, then read the release again"
        )
    if not updates:
        raise Refused(
            f"{path} was charged, but released nothing: the sum aborted, or the run was "
            "interrupted, and the charge is spent. Make the release again in a new folder, and "
            "name both folders in privacy.prior"
        )
    if updates > 1:
        raise Refused(
            f"{path} was resumed for {updates} rounds, so that it holds a model, but such a "
            "release takes one round; start a new run"
        )


def noise_on_sum(plan: Plan, length: int) -> float:
    """Returns the standard deviation of each coordinate of a sum, from noise and rounding.

    Central noise is proportional to the norm bound of the summed vectors. Under a secure sum each
    client rounds to integer steps, which adds a variance of at most a quarter of a squared step.
    The release is rounded to float32.

    Args:
      plan: the plan of the release.
      length: length of a client's vector.
    """
    algorithm, mechanism, size = plan.algorithm(), plan.mechanism, plan.config.sampler.size
    std = mechanism.noise_on_update(size) * mechanism.clip
    if mechanism.trust == "server":
        std *= algorithm.encoding_factor(length)
    step = algorithm.grid_step(length) or 0.0
    return math.hypot(std, step / 2.0 * math.sqrt(size), size * 2.0**-24)


def _stated(released: ReleasedCounts, sums: Sums, path: Path) -> Statistics:
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


def declared_values(
    data: Mapping[str, Any], column: str, option: str, alternative: str = ""
) -> Any:
    """Returns the values that [data.categories] declares for a column.

    Args:
      data: the section [data] of a run file.
      column: the column.
      option: the option that names the column, for messages.
      alternative: the end of the message, if there is another remedy.

    Raises:
      Refused: if they are not declared.
    """
    declared = by_column(data, "categories")
    if column not in declared:
        raise Refused(
            f"{option} is {column!r}, but [data.categories] does not declare its values, which "
            f"have to be public; declare {column} = [...]{alternative}",
            key="data.categories",
        )
    return declared[column]


def _set(part: object, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the `keys` of a part (None: all keys) whose values are not the defaults."""
    assert isinstance(part, Part)
    values = part.model_dump(mode="json", exclude_none=True)
    fields = type(part).model_fields
    chosen = values.keys() if keys is None else values.keys() & {*keys}
    changed = {key for key in chosen if values[key] != fields[key].default}
    return {key: value for key, value in values.items() if key in changed}


_OF_MECHANISM = {"sizing", "noise_sampler", "tolerance", "pair_noise", "colluders"}
"""Keys of mechanisms that do not concern training."""
_DECLARED = (
    *("path", "client", "site", "delimiter", "decimal", "encoding", "missing_words", "population"),
    *("clients", "sites", "sites_per_client", "test_path", "holdout", "holdout_fraction", "dates"),
)
"""Keys of [data] that a declared run file copies from the described one."""
