"""What every attack keeps: it reads what its threat model shows, and does what it declares."""

import numpy as np
import torch
from contracts.registered import contract_tests

from attacks.poisoning.label_flip import LabelFlip
from attacks.types import Attack, Briefing, Knowledge, NoAttack, UpdateAttack, View
from attacks.updates.simple import Scaling
from attacks.updates.statistics import Alie

CLASSES = 10
IMAGES = torch.rand(400, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(400) % CLASSES


def rng():
    return np.random.default_rng(0)


def cloud(n, d=6, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 1.0


def shown(attack, trained, honest):
    """The view that its declaration entitles it to."""
    return View(
        1,
        trained,
        honest if Knowledge.ALL_HONEST in attack.knows else None,
        (lambda rows: rows.mean(0)) if Knowledge.RULE in attack.knows else None,
    )


def sent(attack, trained, honest):
    return attack.corrupt(shown(attack, trained, honest), {}, rng())


def sends_a_row_for_each_attacker(attack):
    """New ones, the same when it is asked again; without `corrupts`, those of honest training."""
    trained, honest = cloud(3), cloud(9, seed=1)
    before = trained.clone(), honest.clone()
    rows, _ = sent(attack, trained, honest)
    assert (rows.shape, rows.dtype) == (trained.shape, trained.dtype)
    assert rows.isfinite().all()
    assert torch.equal(trained, before[0])
    assert torch.equal(honest, before[1])
    assert torch.equal(rows, sent(attack, trained, honest)[0]), "resumed runs attack alike"
    assert attack.corrupts or torch.equal(rows, trained)
    assert attack.acts == (attack.corrupts or attack.poisons)


def reads_what_it_declares(attack):
    """Rows that are shown beyond its threat model make no difference."""
    trained = cloud(3)
    if Knowledge.ALL_HONEST in attack.knows:
        return
    alone, _ = attack.corrupt(View(1, trained), {}, rng())
    others, _ = attack.corrupt(View(1, trained, cloud(5), torch.sum), {}, rng())
    assert torch.equal(alone, others)


def attacks_among_few_and_broken_rows(attack):
    """A rule leaves rows out that diverged, and so does an attacker who reads them."""
    for count in (0, 1, 2):
        assert sent(attack, cloud(2), torch.ones(count, 6))[0].isfinite().all()
    if Knowledge.ALL_HONEST not in attack.knows:
        return
    trained, honest = cloud(3), cloud(9, seed=1)
    left = torch.cat([honest[:4], honest[5:]])
    expected, clean = sent(attack, trained, left)
    for bad in (torch.nan, torch.inf, 1e25):
        spoiled = honest.clone()
        spoiled[4] = bad
        rows, state = sent(attack, trained, spoiled)
        assert torch.equal(rows, expected)
        assert all(torch.equal(state[key], clean[key]) for key in clean)
        assert torch.equal(sent(attack, trained, torch.full((2, 6), bad))[0], trained)


def briefing(attack):
    return Briefing(CLASSES, 0, attack.study(IMAGES, LABELS, CLASSES))


def poisons_what_it_declares(attack):
    """New examples of the same form, and not all as they were; else the same."""
    assert attack.unfit(tuple(IMAGES.shape[1:]), True) is None
    assert all(0 <= label < CLASSES for label in attack.labels())
    before = IMAGES.clone(), LABELS.clone()
    x, y = attack.poison(IMAGES, LABELS, briefing(attack), rng())
    assert torch.equal(IMAGES, before[0])
    assert torch.equal(LABELS, before[1])
    assert (x.shape[1:], x.dtype, y.dtype) == (IMAGES.shape[1:], IMAGES.dtype, LABELS.dtype)
    assert len(x) == len(y)
    assert 0 <= int(y.min()) <= int(y.max()) < CLASSES
    same = len(x) == len(IMAGES) and torch.equal(x, IMAGES) and torch.equal(y, LABELS)
    assert same != attack.poisons
    again = attack.poison(IMAGES, LABELS, briefing(attack), rng())
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])


def steers_where_it_declares(attack):
    direction, away = cloud(2, 9), cloud(2, 9, seed=1)
    state = attack.watch(torch.ones(9), {})
    state = attack.watch(torch.full((9,), 2.0), state)
    steered = attack.steer(direction.clone(), away.clone(), 0.1, state)
    assert steered.shape == direction.shape
    assert attack.steers or torch.equal(steered, direction)
    assert not attack.steers or attack.poisons


def aims_at_labels_that_exist(attack):
    aim = attack.targeted(IMAGES, LABELS, briefing(attack).learned)
    if aim is None:
        return
    x, wanted = aim
    assert len(x) == len(wanted)
    assert x.shape[1:] == IMAGES.shape[1:]
    assert all(0 <= int(label) < CLASSES for label in wanted)
    assert {*attack.labels()} >= {*wanted.tolist()} or not attack.labels()


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
        return x, y + CLASSES


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
    reads_what_it_declares: [Peeking()],
    attacks_among_few_and_broken_rows: [Trustful()],
    poisons_what_it_declares: [Beyond(), Silent(), Idle()],
    steers_where_it_declares: [Silent()],
    aims_at_labels_that_exist: [Beyond()],
}
test_every_attack_keeps, test_a_wrong_attack_is_rejected_by = contract_tests("attack", CONTRACTS)
