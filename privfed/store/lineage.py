"""The lineage of a model: the run that trained it, the runs that trained its initial model, etc.

A run's files of tensors state the lineage in their metadata (safetensors), so the runs that trained
a model are known from a copy of the file in any folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from accounting import regular
from accounting.documents import Encoded, from_json
from accounting.errors import AccountingError
from accounting.ledger import Ledger
from privfed.config.config import Config
from privfed.config.population_identity import population_identity
from privfed.core.errors import Broken, Refused
from privfed.models.pretrained import CHECKPOINT, start_files
from privfed.models.recipes import Weighted
from privfed.store.config_file import ConfigFile


@dataclass(frozen=True)
class Origin:
    """A run that trained a model.

    Attributes:
      id: id of the run.
      population: the population of the run, as its ledger's terms state it; empty if they do not.
      head: head of the run's ledger when the model was stored, in hexadecimal digits; "" if
        unknown.
    """

    id: str
    population: Mapping[str, Any]
    head: str = ""


@dataclass(frozen=True)
class Lineage(Encoded):
    """The runs whose training contributed to a model; `a | b` is the lineage of both together.

    Attributes:
      runs: the known runs.
      unknown: whether further runs or data, which are not known, may have contributed.
    """

    runs: tuple[Origin, ...] = ()
    unknown: bool = False

    def __or__(self, other: Lineage) -> Lineage:
        runs = {(run.id, run.head): run for run in (*self.runs, *other.runs)}
        return Lineage(tuple(runs.values()), self.unknown or other.unknown)

    def uncovered(self, counted: Mapping[str, Collection[str]]) -> str:
        """Returns the reasons, as one text, why a guarantee does not cover the model's training.

        Args:
          counted: for each run that the guarantee counts, the heads that its ledger is known to
            have had.

        Returns:
          The reasons; "" if the guarantee counts all runs that trained the model.
        """
        uncounted = dict.fromkeys(run.id for run in self.runs if run.id not in counted)
        beyond = dict.fromkeys(
            run.id for run in self.runs if run.head not in counted.get(run.id, (run.head,))
        )
        reasons = (
            "of unknown origin" if self.unknown else "",
            f"trained by runs that are not counted: {', '.join(uncounted)}" if uncounted else "",
            f"possibly trained further than is counted, by the runs {', '.join(beyond)}"
            if beyond
            else "",
        )
        return ", and ".join(filter(None, reasons))

    @classmethod
    def from_json(cls, stated: Mapping[str, Any] | None) -> Lineage:
        """Returns the lineage that `to_json` stated; for None, one that is `unknown`."""
        if stated is None:
            return cls(unknown=True)
        runs = (Origin(str(r["id"]), dict(r["population"]), str(r["head"])) for r in stated["runs"])
        return cls(tuple(runs), bool(stated["unknown"]))

    @classmethod
    def of_start(cls, terms: Mapping[str, Any]) -> Lineage:
        """Returns the lineage of a run's initial model, from the `terms` of the run's ledger."""
        if "lineage" not in terms and terms.get("start") is None:
            return cls()
        return cls.from_json(terms.get("lineage"))

    @classmethod
    def of_run(cls, terms: Mapping[str, Any], head: str) -> Lineage:
        """Returns the lineage of the model that a run had when its ledger's head was `head`.

        Args:
          terms: the terms of the run's ledger.
          head: the head in hexadecimal digits.
        """
        population = terms.get("population")
        origin = Origin(
            str(terms.get("id")), population if isinstance(population, dict) else {}, head
        )
        return cls((origin,)) | cls.of_start(terms)

    @classmethod
    def of_config(cls, config: Config) -> Lineage:
        """Returns the lineage of the initial model that `config` states for a run.

        Raises `Refused` if the initial model is in a folder with an invalid ledger.
        """
        lineage, model = cls.of_init(config.start.init), config.model
        if not isinstance(model, Weighted):
            return lineage
        others = cls(unknown=not model.known())
        return reduce(or_, map(cls.from_json, model.origins()), lineage | others)

    @classmethod
    def of_init(cls, init: str) -> Lineage:
        """Returns the lineage of the model at the path `init`: a file, or a folder of files.

        It combines the lineages that the files state with that of the run whose ledger is in the
        same folder, if there is one. The lineage is empty if `init` is "". It is unknown if a file
        states none and was not written by that run. Raises `Refused` for an invalid ledger.
        """
        if not init:
            return cls()
        folder = Path(init) if Path(init).is_dir() else Path(init).parent
        ledger = _ledger(folder / "ledger.jsonl")
        from_ledger = cls() if ledger is None else _of_ledger(ledger)
        return reduce(or_, (_of_file(path, ledger) for path in start_files(init)), from_ledger)


FRESH = Lineage()
"""The lineage of a run without `model.init`: its initial model is what the model's class builds.

Built-in models begin from random numbers or declare their origin. An external class (`module:name`)
that loads weights by itself is not recognised.
"""


def _of_file(path: Path, ledger: Ledger | None) -> Lineage:
    """Returns the lineage that the file of an initial model states.

    If the file states none, the lineage is unknown, except if the run of `ledger`, which is counted
    separately, wrote the file: then it is empty.
    """
    try:
        regular.refuse_irregular(path)
        with safe_open(path, "pt") as file:
            about = from_json((file.metadata() or {})["privfed"])
        if "lineage" in about:
            return Lineage.from_json(about["lineage"])
        return Lineage(unknown=ledger is None or not _wrote(ledger, path, about))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return Lineage(unknown=True)  # not from a run; a missing file is refused later


def _wrote(ledger: Ledger, path: Path, about: Mapping[str, Any]) -> bool:
    """Whether the run of `ledger` wrote the file at `path`, which has no lineage but facts `about`.

    For a checkpoint: whether `ledger` contains the head that it states; for other files: whether
    the ledger's terms state the file's digest. Older versions of privfed stored no lineages.
    """
    if path.name == CHECKPOINT:
        return ledger.holds(bytes.fromhex(str(about["ledger_head"])))
    cited = ledger.terms.get("files", {}).get(path.name)
    return bool(cited == hashlib.sha256(regular.read_bytes(path)).hexdigest())


def _ledger(path: Path) -> Ledger | None:
    """Returns the ledger at `path`; None without a file. Raises `Refused` for an invalid ledger."""
    if not path.is_file():
        return None
    try:
        return Ledger.load(path)
    except (OSError, AccountingError) as error:
        raise Refused(
            f"model.init is in {path.parent}, but the ledger there is not valid: {error}; restore "
            "that ledger, or use another model"
        ) from error


def _of_ledger(ledger: Ledger) -> Lineage:
    """Returns the lineage of the model at the end of `ledger`."""
    lineage = Lineage.of_run(ledger.terms, ledger.head().hex())
    run, *earlier = lineage.runs
    completed = replace(run, population=_completed(run, ledger.path.parent))
    return replace(lineage, runs=(completed, *earlier))


def _completed(run: Origin, folder: Path) -> Mapping[str, Any]:
    """Returns the population of `run`, whose directory is `folder`.

    If it has no entry "sources", this is added from the run's configuration, if that can be read.
    """
    if "sources" in run.population:
        return run.population
    try:
        config = ConfigFile.in_folder(folder).read()
        sources = population_identity(config)["sources"]
    except (Refused, Broken, OSError):
        return run.population
    return {**run.population, "sources": sources}
