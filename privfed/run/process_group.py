"""How processes become the ranks of a run: started here, or by torchrun, and met at a store."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from privfed.core.errors import Refused
from privfed.core.ranks import ALONE, PATIENCE, Ranks, Together, rank_lost_on_failure
from privfed.core.version import __version__

_HERE = "127.0.0.1"


def under_torchrun() -> bool:
    """Whether torchrun started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


@contextmanager
def joined(workers: int) -> Iterator[Ranks]:
    """A context with this process among the ranks of its run.

    They are those that torchrun started, or `workers` processes on this machine.
    """
    if under_torchrun() and int(os.environ["WORLD_SIZE"]) > 1:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with rank_lost_on_failure():
            store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
        # The store outlives a group that torchrun starts again, with addresses of those who died.
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
        yield ALONE


@contextmanager
def joining(rank: int, workers: int, port: int) -> Iterator[Ranks]:
    """A context with this process as the worker that `joined` started as `rank`."""
    with rank_lost_on_failure():
        store = _store(port, workers, is_master=False)
    parent = os.getppid()
    with _group(store, rank, workers, lambda: os.getppid() == parent) as ranks:
        yield ranks


@contextmanager
def _group(store: Any, rank: int, count: int, alive: Callable[[], bool]) -> Iterator[Ranks]:
    """A context with the process group that meets at `store`."""
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
        "privfed.run.worker_rank",
        str(rank),
        str(workers),
        str(port),
    ]
    return subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(rank)})


def refuse_another_version(version: str) -> None:
    """Raises `Refused` unless rank 0 is of this version.

    Each adds its part of the noise, and what it leaves to others has to be what they add.
    """
    if version != __version__:
        raise Refused(
            f"rank 0 runs privfed {version}, and this rank {__version__}; install the same version "
            "everywhere"
        )
