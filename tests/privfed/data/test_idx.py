"""MNIST-format folders: what is in them, and every way in which they are broken."""

import gzip
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import DATA
from lanes import every_case

from experiments.benchmarks.work.memory import forget_peak, peak
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.sources.idx import Idx, read_idx
from privfed.plan.plan import plan
from privfed.run.train import train

STREAMS = Streams(0)


def gzipped(content):
    """Without the time, which would give the two workers of a test run different test names."""
    return gzip.compress(content, mtime=0)


MNIST = DATA / "mnist"


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def folder(path, prefix="train", zipped=True, images=None, labels=None):
    """A folder with 12 images of 4 x 5 pixels and their labels."""
    rng = np.random.default_rng(0)
    images = idx(rng.integers(0, 256, (12, 4, 5))) if images is None else images
    labels = idx(np.arange(12) % 10) if labels is None else labels
    path.mkdir(exist_ok=True)
    for name, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        if zipped:
            (path / f"{prefix}-{name}.gz").write_bytes(gzipped(content))
        else:
            (path / f"{prefix}-{name}").write_bytes(content)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_images_and_labels_are_read_gzipped_or_not(tmp_path, zipped):
    examples = Idx(path=str(folder(tmp_path / "data", zipped=zipped))).load(3, STREAMS)
    expected = np.random.default_rng(0).integers(0, 256, (12, 4, 5))
    assert examples.x.shape == (12, 1, 4, 5)
    np.testing.assert_allclose(examples.x[torch.arange(12)][:, 0], expected / 255, rtol=1e-6)
    assert examples.y.tolist() == [*range(10), 0, 1]
    assert examples.classes == 10


def test_one_of_several_pairs_is_named_by_its_prefix(tmp_path):
    folder(tmp_path / "data", "train")
    folder(tmp_path / "data", "t10k", labels=idx(np.zeros(12)))
    with pytest.raises(Refused, match=r"2 pairs.*data\.prefix"):
        Idx(path=str(tmp_path / "data")).load(3, STREAMS)
    chosen = Idx(path=str(tmp_path / "data"), prefix="t10k").load(3, STREAMS)
    assert chosen.y.tolist() == [0] * 12


WHOLE = gzipped(idx(np.zeros((12, 4, 5))))


@every_case(
    "content, message",
    [
        (WHOLE[:-9], "an incomplete gzip file"),
        (WHOLE[:5], "an incomplete gzip file"),
        (b"plainly no gzip", "an incomplete gzip file"),
        (gzipped(b"PNG, perhaps"), "expected an idx file"),
        (gzipped(b""), "expected an idx file"),
        (gzipped(idx(np.zeros((2, 2)), kind=13)), "expected an idx file of unsigned bytes"),
        (gzipped(idx(np.zeros((12, 4, 5)))[:10]), "ends within its header"),
        (gzipped(idx(np.zeros((12, 4, 5)))[:-1]), "declares another number"),
        (gzipped(idx(np.zeros((12, 4, 5))) + b"x"), "declares another number"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(Refused, match=message) as refused:
        read_idx(path)
    assert path.name in str(refused.value)


def test_a_fifo_in_the_place_of_images_is_refused_and_not_waited_for(tmp_path):
    path = folder(tmp_path / "data", zipped=False) / "train-images-idx3-ubyte"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Refused, match="is a FIFO or a device; expected an idx file"):
        Idx(path=str(tmp_path / "data")).load(3, STREAMS)


@every_case(
    "changes, message",
    [
        ({"labels": idx(np.zeros(11))}, "expected \\[N, height, width\\] and \\[N\\]"),
        ({"images": idx(np.zeros(12))}, "expected \\[N, height, width\\]"),
        ({"labels": idx(np.full(12, 10))}, "declare all classes"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, changes, message):
    path = folder(tmp_path / "data", **changes)
    with pytest.raises(Refused, match=message):
        Idx(path=str(path)).load(3, STREAMS)


def test_a_folder_without_such_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(Refused, match="0 pairs") as refused:
        Idx(path=str(tmp_path)).load(3, STREAMS)
    assert "notes.txt" in refused.value.private
    with pytest.raises(Refused, match="no such folder"):
        Idx(path=str(tmp_path / "gone")).load(3, STREAMS)
    with pytest.raises(Refused, match=r"data\.path is missing"):
        plan(load(None, ["data.source=idx"]))


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST's test images are not at hand")
def test_mnist_trains_privately(tmp_path):
    """A few rounds of a private CNN on real images do far better than chance."""
    overrides = [
        "data.source=idx",
        f"data.path={MNIST}",
        "data.clients=1000",
        "cohort.size=50",
        "model.name=cnn",
        "model.channels=[8]",
        "run.rounds=12",
        "run.randomness=seeded",
        "privacy.noise_multiplier=0.6",
        "privacy.clip=0.4",
        "run.trainer=loop",
        "run.chunk=16",
    ]
    examples = Idx(path=str(MNIST)).load(1000, STREAMS)
    assert examples.x.shape == (10_000, 1, 28, 28)
    assert torch.bincount(examples.y).tolist()[:3] == [980, 1135, 1032]
    outcome = train(load(None, overrides), tmp_path / "run")
    assert outcome.test_examples == 2000
    assert outcome.accuracy > 0.5


MEASURE = """
import resource, sys
import numpy as np, torch
from privfed.data.population import populate
from privfed.data.sources.idx import Idx
from privfed.data.partitions.basic import Iid
from privfed.core.streams import Streams

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak()
federation = populate(Idx(path=sys.argv[1]), Iid(), 1000, 0.2, Streams(0))
x, _ = federation.gather(torch.randint(0, 700_000, (64, 10)))
assert x.shape == (64, 10, 1, 28, 28)
print(peak() - before)
"""


@pytest.mark.slow
def test_a_file_larger_than_we_want_in_memory_is_mapped(tmp_path):
    """A million images (784 MB as bytes, 3.1 GB as floats), of which a few hundred are read."""
    count = 1_000_000
    with (tmp_path / "train-images-idx3-ubyte").open("wb") as file:
        file.write(struct.pack(">HBB3I", 0, 8, 3, count, 28, 28))
        file.truncate(16 + count * 784)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(count)))
    script = [sys.executable, "-c", MEASURE, str(tmp_path)]
    megabytes = float(subprocess.run(script, capture_output=True, check=True).stdout)
    assert megabytes < 300


def test_no_more_is_unzipped_than_is_declared(tmp_path):
    bomb = gzipped(idx(np.zeros((12, 4, 5))) + bytes(2**27))
    source = Idx(path=str(folder(tmp_path / "data", images=None)))
    (tmp_path / "data/train-images-idx3-ubyte.gz").write_bytes(bomb)
    forget_peak()
    before = peak()
    with pytest.raises(Refused, match="declares another number"):
        source.load(3, STREAMS)
    assert peak() - before < 2**25
