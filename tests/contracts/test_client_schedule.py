"""What every schedule keeps: a public, non-negative factor for each round, and 1 at its best."""

import math

from contracts.registered import contract_tests

from privfed.core.schedules import Constant
from privfed.testing.hooks import follows_from_the_round_alone, gives_a_factor_for_every_round


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
