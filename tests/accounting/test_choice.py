"""A ledger of a run that is one of several: its charges spend the choice, once."""

import pytest
from lanes import every_case

from accounting.choosing.repetitions import Repetitions
from accounting.curves import spent_events
from accounting.errors import BudgetExceeded, LedgerBroken
from accounting.events import Event, best_of
from accounting.guarantee import Gate, guarantee, spent
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled

ROUND = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson")
OTHER = Event(PoissonSampled(0.2, Gaussian(1.0)), "poisson")
CHOICE = best_of({ROUND: 5}, Repetitions.with_mean(1.0, 8.0))
TERMS = {"delta": 1e-5, "chosen": {"event": CHOICE.to_json(), "charge": "ab"}}


def opened(tmp_path, rounds=0, **terms):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {**TERMS, **terms})
    for round in range(1, rounds + 1):
        ledger.charge(round, ROUND)
    return ledger


def test_charges_spend_the_choice_from_the_first_on(tmp_path):
    ledger = opened(tmp_path)
    assert ledger.spending == ledger.run_spending == {}
    for round in (1, 2, 3):
        ledger.charge(round, ROUND)
        assert ledger.spending == ledger.run_spending == {CHOICE: 1}
    again = Ledger.load(ledger.path)
    assert again.spending == again.spending_until(1) == {CHOICE: 1}
    assert again.spending_until(0) == {}
    assert again.chosen == CHOICE
    assert spent_events(again) == [CHOICE]
    assert len(again.charges) == 3
    assert spent(again, 1e-5).epsilon == guarantee({CHOICE: 1}, 1e-5).epsilon
    assert spent(again, 1e-5).epsilon > guarantee({ROUND: 5}, 1e-5).epsilon


@every_case("event, before", [(ROUND, 5), (OTHER, 0), (OTHER, 2)])
def test_more_than_the_choice_covers_is_never_charged(tmp_path, event, before):
    ledger = opened(tmp_path, before)
    lines = ledger.path.read_bytes()
    with pytest.raises(LedgerBroken, match="would exceed the spending of one candidate"):
        ledger.charge(before + 1, event)
    assert ledger.path.read_bytes() == lines
    assert len(Ledger.load(ledger.path).charges) == before


def test_a_ledger_that_charged_more_is_broken(tmp_path):
    ledger = opened(tmp_path, 5)
    ledger._choice = type(ledger._choice)()  # a fault: as if it stood alone
    ledger.charge(6, ROUND)
    with pytest.raises(LedgerBroken, match="the new charges would exceed"):
        Ledger.load(ledger.path)


def test_the_gate_is_asked_for_the_choice_at_the_first_charge(tmp_path):
    enough = guarantee({CHOICE: 1}, 1e-5).epsilon
    ledger = opened(tmp_path)
    ledger.gate = Gate(enough * (1 - 1e-6), 1e-5, "tightest")
    with pytest.raises(BudgetExceeded):
        ledger.charge(1, ROUND)
    ledger.gate = Gate(enough, 1e-5, "tightest")
    for round in range(1, 6):
        ledger.charge(round, ROUND)


def test_earlier_runs_are_composed_with_the_choice(tmp_path):
    prior = [{"run": "r", "id": "1", "head": "00", "charges": [[ROUND.to_json(), 3]]}]
    ledger = opened(tmp_path, 2, prior=prior)
    assert ledger.spending == {ROUND: 3, CHOICE: 1}


def test_a_torn_charge_counts_as_the_choice(tmp_path):
    ledger = opened(tmp_path, 2)
    ledger.path.write_bytes(ledger.path.read_bytes()[:-9])
    assert Ledger.load(ledger.path).spending == {CHOICE: 1}
    assert Ledger.recover(ledger.path).spending == {CHOICE: 1}


@every_case("stated", [{"event": ROUND.to_json()}, {"charge": "ab"}, None, []])
def test_a_choice_that_is_none_is_broken(tmp_path, stated):
    with pytest.raises(LedgerBroken):
        Ledger.create(tmp_path / "ledger.jsonl", {"delta": 1e-5, "chosen": stated})
