"""The calls that train: `privfed.train`, `check`, `load` and `resume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from accounting.ledger import Ledger
from privfed.api.answer import Answer, as_path
from privfed.api.arguments import configuration, part_class, passed_again
from privfed.api.going_on import TemporaryFolder, own_threads, resumable, warn_of_delta, watched
from privfed.api.run import Run
from privfed.config.config import Config
from privfed.config.passed_code import refuse_other_code
from privfed.core.errors import Refused
from privfed.store.folders import new_folder
from privfed.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from privfed.run.check import Check
    from privfed.run.outcome import Observer


def train(
    people: Any = None,
    *,
    model: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    out: str | PathLike[str] | None = None,
    temporary: bool = False,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    **sections: Any,
) -> Run:
    """Train one model over `people` within a privacy budget.

    `people` is a `privfed.Table` or `privfed.Arrays`, the path of a run file, a `Config`, or
    nothing for the default run. `model` is a name ("mlp"), a `torch.nn.Module` whose weights are a
    public start, a function that makes one, or the keys of [model]. Every key of a run file is an
    argument by its section: `privacy=dict(clip=0.5)`, `client=dict(lr=0.1)`; where a key names a
    part, an instance of one will do: `server=dict(optimizer=Mine(beta=0.9))`.

    The run goes into the new directory `out`, by default one in runs/, and into one that is
    removed with the `Run` where it is `temporary`. `progress` shows how it goes on, and in a
    terminal the plan before it (None: in terminals and notebooks). Raises `Refused`, having written
    nothing, for what cannot run or has no proof, and warns of a `delta` above 1 / clients.
    Interrupted, `privfed.load(out).resume()` goes on.
    """
    from privfed.run.process_group import joined
    from privfed.run.train import train as train_in

    short = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
    config = configuration(people, model, short, sections)
    _refuse_other_processes(config)
    if temporary and out is not None:
        raise Refused("out and temporary are both given; expected one of them")
    folder = TemporaryFolder() if temporary else None
    given_path = new_folder() if out is None else as_path(out, "out")
    path = (folder.path / "run" if folder else given_path).absolute()
    _refuse_no_observers(observers)
    warn_of_delta(config)
    with (
        resumable(path, config.given, lasting=not temporary),
        watched(progress) as observer,
        joined(config.run.workers) as ranks,
    ):
        train_in(config, path, [*observer, *observers], ranks)
    return Run(RunDirectory(path, config.given), folder)


def check(
    people: Any = None,
    *,
    model: Any = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    **sections: Any,
) -> Answer:
    """What `train` with the same arguments would guarantee, cost and take; nothing is written.

    Raises `Refused` with every reason why it would be refused.
    """
    from privfed.run.check import check as check_run

    short = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
    config = configuration(people, model, short, sections)
    with own_threads():
        checked = check_run(config)
    return answer_of(checked)


def answer_of(checked: Check, by_command: bool = False) -> Answer:
    """What a check found; `by_command` is how the command line words it."""
    from privfed.report.plan import plan_table

    return Answer(
        checked.to_json(), lambda: plan_table(*checked.facts, by_command=by_command), checked
    )


def load(path: str | PathLike[str], *, model: Any = None, data: Any = None, **parts: Any) -> Run:
    """The run in the directory `path`.

    A network, people or parts that were passed as objects are stored nowhere: pass them again as
    `model`, `data` and by their section, `server=dict(optimizer=Mine)`. Without them ledger,
    guarantee, audit and metrics still read. Raises `Refused` for others than those with whom the
    run began.
    """
    directory = RunDirectory.open(as_path(path, "path").absolute())
    passed = passed_again(model, data, parts)
    if passed:
        given = {kind: part_class(kind, part) for kind, part in passed.items()}
        directory = directory.with_given(given)
        _refuse_others(directory, directory.config.read(), passed)
    return Run(directory)


def resume(
    path: str | PathLike[str], *, model: Any = None, data: Any = None, **changes: Any
) -> Run:
    """Go on with the run in the directory `path`: `load(path, …).resume(…)`."""
    return load(path, model=model, data=data).resume(**changes)


def _refuse_others(directory: RunDirectory, config: Config, passed: Mapping[str, Any]) -> None:
    """Raises `Refused` where objects are not those with whom the run began."""
    from privfed.data.source import KeptByUser
    from privfed.run.population import load_population
    from privfed.run.prepare import streams_of

    for kind, part in passed.items():
        if isinstance(part, BaseModel) and part.model_dump() != config.parts[kind].model_dump():
            raise Refused(f"the {kind} that was passed has other keys than the run: {part!r}")
    if directory.ledger.exists():
        refuse_other_code(config, Ledger.load(directory.ledger).terms)
    form = directory.checkpoint.form() if directory.checkpoint.exists() else None
    if "model" in passed and form is not None:
        config.model.build(form.features, config.loss.width(form.empty()))
    if "source" in passed and isinstance(config.source, KeptByUser):
        federation = load_population(config, streams_of(config))
        directory.people.refuse_others((federation.examples, federation.test))


def _refuse_no_observers(observers: Sequence[object]) -> None:
    """Raises `Refused` for what cannot be told of rounds."""
    from privfed.run.watch.watcher import refuse_no_observer

    for observer in observers:
        refuse_no_observer(observer, "observers")


def _refuse_other_processes(config: Config) -> None:
    """Raises `Refused` where a run with objects would have to go to other processes."""
    from privfed.run.process_group import under_torchrun

    if under_torchrun():
        raise Refused("torchrun starts the command line: torchrun … -m privfed train run.toml")
    if config.run.workers > 1 and config.given:
        objects = ", ".join(sorted(config.given))
        raise Refused(
            f"run.workers is {config.run.workers}, but objects that are passed ({objects}) cannot "
            "be sent to other processes: name them (module:name, a path), or use one process",
            key="run.workers",
        )
