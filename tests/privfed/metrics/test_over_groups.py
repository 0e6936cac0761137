"""What a model is worth to each group of a public test set, and how far groups lie apart."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import built, population
from small import trained

from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.core.text import measure
from privfed.models.recipes import Logistic
from privfed.run.evaluation.charged_measures import opportunity_gap, over_groups


def test_the_opportunity_gap_is_the_largest_difference_of_a_classs_recall():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    groups = np.array([0, 0, 1, 1, 0, 0, 1, 1, 1])
    right = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0], dtype=bool)
    predicted = np.where(right, labels, 3)
    assert opportunity_gap(predicted, labels, groups) == 0.5
    assert opportunity_gap(labels, labels, groups) == 0.0
    assert opportunity_gap(predicted, labels, labels) == 0.0, "each class is in one group alone"
    worse = np.where(groups == 1, 3, predicted)
    assert opportunity_gap(worse, labels, groups) == 1.0


def test_each_group_is_scored_on_its_own_examples():
    examples = population((9, 9, 9)).examples
    net = built(Logistic(), (5,), 3)
    params = torch.randn(18, generator=torch.Generator().manual_seed(3))
    scores = over_groups(net, params, examples, "label")
    for label in range(3):
        rows = np.flatnonzero(examples.y.numpy() == label)
        assert scores[f"accuracy[{label}]"] == net.evaluate(params, examples.take(rows))["accuracy"]
    each = [scores[f"accuracy[{label}]"] for label in range(3)]
    assert scores["worst_group_accuracy"] == min(each)
    assert scores["group_gap_accuracy"] == max(each) - min(each) > 0
    assert over_groups(net, params, examples, "") == {}
    with pytest.raises(Refused, match=r"evaluation\.group is 'shoe'"):
        over_groups(net, params, examples, "shoe")


def test_a_run_and_its_evaluation_tell_them(tmp_path):
    """In metrics, in the summary and by the command; another group by an option."""
    outcome = trained(tmp_path, "evaluation.group=label", "client.objective=afl", "client.groups=3")
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    shown = CliRunner().invoke(main, ["evaluate", str(tmp_path), "--json"])
    for measures in (outcome.measures, json.loads(lines[-1]), summary, json.loads(shown.output)):
        assert measures["worst_group_accuracy"] == outcome.measures["worst_group_accuracy"]
        assert measures["opportunity_gap"] == 0.0
    page = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert page.exit_code == 0, page.output
    html = (tmp_path / "report" / "page.html").read_text()
    assert all(name in html for name in ("worst_group_accuracy", "accuracy[", "opportunity_gap"))
    assert "Worst_group_accuracy by round" in html
    assert "Opportunity_gap by round" not in html, "too many pictures"
    grouped = CliRunner().invoke(main, ["evaluate", str(tmp_path), "--group", "shoe"])
    assert grouped.exit_code == 2
    assert "shoe" in grouped.output


@pytest.mark.parametrize("beside", [("--personalise", "1"), ("--federated", "--epsilon", "1")])
def test_an_option_that_says_nothing_there_is_refused(beside, tmp_path):
    refused = CliRunner().invoke(main, ["evaluate", str(tmp_path), "--group", "label", *beside])
    assert refused.exit_code == 2


def test_groups_that_are_not_as_declared_are_refused_before_anything_is_charged(tmp_path):
    with pytest.raises(Refused, match=r"evaluation\.group is 'shoe'"):
        trained(tmp_path, "evaluation.group=shoe")
    for count in (2, 10):
        wrong = rf"client\.groups is {count}, but .* makes 3.*client\.groups = 3"
        with pytest.raises(Refused, match=wrong):
            trained(tmp_path, "client.objective=afl", f"client.groups={count}")
    clips = ("client.objective=group_clip", "client.group_clips=[1.0, 1.0, 1.0, 2.0, 2.0]")
    with pytest.raises(
        Refused, match=r"each of 5 groups, but .* makes 3: .* remove the last 2 of cl"
    ):
        trained(tmp_path, *clips)
    assert not list(tmp_path.glob("ledger*"))


@pytest.mark.parametrize("private", [True, False], ids=["private", "not private"])
def test_a_check_says_what_tells_a_clients_group(private):
    keys = ["client.objective=afl", "client.groups=3", "client.group=label", "data.classes=3"]
    keys += ["data.source=synthetic", *([] if private else ["privacy.mechanism=none"])]
    shown = CliRunner().invoke(main, ["check", *(f"--set={key}" for key in keys)])
    assert shown.exit_code == 0, shown.output
    (line,) = [line for line in shown.output.splitlines() if line.startswith(" groups ")]
    assert "3 declared, by label" in line
    assert ("clipped row" in line) == private


def test_a_groups_accuracy_is_read_in_per_cent():
    assert measure("accuracy[f]", 0.5) == measure("worst_group_accuracy", 0.5) == "50.00%"
    assert measure("group_gap_accuracy", 0.25) == "0.25"
