"""A call that trains, around the training: how it goes on once interrupted, and torch's threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def resumable(path: Path) -> Iterator[None]:
    """A context that says, where it is interrupted, how to go on; torch's threads are as before."""
    try:
        with own_threads():
            yield
    except (KeyboardInterrupt, OSError) as error:
        if (path / "ledger.jsonl").exists():
            error.add_note(
                f"what was released is kept; go on with it: privfed.load({str(path)!r}).resume()"
            )
        raise


@contextlib.contextmanager
def own_threads() -> Iterator[None]:
    """A context whose number of torch's threads is its own: runs set it (`run.threads`)."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
