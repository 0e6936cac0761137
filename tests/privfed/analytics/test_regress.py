"""A regression table from end to end: counted by cells, charged once, estimated, and read again."""

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
from privfed.analytics.regression.logistic import OutcomeCounts, logistic_regression
from privfed.analytics.regression.release import RegressionRequest, regression_of
from privfed.analytics.regression.table import RegressionTable
from privfed.analytics.release import release_run
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian

ROOT = Path(__file__).resolve().parents[3]
BY = ("--outcome", "died", "--by", "arm", "--by", "sex", "--by", "age", "--cut", "age=20,45,65,90")
ASKED = (*BY, "--epsilon", "4")
EDGES = (20.0, 45.0, 65.0, 90.0)
KEYS = {
    "client": "p",
    "outcome": "y",
    "covariates": ["sex", "age"],
    "levels": {"sex": ["f", "m"]},
    "cuts": {"age": [0.0, 50.0, 65.0]},
}


def loaded(**keys):
    """The cell of each client of a table with these columns; -1: none."""
    table = RegressionTable(**KEYS | keys)
    return (table.load(8, Streams(0, simulated=True)).x.squeeze(1) - 1).tolist()


@pytest.fixture
def small(tmp_path):
    return str(
        written(
            tmp_path / "t.csv",
            p=["a", "b", "c", "d", "e", "f", "g", "h", "i"],
            y=["1", "0", "yes", "1", "", "1", "1", "1", "1"],
            sex=["f", "m", "m", "f", "f", "x", "m", "", "f"],
            age=["0", "49.9", "50", "64", "3", "3", "65", "3", "-1"],
        )
    )


def test_each_client_is_one_cell(small):
    """With and without the outcome, by sex and then age; the last cell is for unusable entries."""
    assert loaded(path=small) == [0, 5, 7, 2, 8, 8, 8, 8, 8]
    assert loaded(path=small, occurred=[1, "yes"])[2] == 6
    turned = loaded(path=small, covariates=["age", "sex"])
    assert turned == [0, 3, 7, 4, 8, 8, 8, 8, 8]
    reversed_levels = loaded(path=small, levels={"sex": ["m", "f"]})
    assert reversed_levels[:4] == [4, 1, 3, 6]


def test_levels_have_names(small):
    cells = RegressionTable(**KEYS, path=small).questions
    assert [each.levels for each in cells.covariates] == [("f", "m"), ("[0, 50)", "[50, 65)")]
    assert cells.shape == (2, 2)


def test_one_row_of_a_client_counts(tmp_path):
    path = str(
        written(tmp_path / "t.csv", p=["a"] * 3, y=[1, 0, 1], sex=["f", "f", "m"], age=[1] * 3)
    )
    cells = loaded(path=path)
    assert len(cells) == 1
    assert cells[0] in (0, 1, 4)


def test_a_client_changes_the_counts_by_at_most_one():
    """The sensitivity that is charged; one count per covariate would have that of sqrt(2)."""
    cells = RegressionTable(**KEYS, path="x").questions
    assert cells.zero_input.shape == (1, 1)
    assert (cells.amplitudes == 1.0).all()
    margins = np.zeros((4, 4))  # what a client of each cell would add to counts of single levels
    for cell, (sex, age) in enumerate(np.ndindex(2, 2)):
        margins[[sex, 2 + age], cell] = 1.0
    assert np.linalg.norm(margins, axis=0).max() == pytest.approx(math.sqrt(2))
    assert np.linalg.norm(np.eye(cells.length), axis=0).max() == 1.0


@every_case(
    ("keys", "says"),
    [
        ({"cuts": {"age": [0.0, 0.0, 1.0]}}, "ascending"),
        ({"cuts": {"age": [0.0, 1.0, math.inf]}}, "finite"),
        ({"cuts": {"age": [0.0, 1.0]}}, "at least two"),
        ({"levels": {"sex": ["f"]}}, "at least two"),
        ({"levels": {"sex": ["f", "f"]}}, "each once"),
        ({"levels": {"sex": [1, "1"]}}, "each once"),
        ({"rows_per_client": 2}, "one cell"),
        ({"outcome": "age"}, "named twice"),
        ({"client": "sex"}, "named twice"),
        ({"covariates": ["sex"]}, "expected each column once"),
        ({"covariates": ["sex", "age", "sex"]}, "expected each column once"),
        ({"covariates": []}, "covariates"),
        ({"cuts": {"age": [float(n) for n in range(2600)]}}, "at most 10,000"),
    ],
)
def test_tables_without_a_sense_are_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        RegressionTable(**{"path": "x"} | KEYS | keys)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    answer = run("regress", run_file(folder), *ASKED, "--out", folder / "out")
    assert answer.exit_code == 0, answer.output
    return folder / "out", answer.stdout


def test_the_release_is_charged_once_and_audited(released):
    out, _ = released
    (charge,) = Ledger.load(out / "ledger.jsonl").charges
    assert charge.event.relation == ADD_REMOVE
    audit = json.loads(run("audit", out, "--json").stdout)
    assert 3.99 < audit["epsilon"] <= 4.0
    stated = json.loads((out / "regression.json").read_text())
    assert stated["guarantee"]["epsilon"] == audit["epsilon"]
    assert stated["noise"] == pytest.approx(audit["noise_multiplier"], rel=1e-3)


def test_estimates_are_near_the_table_and_errors_contain_noise(released):
    out, printed = released
    release, columns = regression_of(out), patients()
    exact = np.zeros((2, 2, 3, 2))
    for died, arm, sex, age in zip(
        *(columns[each] for each in ("died", "arm", "sex", "age")), strict=True
    ):
        band = int(np.searchsorted(EDGES, age, side="right")) - 1
        exact["ab".index(arm), "fm".index(sex), band, 1 - died] += 1
    noised = np.array(release.counts)
    assert np.abs(noised - exact.reshape(-1, 2)).max() < 5 * release.noise
    assert np.abs(noised - exact.reshape(-1, 2)).max() > 0.01
    names = ("arm", "sex", "age")
    levels = tuple(
        tuple(level.level for level in each.levels) for each in release.regression.covariates
    )
    known, ignoring = (
        logistic_regression(OutcomeCounts(names, levels, table[..., 0], table[..., 1], 0.0))
        for table in (exact, noised.reshape(exact.shape))
    )
    covariates = (each.covariates for each in (release.regression, known, ignoring))
    for private, truth, narrower in zip(*covariates, strict=True):
        levels = (each.levels[1:] for each in (private, truth, narrower))
        for each, whole, less in zip(*levels, strict=True):
            assert each.standard_error > less.standard_error
            assert abs(each.coefficient - whole.coefficient) < 3 * each.standard_error
            assert each.crude.low < whole.crude.proportion < each.crude.high
    arm = release.regression.covariates[0]
    assert arm.levels[1].ratio < 1.0
    assert arm.p_value < 0.05
    assert "arm = b" in printed
    assert "test of age" in printed
    assert "age = [45, 65)" in printed


def test_a_run_directory_is_only_read_again(released):
    out, printed = released
    before = (out / "ledger.jsonl").read_bytes()
    assert run("regress", out).stdout == printed
    assert (out / "ledger.jsonl").read_bytes() == before
    answer = run("regress", out, "--outcome", "died")
    assert answer.exit_code == 2
    assert "only read again" in " ".join(answer.output.split())
    assert run("survive", out).exit_code == run("describe", out).exit_code == 2


def test_the_page_of_the_task_states_the_measured_coverage():
    page = (ROOT / "docs/how-to/regression.md").read_text("utf-8")
    with (ROOT / "experiments/regression/coverage.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 60
    for line in lines:
        if line["epsilon"] != "inf" and float(line["estimated"]) >= 0.05:
            keys = ("least", "most", "ignoring_noise", "estimated")
            least, most, ignoring, estimated = (f"{100 * float(line[key]):.1f}" for key in keys)
            row = f"| {line['design']} | {int(line['clients']):,} | {line['epsilon']} |"
            assert f"{row} {least} to {most} | {ignoring} | {estimated} |" in page


def test_the_page_and_the_claim_are_about_odds_ratios(released, tmp_path):
    out, _ = released
    assert run("report", out, "--out", tmp_path / "page.html").exit_code == 0
    page = Document((tmp_path / "page.html").read_text("utf-8"))
    assert "Odds ratios" in page.texts("h2")
    assert "Results" not in page.texts("h2")
    words = " ".join(page.texts("body")[0].split())
    assert "Odds ratios relative to reference levels" in words
    assert "The release was (ε, δ)-differentially private" in words
    path = tmp_path / "claim.json"
    assert run("report", out, "--claim", path).exit_code == 0
    claim = json.loads(path.read_text())
    assert [each["purpose"] for each in claim["releases"]] == ["statistics"]
    assert run("verify", path, out).exit_code == 0


def test_python_and_the_command_agree(tmp_path):
    path = run_file(tmp_path)
    answer = privfed.regression(
        path,
        outcome="died",
        by=["arm", "sex", "age"],
        cuts={"age": [20, 45, 65, 90]},
        epsilon=4,
        out=tmp_path / "python",
        keys=["run.randomness=seeded"],
    )
    run("regress", path, *ASKED, *SEEDED, "--out", tmp_path / "command")
    command = json.loads((tmp_path / "command" / "regression.json").read_text())
    assert answer.counts == command["counts"]
    assert answer.regression == command["regression"]
    again = privfed.regression(tmp_path / "python")
    assert again.regression == answer.regression


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
    """Also where the noise leaves no estimate, which every form of the result shows."""
    path, out = run_file(tmp_path, clients=60), tmp_path / "out"
    answer = run("regress", path, *ASKED, *SEEDED, *words, "--out", out)
    assert answer.exit_code == 0, answer.output
    release = regression_of(out)
    assert abs(release.clients + release.unusable - 60) < 5 * release.noise * math.sqrt(25)
    assert run("report", out, "--out", tmp_path / "page.html").exit_code == 0
    if "local_gaussian" in words[-1]:
        assert "no estimate" in answer.stdout


def test_training_counts_the_release(tmp_path):
    path = run_file(tmp_path, 'label = "died"', "classes = 2", "[data.features]\ndays = [0, 150]")
    run("regress", path, *ASKED, *SEEDED, "--out", tmp_path / "out")
    words = ("--set", f'privacy.prior=["{tmp_path / "out"}"]', *SEEDED, "--set", "run.rounds=2")
    answer = run("train", path, *words, "--set", "privacy.epsilon=6", "--out", tmp_path / "run")
    assert answer.exit_code == 0, answer.output
    assert len(Ledger.load(tmp_path / "run" / "ledger.jsonl").prior) == 1


@every_case(
    ("words", "says"),
    [
        (("--by", "arm"), "outcome and by are both needed"),
        (("--outcome", "died"), "outcome and by are both needed"),
        (("--outcome", "died", "--by", "ward"), "[data.categories] does not declare"),
        (("--outcome", "died", "--by", "age"), "--cut age="),
        (("--outcome", "died", "--by", "arm", "--cut", "age=1,2,3"), "add --by age"),
        (("--outcome", "died", "--by", "age", "--cut", "age=3,2,1"), "ascending"),
        (("--outcome", "died", "--by", "age", "--cut", "age"), "expected COLUMN="),
        (("--outcome", "died", "--by", "age", "--cut", "age=1,x"), "expected COLUMN="),
        (("--outcome", "died", "--by", "age", *("--cut", "age=1,2,3") * 2), "once for each"),
        (("--outcome", "dead", "--by", "arm"), "data.outcome names 'dead'"),
        (("--outcome", "arm", "--by", "arm"), "named twice"),
        (("--outcome", "patient", "--by", "arm"), "named twice"),
    ],
)
def test_wrong_questions_are_refused_before_any_release(words, says, tmp_path):
    path = run_file(tmp_path, clients=60)
    answer = run("regress", path, *words, "--epsilon", "1", "--out", tmp_path / "out")
    assert answer.exit_code == 2, answer.output
    assert says in " ".join(answer.output.split())
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


class CountsPerCovariate(CentralGaussian):
    """A planted fault: clients add to a count of each of four covariates, without a clip."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows * 2.0, self.clip)


def test_the_mechanism_keeps_its_claim_and_counts_per_covariate_do_not(tmp_path):
    asking = RegressionRequest("died", ("arm", "sex"), epsilon=2.0)
    config = release_run(run_file(tmp_path, clients=12), (), asking)
    algorithm, scenarios = scenarios_of(plan_of_mechanism(config))

    def judged(algorithm, scenarios, releases):
        return examine(algorithm, scenarios, releases, delta=1e-4, confidence=0.95, seed=1)

    assert not judged(algorithm, scenarios, 24).refuted
    faulty = CountsPerCovariate(**algorithm.mechanism.model_dump())
    assert judged(replace(algorithm, mechanism=faulty), scenarios[1:2], 800).refuted


def test_levels_are_never_chosen_from_data():
    """They are keys of the configuration, which its digest in the ledger covers."""
    assert RegressionTable.model_fields["covariates"].is_required()
    assert issubclass(RegressionTable, CountedTable)
    with pytest.raises(Refused):
        load(None, ["data.source=regression_table"])
