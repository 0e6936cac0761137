"""The studies' files still say what this version reads, and their parts are whole."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lanes import every_case

from experiments.distillation import costs
from experiments.distillation.networks import wide_cnn
from experiments.fairness.two_cameras import TwoCameras
from privfed.config.reading import load
from privfed.core.parts import find
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.metrics.groups import ClientGroups, ExampleGroups
from privfed.models.form import Form
from privfed.run.check import check

STUDIES = Path(__file__).parents[2] / "experiments"


def test_the_run_file_of_every_study_is_read():
    files = sorted(STUDIES.glob("*/*run.toml"))
    assert len(files) > 15
    for file in files:
        load(file)


def grids():
    """All grid files: whatever is no run file's."""
    files = [*STUDIES.glob("*/*.toml"), *STUDIES.glob("*/*/*.toml")]
    return sorted(file for file in files if not file.name.endswith("run.toml"))


def test_every_grid_of_a_study_is_read():
    assert len(grids()) > 35
    for file in grids():
        load_grid(file)


@pytest.mark.slow
@pytest.mark.parametrize("file", grids(), ids=lambda file: str(file.relative_to(STUDIES)))
def test_every_cell_of_a_study_is_a_run_that_can_be_meant(file):
    grid = load_grid(file)
    expanded = cells(file, grid.model_copy(update={"seeds": grid.seeds[:1]}))
    assert [cell.refusal for cell in expanded if cell.config is None] == []


@every_case(
    "name",
    [
        "benchmarks.work.synthetic:Characters",
        "benchmarks.work.synthetic:Images",
        "benchmarks.work.synthetic:Many",
        "fairness.two_cameras:TwoCameras",
        "personalisation.small_images:SmallImages",
        "personalisation.small_images:TwoReadings",
    ],
)
def test_the_sources_of_studies_declare_what_sources_have_to(name):
    find("source", f"experiments.{name}", "data.source")


def test_a_tenth_of_the_clients_hold_turned_images_and_every_public_one_is_there_through_both():
    source, streams = TwoCameras(minority=0.1), Streams(0, simulated=True)
    examples, test = source.load(20, streams), source.load_test(20, streams)
    groups = ExampleGroups.by("camera", Form.of(examples))
    assert groups.names[:2] == ("upright", "turned")
    turned = groups.of(examples.x, examples.y) == 1
    assert sorted({*examples.owners[turned]}) == [0, 1]
    assert not turned[examples.owners > 1].any()
    population = Federation.of(examples, examples.owners, 20, test)
    of_clients = ClientGroups.by("camera", Form.of(examples), 0).of(population, np.arange(20))
    assert of_clients.tolist() == [1, 1] + [0] * 18
    first, second = test.x.chunk(2)
    upright, quarter = second[:, :64].view(-1, 8, 8), first[:, :64].view(-1, 8, 8)
    assert torch.equal(upright.rot90(1, (1, 2)), quarter)
    assert torch.equal(*test.y.chunk(2))
    private = examples.x[~torch.from_numpy(turned), :64]
    assert not set(map(bytes, upright.reshape(-1, 64).numpy())) & set(map(bytes, private.numpy()))


def test_the_mask_of_the_study_of_distillation_sends_as_many_numbers_as_soft_labels():
    parameters = sum(each.numel() for each in wide_cnn((1, 28, 28), 10).parameters())
    assert parameters == 111_546
    grid = load_grid(STUDIES / "distillation/mnist.toml")
    (mask,) = (each.set for each in grid.method if "mask" in each.name)
    assert round(mask["compression.fraction"] * parameters) == costs.NUMBERS
    for changes in (costs.METHODS["random mask"], costs.LABELS):
        keys = [key.format(fraction=costs.NUMBERS / 4810) for key in changes]
        run = load(STUDIES / "distillation/run.toml", keys)
        assert check(run).forecast.message == costs.NUMBERS
