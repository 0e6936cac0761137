"""A meta-analysis combines released regressions; it charges nothing and states both guarantees."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from clinical_tables import run_file
from commands import run
from lanes import every_case
from scipy.stats import t

import privfed
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from experiments.regression.coverage import NUMBER_DESIGNS
from experiments.survival.coverage import noise
from privfed.analytics.regression import pooled
from privfed.analytics.regression.pooled import _combined, _heterogeneity, pooled_regression

ASKED = ("--family", "linear", "--outcome", "days", "--by", "arm", "--by", "age")
FEATURES = "[data.features]\ndays = [1, 150]\nage = [20, 90]"


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folders = []
    for site in range(3):
        folder = tmp_path_factory.mktemp(f"site{site}")
        path = run_file(folder, FEATURES)
        words = ("--set", f"data.population=site{site}", "--out", folder / "out")
        answer = run("regress", path, *ASKED, "--epsilon", "8", *words)
        assert answer.exit_code == 0, answer.output
        folders.append(folder / "out")
    return folders


def test_estimates_are_weighted_by_their_precision(sites):
    answer = privfed.regression(sites)
    stated = [json.loads((site / "regression.json").read_text())["regression"] for site in sites]
    for place, level in ((0, 1), (1, 0)):
        each = [one["covariates"][place]["levels"][level] for one in stated]
        weights = np.array([one["standard_error"] ** -2 for one in each])
        mean = np.average([one["coefficient"] for one in each], weights=weights)
        got = answer.regression["covariates"][place]["levels"][level]
        assert got["coefficient"] == pytest.approx(mean)
        assert got["standard_error"] == pytest.approx(weights.sum() ** -0.5)
        assert got["standard_error"] < min(one["standard_error"] for one in each)
    assert answer.clients == pytest.approx(sum(privfed.regression(site).clients for site in sites))


def test_both_guarantees_are_those_of_the_ledgers(sites):
    """The largest for a client of one site, and the composition for a client of all sites."""
    answer = privfed.regression(sites)
    (event,) = Ledger.load(sites[0] / "ledger.jsonl").spending
    assert answer.guarantee["epsilon"] == guarantee({event: 1}, 1e-3).epsilon
    assert answer.together["epsilon"] == guarantee({event: 3}, 1e-3).epsilon
    assert answer.together["epsilon"] > answer.guarantee["epsilon"]


def test_the_command_prints_what_python_returns(sites):
    before = [(site / "ledger.jsonl").read_bytes() for site in sites]
    printed = run("regress", *sites, "--json")
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout) == json.loads(json.dumps(dict(privfed.regression(sites))))
    words = " ".join(run("regress", *sites, "--random-effects").stdout.split())
    assert "random effects" in words
    assert "for a client in all 3" in words
    assert [(site / "ledger.jsonl").read_bytes() for site in sites] == before


def test_random_effects_are_the_textbooks():
    """DerSimonian & Laird with the variance of Hartung & Knapp, by hand."""
    values, variances = np.array([0.1, 0.9, 0.4, 1.6]), np.array([0.04, 0.09, 0.05, 0.06])
    weights = 1 / variances
    mean = (weights * values).sum() / weights.sum()
    q = (weights * (values - mean) ** 2).sum()
    tau = (q - 3) / (weights.sum() - (weights**2).sum() / weights.sum())
    assert tau > 0
    wider = 1 / (variances + tau)
    expected = (wider * values).sum() / wider.sum()
    scale = (wider * (values - expected) ** 2).sum() / 3
    got = _combined(values, variances, random_effects=True)
    assert got == pytest.approx((expected, math.sqrt(max(scale, 1) / wider.sum()), 3.0))
    about = _heterogeneity(values, variances)
    assert (about.q, about.i_squared) == pytest.approx((q, 1 - 3 / q))
    equal = _combined(np.full(4, 0.5), variances, random_effects=True)
    assert equal[:2] == pytest.approx((0.5, weights.sum() ** -0.5))


@every_case("random_effects", [False, True])
def test_intervals_cover_the_truth(random_effects):
    """Over five sites, each with its own noise; a wrong variance would not."""
    rng, design, covered = np.random.default_rng(0), NUMBER_DESIGNS[1], []
    for _ in range(80):
        sites = [design.sampled(2_000, noise(2.0), rng).regression() for _ in range(5)]
        each = [site.covariates[0].levels[1] for site in sites]
        known = pooled._known([(one.coefficient, one.standard_error) for one in each])
        value, error, free = _combined(*known, random_effects)
        quantile = 1.96 if math.isinf(free) else t.isf(0.025, free)
        covered.append(abs(value - design.arm) <= quantile * error)
    assert 0.87 <= np.mean(covered) <= 1.0
    assert np.mean(covered) < 1.0 or random_effects


def test_sites_without_an_estimate_are_left_out(sites, monkeypatch):
    known = [pooled.regression_of(site) for site in sites]
    none = replace(
        known[1].regression.covariates[1].levels[0], coefficient=None, standard_error=None
    )
    arm, age = known[1].regression.covariates
    hidden = replace(known[1].regression, covariates=(arm, replace(age, levels=(none,))))
    known[1] = replace(known[1], regression=hidden)
    monkeypatch.setattr(pooled, "regression_of", lambda path: known[sites.index(path)])
    answer = pooled_regression(sites)
    assert answer.heterogeneity["age"][""].sites == 2
    assert answer.heterogeneity["arm"]["b"].sites == 3


def test_simulations_are_nominal_together(tmp_path):
    for site in ("a", "b"):
        path = run_file(tmp_path, FEATURES)
        words = ("--set", f"data.population={site}", "--set", "run.randomness=seeded")
        run("regress", path, *ASKED, "--epsilon", "8", *words, "--out", tmp_path / site)
    answer = run("regress", tmp_path / "a", tmp_path / "b")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.count("nominal") >= 2
    assert privfed.regression([tmp_path / "a", tmp_path / "b"]).note


def test_other_releases_are_refused(sites, tmp_path):
    path, one = run_file(tmp_path, FEATURES), sites[0]

    def refused(*words, asked=ASKED, population="another"):
        out = tmp_path / f"o{len([*tmp_path.iterdir()])}"
        words = ("--set", f"data.population={population}", *words, "--out", out)
        answer = run("regress", path, *asked, "--epsilon", "8", *words)
        assert answer.exit_code == 0, answer.output
        answer = run("regress", one, out)
        assert answer.exit_code == 2, answer.output
        return " ".join(answer.output.split())

    assert "one release" in run("regress", one, one).output
    assert "over one population, 'site0'" in refused(population="site0")
    other = (*ASKED[:4], "--by", "sex")
    assert "its covariates is ['sex']" in refused(asked=other)
    ranges = "data.features={days=[1,150],age=[0,90]}"
    assert "its bounds is" in refused("--set", ranges)
    assert "no common guarantee" in refused("--set", "cohort.sampler=fixed_size")
    assert "no common guarantee" in refused("--delta", "1e-4")
    copy = tmp_path / "copy"
    shutil.copytree(one, copy)
    answer = run("train", "--resume", copy, "--set", "run.rounds=2", "--set", "privacy.epsilon=20")
    assert answer.exit_code == 0, answer.output
    assert run("regress", one, copy).exit_code == 2
    assert run("regress", one, path).exit_code == 2
    assert run("regress", *sites, "--epsilon", "1").exit_code == 2
    assert run("regress", path, *ASKED, "--random-effects").exit_code == 2
