"""What every schedule keeps: a public, non-negative factor for each round, and 1 at its best."""

import math

import pytest
from contracts.registered import contract_tests

from privfed.core.schedules import Constant

ROUNDS = range(1, 1001)


def gives_a_factor_for_every_round(schedule):
    factors = [schedule.factor(round) for round in ROUNDS]
    assert all(isinstance(factor, float) for factor in factors)
    assert all(math.isfinite(factor) and 0 <= factor <= 1 for factor in factors)
    assert max(factors) == pytest.approx(1.0), "the configured rate is never reached"


def follows_from_the_round_alone(schedule):
    backwards = [schedule.factor(round) for round in reversed(ROUNDS)]
    assert backwards[::-1] == [schedule.model_copy().factor(round) for round in ROUNDS]


class Growing(Constant):
    """A rate without a bound."""

    def factor(self, round):
        return float(round)


class Negative(Constant):
    """A rate that changes its sign."""

    def factor(self, round):
        return math.cos(round - 1)


class Worn(Constant):
    """A rate that falls whenever it is asked for."""

    def factor(self, round):
        _REQUIRED.append(round)
        return 1 / len(_REQUIRED)


_REQUIRED = []
CONTRACTS = {
    gives_a_factor_for_every_round: [Growing(), Negative()],
    follows_from_the_round_alone: [Worn()],
}
test_every_client_schedule_keeps, test_a_wrong_schedule_is_rejected_by = contract_tests(
    "client_schedule", CONTRACTS
)
test_every_server_schedule_keeps, _ = contract_tests("server_schedule", CONTRACTS)
