"""Regressions on numbers from end to end: charged by round, audited, read, resumed and refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from clinical_tables import FULL, MASKS, SEEDED, patients, run_file
from commands import run
from html_page import Document
from lanes import every_case

import privfed
from accounting.ledger import Ledger
from privfed.analytics.regression.release import RegressionRequest, regression_of
from privfed.analytics.release import make_release, release_run
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.prior_runs import priors
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.run.outcome import Observer

FEATURES = "\n".join(["[data.features]", "days = [1, 150]", "age = [20, 90]", "visits = [0, 12]"])
LINEAR = ("--family", "linear", "--outcome", "days", "--by", "arm", "--by", "age")
LOGISTIC = ("--outcome", "died", "--by", "arm", "--by", "age")
POISSON = ("--family", "poisson", "--outcome", "visits", "--by", "arm", "--exposure", "days")


def numbers_file(folder, clients=400, **columns):
    """A run file of the trial that declares the ranges of its numbers."""
    table = patients(clients) | columns
    rates = np.array(table["days"]) / 40.0 * np.where(np.array(table["arm"]) == "a", 1.0, 0.5)
    visits = np.random.default_rng(1).poisson(rates).tolist()
    table = {**table, "visits": columns.get("visits", visits)}
    return run_file(folder, FEATURES, columns=table, clients=clients)


def exact(path, *words):
    """The regression of a table with practically no noise."""
    out = path.parent / f"exact{len([*path.parent.iterdir()])}"
    words = (*words, *SEEDED, "--epsilon", "1e7", "--delta", "1e-3", "--out", out, "--json")
    answer = run("regress", path, *words)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    path = numbers_file(folder)
    answer = run("regress", path, *LOGISTIC, "--epsilon", "8", "--out", folder / "out")
    assert answer.exit_code == 0, answer.output
    return folder / "out", answer.stdout


def test_every_round_is_charged_and_audited(released):
    out, _ = released
    charges = Ledger.load(out / "ledger.jsonl").charges
    assert [charge.round for charge in charges] == [*range(1, 9)]
    audit = json.loads(run("audit", out, "--json").stdout)
    assert 7.99 < audit["epsilon"] <= 8.0
    stated = json.loads((out / "regression.json").read_text())
    assert stated["guarantee"]["epsilon"] == audit["epsilon"]
    assert stated["noise"] == pytest.approx(audit["noise_multiplier"], rel=1e-3)


def test_the_printed_table_and_the_page_show_the_estimates(released, tmp_path):
    out, printed = released
    release = regression_of(out)
    assert abs(release.clients - 400) < 5 * release.noise / math.sqrt(0.05)
    words = " ".join(printed.split())
    assert "covariate coefficient std. error odds ratio 95 % interval p" in words
    assert "arm = b" in words
    assert "age, per unit" in words
    assert "sum of a round" in words
    assert run("report", out, "--out", tmp_path / "page.html").exit_code == 0
    page = Document((tmp_path / "page.html").read_text("utf-8"))
    assert "Odds ratios" in page.texts("h2")
    path = tmp_path / "claim.json"
    assert run("report", out, "--claim", path).exit_code == 0
    assert run("verify", path, out).exit_code == 0
    again = run("regress", out)
    assert again.stdout == printed


def test_estimates_are_those_of_the_table(tmp_path):
    """Nearly without noise: least squares on the columns, and rates of two groups."""
    path, columns = numbers_file(tmp_path), patients()
    answer = exact(path, *LINEAR)
    rows = np.column_stack(
        [np.ones(400), np.array(columns["arm"]) == "b", np.array(columns["age"], dtype=float)]
    )
    y = np.clip(columns["days"], 1, 150)
    beta, residual, *_ = np.linalg.lstsq(rows, y, rcond=None)
    arm, age = answer["regression"]["covariates"]
    stated = [answer["regression"]["intercept"], arm["levels"][1]["coefficient"]]
    assert [*stated, age["levels"][0]["coefficient"]] == pytest.approx(beta, rel=0.01)
    assert answer["regression"]["dispersion"] == pytest.approx(residual[0] / 397, rel=0.01)
    assert answer["clients"] == pytest.approx(400, abs=0.1)
    counts = exact(path, *POISSON)["regression"]
    assert counts["ratio"] == "rate ratio"
    visits = np.array(_visits(path), dtype=float)
    first, second = (visits[rows[:, 1] == arm].sum() / y[rows[:, 1] == arm].sum() for arm in (0, 1))
    assert counts["covariates"][0]["levels"][1]["ratio"] == pytest.approx(second / first, rel=0.02)
    assert counts["intercept"] == pytest.approx(math.log(first), abs=0.02)


def _visits(path):
    lines = (path.parent / "patients.csv").read_text().splitlines()
    place = lines[0].split(",").index("visits")
    return [line.split(",")[place] for line in lines[1:]]


def test_numbers_are_clipped_and_unusable_entries_are_counted_apart(tmp_path):
    ages = patients(60)["age"]
    path = numbers_file(tmp_path, 60, age=[*ages[:50], "x", "", *ages[52:]])
    answer = exact(path, *LINEAR)
    assert answer["unusable"] == pytest.approx(2, abs=0.05)
    assert answer["clients"] == pytest.approx(58, abs=0.1)
    beyond = numbers_file(tmp_path, 60, age=[*ages[:59], 900])
    clipped = exact(beyond, *LINEAR)["regression"]
    within = numbers_file(tmp_path, 60, age=[*ages[:59], 90])
    there = exact(within, *LINEAR)["regression"]
    assert clipped["intercept"] == pytest.approx(there["intercept"], rel=1e-3)
    assert clipped["dispersion"] == pytest.approx(there["dispersion"], rel=1e-3)


@every_case(
    "words",
    [
        pytest.param((*LINEAR, *MASKS), id="masks"),
        pytest.param(
            (*LINEAR, *MASKS, *("--set", "data.site=ward", "--set", "data.sites=4"), *FULL),
            id="sites",
        ),
        pytest.param(
            (
                *(*POISSON, "--set", "privacy.mechanism=discrete_gaussian"),
                *("--set", "cohort.sampler=poisson"),
                *("--set", "secure.protocol=masks", "--set", "data.site=ward"),
                *("--set", "data.sites=4", "--set", "data.sites_per_client=2"),
            ),
            id="two sites",
        ),
    ],
)
def test_any_mechanism_and_sum_releases_the_sums(words, tmp_path):
    """With hardly any noise, the number of clients is that of the table, at its scale."""
    out = tmp_path / "out"
    path = numbers_file(tmp_path, 60)
    answer = run("regress", path, *words, *SEEDED, "--epsilon", "1e5", "--out", out)
    assert answer.exit_code == 0, answer.output
    release = regression_of(out)
    assert release.clients == pytest.approx(60, abs=3)
    assert run("report", out, "--out", tmp_path / "page.html").exit_code == 0


def test_python_and_the_command_agree_and_sums_without_estimate_are_shown(tmp_path):
    path = numbers_file(tmp_path, 60)
    answer = privfed.regression(
        path,
        outcome="days",
        by=["arm", "age"],
        family="linear",
        epsilon=0.5,
        out=tmp_path / "python",
        keys=["run.randomness=seeded"],
    )
    printed = run(
        "regress", path, *LINEAR, *SEEDED, "--epsilon", "0.5", "--out", tmp_path / "command"
    ).stdout
    command = json.loads((tmp_path / "command" / "regression.json").read_text())
    assert answer.regression == command["regression"]
    assert answer.regression["intercept"] is None
    assert "no estimate" in printed
    report = run("report", tmp_path / "command", "--out", tmp_path / "page.html")
    assert report.exit_code == 0, report.output


class Stop(Observer):
    """Interrupts a run after its fourth round."""

    def after_round(self, round):
        if round == 4:
            raise KeyboardInterrupt


def test_an_interrupted_release_is_resumed(tmp_path):
    path, out = numbers_file(tmp_path, 60), tmp_path / "out"
    asking = RegressionRequest("died", ("arm", "age"), epsilon=8.0)
    with pytest.raises(KeyboardInterrupt):
        make_release(path, (), asking, out, [Stop()])
    with pytest.raises(Refused, match="interrupted before its 8 rounds were complete; resume it"):
        regression_of(out)
    assert run("train", "--resume", out).exit_code == 0
    assert len(Ledger.load(out / "ledger.jsonl").charges) == 8
    assert regression_of(out).clients > 0


def test_an_extended_release_can_be_read_and_states_its_caveat(tmp_path):
    path, out = numbers_file(tmp_path), tmp_path / "out"
    assert run("regress", path, *LOGISTIC, "--epsilon", "8", "--out", out).exit_code == 0
    more = ("--set", "run.rounds=12", "--set", "privacy.epsilon=12")
    assert run("train", "--resume", out, *more).exit_code == 0
    printed = run("regress", out)
    assert printed.exit_code == 0, printed.output
    assert "odometer" in " ".join(printed.stdout.split())
    path = numbers_file(tmp_path, 60)
    run("regress", path, *LINEAR, "--epsilon", "8", "--out", tmp_path / "linear")
    more = ("--set", "run.rounds=2", "--set", "privacy.epsilon=20")
    assert run("train", "--resume", tmp_path / "linear", *more).exit_code == 0
    answer = run("regress", tmp_path / "linear")
    assert answer.exit_code == 2
    assert "takes one round" in answer.output


def test_earlier_runs_are_counted_next_to_a_release_and_by_those_that_count_it(tmp_path):
    path, first, second = numbers_file(tmp_path), tmp_path / "first", tmp_path / "second"
    assert run("regress", path, *LINEAR, "--epsilon", "2", "--out", first).exit_code == 0
    prior = ("--set", f'privacy.prior=["{first}"]')
    answer = run("regress", path, *LINEAR, "--epsilon", "2", *prior, "--out", second)
    assert answer.exit_code == 0, answer.output
    release = regression_of(second)
    assert release.guarantee.epsilon == pytest.approx(2.0, abs=1e-3)
    both = json.loads(run("audit", first, second, "--json").stdout)
    assert release.with_earlier.epsilon == pytest.approx(both["epsilon"])
    assert "with earlier" in answer.stdout
    trained = (*SEEDED, "--set", 'data.label="died"', "--set", "data.classes=2")
    counted = ("--set", f'privacy.prior=["{second}"]', "--set", "privacy.epsilon=9")
    config = load(path, [word for word in (*counted, *trained) if word != "--set"])
    assert len(priors(config).runs) == 2
    (first / "ledger.jsonl").rename(first / "moved")
    assert regression_of(second).with_earlier.epsilon == math.inf
    assert "with earlier" in run("regress", second).stdout
    wrong = run("regress", path, *LINEAR, "--epsilon", "2", *prior, "--out", tmp_path / "third")
    assert wrong.exit_code != 0
    assert not (tmp_path / "third" / "ledger.jsonl").exists()


def test_the_second_adversary_of_sites_is_stated(tmp_path):
    words = ("--set", "data.site=ward", "--set", "data.sites=4", *FULL)
    path = numbers_file(tmp_path)
    answer = run(
        "regress", path, *LINEAR, *MASKS, *words, "--epsilon", "2", "--out", tmp_path / "o"
    )
    assert answer.exit_code == 0, answer.output
    audit = json.loads(run("audit", tmp_path / "o", "--json").stdout)
    release = regression_of(tmp_path / "o")
    stated = [each["epsilon"] for each in audit["guarantees"]]
    assert [release.guarantee.epsilon, release.other.epsilon] == pytest.approx(stated)
    assert release.guarantee.against == "sites"
    assert "second adversary" in answer.stdout


def test_counts_beyond_half_their_range_are_warned_of(tmp_path):
    path = numbers_file(tmp_path)
    words = (
        *POISSON,
        "--epsilon",
        "1e6",
        *SEEDED,
        "--set",
        "data.features={days=[1,150],visits=[0,3]}",
    )
    answer = run("regress", path, *words, "--out", tmp_path / "out")
    assert answer.exit_code == 0, answer.output
    assert "but are limited to 1.5" in " ".join(answer.stdout.split())


def test_the_share_of_a_budget_covers_all_rounds(tmp_path):
    path = numbers_file(tmp_path)
    keys = ("privacy.epsilon=3", "budget.statistics=0.4", "run.rounds=5")
    config = release_run(path, keys, RegressionRequest("died", ("arm", "age")))
    one = release_run(path, keys, RegressionRequest("died", ("arm", "sex")))
    assert config.run.rounds == 8
    assert config.privacy.epsilon == pytest.approx(one.privacy.epsilon, rel=0.03)


@every_case(
    ("words", "says"),
    [
        ((*LINEAR[:4], "--by", "bmi"), "its range bmi = [low, high] in [data.features]"),
        (("--family", "linear", "--outcome", "died", "--by", "arm"), "does not declare its range"),
        (("--family", "poisson", "--outcome", "days", "--by", "arm"), "expected counts from 0"),
        ((*LINEAR, "--rounds", "9"), "this regression takes one round"),
        ((*LOGISTIC, "--rounds", "2"), "this regression takes at least 5 rounds"),
        ((*LOGISTIC, "--exposure", "days"), "pass --family poisson"),
        (("--outcome", "died", "--by", "arm", "--rounds", "9"), "takes one round"),
        ((*POISSON[:-1], "years"), "does not declare its range"),
        ((*LINEAR, "--by", "days"), "named twice"),
        ((*POISSON[:-1], "visits"), "named twice"),
        ((*LINEAR, "--by", "arm"), "--by names 'arm' twice"),
        ((*LINEAR, "--occurred", "1"), "--occurred is '1', but --family is 'linear'"),
        (("--outcome", "visits", "--by", "arm"), "pass --family linear for numbers or poisson"),
        ((*LINEAR, "--set", "data.features={days=[1,2],age=[3,3]}"), "expected low < high"),
        ((*LINEAR[:-1], "patient"), "does not declare its values"),
    ],
)
def test_wrong_questions_are_refused_before_any_release(words, says, tmp_path):
    path = numbers_file(tmp_path, 60)
    answer = run("regress", path, *words, "--epsilon", "1", "--out", tmp_path / "out")
    assert answer.exit_code == 2, answer.output
    assert says in " ".join(answer.output.split())
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


class Unbounded(CentralGaussian):
    """A planted fault: clients add their sums at twice the scale, without a clip."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows * 2.0, self.clip)


def test_the_mechanism_keeps_its_claim_and_sums_at_a_larger_scale_do_not(tmp_path):
    asking = RegressionRequest("died", ("arm", "age"), epsilon=2.0)
    config = release_run(numbers_file(tmp_path, 12), (), asking)
    algorithm, scenarios = scenarios_of(plan_of_mechanism(config))

    def judged(algorithm, scenarios, releases):
        return examine(algorithm, scenarios, releases, delta=1e-4, confidence=0.95, seed=1)

    assert not judged(algorithm, scenarios, 24).refuted
    faulty = Unbounded(**algorithm.mechanism.model_dump())
    assert judged(replace(algorithm, mechanism=faulty), scenarios[1:2], 800).refuted
