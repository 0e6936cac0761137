"""A call that trains, around the training: how it goes on once interrupted, and torch's threads."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path


@contextlib.contextmanager
def resumable(path: Path, given: Collection[str] = (), lasting: bool = True) -> Iterator[None]:
    """A context that says, where it is interrupted, how to go on; torch's threads are as before.

    `given` are the kinds of parts that were passed as objects. A run that is not `lasting` is gone.
    """
    try:
        with own_threads():
            yield
    except (KeyboardInterrupt, OSError) as error:
        if (path / "ledger.jsonl").exists():
            error.add_note(
                _way_on(path, given) if lasting else "this run was temporary, and is gone"
            )
        raise


def _way_on(path: Path, given: Collection[str]) -> str:
    """How to go on with the run at `path`."""
    names = {"model": "model=…", "source": "data=…"}
    again = [names.get(kind, f"{kind}=…") for kind in sorted(given)]
    call = ", ".join([repr(str(path)), *again])
    return f"what was released is kept; go on with it: privfed.load({call}).resume()"


@contextlib.contextmanager
def own_threads() -> Iterator[None]:
    """A context whose number of torch's threads is its own: runs set it (`run.threads`)."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
