"""Functions that train, check, load or resume a run: `privfed.train`, `privfed.start`, …"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from accounting.ledger import Ledger
from privfed.api.answer import Answer, as_path
from privfed.api.arguments import configuration, part_class, passed_on_resume
from privfed.api.resuming import TemporaryFolder, restored_threads, warn_of_delta
from privfed.api.rounds import Callback, new_rounds
from privfed.api.run import Run
from privfed.config.config import Config
from privfed.core.errors import Refused
from privfed.store.folders import new_folder
from privfed.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from privfed.run.check import Check
    from privfed.run.outcome import Observer


def train(
    population: Any = None,
    *,
    model: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    out: str | PathLike[str] | None = None,
    temporary: bool = False,
    observers: Sequence[Observer] = (),
    on_round: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_end: Callable[[Run], object] | None = None,
    progress: bool | None = None,
    **sections: Any,
) -> Run:
    """Trains one model on `population` within a privacy budget.

    Every key of a run file is an argument by its section: `privacy=dict(clip=0.5)`,
    `client=dict(lr=0.1)`. If a key names a part, an instance of the part is accepted:
    `server=dict(optimizer=Mine(beta=0.9))`. After an interruption, `privfed.load(out).resume()`
    continues the run. `train` warns of a `delta` that is not below 1 / clients.

    Args:
      population: a `privfed.Table`, `privfed.Arrays` or `privfed.Texts`, the path of a run file, a
        `Config`, or None for the default run.
      model: a name ("mlp"), a `torch.nn.Module` whose weights are public initial values, a function
        that returns a module, or the keys of [model].
      epsilon: the privacy budget, `privacy.epsilon`.
      delta: `privacy.delta`.
      rounds: `run.rounds`.
      out: the new run directory; by default one in runs/.
      temporary: whether the directory is deleted when the returned `Run` is, or Python exits.
      observers: receive each round.
      on_round: called with each completed `privfed.Round`.
      on_evaluation: called with each round that the run evaluated.
      on_end: called with the run once it has ended.
      progress: whether progress, and in a terminal the plan, is shown; None: in terminals and
        notebooks.
      sections: the keys of each section.

    Returns:
      The run.

    Raises:
      Refused: before anything is written, if the run is invalid or has no proof.
    """
    short = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
    config = configuration(population, model, short, sections)
    warn_of_delta(config)
    run = _new_run(config, out, temporary, observers, progress)
    return run._run_to_end(on_round, on_evaluation, on_end)


def start(
    population: Any = None,
    *,
    model: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    out: str | PathLike[str] | None = None,
    temporary: bool = False,
    simulation: bool = False,
    observers: Sequence[Observer] = (),
    progress: bool | None = False,
    **sections: Any,
) -> Run:
    """Prepares the run of `train` with the same arguments, to be run one round at a time.

    `with privfed.start(…) as run` refuses what `train` refuses, and charges nothing; `for round in
    run` runs each round, by the same code as `train` and with the same results. A `break` ends the
    run there, and its spending is what the completed rounds were charged.

    Args:
      population: as for `train`.
      model: as for `train`.
      epsilon: the privacy budget.
      delta: `privacy.delta`.
      rounds: the largest number of rounds, `run.rounds`.
      out: the new run directory; by default one in runs/.
      temporary: whether the directory is deleted when the returned `Run` is, or Python exits; it
        remains after `with`.
      simulation: whether `round.cohort`, `round.updates` and `round.simulation` are available.
        Sets `run.simulation_metrics`: ε of the run is nominal, no guarantee, and a note in the
        ledger states that ε does not cover these values.
      observers: receive each round.
      progress: whether progress is shown; None: in terminals and notebooks.
      sections: the keys of each section.

    Returns:
      The run, to be entered by `with`.

    Raises:
      Refused: if the configuration is invalid.
    """
    short = {"epsilon": epsilon, "delta": delta, "rounds": rounds, "simulation": simulation or None}
    config = configuration(population, model, short, sections)
    warn_of_delta(config)
    return _new_run(config, out, temporary, observers, progress)


def _new_run(
    config: Config,
    out: str | PathLike[str] | None,
    temporary: bool,
    observers: Sequence[Observer],
    progress: bool | None,
) -> Run:
    """Returns a new run of `config`, to be entered by `with`; nothing is written before that."""
    _refuse_other_processes(config)
    if temporary and out is not None:
        raise Refused("out and temporary are both given, but exclude each other; give only one")
    folder = TemporaryFolder() if temporary else None
    given_path = new_folder() if out is None else as_path(out, "out")
    path = (folder.path / "run" if folder else given_path).absolute()
    directory = RunDirectory(path, config.given)
    opened = new_rounds(config, directory, not temporary, observers, progress)
    return Run(directory, folder, opened=opened)


def check(
    population: Any = None,
    *,
    model: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    **sections: Any,
) -> Answer:
    """Computes the guarantee and cost of `train` with the same arguments; writes nothing.

    Args:
      population: as for `train`.
      model: as for `train`.
      epsilon: the privacy budget.
      delta: `privacy.delta`.
      rounds: `run.rounds`.
      sections: the keys of each section.

    Returns:
      The plan, with its guarantee and cost.

    Raises:
      Refused: as `train` would; if keys exclude each other, with every reason.
    """
    from privfed.run.check import check as check_run

    short = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
    config = configuration(population, model, short, sections)
    with restored_threads():
        checked = check_run(config)
    if checked.forecast.clipped:
        warnings.warn(checked.forecast.clipped, stacklevel=2)
    return answer_of(checked)


def answer_of(checked: Check, by_command: bool = False) -> Answer:
    """Returns the result of a check as an answer.

    Args:
      checked: the check.
      by_command: whether the answer names commands and flags, as on the command line.
    """
    from privfed.report.plan import plan_table

    return Answer(
        checked.to_json(), lambda: plan_table(*checked.facts, by_command=by_command), checked
    )


def load(path: str | PathLike[str], *, model: Any = None, data: Any = None, **parts: Any) -> Run:
    """Opens the run in the directory `path`.

    A network, data or parts that were passed as objects are not stored: pass them again. Without
    them, the ledger, guarantee, audit and metrics can still be read.

    Args:
      path: the run directory.
      model: the network.
      data: the `privfed.Table` or `privfed.Arrays`.
      parts: parts by section, `server=dict(optimizer=Mine)`.

    Raises:
      Refused: if an object differs from the one with which the run began.
    """
    directory = RunDirectory.open(as_path(path, "path").absolute())
    passed = passed_on_resume(model, data, parts)
    if passed:
        given = {kind: part_class(kind, part) for kind, part in passed.items()}
        directory = directory.with_given(given)
        _refuse_others(directory, directory.config.read(), passed)
    return Run(directory)


def resume(
    path: str | PathLike[str], *, model: Any = None, data: Any = None, **changes: Any
) -> Run:
    """Resumes the run in the directory `path`: `load(path, …).resume(…)`.

    Args:
      path: the run directory.
      model: the network, if it was passed as an object.
      data: the data, if they were passed as an object.
      changes: the arguments of `Run.resume`.
    """
    return load(path, model=model, data=data).resume(**changes)


def _refuse_others(directory: RunDirectory, config: Config, passed: Mapping[str, Any]) -> None:
    """Raises `Refused` if a passed part, its code or data differ from those at the run's start."""
    from privfed.data.source import UserObjectSource
    from privfed.run.ledger_terms import refuse_other_code
    from privfed.run.population import load_population
    from privfed.run.prepare import streams_of

    for kind, part in passed.items():
        if isinstance(part, BaseModel) and part.model_dump() != config.parts[kind].model_dump():
            raise Refused(
                f"the {kind} is {part!r}, but this run was started with other keys; pass the same "
                "keys, or start a new run"
            )
    if directory.ledger.exists():
        refuse_other_code(config, Ledger.load(directory.ledger).terms)
    form = directory.checkpoint.form() if directory.checkpoint.exists() else None
    if "model" in passed and form is not None:
        config.model.build(form.features, config.loss.width(form.empty()))
    if "source" in passed and isinstance(config.source, UserObjectSource):
        federation = load_population(config, streams_of(config))
        directory.population.refuse_others((federation.examples, federation.test))


def _refuse_other_processes(config: Config) -> None:
    """Raises `Refused` if a run with passed objects would be executed in several processes."""
    from privfed.run.process_group import under_torchrun

    if under_torchrun():
        raise Refused(
            "torchrun started this Python program, but can start only the command line; run "
            "torchrun … -m privfed train run.toml"
        )
    if config.run.workers > 1 and config.given:
        objects = ", ".join(sorted(config.given))
        raise Refused(
            f"run.workers is {config.run.workers}, but objects that are passed ({objects}) cannot "
            "be sent to other processes: name them (module:name, a path), or use one process",
            key="run.workers",
        )
