"""Joins the processes of one run as its ranks, and executes the rounds of each rank.

Processes are started here or by torchrun, and find each other through a store of torch.distributed.
`python -m` runs this module as a rank.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from accounting.errors import BudgetExceeded
from privfed.config.config import Config
from privfed.config.reading import read_resolved
from privfed.core import __version__
from privfed.core.errors import PrivfedError, Refused
from privfed.core.failures import OUR_FAULT, bug_message, ends_silently, guarded, report_failure
from privfed.core.memory import keep_freed
from privfed.core.ranks import PATIENCE, SINGLE_PROCESS, Ranks, Together, rank_lost_on_failure
from privfed.round.algorithm import TrainingState
from privfed.round.round import run_round
from privfed.run.prepare import prepare
from privfed.run.setup import Setup
from privfed.run.world import HeldElsewhere, shared_world

_HERE = "127.0.0.1"


def under_torchrun() -> bool:
    """Whether torchrun started this process, even as the only one."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


@contextmanager
def joined(workers: int) -> Iterator[Ranks]:
    """Returns a context manager in which this process is one of the ranks of its run.

    The ranks are those that torchrun started, or `workers` processes on this machine.
    """
    if under_torchrun() and int(os.environ["WORLD_SIZE"]) > 1:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with rank_lost_on_failure():
            store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
        # The store outlives a group that torchrun restarts, with addresses of dead processes.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"privfed/{attempt}", store)
        with _group(store, rank, count, lambda: True) as ranks:  # torchrun ends them together
            yield ranks
    elif workers > 1 and not under_torchrun():
        store = _store(0, workers, is_master=True)
        started = [_worker(rank, workers, store.port) for rank in range(1, workers)]
        try:
            with _group(store, 0, workers, lambda: all(w.poll() is None for w in started)) as ranks:
                yield ranks
        finally:
            for worker in started:
                worker.terminate()
                worker.wait()
    else:
        yield SINGLE_PROCESS


@contextmanager
def joining(rank: int, workers: int, port: int) -> Iterator[Ranks]:
    """Returns a context manager for a worker process, which `joined` started as rank `rank`."""
    with rank_lost_on_failure():
        store = _store(port, workers, is_master=False)
    parent = os.getppid()
    with _group(store, rank, workers, lambda: os.getppid() == parent) as ranks:
        yield ranks


@contextmanager
def _group(store: Any, rank: int, count: int, alive: Callable[[], bool]) -> Iterator[Ranks]:
    """Returns a context manager for the process group of `count` ranks that meet at `store`."""
    with rank_lost_on_failure():
        dist.init_process_group("gloo", timeout=PATIENCE, store=store, rank=rank, world_size=count)
    try:
        met = Together(rank, count, store, "", alive)
        version, group = met.first(lambda: (__version__, secrets.token_hex(8)))
        refuse_another_version(version)
        yield replace(met, group=group)
    finally:
        dist.destroy_process_group()


def _store(port: int, count: int, is_master: bool) -> Any:
    store: Any = dist.TCPStore  # type: ignore[attr-defined]
    return store(_HERE, port, count, is_master=is_master, wait_for_workers=False)


def _worker(rank: int, workers: int, port: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "privfed.run.process_group",
        str(rank),
        str(workers),
        str(port),
    ]
    return subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(rank)})


def refuse_another_version(version: str) -> None:
    """Raises `Refused` unless rank 0 runs the same version of privfed as this rank.

    Each rank adds a share of the noise, and versions may divide the noise differently.
    """
    if version != __version__:
        raise Refused(
            f"rank 0 runs privfed {version}, but this rank runs {__version__}; install the same "
            "version everywhere"
        )


@dataclass
class RankZero:
    """Announces each round of rank 0 to the other ranks, with its state if they lack that."""

    ranks: Ranks
    known: TrainingState | None = None
    """The state that the other ranks also have."""

    def begin(self, setup: Setup) -> Ranks:
        """Announces the run, as measured and calibrated by rank 0; returns the ranks."""
        network = setup.network
        if self.ranks.count > 1:
            constants = {name: tensor.cpu() for name, tensor in network.constants.items()}
            run = (setup.plan.config.toml(), constants, network.initial_params.cpu())
            self.ranks.first(lambda: run)
        return self.ranks.on(network.initial_params.device)

    def announce(self, round: int, state: TrainingState) -> None:
        """Announces the next round, with `state` if other ranks lack it."""
        if self.ranks.count > 1:
            fresh = None if state is self.known else on(torch.device("cpu"), state)
            self.ranks.first(lambda: (round, fresh))

    def end(self) -> None:
        """Announces that no further round follows."""
        if self.ranks.count > 1:
            self.ranks.first(lambda: None)


def follow(ranks: Ranks) -> None:
    """Executes every round that rank 0 announces, until rank 0 announces the end."""
    text, constants, start = ranks.first(_not_rank_0)
    setup = _setup(read_resolved(text), constants, start)
    device = setup.network.initial_params.device
    world = shared_world(setup, HeldElsewhere(), HeldElsewhere(), ranks.on(device))
    state = setup.initial_state()
    while (announced := ranks.first(_not_rank_0)) is not None:
        round, fresh = announced
        state = on(device, fresh) if fresh is not None else state
        try:
            state = run_round(round, setup.algorithm_in(round), state, world)
        except BudgetExceeded:
            continue


def _not_rank_0() -> Any:
    raise RuntimeError("only rank 0 is asked")


def _setup(config: Config, constants: Mapping[str, Tensor], start: Tensor) -> Setup:
    setup = prepare(config, constants=constants)
    network = replace(setup.network, initial_params=start.to(setup.network.initial_params))
    return replace(setup, network=network)


def on(device: torch.device, state: TrainingState) -> TrainingState:
    """`state` with all its tensors on `device`."""

    def moved(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(device) for name, tensor in memory.items()}

    return TrainingState(
        state.params.to(device),
        moved(state.server),
        moved(state.mechanism),
        moved(state.objective),
        moved(state.rule),
        moved(state.attack),
        moved(state.evaluation),
        moved(state.earlier),
    )


def refuse_ranks(config: Config, count: int) -> None:
    """Raises `Refused` if `count` > 1 and `config` has a feature that needs one process."""
    if count == 1:
        return
    reasons = []
    if config.secured:
        reasons.append("a secure sum is simulated in one process")
    elif config.by_sites:
        reasons.append("sites' noise is simulated in one process")
    if config.has_attackers:
        reasons.append("attackers are simulated in one process")
    if config.keeping:
        reasons.append("clients' states are kept by one process")
    if config.client_mechanism.private:
        reasons.append("silos' ledgers are kept by one process")
    if config.audit.canaries:
        reasons.append("canaries are simulated by one process")
    if config.run.simulation_metrics:
        reasons.append("run.simulation_metrics are counted in one process")
    if reasons:
        raise Refused(
            f"{count} processes: {'; '.join(reasons)}; use run.workers = 1 (a grid of runs uses "
            "all cores: privfed experiment --jobs)"
        )


def main() -> None:
    """Entry point of a rank that another process started; the rank ends with that process."""
    keep_freed()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with guarded():
        sys.exit(_code())


def _code() -> int:
    try:
        with joining(*map(int, sys.argv[1:])) as ranks:
            follow(ranks)
        return 0
    except PrivfedError as error:
        return report_failure(f"rank: {error}", error.exit_code)
    except BaseException as error:
        if ends_silently(error):
            raise
        return report_failure(f"rank: {bug_message(error)}", OUR_FAULT)


if __name__ == "__main__":
    main()
