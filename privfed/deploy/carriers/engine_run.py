"""Runs the coordinator inside an engine's server program, with a carrier over the engine's nodes.

Engines do not resume runs: each start is new to the engine, and resumes privfed's run from its
directory. Engines discard or rewrite printed output, so events are logged to a file next to that
directory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.ledger import Ledger
from privfed.core.errors import Refused, public_text
from privfed.core.text import ceiling
from privfed.deploy.carriers.addresses import AddressedCarrier, Addresses, Mail, NodeT
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.plan.plan import Plan
from privfed.run.forecast import Forecast
from privfed.run.outcome import Observer, RoundRecord
from privfed.store.run_directory import RunDirectory

_log = logging.getLogger("privfed.deploy.engine")
_PATHS, _SECONDS = ("run", "federation", "key", "out"), ("seconds", "patience")


class RunFailed(Exception):
    """Raised if a federated run ends with an error.

    The text states what is wrong in the configuration, or refers to the coordinator's log.
    """


@dataclass(frozen=True)
class Settings:
    """The settings in an engine's configuration: absolute paths at the coordinator, and seconds.

    The fields are the arguments of `coordinate` with the same names.
    """

    run: Path
    federation: Path
    key: Path
    out: Path
    seconds: float
    patience: float

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Settings:
        """Returns the settings in `stated`, an engine's configuration of a run.

        Raises:
          Refused: if a path is missing or not absolute, or a time is missing or not a positive
            number.
        """
        for name in _PATHS:
            path = stated.get(name)
            if not isinstance(path, str) or not Path(path).is_absolute():
                raise Refused(
                    f"{name} is {path!r} in the engine's configuration, but engines start programs "
                    "in any folder; state an absolute path on the coordinator's machine"
                )
        for name in _SECONDS:
            seconds = stated.get(name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
                raise Refused(
                    f"{name} is {seconds!r} in the engine's configuration, but must be a "
                    "number above 0; state seconds"
                )
        run, federation, key, out = (Path(stated[name]) for name in _PATHS)
        seconds, patience = (float(stated[name]) for name in _SECONDS)
        return cls(run, federation, key, out, seconds, patience)

    @property
    def log(self) -> Path:
        """The log file; it is next to the run directory, since only the run writes inside that."""
        return self.out.with_name(f"{self.out.name}.log")


@dataclass
class WrittenRounds(Observer):
    """Logs each round that ends or aborts, and the public numbers of a round's record.

    The end of a round that was charged before a resume is not logged again.
    """

    _charged: set[int] = field(default_factory=set)
    """Rounds that were charged before a resume, and aborted rounds; their ends are not logged."""

    def before(self, plan: Plan, forecast: Forecast, path: Path, done: int) -> None:
        ledger = RunDirectory(path).ledger
        self._charged |= {charge.round for charge in Ledger.load(ledger).charges}
        _log.info("begins after %d rounds, with %d charged", done, len(self._charged))

    def after_round(self, round: int) -> None:
        if round not in self._charged:
            _log.info("round %d is over", round)

    def aborted(self, round: int, reason: str) -> None:
        self._charged.add(round)
        _log.warning("round %d aborted: %s", round, reason)

    def after(self, record: RoundRecord) -> None:
        numbers = {k: v for k, v in record.public.items() if isinstance(v, int | float)}
        _log.info("round %d: %s", record.round, ", ".join(f"{k} {v}" for k, v in numbers.items()))


def train_over(mail: Mail[NodeT], stated: Mapping[str, Any]) -> None:
    """Trains or resumes the run that `stated`, an engine's configuration, names.

    Raises:
      RunFailed: with the reason, if that configuration is invalid; after any other `Exception`,
        with a fixed text that refers to the log.
    """
    try:
        settings = Settings.of(stated)
    except Refused as refused:  # it quotes the input of the user who started the run
        raise RunFailed(public_text(refused)) from None
    with _logged(settings.log):
        try:
            outcome = coordinate(
                settings.run,
                settings.federation,
                settings.key,
                settings.out,
                lambda greeter: AddressedCarrier(Addresses(mail, greeter)),
                seconds=settings.seconds,
                patience=settings.patience,
                observers=(WrittenRounds(),),
            )
        except BaseException as error:
            _log.error("%s", " ".join(public_text(error).split()))
            if not isinstance(error, Exception):
                raise  # a signal: the engine ends the process
            raise RunFailed("privfed stopped; the coordinator's log says why") from None
        spent = f"ε = {ceiling(outcome.guarantee.epsilon)}, δ = {outcome.guarantee.delta:g}"
        _log.info("done: %d rounds updated the model, %s", outcome.updates, spent)


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Writes privfed's log also to the file at `path`, until the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("privfed")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()
