"""What every attack keeps: it reads what its threat model shows, and does what it declares."""

import torch
from contracts.registered import contract_tests

from attacks.poisoning.label_flip import LabelFlip
from attacks.testing import (
    aims_at_labels_that_exist,
    attacks_among_few_and_broken_rows,
    poisons_what_it_declares,
    reads_what_it_declares,
    sends_a_row_for_each_attacker,
    steers_where_it_declares,
)
from attacks.types import Attack, Knowledge, NoAttack, UpdateAttack
from attacks.updates.simple import Scaling
from attacks.updates.statistics import Alie


class InPlace(UpdateAttack):
    """It changes the rows that it is shown."""

    def corrupt(self, view, state, rng):
        return view.byzantine.neg_(), state


class Random(UpdateAttack):
    """It draws by itself, so that a resumed run has another attack."""

    def corrupt(self, view, state, rng):
        return torch.randn_like(view.byzantine), state


class Peeking(Scaling):
    """It reads honest rows where they are there, and declares its own alone."""

    def corrupt(self, view, state, rng):
        seen = view.byzantine if view.honest is None else view.honest[: len(view.byzantine)]
        return -seen, state


class Probing(Alie):
    """It tries the aggregation rule where it is there, and declares honest rows alone."""

    def corrupt(self, view, state, rng):
        rows, state = super().corrupt(view, state, rng)
        return (rows if view.rule is None else rows + view.rule(rows)), state


class Remembering(Scaling):
    """It keeps honest rows that it does not declare for later rounds."""

    def corrupt(self, view, state, rng):
        rows, state = super().corrupt(view, state, rng)
        seen = view.byzantine if view.honest is None else view.honest
        return rows, {**state, "seen": seen.mean(0)}


class Trying(UpdateAttack):
    """It declares the aggregation rule alone, and reads it."""

    knows = UpdateAttack.knows | {Knowledge.RULE}

    def corrupt(self, view, state, rng):
        return view.byzantine - view.rule(view.byzantine), state


class Trustful(Alie):
    """It takes diverged rows for honest ones."""

    def corrupt(self, view, state, rng):
        if not len(view.honest):
            return view.byzantine, state
        return self.malicious_row(view.honest, view, rng).expand_as(view.byzantine).clone(), state


class Beyond(LabelFlip):
    """It gives examples a label of no class."""

    def poison(self, x, y, briefing, rng):
        return x, y + briefing.classes

    def targeted(self, x, y, learned):
        return x, y + 10


class Silent(Attack):
    """It poisons, and does not declare it."""

    def poison(self, x, y, briefing, rng):
        return x, y.flip(0)

    def steer(self, direction, away, lr, state):
        return -direction


class Idle(NoAttack):
    """It declares that it poisons, and does nothing."""

    poisons = True


CONTRACTS = {
    sends_a_row_for_each_attacker: [InPlace(), Random()],
    reads_what_it_declares: [Peeking(), Probing(), Remembering()],
    attacks_among_few_and_broken_rows: [Trustful()],
    poisons_what_it_declares: [Beyond(), Silent(), Idle()],
    steers_where_it_declares: [Silent()],
    aims_at_labels_that_exist: [Beyond()],
}
test_every_attack_keeps, test_a_wrong_attack_is_rejected_by = contract_tests("attack", CONTRACTS)


def test_an_attack_may_read_the_rule_that_it_declares():
    """The rule alone, which needs no honest rows."""
    reads_what_it_declares(Trying())
