"""The run a newcomer starts with is good, and costs what it says."""

import statistics

import pytest

from privfed.auditing.run_audit import audit
from privfed.config.reading import load
from privfed.run.train import train


@pytest.mark.slow
def test_the_default_run_reaches_its_floor_within_its_budget(tmp_path):
    """Digits over 500 clients at epsilon 4: the median of five secret runs is 93 % or better."""
    accuracies = []
    for seed in range(5):
        path = tmp_path / f"{seed}"
        outcome = train(load(None, [f"run.seed={seed}"]), path)
        accuracies.append(outcome.accuracy)
        assert outcome.guarantee.epsilon <= 4.0
        assert outcome.guarantee.delta == 1e-4
        assert audit(path).guarantee == outcome.guarantee
    assert statistics.median(accuracies) >= 0.93, accuracies
    assert min(accuracies) > 0.9, accuracies


@pytest.mark.slow
def test_privacy_has_a_price_and_it_is_small_here(tmp_path):
    overrides = ["run.randomness=seeded", "privacy.mechanism=none"]
    assert train(load(None, overrides), tmp_path / "plain").accuracy > 0.95
