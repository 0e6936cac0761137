"""Figures and tuning are about the loss's own measure, and know which way is better."""

import json

import pytest
from click.testing import CliRunner
from grids import in_process
from lanes import every_case

from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.grid import engine as experiment
from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.grid.pictures.figures import Figure
from privfed.grid.planned_guarantee import best_options
from privfed.grid.tables import less_is_better
from privfed.models.losses.cross_entropy import BinaryCrossEntropy, CrossEntropy
from privfed.models.losses.squared_error import SquaredError

HEAT = """
[[figure]]
name = "a"
kind = "heat"
x = "client.lr"
by = "model.loss"
worst = "server.lr"
"""
GRID = """
[grid]
"client.lr" = [0.1, 0.2]
"server.lr" = [0.1, 0.2]
"model.loss" = [{losses}]
"""


def grid(tmp_path, losses, rest=""):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(losses=", ".join(f'"{loss}"' for loss in losses)) + rest)
    return path


@every_case("loss, measure, lower", [
    ("binary_cross_entropy", "auc", False),
    ("squared_error", "mae", True),
    ("cross_entropy", "accuracy", False),
    ("multi_label", "recall_at_3", False),
])  # fmt: skip
def test_a_figure_takes_its_losss_own_measure_and_direction(tmp_path, loss, measure, lower):
    (figure,) = load_grid(grid(tmp_path, [loss], HEAT)).figure
    assert (figure.measure, figure.lower_is_better) == (measure, lower)


def test_where_cells_have_several_measures_one_has_to_be_named(tmp_path):
    both = ["squared_error", "cross_entropy"]
    with pytest.raises(Refused, match=r"measure is missing.*mae, accuracy.*show some by where"):
        load_grid(grid(tmp_path, both, HEAT))
    shown = HEAT + 'where = { "model.loss" = "squared_error" }\n'
    (figure,) = load_grid(grid(tmp_path, both, shown)).figure
    assert figure.measure == "mae"
    (figure,) = load_grid(grid(tmp_path, both, HEAT + 'measure = "loss"\n')).figure
    assert figure.lower_is_better is True


def test_what_is_stated_goes_before(tmp_path):
    stated = HEAT + 'measure = "mae"\nlower_is_better = false\n'
    (figure,) = load_grid(grid(tmp_path, ["squared_error"], stated)).figure
    assert figure.lower_is_better is False


def test_tuning_chooses_by_each_cells_own_measure(tmp_path):
    losses = ["squared_error", "cross_entropy"]
    path = tmp_path / "grid.toml"
    path.write_text(f'[grid]\n"model.loss" = {losses}\n[tune.over]\n"client.lr" = [0.1, 0.2]\n')
    read = load_grid(path)
    tried = cells(path, read)
    results = {
        cell.name: {
            "status": "done",
            "outcome": {
                cell.config.loss.measure: cell.values["client.lr"],
                "loss": -cell.values["client.lr"],
            },
        }
        for cell in tried
    }
    chosen = [
        best_options(read, tried, results, {"model.loss": loss})["client.lr"] for loss in losses
    ]
    assert chosen == [0.1, 0.2], "the least error, the greatest accuracy"


def test_tuning_does_not_compare_different_measures(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text('[tune.over]\n"model.loss" = ["squared_error", "cross_entropy"]\n')
    with pytest.raises(Refused, match=r"tune\.by is missing"):
        load_grid(path)


@every_case("loss, measure, lower", [
    (SquaredError(), "mae", True),
    (SquaredError(), "mae_best", True),
    (CrossEntropy(), "accuracy_last_100", False),
    (CrossEntropy(), "loss", True),
    (BinaryCrossEntropy(), "train_loss", True),
    (BinaryCrossEntropy(), "accuracy", False),
])  # fmt: skip
def test_which_way_is_better(loss, measure, lower):
    assert less_is_better(loss, measure) is lower


@every_case("table, key, message", [
    ("[[figure]]\nname = 'a'\nx = 'round'\n", "mesure", "number 1.*did you mean 'measure'"),
    ("[tune]\n", "lower_is_beter", r"\[tune\].*did you mean 'lower_is_better'"),
    ("[[method]]\nname = 'a'\n[[method]]\nname = 'b'\n", "sett", "number 2.*did you mean 'set'"),
])  # fmt: skip
def test_an_unknown_key_of_a_table_names_the_keys_of_that_table(tmp_path, table, key, message):
    path = tmp_path / "grid.toml"
    path.write_text(f"{table}{key} = 1\n")
    refused = CliRunner().invoke(main, ["experiment", str(path), "--dry-run"])
    assert refused.exit_code == 2
    with pytest.raises(Refused, match=f"unknown key '{key}' in .*{message}"):
        load_grid(path)


def test_labels_keep_their_section():
    figure = Figure(name="a", x="client.lr", labels={"server.lr": "rate"})
    assert figure.label("client.lr") == "client lr"
    assert figure.label("server.lr") == "rate"
    assert figure.label("privacy.noise_multiplier") == "privacy noise multiplier"
    assert figure.label("recall_at_3") == "recall at 3"


def test_a_grid_over_areas_draws_areas(tmp_path, monkeypatch):
    """Two classes, scored by their area under the curve: nothing says so but the loss."""
    monkeypatch.setattr(experiment, "work", in_process)
    (tmp_path / "base.toml").write_text(
        '[data]\nsource = "synthetic"\nfeatures = 4\nclasses = 2\nclients = 12\nsize_max = 20\n'
        'iid = true\n[model]\nloss = "binary_cross_entropy"\n[cohort]\nsize = 6\n[privacy]\n'
        'mechanism = "none"\n[run]\nrounds = 2\nrandomness = "seeded"\ntrainer = "stacked"\n'
        "chunk = 5\n"
    )
    path = tmp_path / "grid.toml"
    path.write_text(
        'base = "base.toml"\n[grid]\n"client.lr" = [0.1, 0.5]\n[[figure]]\nname = "a"\n'
        'x = "client.lr"\n'
    )
    result = CliRunner().invoke(main, ["experiment", str(path), "--jobs", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout[result.stdout.index("{") :])["done"] == 2
    picture = (tmp_path / "a.svg").read_text()
    assert ">auc<" in picture
    assert ">client lr<" in picture
