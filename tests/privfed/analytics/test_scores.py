"""Sums of score and information: bounded, exact without noise, and honest about noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lanes import every_case
from scipy.special import expit

from experiments.regression.coverage import NUMBER_DESIGNS, coefficients, result
from experiments.survival.coverage import noise
from privfed.analytics.regression.family import FAMILIES
from privfed.analytics.regression.release import score_sums, stated_regression
from privfed.analytics.regression.score_model import Newton, ScoreModel, information
from privfed.analytics.regression.scores import NoEstimate, fitted

LOGISTIC, LINEAR, POISSON = NUMBER_DESIGNS
STEEP = replace(LOGISTIC, name="steep", slopes=(0.11, 0.04), intercept=-8.0)
STEEPER = replace(LOGISTIC, name="steeper", slopes=(0.161, 0.04), intercept=-11.0)
RARE = replace(LOGISTIC, name="rare", intercept=-6.5)
GROWING = replace(POISSON, name="growing", slopes=(0.03, 0.02), intercept=-3.6)
"""Designs whose estimates are far from the null model: odds ratios of 3 and 5 for ten years."""
MOST = {"logistic": 1.0, "linear": 1.0, "poisson": 7.0}


def added(family, rows, outcomes, slopes, offsets=0.0, **keys):
    """The vector that each client adds, `[N, length]`."""
    k = rows.shape[1]
    model = ScoreModel(
        family=family, coefficients=k, squared_norm=float(k), most=MOST[family], **keys
    )
    module = model.build((k + 3,), 1).double()
    (sums,) = module.parameters()
    sums.data[:k] = torch.as_tensor(slopes)
    x = np.column_stack([rows, outcomes, np.zeros(len(rows)) + offsets, np.zeros(len(rows))])
    vectors = []
    for row in torch.from_numpy(x):
        (gradient,) = torch.autograd.grad(module(row[None]).sum(), sums)
        vectors.append(gradient.numpy())
    return np.array(vectors)


@every_case("family", [*FAMILIES])
def test_a_client_adds_a_vector_of_norm_at_most_one(family):
    """For outcomes and predictors at and between their extremes; and the bound is nearly met."""
    rng, low = np.random.default_rng(0), -1.0 if family == "linear" else 0.0
    outcomes = [0.0, 1.0] if family == "logistic" else np.linspace(low, MOST[family], 9)
    norms = []
    for slope in np.linspace(-12.0, 12.0, 97) if FAMILIES[family].burn_in else [0.0]:
        rows = np.tile(rng.choice([-1.0, 1.0], 3), (len(outcomes), 1))
        rows[:, 0] = 1.0
        slopes = slope * rows[0] / 3.0  # the linear predictor is `slope`
        norms += np.linalg.norm(added(family, rows, outcomes, slopes), axis=1).tolist()
    assert max(norms) <= 1.0 + 1e-9
    assert max(norms) > 0.99  # a larger factor would break the bound


def test_a_client_without_a_usable_entry_adds_one_count_and_zero_inputs_add_nothing():
    columns = LOGISTIC.columns
    k = columns.coefficients
    model = ScoreModel(family="logistic", coefficients=k, squared_norm=5.0, most=1.0).build(
        (k + 3,), 1
    )
    (sums,) = model.parameters()
    for flag, norm in ((0.0, 0.0), (1.0, 1.0)):
        x = torch.zeros(1, k + 3)
        x[0, -1] = flag
        (gradient,) = torch.autograd.grad(model(x).sum(), sums)
        assert gradient.norm() == pytest.approx(norm)
    assert columns.zero_input.shape == (1, k + 3)
    assert not columns.zero_input.any()


def test_the_matrix_is_that_of_its_upper_triangle():
    rows = np.array([[1.0, -0.5, 0.25]])
    vector = added("linear", rows, np.array([0.5]), np.zeros(3))[0]
    model = Newton(family="linear", coefficients=3, squared_norm=3.0, most=1.0)
    matrix = information(torch.from_numpy(vector[3:]), 3).numpy() / model.amplitudes.information
    assert matrix == pytest.approx(np.outer(rows[0], rows[0]))
    assert vector[:3] / model.amplitudes.score == pytest.approx(0.5 * rows[0])


def textbook(design, x):
    """Coefficients, covariance and dispersion by Newton's method on rows in their own units."""
    k = design.columns.coefficients
    y, offset = x[:, k], x[:, k + 1]
    corners = {"arm": 1, "ward": 2}
    parts = [np.ones((len(x), 1))]
    first = {name: design.columns.covariates[n].corners for n, name in enumerate(corners)}
    place = 1
    for name, width in corners.items():
        distance = np.linalg.norm(x[:, None, place : place + width] - first[name], axis=2)
        parts.append(distance.argmin(1)[:, None] == np.arange(1, width + 1))
        place += width
    rows = np.column_stack([*parts, x[:, place] * 32.5 + 57.5, x[:, place + 1] * 12.5 + 27.5])
    low, high = design.bounds
    y = (y + 1) / 2 * (high - low) + low if design.family == "linear" else y
    if design.family == "linear":
        beta = np.linalg.lstsq(rows, y, rcond=None)[0]
        scale = ((y - rows @ beta) ** 2).sum() / (len(y) - k)
        return rows, y, beta, scale * np.linalg.inv(rows.T @ rows), scale
    beta, exposure = np.zeros(k), np.exp(offset) * design.columns.exposures[1]
    for _ in range(60):
        eta = np.clip(rows @ beta, -20, 20)
        mean = expit(eta) if design.family == "logistic" else exposure * np.exp(eta)
        weight = mean * (1 - mean) if design.family == "logistic" else mean
        matrix = (rows * weight[:, None]).T @ rows
        step = np.linalg.solve(matrix, rows.T @ (y - mean))
        beta = beta + step / max(1.0, 0.5 * float(np.abs(rows @ step).max()))
    scale = 1.0 if design.family == "logistic" else ((y - mean) ** 2).sum() / mean.sum()
    return rows, y, beta, scale * np.linalg.inv(matrix), scale


@pytest.fixture
def converged(monkeypatch):
    """Lets Newton's method converge before its sums are averaged."""
    for family in FAMILIES.values():
        monkeypatch.setattr(type(family), "burn_in", 25 * (not family.linear))


@every_case("design", [pytest.param(each, id=each.family) for each in NUMBER_DESIGNS])
def test_estimates_without_noise_are_the_textbooks(design, converged):
    clients = 700
    design = replace(design, bounds=(0.0, 60.0)) if design is POISSON else design
    sampled = design.sampled(clients, 0.0, np.random.default_rng(1))
    inputs = design._inputs(design.columns, clients, np.random.default_rng(1))
    rows, y, beta, covariance, scale = textbook(design, inputs)
    regression = sampled.regression()
    stated, errors = coefficients(regression)
    assert np.abs(stated / beta - 1.0).max() < 1e-6
    assert np.abs(errors / np.sqrt(np.diag(covariance)) - 1.0).max() < 1e-6
    if design is not LOGISTIC:
        assert regression.dispersion == pytest.approx(scale, rel=1e-6)
    ward = regression.covariates[1]
    wald = beta[2:4] @ np.linalg.solve(covariance[2:4, 2:4], beta[2:4])
    assert ward.statistic == pytest.approx(wald, rel=1e-5)
    models = pytest.importorskip("statsmodels.api")
    family = {
        "logistic": models.families.Binomial,
        "linear": models.families.Gaussian,
        "poisson": models.families.Poisson,
    }[design.family]()
    offset = inputs[:, -2] + math.log(design.columns.exposures[1])
    glm = models.GLM(y, rows, family, offset=offset).fit(tol=1e-13, scale=scale)
    assert np.abs(stated - glm.params).max() < 1e-6 * np.abs(glm.params).max()
    assert np.abs(errors / glm.bse - 1.0).max() < 1e-6


@every_case(
    "design",
    [pytest.param(each, id=each.name) for each in (*NUMBER_DESIGNS, STEEP, STEEPER, RARE, GROWING)],
)
def test_the_default_rounds_are_near_the_converged_estimate(design, monkeypatch):
    few = design.sampled(3_000, 0.0, np.random.default_rng(2)).regression()
    for family in FAMILIES.values():
        monkeypatch.setattr(type(family), "burn_in", 25 * (not family.linear))
    many = design.sampled(3_000, 0.0, np.random.default_rng(2)).regression()
    (ours, errors), (whole, _) = coefficients(few), coefficients(many)
    assert np.abs((ours - whole) / errors).max() < 0.3


@every_case(
    ("design", "clients"),
    [
        pytest.param(LOGISTIC, 2_000, id="logistic"),
        pytest.param(LINEAR, 2_000, id="linear"),
        pytest.param(POISSON, 10_000, id="poisson"),
    ],
)
def test_intervals_cover_the_truth_and_would_not_without_the_noise(design, clients):
    got = result(design, clients, 1.0, 60, seed=3)
    assert got.ignoring_noise < 0.8
    assert got.least > 0.86
    assert 0.92 < got.mean < 0.985
    assert got.estimated > 0.65


@every_case("wrong", [0.5, 2.0])
def test_a_wrong_scale_of_noise_is_noticed(wrong):
    """Errors over standard errors have variance 1 for the true scale alone."""
    rng, std, scores = np.random.default_rng(4), noise(0.5), {1.0: [], wrong: []}
    for _ in range(60):
        sampled = LINEAR.sampled(20_000, std, rng)
        for scale, of_scale in scores.items():
            found = coefficients(replace(sampled, std=std * scale).regression())
            of_scale.append((found[0] - LINEAR.truth) / found[1])
    spread = {scale: float(np.nanstd(each)) for scale, each in scores.items()}
    assert spread[1.0] == pytest.approx(1.0, abs=0.12)
    assert abs(spread[wrong] - 1.0) > 0.2


def test_sums_within_their_noise_have_no_estimate():
    sampled = LOGISTIC.sampled(300, noise(0.5), np.random.default_rng(5))
    regression = sampled.regression()
    assert np.isnan(coefficients(regression)).all()
    assert {each.p_value for each in regression.covariates} == {None}
    assert regression.dispersion is None


class Spoiled(type(LOGISTIC)):
    """A design whose outcomes are those that `name` says."""

    def _inputs(self, columns, clients, rng):
        x = super()._inputs(columns, clients, rng)
        k = columns.coefficients
        x[:, k] = {
            "never": 0.0 * x[:, k],
            "always": 1.0 + 0.0 * x[:, k],
            "by a level": np.where(x[:, 1] > 0, 0.0, x[:, k]),
            "by a number": (x[:, 4] > 0).astype(float),
        }[self.name]
        return x


@every_case("name", ["never", "always", "by a level", "by a number"])
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_outcomes_that_do_not_vary_or_are_separated_have_no_estimate(name, epsilon):
    facts = {key: getattr(LOGISTIC, key) for key in LOGISTIC.__dataclass_fields__}
    design, rng, found = Spoiled(**{**facts, "name": name}), np.random.default_rng(8), 0
    for _ in range(8):
        sampled = design.sampled(20_000, noise(epsilon), rng)
        sums, _ = score_sums(sampled.state, sampled.newton, 1.0, sampled.std)
        try:
            fitted(sums)
        except NoEstimate:
            continue
        found += 1
    assert found <= 3, found


def test_the_bias_of_noise_in_the_matrix_is_corrected():
    """Over noise and its negative, around the sums of one population."""
    rng = np.random.default_rng(6)
    sampled = LINEAR.sampled(3_000, 0.0, rng)
    sums, _ = score_sums(sampled.state, sampled.newton, 1.0, 0.0)
    truth, std = fitted(sums).coefficients, 25.0
    raw, corrected = [], []
    for _ in range(300):
        drawn = np.triu(rng.standard_normal((6, 6)), 1) * std
        drawn = drawn + drawn.T + np.diag(rng.standard_normal(6)) * std * math.sqrt(2)
        for sign in (1, -1):
            noised = replace(sums, information=sums.information + sign * drawn)
            raw.append(fitted(noised).coefficients)
            corrected.append(fitted(replace(noised, information_std=std)).coefficients)
    before, after = (np.abs(np.mean(each, 0) - truth).max() for each in (raw, corrected))
    assert after < before / 3


def test_units_do_not_matter():
    """The same coefficients for a number in centimetres and its bounds, up to the unit."""
    sampled = LINEAR.sampled(2_000, noise(2.0), np.random.default_rng(7))
    metres = sampled.regression().covariates[2].levels[0]
    columns = sampled.columns
    age = columns.covariates[2]
    moved = (*columns.covariates[:2], replace(age, low=age.low * 100, high=age.high * 100))
    scaled = replace(columns, covariates=(*moved, columns.covariates[3]))
    sums, _ = score_sums(sampled.state, sampled.newton, 1.0, sampled.std)
    centimetres = stated_regression("linear", scaled, fitted(sums)).covariates[2].levels[0]
    assert centimetres.coefficient * 100 == pytest.approx(metres.coefficient)
    assert centimetres.p_value == pytest.approx(metres.p_value)
