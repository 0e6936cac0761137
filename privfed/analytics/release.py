"""A release of sums over clients: made by a charged run, and read from its directory.

The run is `privfed.analytics.description_run.counting_run`: an ordinary run of the run file's
mechanism and secure sum with full participation, whose directory `privfed audit`, `report` and
`privacy.prior` understand. Estimates are post-processing of the released sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from accounting import durable
from accounting.documents import Encoded
from accounting.errors import AccountingError
from accounting.guarantee import Guarantee, guarantee, unbounded
from accounting.ledger import Ledger
from privfed.analytics.counted_table import CountedTable
from privfed.analytics.description_run import HasBudget, counting_run, keys_of_table
from privfed.auditing.prior_runs import priors
from privfed.config.config import Config
from privfed.config.reading import as_written
from privfed.core.errors import Refused, public_text, resume_command
from privfed.core.text import dump
from privfed.plan.composed_guarantees import (
    ledger_guarantee,
    planned_guarantee,
    planned_others,
)
from privfed.plan.plan import Plan, refuse, solve_plan
from privfed.plan.prior_spending import Priors, total
from privfed.plan.rule import message_length
from privfed.run.outcome import Observer
from privfed.run.train import train
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import unpack


class Request(HasBudget, Protocol):
    """A user's request for a release: the columns to count, public facts about them, and the
    budget.
    """

    def keys(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of [data] for the release: `source`, the name of a registered
        `CountedTable`, and the values of that table's fields.

        Fields that locate the table's file or describe its format are left out.

        Args:
          data: the section [data] of a run file.

        Raises:
          Refused: if the run file does not declare what the request needs to know of a column.
        """


def release_run(run_file: Path, overrides: Iterable[str], asking: Request) -> Config:
    """Returns the configuration of the run that makes a release.

    Args:
      run_file: the run file of the population.
      overrides: "key=value" settings that replace those of the run file.
      asking: the columns, public facts about them, and the budget.

    Raises:
      Refused: if the population, mechanism or columns do not permit such a release.
    """
    raw = as_written(run_file, overrides)
    data = raw.get("data", {})
    keys = {**keys_of_table(data), **asking.keys(data)}
    return counting_run(raw, keys, asking)


def make_release(
    run_file: Path,
    overrides: Iterable[str],
    asking: Request,
    out: Path,
    observers: Sequence[Observer] = (),
) -> None:
    """Releases sums over a run file's population into the new directory `out`.

    *Releases*: the noised sums of one vector per client and round, of norm at most 1, and nothing
    else. *Sensitivity*: see the module of the table that `asking` names. *Unit and adjacency*: a
    client with all its rows, under the adjacency relation of the run file's sampler. Each round is
    charged as one event: a round of the run file's mechanism with full participation, without
    amplification.

    Args:
      run_file: the run file.
      overrides: "key=value" settings that replace those of the run file.
      asking: the columns, public facts about them, and the budget.
      out: the new run directory.
      observers: receive the events of the run.

    Raises:
      Refused: if no guarantee can be proved for the release or it cannot be made; nothing is
        written then.
    """
    config = release_run(run_file, overrides, asking)
    earlier_runs(config)
    train(config, out, observers)


def earlier_runs(config: Config) -> Priors:
    """Returns the earlier runs that the release's run file names in `privacy.prior`; they are on
    the same population.

    Raises:
      Refused: if one of them cannot be composed with the release.
    """
    source = config.source
    assert isinstance(source, CountedTable)
    named = config.privacy.model_copy(update={"prior": source.earlier})
    return priors(replace(config, privacy=named))


def write_run_file(run_file: Path, overrides: Iterable[str], asking: Request, path: Path) -> None:
    """Writes the run file of a release to the new file `path`, without making the release.

    Sites on their own machines can then make it with `privfed federation run`.

    Args:
      run_file: the run file of the population.
      overrides: "key=value" settings that replace those of the run file.
      asking: the columns, public facts about them, and the budget.
      path: the file to create.

    Raises:
      Refused: if no guarantee can be proved for the release, or `path` exists.
    """
    config = release_run(run_file, overrides, asking)
    refuse(config)
    try:
        durable.create(path, config.toml().encode())
    except FileExistsError as error:
        raise Refused(
            f"--run-file is {path}, but that exists already; nothing was changed; name a new file"
        ) from error


@dataclass(frozen=True, eq=False)
class ReleasedSums:
    """Noised sums of clients' vectors, as a run released them.

    Attributes:
      config: configuration of the run.
      plan: plan of the run.
      ledger: ledger of the run.
      tensors: the server's final model and optimizer state, by name; averages over the public
        number of clients.
      scale: factor from these averages to sums over clients.
      noise: standard deviation of the noise on each entry of the sum of one round.
    """

    config: Config
    plan: Plan
    ledger: Ledger
    tensors: Mapping[str, NDArray[np.float64]]
    scale: float
    noise: float

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of this release, without earlier runs."""
        rounds, accountant = self.config.run.rounds, self.config.privacy.accountant
        planned = planned_guarantee(rounds, self.ledger, accountant)
        return planned or ledger_guarantee(self.ledger, accountant)

    @property
    def other(self) -> Guarantee | None:
        """The guarantee against the second adversary of distributed noise
        (`privfed.privacy.shared_noise.OTHER_PARTY`); None if there is only one.
        """
        return next(iter(planned_others(self.config.run.rounds, self.ledger)), None)

    @property
    def with_earlier(self) -> Guarantee | None:
        """The guarantee of this release and the earlier runs that the run file names together.

        None if it names none. Epsilon is infinite if an earlier run can no longer be read or
        composed.
        """
        privacy = self.config.privacy
        try:
            before = earlier_runs(self.config)
        except (AccountingError, OSError, Refused) as error:
            return unbounded(self.ledger.spending, privacy.delta, public_text(error))
        if not before.runs:
            return None
        together = total([before.planned, self.ledger.spending])
        return guarantee(together, privacy.delta, privacy.accountant)

    @property
    def total(self) -> NDArray[np.float64]:
        """The noised sum of clients' count vectors, shape `[length]`; only for a `CountModel`."""
        return np.asarray(self.tensors["model/counts"] * self.scale)

    def cost(self, path: Path) -> dict[str, Any]:
        """Returns the fields of `SumsRelease` by name; `path` is the run directory."""
        return {
            "guarantee": self.guarantee,
            "other": self.other,
            "with_earlier": self.with_earlier,
            "mechanism": self.config.names["mechanism"],
            "note": self.plan.simulation,
            "ledger_head": self.ledger.head().hex(),
            "charges": len(self.ledger.charges),
            "run": str(path),
            "noise": self.noise,
        }


@dataclass(frozen=True)
class SumsRelease(Encoded):
    """A release whose estimates are post-processing of noised sums over clients, and its cost.

    Attributes:
      guarantee: the guarantee of this release, without earlier runs.
      other: the guarantee against the second adversary of distributed noise; None if there is only
        one.
      with_earlier: the guarantee of this release and the earlier runs that the run file names
        together; None if it names none.
      mechanism: the name of the mechanism.
      note: why epsilon is nominal; None for a real release.
      ledger_head: the last hash of the run's ledger, in hexadecimal.
      charges: the number of charges in the ledger.
      run: the run directory.
      noise: standard deviation of the noise on each entry of the sum of one round.
    """

    file: ClassVar[str]
    """Name of the file, in the run directory, to which the estimates are written."""
    guarantee: Guarantee
    other: Guarantee | None
    with_earlier: Guarantee | None
    mechanism: str
    note: str | None
    ledger_head: str
    charges: int
    run: str
    noise: float

    def write(self) -> Self:
        """Writes this object as JSON to the file named `file` in the run directory; returns it."""
        content = dump(self.to_json(), indent=1) + "\n"
        durable.write_atomically(Path(self.run) / self.file, content.encode())
        return self


def released_sums(
    path: Path, sources: tuple[type[CountedTable], ...], command: str
) -> ReleasedSums:
    """Returns the noised sums that the run at `path` released. No client's data are read.

    Args:
      path: the run directory.
      sources: permitted classes of the run's data source.
      command: the command that makes such runs, for messages.

    Raises:
      Refused: if the run has another data source, released nothing, or is not complete; or if a
        release of one round was resumed for more rounds.
    """
    directory = RunDirectory.open(path)
    config, ledger = directory.config.read(), Ledger.load(directory.ledger)
    source = config.source
    if not isinstance(source, sources):
        raise Refused(f"{path} is not a run of `privfed {command}`; name a directory of such a run")
    tensors, about = unpack(directory.checkpoint.path)
    _refuse_unfinished(path, about, source.of_run["rounds"], len(ledger.charges))
    if source.one_round and about["updates"] > 1:
        raise Refused(
            f"{path} was resumed for {about['updates']} rounds, so that it holds a model, but such "
            "a release takes one round; start a new run"
        )
    length, parts = source.questions.length, config.data.sites_per_client
    plan = solve_plan(config, length=message_length(config, length))
    return ReleasedSums(
        config,
        plan,
        ledger,
        {name: tensor.double().numpy() for name, tensor in tensors.items()},
        float(config.sampler.size) * parts,
        noise_on_sum(plan, length) * parts,
    )


def _refuse_unfinished(path: Path, about: Mapping[str, Any], rounds: int, charges: int) -> None:
    """Raises `Refused` for a run that released nothing, or not all of its rounds.

    Args:
      path: the run directory.
      about: facts of the last checkpoint: its `round`, and its number of model `updates`.
      rounds: number of rounds of a complete release.
      charges: number of charges in the ledger.
    """
    if not charges:
        raise Refused(
            f"{path} was interrupted before anything was charged; resume it by "
            f"{resume_command(path)}, then read it again"
        )
    if rounds > 1 and about["round"] < rounds:
        raise Refused(
            f"{path} was interrupted before its {rounds} rounds were complete; resume it by "
            f"{resume_command(path)}, then read the release again"
        )
    if not about["updates"]:
        raise Refused(
            f"{path} was charged, but released nothing: the sum aborted, or the run was "
            "interrupted, and the charge is spent. Make the release again in a new folder, and "
            "name both folders in privacy.prior"
        )


def noise_on_sum(plan: Plan, length: int) -> float:
    """Returns the standard deviation of noise and rounding on each entry of the sum of one round.

    Central noise is proportional to the norm bound of the summed vectors. Under a secure sum each
    client rounds its vector to a grid, which adds a variance of at most a quarter of a squared grid
    step. The release is rounded to float32.

    Args:
      plan: the plan of the release.
      length: number of entries of a client's vector.
    """
    algorithm, mechanism, size = plan.algorithm(), plan.mechanism, plan.config.sampler.size
    std = mechanism.noise_on_update(size) * mechanism.clip
    if mechanism.trust == "server":
        std *= algorithm.encoding_factor(length)
    step = algorithm.grid_step(length) or 0.0
    return math.hypot(std, step / 2.0 * math.sqrt(size), size * 2.0**-24)
