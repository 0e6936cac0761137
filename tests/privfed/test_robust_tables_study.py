"""The study of published tables: how it deals MNIST, its grids, and what its page says."""

import csv
import gzip
import json

import numpy as np
import pytest
import torch
from lanes import mostly_slow

from experiments.robust_tables.images import Assigned
from experiments.robust_tables.models import convolutional
from experiments.robust_tables.page import HERE, measured, published, tables
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.plan.plan import plan
from privfed.run.train import train

GRIDS = ("imbalance", "mimic", "attacks", "byzfl")
STREAMS = Streams(3, simulated=True)


def idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes()))


def written(folder, prefix, count):
    """Images that say which they are, by their first two pixels, and five of each label in turn."""
    folder.mkdir(exist_ok=True)
    pixels = np.zeros((count, 8, 8), np.uint8)
    pixels[:, 0, 0], pixels[:, 0, 1] = np.divmod(np.arange(count), 256)
    idx(folder / f"{prefix}-images-idx3-ubyte.gz", pixels)
    idx(folder / f"{prefix}-labels-idx1-ubyte.gz", (np.arange(count) // 5 % 10).astype(np.uint8))
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "mnist", "t10k", 1000)


def places(examples, client=None):
    """Which images these are, of a client or of all."""
    chosen = slice(None) if client is None else torch.from_numpy(examples.owners == client)
    x = examples.x[torch.arange(len(examples))][chosen] * 0.3081 + 0.1307
    first, second = (x[:, 0, 0, 0] * 255).round(), (x[:, 0, 0, 1] * 255).round()
    return (256 * first + second).long().tolist()


@pytest.mark.parametrize("keys", [{}, {"similarity": 0.0}, {"similarity": 0.4},
                                  {"concentration": 0.5}], ids=str)  # fmt: skip
def test_every_image_is_one_workers_or_for_testing(folder, keys):
    source = Assigned(path=folder, **keys)
    train_on, test_on = source.load(7, STREAMS), source.load_test(7, STREAMS)
    assert sorted(places(train_on) + places(test_on)) == list(range(1000))
    assert len(test_on) == 200
    sizes = np.bincount(train_on.owners, minlength=7)
    if "concentration" in keys:
        assert sizes.max() > sizes.min() + 20
    else:
        assert sizes.max() <= sizes.min() + 2


@pytest.mark.parametrize("similarity, least, most", [(0.0, 1, 3), (1.0, 10, 10)])
def test_sorted_workers_hold_few_labels_and_iid_ones_all(folder, similarity, least, most):
    dealt = Assigned(path=folder, similarity=similarity).load(8, STREAMS)
    labels = [len(set(dealt.y[dealt.owners == client].tolist())) for client in range(8)]
    assert least <= min(labels) <= max(labels) <= most


def test_labels_with_a_long_tail_fall_off_in_both_parts(folder):
    source = Assigned(path=folder, tail=0.5)
    for part, of_each in ((source.load(4, STREAMS), 80), (source.load_test(4, STREAMS), 20)):
        counts = np.bincount(part.y.numpy(), minlength=10).tolist()
        assert counts == [int(of_each * 0.5**label) for label in range(10)]


def test_all_of_mnist_is_taken_where_it_lies(tmp_path):
    written(tmp_path / "all", "train", 500)
    path = written(tmp_path / "all", "t10k", 300)
    source = Assigned(path=path)
    assert len(source.load(5, STREAMS)) == 500
    assert len(source.load_test(5, STREAMS)) == 300


@pytest.mark.parametrize("seed", [0, 1])
def test_those_who_attack_hold_images_of_all_labels_and_honest_ones_the_whole(
    folder, tmp_path, seed
):
    """The source works out who will attack as the run does."""
    keys = [f"data.path={folder}", "run.rounds=1", f"run.seed={seed}", "data.byzantine=5",
            "data.similarity=0.0", "attack.name=free_rider", "attack.fraction=0.2",
            "aggregation.rule=median", "aggregation.byzantine=5"]  # fmt: skip
    config = load(HERE / "run.toml", keys)
    out = train(config, tmp_path / "run").path
    attackers = json.loads((out / "report/attackers.json").read_text())["clients"]
    dealt = config.source.load(25, Streams(seed, simulated=True))
    labels = {client: len(set(dealt.y[dealt.owners == client].tolist())) for client in range(25)}
    assert len(attackers) == 5
    assert min(labels[client] for client in attackers) > 5
    honest = [client for client in range(25) if client not in attackers]
    assert max(labels[client] for client in honest) <= 2
    everything = sorted(place for client in honest for place in places(dealt, client))
    assert everything == [place for place in range(1000) if place % 5]


@pytest.mark.parametrize("name", mostly_slow(GRIDS, "byzfl"))
def test_every_cell_is_allowed(name):
    path = HERE / f"{name}.toml"
    every = cells(path, load_grid(path))
    assert len(every) == {"imbalance": 36, "mimic": 36, "attacks": 80, "byzfl": 3}[name]
    for cell in every[::4]:
        assert cell.config is not None, cell.refusal
        plan(cell.config)


def test_byzfls_network_has_its_parameters():
    network = convolutional((1, 28, 28), 10)
    assert sum(parameter.numel() for parameter in network.parameters()) == 431_080
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_published_figures_are_of_cells_that_were_run():
    rows = [
        {"method": "Krum", "data.similarity": "1", "aggregation.before": "[]", "seed": seed,
         "accuracy": "0.6", "accuracy_last_100": f"0.5{seed}"}
        for seed in "01"
    ]  # fmt: skip
    place = ("Krum", "1.0", "")
    assert measured(rows, "accuracy_last_100") == {place: [pytest.approx(50), pytest.approx(51)]}
    assert measured(rows, "accuracy") == {place: [pytest.approx(60.0)] * 2}
    for grid in GRIDS[:3]:
        with (HERE / f"{grid}.csv").open() as file:
            assert set(published(grid)) <= set(measured(list(csv.DictReader(file)), "accuracy"))


def test_the_page_shows_the_tables_of_its_files():
    page = (HERE / "README.md").read_text("utf-8")
    for table in tables():
        assert table in page
