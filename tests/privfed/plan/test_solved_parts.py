"""What parts solve for when a run is planned first: bands, groups, buffers; and what stays."""

import math

import pytest
from small import SMALL, stop_after, trained

from accounting.ledger import Ledger
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.plan import solved_parts
from privfed.plan.plan import plan
from privfed.privacy.noise.factorization import optimal_bands, square_root
from privfed.run.train import resume

FREE = [word for word in SMALL if "noise_multiplier" not in word]
GROUPED = (
    "data.clients=48",
    "cohort.sampler=allocation",
    "cohort.slots=12",
    "cohort.size=0",
    "privacy.mechanism=banded",
    "privacy.bands=0",
    "run.rounds=60",
)
CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0")


def planned(*words):
    return plan(load(None, [*FREE, *words]))


@pytest.mark.parametrize("epsilon", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_groups_and_bands_are_those_that_need_the_least_noise(epsilon):
    budget = f"privacy.epsilon={epsilon}"
    chosen = planned(*GROUPED, budget)
    noise = {}
    for groups in (2, 3, 4, 6, 12):
        one = planned(*GROUPED, budget, f"privacy.bands={groups}", f"cohort.groups={groups}")
        assert one.guarantee.epsilon <= epsilon
        noise[groups] = one.mechanism.noise_on_model(60)
    best = min(noise, key=noise.get)
    assert chosen.config.sampler.groups == chosen.config.mechanism.bands == best
    assert chosen.mechanism.noise_on_model(60) == pytest.approx(noise[best])
    assert max(noise.values()) > 1.1 * noise[best]


def test_bands_that_are_given_take_the_fewest_groups_that_keep_them_apart():
    one = planned(*GROUPED, "privacy.bands=5", "privacy.epsilon=2.0")
    assert (one.config.sampler.groups, one.config.mechanism.bands) == (6, 5)
    with pytest.raises(Refused, match="at most 12 groups"):
        planned(*GROUPED, "privacy.bands=13", "privacy.epsilon=2.0")


def test_without_a_budget_nothing_says_how_many_bands():
    with pytest.raises(Refused, match=r"privacy.bands is 0"):
        planned(*GROUPED, "privacy.noise_multiplier=2.0")
    settled = (*GROUPED, "cohort.groups=4", "privacy.noise_multiplier=2.0")
    assert planned(*settled).config.mechanism.bands == 4


def test_gaussian_noise_needs_no_groups():
    one = planned(*GROUPED, "privacy.mechanism=gaussian", "privacy.epsilon=2.0")
    assert one.event.release.groups == 1


def test_no_bands_named_under_cyclic_draws_are_as_many_as_the_separation():
    one = planned(*CYCLIC, "privacy.mechanism=banded", "privacy.bands=0", "privacy.epsilon=2.0")
    assert one.config.mechanism.bands == 3
    assert one.config.mechanism.toeplitz == optimal_bands(3, 7)


def test_rounds_that_evaluate_are_not_solved_for():
    one = planned(
        *CYCLIC,
        *("privacy.mechanism=banded", "privacy.bands=3", "privacy.epsilon=20.0"),
        *("run.rounds=9", "evaluation.by=clients", "evaluation.every=3", "data.size_min=4"),
    )
    assert one.config.mechanism.solved_for == one.training_rounds == 6
    assert one.config.mechanism.toeplitz == optimal_bands(3, 6)


def test_coefficients_may_be_given_and_have_the_same_proof():
    words = (*CYCLIC, "privacy.mechanism=banded", "privacy.epsilon=2.0")
    given = planned(*words, "privacy.toeplitz=[1.0, 0.5, 0.25]")
    solved = planned(*words, "privacy.bands=3")
    assert given.event == solved.event
    assert given.config.mechanism.bands == 3
    assert given.config.mechanism.solved_for == 0
    with pytest.raises(Refused, match="bands is 4, but toeplitz has 3 coefficients"):
        planned(*words, "privacy.toeplitz=[1.0, 0.5, 0.25]", "privacy.bands=4")
    for wrong in ("[0.5, 0.5]", "[1.0, 0.3]", "[1.0, 2.0]", "[]"):
        with pytest.raises(Refused, match=r"multiples of 2\^-20"):
            planned(*words, f"privacy.toeplitz={wrong}")


def test_more_rounds_keep_the_coefficients_and_the_ledger_says_what_they_are_for(tmp_path):
    words = (*CYCLIC, "privacy.mechanism=banded", "privacy.bands=3")
    trained(tmp_path / "run", *words)
    resume(tmp_path / "run", lambda stored: stored.with_run(rounds=9))
    ledger = Ledger.load(tmp_path / "run" / "ledger.jsonl")
    stated = {"toeplitz": list(optimal_bands(3, 7)), "solved_for": 7}
    assert ledger.terms["correlation"] == stated
    assert len(ledger.charges) == 9
    assert "solved_for = 7" in (tmp_path / "run" / "config.toml").read_text()


def test_a_run_of_an_older_version_goes_on_with_the_square_root(tmp_path, monkeypatch):
    """As older versions left it: its file names no coefficients, and noise was solved for."""
    words = (*CYCLIC, "privacy.mechanism=banded", "privacy.bands=3", "run.randomness=seeded")
    monkeypatch.setattr(solved_parts, "_solved", lambda config: config)
    trained(tmp_path / "run", *words)
    stop_after(4, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "older", *words)
    monkeypatch.undo()
    assert "toeplitz" not in (tmp_path / "older" / "config.toml").read_text()
    resume(tmp_path / "older", lambda stored: stored)
    for name in ("checkpoint.safetensors", "config.toml"):
        before, after = ((tmp_path / each / name).read_bytes() for each in ("run", "older"))
        assert before == after
    older = load(None, [*SMALL, *words])
    assert older.mechanism.coefficients().tolist() == square_root(3).tolist()
    assert math.isclose(older.mechanism.coefficients()[2], 3 / 8)
