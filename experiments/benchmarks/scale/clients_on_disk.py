"""Synthetic clients in an Arrow file, as `datasets` saves them: never in memory all at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from experiments.benchmarks.work.workloads import Workload

FEATURES, CLASSES, EACH = 64, 4, 8
"""Bytes of an example, its classes, and the examples of a client."""
_BATCH_SIZE = 1000
"""Number of clients in a batch of rows."""


def write(folder: Path, clients: int, seed: int = 0, features: int = FEATURES) -> int:
    """Writes `clients` of `EACH` examples to a new `folder`; returns the bytes of the file."""
    import pyarrow

    folder.mkdir()
    rng, file = np.random.default_rng(seed), folder / "data-00000-of-00001.arrow"
    fields = [("x", pyarrow.list_(pyarrow.uint8(), features)), ("y", pyarrow.int64())]
    schema = pyarrow.schema([*fields, ("client", pyarrow.int64())])
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, schema) as stream:
        for start in range(0, clients, _BATCH_SIZE):
            owners = np.arange(start, min(start + _BATCH_SIZE, clients)).repeat(EACH)
            y = rng.integers(0, CLASSES, len(owners))
            x = rng.integers(0, 256, (len(owners), features), dtype=np.uint8)
            x[np.arange(len(y)), y] = 255
            arrays = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), features)
            columns = [arrays, pyarrow.array(y), pyarrow.array(owners + (seed << 40))]
            stream.write(pyarrow.record_batch(columns, schema=schema))
    state = {"_data_files": [{"filename": file.name}]}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    return file.stat().st_size


def workload(
    folder: Path,
    public: Path,
    clients: int,
    cohort: int,
    *settings: str,
    features: int = FEATURES,
) -> Workload:
    """Returns rounds of Poisson cohorts of the clients in `folder`, scored on those in `public`."""
    return Workload(
        "clients on disk",
        (
            "data.source=huggingface",
            f"data.path={folder}",
            f"data.test_path={public}",
            "data.x=x",
            "data.label=y",
            "data.client=client",
            f"data.classes={CLASSES}",
            f"data.shape=[{features}]",
            "data.bounds=[0, 255]",
            f"data.clients={clients}",
            "cohort.sampler=poisson",
            f"cohort.size={cohort}",
            "client.lr=0.1",
            "run.threads=1",
            *settings,
        ),
        1,
    )
