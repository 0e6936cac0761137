"""The budget gate says what accounting every prefix would say, in few accountings."""

from collections import Counter

from lanes import every_case

from accounting import guarantee as module
from accounting.events import Event
from accounting.guarantee import Gate, guarantee
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled

EVENT = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson")
OTHER = Event(PoissonSampled(0.1, Gaussian(2.0)), "poisson")


def rounds_granted(gate, event=EVENT, most=300):
    spending = Counter()
    while spending[event] < most and gate.affords(spending, event):
        spending[event] += 1
    return spending[event]


@every_case("stride", [1, 7, 40, 1000])
@every_case("budget", [1.0, 2.5, 4.0])
def test_it_grants_exactly_the_rounds_that_fit(budget, stride):
    granted = rounds_granted(Gate(budget, 1e-4, "tightest", stride))
    assert guarantee({EVENT: granted}, 1e-4).epsilon <= budget
    assert guarantee({EVENT: granted + 1}, 1e-4).epsilon > budget


def test_it_accounts_a_logarithmic_number_of_times(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return guarantee(*args)

    monkeypatch.setattr(module, "guarantee", counted)
    assert rounds_granted(Gate(10.0, 1e-4, "rdp", 50)) > 100
    assert len(calls) < 25


def test_a_cheaper_event_may_still_fit_when_a_dear_one_does_not():
    gate = Gate(1.5, 1e-4, "tightest")
    spending = Counter({EVENT: rounds_granted(Gate(1.5, 1e-4, "tightest"))})
    assert not gate.affords(spending, EVENT)
    room = guarantee({**spending, OTHER: 1}, 1e-4).epsilon <= 1.5
    assert gate.affords(spending, OTHER) == room


def test_a_budget_below_one_event_grants_nothing():
    assert rounds_granted(Gate(0.01, 1e-4, "tightest")) == 0


def test_an_infinite_budget_grants_releases_without_noise():
    bare = Event(PoissonSampled(0.1, Gaussian(0.0)), "poisson")
    assert rounds_granted(Gate(float("inf"), 1e-4, "tightest"), bare, most=5) == 5
