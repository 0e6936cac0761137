"""What is read from noised sums: right without noise, within intervals with it, and consistent."""

import numpy as np
import pytest
from description_setup import asked, folk, vectors

from privfed.analytics.estimates import Sums
from privfed.analytics.questions import NumbersQuestion, Questions, as_values
from privfed.analytics.spelling import Spelling

CLIENTS = 900
PLACES = {"open": "town", "range": "weight", "dates": "seen", "values": "sex"}


@pytest.fixture(scope="module")
def population():
    columns = folk(CLIENTS)
    owners = np.unique(columns["person"], return_inverse=True)[1]
    first = np.unique(owners, return_index=True)[1]
    return {name: np.asarray(values)[first] for name, values in columns.items()}


def sums_of(questions, population, names, rng=None, noise=0.0):
    question = Questions(questions, 1)
    rows = vectors(question, [population[name] for name in names], np.arange(CLIENTS))
    total = rows.sum(0)
    if rng is not None:
        total = total + rng.normal(0, noise, len(total))
    return Sums.of(question, total, noise)


def held(estimate, truth, slack=1e-6):
    low = -np.inf if estimate.low is None else estimate.low
    high = np.inf if estimate.high is None else estimate.high
    return low - slack <= truth <= high + slack


def test_without_noise_all_is_right(population):
    open_ages = NumbersQuestion("age", spelling=Spelling(32, 12))
    towns = NumbersQuestion("town", spelling=Spelling(32, 12))
    weights = NumbersQuestion("weight", (40.0, 104.0))
    sums = sums_of(
        (open_ages, towns, weights, as_values("sex", ["f", "m", "x"])),
        population,
        ("age", "town", "weight", "sex"),
    )
    clients, sizes = sums.clients()
    assert clients.value == pytest.approx(CLIENTS)
    assert [(cell.low, cell.high, cell.count.value) for cell in sizes] == [
        (1.0, 1.0, pytest.approx(CLIENTS))
    ]
    age, town, weight, sex = sums.columns()
    ages = np.array([float(each) for each in population["age"] if each])
    assert age.missing.value == pytest.approx(1 - len(ages) / CLIENTS)
    assert age.numbers.count.value == pytest.approx(len(ages))
    assert age.numbers.range[0] <= ages.min() < ages.max() <= age.numbers.range[1]
    assert age.numbers.mean.value == pytest.approx(ages.mean(), rel=0.04)
    assert age.numbers.std.value == pytest.approx(ages.std(), rel=0.06)
    for probability, quantile in age.numbers.quantiles.items():
        truth = np.quantile(ages, float(probability), method="inverted_cdf")
        assert held(quantile, truth)
        assert quantile.value == pytest.approx(truth, rel=0.125)
    assert weight.numbers.mean.value == pytest.approx(
        population["weight"].astype(float).clip(40, 104).mean(), abs=0.5
    )
    assert {each.value for each in town.values} == {"Bonn", "Oslo", "Rome"}
    assert town.words.value == pytest.approx(1.0)
    assert town.numbers is None
    for each in (*town.values, *sex.values):
        column = "town" if each in town.values else "sex"
        assert held(each.count, (population[column] == each.value).sum(), slack=0.05)
    assert [each.value for each in sex.values] == ["f", "m", "x"]


def test_dates_and_flags(population):
    sums = sums_of(
        (NumbersQuestion("seen", (18262.0, 18628.0), "iso"), NumbersQuestion("ill")),
        population,
        ("seen", "ill"),
    )
    seen, ill = sums.columns()
    assert seen.kind == "dates"
    assert seen.words.value == pytest.approx(0.0, abs=1e-9)
    assert ill.numbers.range == (0.0, 1.0)
    assert ill.numbers.mean.value == pytest.approx(population["ill"].astype(int).mean())
    assert [(cell.low, cell.high) for cell in ill.numbers.histogram] == [(0.0, 0.0), (1.0, 1.0)]


def test_everything_that_is_said_agrees(population):
    rng = np.random.default_rng(0)
    sums = sums_of(
        (NumbersQuestion("weight", spelling=Spelling(4, 6)), as_values("sex", ["f", "m"])),
        population,
        ("weight", "sex"),
        rng,
        5.0,
    )
    weight, sex = sums.columns()
    total, _ = sums.rows()
    numbers = weight.numbers
    counted = sum(cell.count.value for cell in numbers.histogram)
    assert counted == pytest.approx(numbers.count.value)
    empty_or_words = weight.missing.value + weight.words.value
    assert numbers.count.value == pytest.approx(total * (1 - empty_or_words))
    values = sum(each.count.value for each in sex.values)
    assert values == pytest.approx(total * (1 - sex.missing.value - sex.words.value))
    quantiles = [each.value for each in numbers.quantiles.values()]
    assert quantiles == sorted(quantiles)
    low, high = numbers.range
    clipped = [
        (np.clip([cell.low or low, cell.high or high], low, high).mean(), cell.count.value)
        for cell in numbers.histogram
    ]
    mean = np.average([middle for middle, _ in clipped], weights=[count for _, count in clipped])
    assert numbers.mean.value == pytest.approx(mean, rel=1e-6)
    for estimate in (numbers.count, numbers.mean, numbers.std, *numbers.quantiles.values()):
        assert estimate.low <= estimate.value <= estimate.high


def covered(population, questions, names, repeats, noise=5.0):
    """How often each interval holds what is true, over so many releases."""
    rng = np.random.default_rng(7)
    question = Questions(questions, 1)
    total = vectors(question, [population[name] for name in names], np.arange(CLIENTS)).sum(0)
    weight, sex = population["weight"].astype(float), population["sex"]
    hits: dict[str, list[bool]] = {}
    for _ in range(repeats):
        sums = Sums.of(question, total + rng.normal(0, noise, len(total)), noise)
        clients, _ = sums.clients()
        numbers, values = sums.columns()
        told = numbers.numbers
        clipped = weight.clip(*told.range)
        beyond = (weight < told.range[0]) | (weight > told.range[1])
        checks = {
            "clients": (clients, CLIENTS),
            "numbers": (told.count, CLIENTS),
            "missing": (numbers.missing, 0.0),
            "outside": (told.outside, beyond.mean()),
            "mean": (told.mean, clipped.mean()),
            "std": (told.std, clipped.std()),
        }
        for p, estimate in told.quantiles.items():
            checks[p] = estimate, np.quantile(clipped, float(p), method="inverted_cdf")
        for each in values.values:
            checks[each.value] = each.count, (sex == each.value).sum()
        for name, (estimate, truth) in checks.items():
            hits.setdefault(name, []).append(held(estimate, truth))
    return {name: np.mean(each) for name, each in hits.items()}


@pytest.mark.parametrize(
    ("bounds", "repeats"),
    [
        ((40.0, 104.0), 300),
        pytest.param((40.0, 104.0), 1000, marks=pytest.mark.slow),
        pytest.param(None, 1000, marks=pytest.mark.slow),
    ],
    ids=["a public range, few", "a public range", "nothing known"],
)
def test_intervals_hold_what_is_true_in_95_of_100_releases(population, bounds, repeats):
    questions = (NumbersQuestion("weight", bounds), as_values("sex", ["f", "m"]))
    rates = covered(population, questions, ("weight", "sex"), repeats)
    assert len(rates) == 13
    least = 0.95 - 3.2 * (0.95 * 0.05 / repeats) ** 0.5
    assert {name: rate for name, rate in rates.items() if rate < least} == {}


def test_intervals_without_their_noise_would_not(population):
    """A planted fault: intervals for half of the noise."""
    rng, hits = np.random.default_rng(3), []
    questions = (NumbersQuestion("weight", (40.0, 104.0)), as_values("sex", ["f", "m"]))
    question = Questions(questions, 1)
    total = vectors(question, [population[name] for name in ("weight", "sex")], np.arange(CLIENTS))
    total = total.sum(0)
    for _ in range(150):
        half = Sums.of(question, total + rng.normal(0, 5.0, len(total)), 2.5)
        hits.append(held(half.columns()[1].values[0].count, (population["sex"] == "f").sum()))
    assert np.mean(hits) < 0.85


def test_asked_of_every_kind_goes_through(population):
    question = asked()
    sums = sums_of(question.questions, population, PLACES.values(), np.random.default_rng(0), 1.0)
    assert [column.kind for column in sums.columns()] == ["open", "numbers", "dates", "values"]
