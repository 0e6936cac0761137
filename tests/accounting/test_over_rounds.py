"""Releases that cost what a run's rounds make of them: epochs, overlapping columns, choices."""

import math
from dataclasses import replace

import pytest
from lanes import every_case, mostly_slow

from accounting.accountants import epsilon, supports
from accounting.bounds.toeplitz_sensitivity import buffered_sensitivity, column_norm
from accounting.choosing.repeat_and_select import RepeatAndSelect
from accounting.choosing.repetitions import Repetitions
from accounting.errors import Unaccountable
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event, best_of, summable, within
from accounting.noises import Gaussian
from accounting.over_rounds import AllocatedEpoch, BufferedToeplitz, RandomAllocation, Separated
from accounting.releases import PoissonSampled, release_from_json

DECAYS, OUTPUTS = (0.9, 0.3), (0.4, 0.1)


def allocated(z=1.0, slots=10, groups=1, relation=ADD_REMOVE, **more):
    release = RandomAllocation(slots, groups, Gaussian(z))
    return Event(release, "allocation", relation, **more)


def buffered(z=1.0, separation=5, **more):
    release = BufferedToeplitz(DECAYS, OUTPUTS, separation, Gaussian(z))
    return Event(release, "cyclic", ZERO_OUT, **more)


@every_case(
    "event",
    [
        allocated(),
        allocated(2, 12, 4, ZERO_OUT),
        Event(AllocatedEpoch(3, Gaussian(2.5)), "allocation", ZERO_OUT),
        buffered(slack=1e-9),
    ],
    ids=["allocation", "groups", "epoch", "buffers"],
)
def test_each_survives_its_ledger_line(event):
    assert Event.from_json(event.to_json()) == event


def test_a_begun_epoch_counts_whole_and_runs_do_not_share_one():
    epoch = Event(AllocatedEpoch(10, Gaussian(1.0)), "allocation", ADD_REMOVE)
    for rounds, epochs in [(1, 1), (10, 1), (11, 2), (40, 4), (41, 5)]:
        assert summable({allocated(): rounds}) == {epoch: epochs}
    grouped = summable({allocated(slots=12, groups=4): 25})
    assert grouped == {replace(epoch, release=AllocatedEpoch(3, Gaussian(1.0))): 3}
    # Two runs of 15 rounds are 2 epochs each; 30 rounds in a row would be 3.
    two = summable({allocated(): 15})
    both = {event: 2 * count for event, count in two.items()}
    assert epsilon(both, 1e-5, "pld") > epsilon({allocated(): 30}, 1e-5, "pld")


def test_an_epoch_of_varying_noise_has_the_least_of_it():
    mixed = summable({allocated(1.0): 5, allocated(3.0): 20})
    assert mixed == summable({allocated(1.0): 25})
    assert summable({allocated(1.0): 0, allocated(3.0): 20}) == summable({allocated(3.0): 20})
    (event,) = summable({buffered(2.0): 3, buffered(1.0): 4})
    assert event.release == buffered(1.0).release.over(7)
    cyclic = {Event(Separated(5, Gaussian(z)), "cyclic", ZERO_OUT): 4 for z in (1.0, 2.0)}
    assert list(summable(cyclic).values()) == [2]


def test_slack_is_carried_with_an_epoch():
    (event,) = summable({allocated(slack=1e-9): 20})
    assert event.slack == pytest.approx(1e-8)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_both_relations_have_a_proof_and_replacement_has_none(accountant):
    for relation, proved in ((ADD_REMOVE, True), (ZERO_OUT, True), (REPLACE_ONE, False)):
        assert supports(allocated(relation=relation), accountant) is proved
    assert epsilon({allocated(): 40}, 1e-5, accountant) == pytest.approx(
        epsilon({allocated(relation=ZERO_OUT): 40}, 1e-5, accountant)
    )


def test_the_known_figures_and_that_releases_of_one_cohort_are_folded_first():
    """FACTS, section 12: fresh slots, no amplification, and two releases in every slot."""
    assert epsilon({allocated(): 40}, 1e-5, "pld") == pytest.approx(3.85, abs=0.01)
    none = Event(Separated(10, Gaussian(1.0)), "cyclic", ZERO_OUT)
    assert epsilon({none: 40}, 1e-5, "pld") == pytest.approx(10.00, abs=0.01)
    folded = epsilon({allocated(math.sqrt(0.5)): 10}, 1e-5, "pld")
    apart_ = epsilon({allocated(): 20}, 1e-5, "pld")
    assert folded == pytest.approx(4.29, abs=0.02)
    assert apart_ == pytest.approx(2.83, abs=0.02)


@pytest.mark.parametrize("z", mostly_slow([0.5, 1.0, 2.0], 1.0))
@every_case("slots", [10, 30, 50])
@every_case("epochs", [1, 4, 12])
def test_fresh_slots_cost_less_than_coins_of_the_same_rate(slots, epochs, z):
    """In the range of FACTS, section 12; that it is so everywhere is not proved, and not used."""
    rounds = slots * epochs
    coins = Event(PoissonSampled(1 / slots, Gaussian(z)), "poisson")
    fresh = epsilon({allocated(z, slots): rounds}, 1e-5, "pld")
    assert fresh < epsilon({coins: rounds}, 1e-5, "pld")
    never = Event(Separated(slots, Gaussian(z)), "cyclic", ZERO_OUT)
    assert fresh < epsilon({never: rounds}, 1e-5, "pld")


def test_one_choice_is_the_gaussian_and_more_cost_less():
    plain = {Event(Gaussian(2.0), "full", ZERO_OUT): 3}
    single = {allocated(2.0, 4, 4, ZERO_OUT): 12}
    for accountant in ("rdp", "pld"):
        bound = epsilon(single, 1e-5, accountant)
        assert bound == pytest.approx(epsilon(plain, 1e-5, accountant), rel=2e-3)
    costs = [epsilon({allocated(1.0, slots): slots}, 1e-5, "pld") for slots in (2, 5, 20)]
    assert costs == sorted(costs, reverse=True)


def test_epochs_compose_with_other_events():
    """With a Gaussian round, at most as much as both at a half of delta each."""
    plain = Event(Gaussian(3.0), "full", ADD_REMOVE)
    both = epsilon({allocated(): 20, plain: 1}, 1e-5, "pld")
    apart_ = [epsilon(each, 5e-6, "pld") for each in ({allocated(): 20}, {plain: 1})]
    assert max(apart_) < both <= sum(apart_)


def test_buffers_are_one_gaussian_over_all_rounds():
    for rounds in (1, 5, 6, 23):
        (event,) = summable({buffered(1.5): rounds})
        moved = buffered_sensitivity(DECAYS, OUTPUTS, 5, rounds)
        expected = 1.5 * column_norm(DECAYS, OUTPUTS) / moved
        assert event.release.noise_multiplier == pytest.approx(expected)
    costs = [epsilon({buffered(): rounds}, 1e-5, "pld") for rounds in range(1, 30)]
    assert costs == sorted(costs)


@every_case(
    "changes, reason",
    [
        ({"decays": (1.0, 0.3)}, "decay"),
        ({"outputs": (0.8, 0.3)}, "sum to"),
        ({"outputs": (-0.1, 0.3)}, "output"),
        ({"outputs": (0.1,)}, "equally many"),
        ({"separation": 0}, "separation"),
    ],
    ids=["decay", "increasing", "negative", "count", "separation"],
)
def test_a_ledger_line_without_proof_is_refused(changes, reason):
    line = {**buffered().release.to_json(), **changes}
    with pytest.raises(Unaccountable, match=reason):
        release_from_json(line)


@pytest.mark.parametrize("event", [allocated(), buffered()], ids=["allocation", "buffers"])
def test_a_choice_holds_what_rounds_come_to_and_not_the_rounds(event):
    line = best_of({event: 5}, Repetitions(1.0, 0.1)).release.to_json()
    line["of"] = [[event.release.to_json(), 5]]
    with pytest.raises(Unaccountable, match="depends on the number of rounds"):
        RepeatAndSelect.from_json(line)


def test_groups_have_to_divide_the_slots():
    with pytest.raises(Unaccountable, match="groups"):
        RandomAllocation(10, 4, Gaussian(1.0))


@pytest.mark.parametrize("event", [allocated(), buffered()], ids=["allocation", "buffers"])
def test_the_rounds_of_a_chosen_run_are_a_part_of_what_the_choice_covers(event):
    chosen = best_of({event: 20}, Repetitions(1.0, 0.1)).release
    assert within({event: 1}, chosen)
    assert within({event: 20}, chosen)
    assert not within({event: 21}, chosen)
