"""Signals at random times: real processes on a real disk, signalled and resumed until done.

A `Kind` names the command that begins, the one that resumes, and the conditions at the end. Each
life is a separate process that runs the command line and gets one signal at a random time.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import description_setup
import private_tunings
import torch
from small import SMALL, model, same_run, small
from trials.lives import BANDED, CANARIES, LIVES, SEEDED, SILO

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.core.failures import INTERRUPTED
from privfed.run.train import train

Words = list[str]

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP)
"""SIGSTOP is followed by SIGCONT."""
STOPPED = 0.05
"""Seconds for which a process is stopped between SIGSTOP and SIGCONT."""
HEADS = ("model.name=mlp", "model.hidden=[4]", "model.local=['3*']", "client.local_epochs=1")
ALLOCATED = ("cohort.sampler=allocation", "cohort.slots=3", "cohort.size=0", "run.rounds=6")
ONE_BY_ONE = ("run.trainer=loop", "run.chunk=1")
COMMITTEE = (
    *("secure.protocol=committee", "secure.threshold=0.6", "cohort.sampler=full"),
    *("cohort.size=0", "run.rounds=4"),
)
BUFFERED = ("privacy.mechanism=blt", *BANDED[2:])
RUNS = {
    "heads kept by clients, seeded": (*HEADS, *SILO, *SEEDED),
    "Ditto, secret": ("client.objective=ditto", *SILO),
    "APFL, seeded": ("client.objective=apfl", "client.adaptive=true", *SILO, *SEEDED),
    "random mask with error feedback, seeded": (
        *("compression.name=random_mask", "compression.fraction=0.5"),
        *("compression.error_feedback=true", *SILO, *SEEDED),
    ),
    "top-k, remembered, secret": ("compression.name=top_k", "compression.fraction=0.3", *SILO),
    "PowerSGD, seeded": (
        *("model.name=mlp", "model.hidden=[8]", "compression.name=power_sgd"),
        *("compression.rank=1", *SEEDED),
    ),
    "LoRA, seeded": ("model.lora.targets=['1']", "model.lora.rank=2", *SEEDED),
    "buffered noise, seeded": (*BUFFERED, *SEEDED),
    "buffered noise, secret": BUFFERED,
    "balls in bins, seeded": (*ALLOCATED, *SEEDED),
    "balls in bins, secret": ALLOCATED,
    "input canaries, seeded": (*CANARIES, "audit.kind=input", "audit.examples=3", *SEEDED),
    "committee, seeded": (*COMMITTEE, *SEEDED),
    "committee, secret": COMMITTEE,
    "evaluation by clients, seeded": (
        *("evaluation.by=clients", "evaluation.every=4", "run.rounds=8", *SEEDED),
    ),
}
"""Newer kinds of run with state of their own, by description."""


@dataclass(frozen=True)
class Kind:
    """A command that is begun, resumed, and compared with an undisturbed run."""

    begin: Callable[[Path], Words]
    """Returns the first command, for the path of its output."""
    go_on: Callable[[Path], Words]
    """Returns the command after a signal; if nothing had begun, `begin` is used again."""
    began: str = "config.toml"
    """The file in the path whose existence requires a resume."""
    ready: Callable[[Path], Any] = lambda path: None
    """Makes the inputs of the command."""
    whole: Callable[[Path, Path], Any] = lambda whole, path: None
    """Raises `AssertionError` if the second path differs from the first, undisturbed one."""


def _trains(*overrides: str, more: Words | None = None) -> Kind:
    words = [word for each in (*SMALL, *overrides) for word in ("--set", each)]
    return Kind(
        lambda path: ["train", "--out", str(path), *words, *(more or [])],
        lambda path: ["train", "--resume", str(path), *(more or [])],
        whole=lambda whole, path: _is_whole(path, whole, overrides),
    )


def _is_whole(path: Path, whole: Path, overrides: tuple[str, ...]) -> None:
    _charged_up_to(path, small(*overrides).run.rounds)
    if "run.randomness=seeded" in overrides:
        same_run(whole, path)


def _charged_up_to(path: Path, rounds: int) -> None:
    charges = Ledger.load(path / "ledger.jsonl").charges
    assert [charge.round for charge in charges] == [*range(1, rounds + 1)]
    assert audit(path).problems == ()
    assert not [item for item in path.rglob(".*") if item.name != ".lock"], "left half written"


def _describe(path: Path) -> Words:
    folder = path.parent / f"{path.name}.population"
    words = ["--epsilon", "4", "--out", str(path), "--set", SEEDED[0], *description_setup.QUICK]
    return ["describe", str(folder / "run.toml"), *words]


def _people(path: Path) -> None:
    """Writes a table next to `path`, identical for each and under one name, so that ledgers
    agree.
    """
    folder = path.parent / f"{path.name}.population"
    folder.mkdir(exist_ok=True)
    description_setup.run_file(folder)


def _is_described(whole: Path, path: Path) -> None:
    _charged_up_to(path, 1)
    assert torch.equal(*(_model(each) for each in (whole, path)))
    for each in (whole, path):
        assert _life(each, ["describe", str(each)]).code == 0
    first, second = (json.loads((each / "statistics.json").read_text()) for each in (whole, path))
    places = ("run", "data", "ledger_head")  # these name the table's own folder
    assert {**first, **{key: second[key] for key in places}} == second


def _tune(path: Path) -> Words:
    return ["experiment", str(path.with_suffix(".toml")), "--out", str(path), "--jobs", "2"]


def _grid(path: Path) -> None:
    """Writes three rates and a seeded tuning, so that an interrupted one has the same best."""
    base = private_tunings.BUDGET.replace("[run]", '[run]\nrandomness = "seeded"')
    tuned = path.parent / f"{path.name}.base.toml"
    tuned.write_text(base)
    path.with_suffix(".toml").write_text(private_tunings.TUNED.replace("base.toml", tuned.name))


def _is_tuned(whole: Path, path: Path) -> None:
    assert len(Ledger.load(path / "tuning.jsonl").charges) == 1
    assert audit(path / "best").problems == ()
    assert torch.equal(*(_model(each / "best") for each in (whole, path)))


def _model(path: Path) -> torch.Tensor:
    parts = sorted(model(path).items())
    return torch.cat([tensor.reshape(-1) for name, tensor in parts if name.startswith("model/")])


def _score(path: Path) -> Words:
    return ["evaluate", str(path), "--federated", "--epsilon", "0.5", "--json"]


def _is_scored(whole: Path, path: Path) -> None:
    """Checks that each life charged at most one evaluation, and that the model is unchanged."""
    ledger = Ledger.load(path / "ledger.jsonl")
    assert [charge.round for charge in ledger.charges] == [*range(1, len(ledger.charges) + 1)]
    assert len(ledger.charges) > small().run.rounds
    assert audit(path).problems == ()
    assert torch.equal(*(_model(each) for each in (whole, path))), "an evaluation moved the model"


TWO = ("--workers", "2")
KINDS = {
    **{name: _trains(*overrides) for name, overrides in RUNS.items()},
    "two processes, seeded": _trains(*ONE_BY_ONE, "privacy.noise_multiplier=1.0", *SEEDED,
                                     more=[*TWO]),
    "describe, seeded": Kind(
        _describe, lambda path: ["train", "--resume", str(path)], ready=_people, whole=_is_described
    ),
    "private tuning, seeded": Kind(_tune, _tune, "tuning.jsonl", _grid, _is_tuned),
    "evaluate --federated": Kind(
        _score, _score, ready=lambda path: train(small(*SEEDED), path), whole=_is_scored
    ),
}  # fmt: skip
EARLIER = {
    kind: _trains(*LIVES[kind])
    for kind in ("plain, seeded", "SCAFFOLD's memory, seeded", "plain, secret")
}


@dataclass(frozen=True)
class Ended:
    """The end of a life: its exit code, negative for a signal, and its output."""

    code: int
    hit: bool
    """Whether the signal arrived before the process was done."""
    stdout: str
    stderr: str
    early: float = math.inf
    """Seconds until it ended by itself, where that was before its signal."""


def survived(
    folder: Path,
    kind: Kind,
    signals: int,
    seed: int = 0,
    each: tuple[signal.Signals, ...] = (signal.SIGKILL,),
) -> int:
    """Returns the number of runs that survived `signals` signals, of the kinds in `each` equally
    often.

    Processes are forked from this one, so that they start working immediately. Raises
    `AssertionError` if a run does not resume, reports anything but an interruption, or ends
    differently.
    """
    whole, rng = folder / "whole" / "run", random.Random(seed)
    seconds = _lived_through(kind, whole)
    runs = done = 0
    while done < signals:
        path, lives, ended = folder / f"{runs}" / "run", 0, None
        path.parent.mkdir()
        kind.ready(path)
        while ended is None or ended.code:  # a life may be too short: later ones are longer
            pause = rng.uniform(0.0, seconds * (1 + lives / 4))
            ended = _life(path, _command(kind, path), pause, each[(done + lives) % len(each)])
            lives, done = lives + 1, done + ended.hit
            seconds = min(seconds, ended.early)  # the first one may have run on a busier machine
            assert lives < 500, "it does not get any further"
        kind.whole(whole, path)
        shutil.rmtree(path.parent)
        runs += 1
    return runs


def _command(kind: Kind, path: Path) -> Words:
    return kind.go_on(path) if (path / kind.began).exists() else kind.begin(path)


def _lived_through(kind: Kind, path: Path) -> float:
    """Returns the duration of an undisturbed run in a separate process."""
    path.parent.mkdir()
    kind.ready(path)
    began = time.perf_counter()
    ended = _life(path, kind.begin(path))
    assert ended.code == 0, ended
    seconds = time.perf_counter() - began
    kind.whole(path, path)
    return seconds


def _life(
    path: Path, words: Words, seconds: float = 0.0, number: signal.Signals | None = None
) -> Ended:
    """Runs the command of these `words` in a separate process, and sends `number` after
    `seconds`.
    """
    said = [path.parent / f"{path.name}.{name}.txt" for name in ("stdout", "stderr")]
    child, hit, early = _forked(words, said), False, math.inf
    if number is not None:
        early = _ends_within(child, seconds)
        os.kill(child, number)
        if number == signal.SIGSTOP:
            _, status = os.waitpid(child, os.WUNTRACED)
            if hit := os.WIFSTOPPED(status):
                time.sleep(STOPPED)
                os.kill(child, signal.SIGCONT)
                _, status = os.waitpid(child, 0)
        else:
            _, status = os.waitpid(child, 0)
    else:
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = Ended(code, hit, *(each.read_text() for each in said), early)
    if number is None or number == signal.SIGSTOP:
        return ended
    return _checked(ended, number)


def _ends_within(child: int, seconds: float) -> float:
    """Wait for `seconds`, or until the child ended; return after how many it did, or infinity."""
    began = time.perf_counter()
    while (lived := time.perf_counter() - began) < seconds:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return lived
        time.sleep(min(0.01, seconds - lived))
    return math.inf


def _checked(ended: Ended, number: signal.Signals) -> Ended:
    """Returns `ended`, after a check of its output against its signal."""
    if ended.code == 0:
        return ended
    dies = (-number,) if number in (signal.SIGKILL, signal.SIGHUP) else (-number, INTERRUPTED)
    assert ended.code in dies, (number, ended)
    assert "Traceback" not in ended.stderr, ended
    assert ended.code != INTERRUPTED or "interrupted" in ended.stderr, ended
    assert "nothing was changed" not in ended.stderr, ended
    return Ended(ended.code, True, ended.stdout, ended.stderr)


def _give(words: Words, said: list[Path]) -> None:
    """In a process of its own, which ends here.

    It hears Ctrl-C as at a terminal, also where this process is a background job that does not.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code, begun = 1, False
    try:
        for number, file in zip((1, 2), said, strict=True):
            os.dup2(os.open(file, os.O_TRUNC | os.O_WRONLY), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        begun = True
        main(words)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0
    except BaseException:
        if begun:
            traceback.print_exc()
        else:  # before there is a command to end properly
            said[1].write_text("interrupted")
            code = INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def went_on_alone(folder: Path, pairs: int) -> None:
    """Starts two processes on one run folder, `pairs` times, in three ways in turn.

    Raises `AssertionError` unless one continues, the other reports why it does not, and the run is
    complete.
    """
    kind, whole, rng = EARLIER["plain, seeded"], folder / "whole" / "run", random.Random(0)
    folder.mkdir()
    seconds = _lived_through(kind, whole)
    for number in range(pairs):
        path = folder / f"{number}" / "run"
        path.parent.mkdir()
        ways = (kind.begin, kind.go_on) if number % 3 else (kind.begin, kind.begin)
        if number % 3 == 2:
            _life(path, kind.begin(path), rng.uniform(0.0, seconds), signal.SIGKILL)
            ways = (kind.go_on, kind.go_on) if (path / kind.began).exists() else (kind.begin,) * 2
        said = [path.parent / f"{n}.{name}" for n in "ab" for name in ("out", "err")]
        children = [_forked(ways[0](path), said[:2])]
        while number % 3 == 1 and not (path / kind.began).exists():
            time.sleep(0.001)
        children.append(_forked(ways[1](path), said[2:]))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        errors = [each.read_text() for each in said[1::2]]
        assert sorted(codes) in ([0, 2], [0, 0]), (codes, errors)
        assert codes == [0, 0] or any(
            words in "".join(errors) for words in ("in use", "another run", "other files")
        ), errors
        kind.whole(whole, path)
        shutil.rmtree(path.parent)


def _forked(words: Words, said: list[Path]) -> int:
    """Starts a process with the command of these `words`; its output goes to the files `said`."""
    for file in said:
        file.write_bytes(b"")
    child = os.fork()
    if not child:
        _give(words, said)
    return child
