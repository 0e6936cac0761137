"""A survival table from end to end: counted by cells, charged once, estimated, and read again."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clinical_tables import FULL, MASKS, SEEDED, patients, run_file
from commands import run
from html_page import Document
from lanes import every_case
from tables import written

import privfed
from accounting.events import ADD_REMOVE
from accounting.ledger import Ledger
from privfed.analytics.counted_table import CountedTable
from privfed.analytics.release import release_run
from privfed.analytics.survival.curves import SurvivalCounts, survival_curves
from privfed.analytics.survival.release import SurvivalRequest, survival_of
from privfed.analytics.survival.table import SurvivalTable
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian

ROOT = Path(__file__).resolve().parents[3]
ASKED = ("--time", "days", "--event", "died", "--until", "100", "--bins", "5", "--epsilon", "4")


def loaded(**keys):
    """The cell of each client of a table with these columns; -1: none."""
    table = SurvivalTable(
        **{"client": "p", "time": "t", "event": "e", "edges": [0.0, 10.0, 20.0, 30.0]} | keys
    )
    return (table.load(8, Streams(0, simulated=True)).x.squeeze(1) - 1).tolist()


@pytest.fixture
def small(tmp_path):
    return str(
        written(
            tmp_path / "t.csv",
            p=["a", "b", "c", "d", "e", "f", "g", "h"],
            t=["1.5", "25", "", "3", "3", "30", "-1", "19.99"],
            e=["1", "1", "1", "", "dead", "1", "1", "0"],
            arm=["x", "y", "x", "x", "z", "y", "x", "y"],
        )
    )


def test_each_client_is_one_cell(small):
    """Event and censored of bins 0 to 2, group by group; the last cell is for unusable entries."""
    assert loaded(path=small, group="arm", groups=["x", "y"], occurred=[1, "dead"]) == [
        *(0, 10, 12, 12, 12, 11, 12, 9),  # z is no declared group, and 30 is censored at the end
    ]
    assert loaded(path=small, occurred=[1, "dead"]) == [0, 4, 6, 6, 0, 5, 6, 3]
    assert loaded(path=small)[4] == 1  # "dead" is not declared as an event


def test_one_row_of_a_client_counts(tmp_path):
    path = str(written(tmp_path / "t.csv", p=["a", "a", "a"], t=[1, 11, 21], e=[1, 1, 1]))
    cells = loaded(path=path)
    assert len(cells) == 1
    assert cells[0] in (0, 2, 4)


def test_a_client_changes_the_counts_by_at_most_one():
    """The sensitivity that is charged; sums over the bins at risk would have that of sqrt(bins)."""
    table = SurvivalTable(path="x", client="p", time="t", event="e", edges=[0.0, 1.0, 2.0, 3.0])
    cells = table.questions
    assert cells.zero_input.shape == (1, 1)
    assert (cells.amplitudes == 1.0).all()
    at_risk = np.triu(np.ones((3, 3)))  # what a client of each bin would add to numbers at risk
    assert np.linalg.norm(at_risk, axis=0).max() == pytest.approx(math.sqrt(3))
    assert np.linalg.norm(np.eye(cells.length), axis=0).max() == 1.0


@every_case(
    ("keys", "says"),
    [
        ({"edges": [0.0, 0.0, 1.0]}, "ascending"),
        ({"edges": [0.0, math.inf]}, "finite"),
        ({"edges": [1.0]}, "edges"),
        ({"rows_per_client": 2}, "one cell"),
        ({"event": "t"}, "named twice"),
        ({"client": "t"}, "named twice"),
        ({"group": "arm"}, "expected both"),
        ({"edges": [float(n) for n in range(6000)]}, "at most 10,000"),
    ],
)
def test_tables_without_a_sense_are_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        SurvivalTable(
            **{"path": "x", "client": "p", "time": "t", "event": "e", "edges": [0.0, 1.0]} | keys
        )


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survival")
    answer = run("survive", run_file(folder), *ASKED, "--group", "arm", "--out", folder / "out")
    assert answer.exit_code == 0, answer.output
    return folder / "out", answer.stdout


def test_the_release_is_charged_once_and_audited(released):
    out, _ = released
    ledger = Ledger.load(out / "ledger.jsonl")
    (charge,) = ledger.charges
    assert charge.event.relation == ADD_REMOVE
    audit = json.loads(run("audit", out, "--json").stdout)
    assert 3.99 < audit["epsilon"] <= 4.0
    stated = json.loads((out / "survival.json").read_text())
    assert stated["guarantee"]["epsilon"] == audit["epsilon"]
    assert stated["noise"] == pytest.approx(audit["noise_multiplier"], rel=1e-3)


def test_estimates_are_near_the_table_and_intervals_contain_noise(released):
    out, printed = released
    release, columns = survival_of(out), patients()
    edges = np.linspace(0.0, 100.0, 6)
    exact = np.zeros((2, 5, 2))
    for time, died, arm in zip(columns["days"], columns["died"], columns["arm"], strict=True):
        last = time >= 100.0
        bin_ = 4 if last else int(np.searchsorted(edges, time, side="right")) - 1
        exact["ab".index(arm), bin_, 0 if died and not last else 1] += 1
    noised = np.stack([np.array(release.events), np.array(release.censored)], -1)
    assert np.abs(noised - exact).max() < 5 * release.noise
    assert np.abs(noised - exact).max() > 0.01
    whole = SurvivalCounts(release.edges, ("a", "b"), exact[..., 0], exact[..., 1], 0.0)
    for private, known in zip(release.curves, survival_curves(whole), strict=True):
        for point, truth in zip(private.points, known.points, strict=True):
            assert point.band.low <= truth.survival.value <= point.band.high
    ignoring = survival_curves(replace(whole, events=noised[..., 0], censored=noised[..., 1]))
    for private, narrower in zip(release.curves, ignoring, strict=True):
        widths, without = (
            [point.survival.high - point.survival.low for point in curve.points]
            for curve in (private, narrower)
        )
        assert np.mean(widths) > np.mean(without)
    assert release.log_rank.p_value < 0.01
    (ratio,) = release.hazard_ratios
    assert ratio.reference == "a"
    assert ratio.low < 0.5 < ratio.high
    assert "log-rank test" in printed
    assert "restricted mean a" in printed


def test_a_run_directory_is_only_read_again(released):
    out, printed = released
    before = (out / "ledger.jsonl").read_bytes()
    assert run("survive", out).stdout == printed
    assert (out / "ledger.jsonl").read_bytes() == before
    answer = run("survive", out, "--time", "days")
    assert answer.exit_code == 2
    assert "only read again" in " ".join(answer.output.split())
    assert run("describe", out).exit_code == 2


def test_the_actuarial_estimate_is_read_from_the_same_release(released):
    out, _ = released
    plain, halved = survival_of(out), survival_of(out, actuarial=True)
    assert plain.events == halved.events
    for curve, lower in zip(plain.curves, halved.curves, strict=True):
        assert curve.restricted_mean.value > lower.restricted_mean.value
    before = (out / "survival.json").read_bytes()
    assert run("survive", out, "--actuarial").exit_code == 0
    read = (out / "survival.json").read_bytes()
    assert read != before
    assert run("report", out).exit_code == 0
    assert (out / "survival.json").read_bytes() == read, "a page changes no estimates"
    assert run("survive", out).exit_code == 0


def test_the_page_of_the_task_states_the_measured_coverage():
    page = (ROOT / "docs/how-to/survival.md").read_text("utf-8")
    with (ROOT / "experiments/survival/coverage.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 24
    for line in lines:
        if line["epsilon"] != "inf":
            least, most, ignoring = (
                f"{100 * float(line[key]):.1f}" for key in ("least", "most", "ignoring_noise")
            )
            patients = f"{int(line['patients']):,}"
            row = f"| {line['design']} | {patients} | {line['epsilon']} | {least} to {most} |"
            assert f"{row} {ignoring} |" in page


def test_the_page_and_the_claim_are_about_survival(released, tmp_path):
    out, _ = released
    assert run("report", out, "--out", tmp_path / "page.html").exit_code == 0
    page = Document((tmp_path / "page.html").read_text("utf-8"))
    assert "Survival" in page.texts("h2")
    assert "Results" not in page.texts("h2")
    words = " ".join(page.texts("body")[0].split())
    assert "Estimated numbers at risk at the beginning of each bin" in words
    assert "The release was (ε, δ)-differentially private" in words
    path = tmp_path / "claim.json"
    assert run("report", out, "--claim", path).exit_code == 0
    claim = json.loads(path.read_text())
    assert [each["purpose"] for each in claim["releases"]] == ["statistics"]
    assert run("verify", path, out).exit_code == 0


def test_python_and_the_command_agree(tmp_path):
    path = run_file(tmp_path)
    answer = privfed.survival(
        path,
        time="days",
        event="died",
        until=100,
        bins=5,
        epsilon=4,
        out=tmp_path / "python",
        keys=["run.randomness=seeded"],
    )
    run("survive", path, *ASKED, *SEEDED, "--out", tmp_path / "command")
    command = json.loads((tmp_path / "command" / "survival.json").read_text())
    assert answer.events == command["events"]
    assert answer.curves[0]["points"] == command["curves"][0]["points"]
    assert answer.log_rank is None
    again = privfed.survival(tmp_path / "python")
    assert again.events == answer.events


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(MASKS, id="masks"),
        pytest.param(
            (*MASKS, *("--set", "data.site=ward", "--set", "data.sites=4"), *FULL),
            id="sites",
        ),
        pytest.param(("--set", "privacy.mechanism=local_gaussian"), id="local"),
    ],
)
def test_any_mechanism_and_sum_releases_the_table(tmp_path, words):
    path = run_file(tmp_path, clients=60)
    answer = run("survive", path, *ASKED, *SEEDED, *words, "--out", tmp_path / "out")
    assert answer.exit_code == 0, answer.output
    release = survival_of(tmp_path / "out")
    total = sum(map(sum, release.events)) + sum(map(sum, release.censored))
    assert abs(total + release.unusable - 60) < 5 * release.noise * math.sqrt(11)


def test_training_counts_the_release(tmp_path):
    path = run_file(tmp_path, 'label = "died"', "classes = 2", "[data.features]\ndays = [0, 150]")
    run("survive", path, *ASKED, *SEEDED, "--out", tmp_path / "out")
    words = ("--set", f'privacy.prior=["{tmp_path / "out"}"]', *SEEDED, "--set", "run.rounds=2")
    text = path.read_text().replace('arm = ["a", "b"]', 'arm = ["a", "b"]')
    path.write_text(text)
    answer = run("train", path, *words, "--set", "privacy.epsilon=6", "--out", tmp_path / "run")
    assert answer.exit_code == 0, answer.output
    assert len(Ledger.load(tmp_path / "run" / "ledger.jsonl").prior) == 1


@every_case(
    ("words", "says"),
    [
        (("--event", "died", "--until", "9"), "time and event are both needed"),
        (("--time", "days", "--event", "died"), "exactly one is needed"),
        (("--time", "days", "--event", "died", "--until", "9", "--edge", "1"), "exactly one"),
        (("--time", "days", "--event", "died", "--until", "-1"), "expected a positive time"),
        (("--time", "days", "--event", "died", "--edge", "2", "--edge", "1"), "ascending"),
        (("--time", "date", "--event", "died", "--until", "9"), "date"),
        (
            ("--time", "days", "--event", "died", "--until", "9", "--group", "ward"),
            "[data.categories] does not declare",
        ),
        (("--time", "days", "--event", "patient", "--until", "9"), "named twice"),
    ],
)
def test_wrong_questions_are_refused_before_any_release(words, says, tmp_path):
    path = run_file(tmp_path, clients=60)
    answer = run("survive", path, *words, "--epsilon", "1", "--out", tmp_path / "out")
    assert answer.exit_code == 2, answer.output
    assert says in " ".join(answer.output.split())
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


class CountsAtRisk(CentralGaussian):
    """A planted fault: clients add to all bins in which they are at risk, without a clip."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows * 2.0, self.clip)  # as a client at risk in four bins


def test_the_mechanism_keeps_its_claim_and_sums_at_risk_do_not(tmp_path):
    asking = SurvivalRequest("days", "died", (0.0, 50.0, 100.0), epsilon=2.0)
    config = release_run(run_file(tmp_path, clients=12), (), asking)
    algorithm, scenarios = scenarios_of(plan_of_mechanism(config))

    def judged(algorithm, scenarios, releases):
        return examine(algorithm, scenarios, releases, delta=1e-4, confidence=0.95, seed=1)

    assert not judged(algorithm, scenarios, 24).refuted
    faulty = CountsAtRisk(**algorithm.mechanism.model_dump())
    assert judged(replace(algorithm, mechanism=faulty), scenarios[1:2], 800).refuted


def test_bins_are_never_chosen_from_data():
    """They are keys of the configuration, which its digest in the ledger covers."""
    assert SurvivalTable.model_fields["edges"].is_required()
    assert issubclass(SurvivalTable, CountedTable)
    with pytest.raises(Refused):
        load(None, ["data.source=survival_table"])
