"""A trained model, scored: on the run's own test set, or on another source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privfed.data.source import KeptByUser
from privfed.errors import Refused
from privfed.models.local_part import missing_part
from privfed.plan.plan import ON_TRAINED
from privfed.run.constant_baseline import best_constant
from privfed.run.evaluation.over_groups import over_groups
from privfed.run.population import load_population
from privfed.store.run_directory import RunDirectory
from privfed.streams import Streams
from privfed.trained.other_data import OtherData, data_paths, on_other_data
from privfed.trained.predictions import predictions, refuse_unwritable, write_predictions
from privfed.trained.stored_model import stored_model_for

UNCOVERED = "what you publish of these data is not covered by the run's ε"


@dataclass(frozen=True)
class Evaluation:
    """Measures of the model of the run at `path`, after `round`, on `examples` examples.

    `constant` are the measures of the best answer that looks at nothing.
    """

    path: Path
    round: int
    measures: dict[str, float]
    constant: dict[str, float]
    examples: int
    data: str
    own_test_set: bool
    of_trained: bool = False
    """Whether the clients whose examples these are trained the model."""
    missing: str = ""
    """What the model lacks, as clients keep it."""

    @property
    def note(self) -> str | None:
        """What readers of the measures have to know."""
        trained = ON_TRAINED if self.of_trained else ""
        notes = (trained if self.own_test_set else UNCOVERED, self.missing)
        return "; ".join(filter(None, notes)) or None

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed evaluate --json` prints."""
        return {
            **self.measures,
            "constant": self.constant,
            "examples": self.examples,
            "data": self.data,
            "own_test_set": self.own_test_set,
            "note": self.note,
            "round": self.round,
            "run": str(self.path),
        }


def evaluate(
    run: Path | RunDirectory, other: OtherData = (), to: Path | None = None, group: str = ""
) -> Evaluation:
    """Score the run at (or opened as) `run`; on `other` data, all examples of that source instead.

    `to` is a file to write predictions to, a row per example in the order of the data. `group` is a
    declared column of categories, or "label", to score each group of; left out, the run's own
    `evaluation.group`. Raises `Refused`, having written nothing.
    """
    directory = RunDirectory.open(run)
    stored = directory.config.read()
    config = on_other_data(stored, other) if other else stored
    if to is not None:
        refuse_unwritable(to, "--predictions", data_paths(stored) | data_paths(config))
    streams = Streams(config.run.seed)
    if other:
        examples, of_trained = config.source.load(config.data.clients, streams), False
        data = f"all examples of the source {config.names['source']!r}"
    else:
        people = load_population(config, streams)
        if isinstance(config.source, KeptByUser):
            directory.people.refuse_others((people.examples, people.test))
        people = people.at(directory.checkpoint.round())
        examples, of_trained = people.test, people.shared
        data = "the run's own test examples"
    if not len(examples):
        instead = "; use --federated and --epsilon" if config.nothing_public else ""
        raise Refused(f"{data} hold no example to score{instead}")
    net, params, round = stored_model_for(directory, examples, bool(other))
    measures = net.evaluate(params, examples)
    measures |= over_groups(net, params, examples, group or config.evaluation.group)
    if to is not None:
        client = str(config.values()["data"].get("client", ""))
        write_predictions(to, predictions(net, params, examples, client))
    constant = best_constant(net.loss, examples)
    return Evaluation(
        directory.path,
        round,
        measures,
        constant,
        len(examples),
        data,
        not other,
        of_trained,
        missing_part(net),
    )
