"""The contract of attacks as checks that an attack of your own has to pass.

Each check is a function of the attack, and raises `AssertionError`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attacks.types import Attack, Briefing, Knowledge, State, View

_CLASSES = 10
_IMAGES = torch.rand(400, 1, 8, 8, generator=torch.Generator().manual_seed(0))
_LABELS = torch.arange(400) % _CLASSES


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _cloud(n: int, d: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 1.0


def _shown(attack: Attack, trained: Tensor, honest: Tensor) -> View:
    """Returns the view that the attack declares."""
    return View(
        1,
        trained,
        honest if Knowledge.ALL_HONEST in attack.knows else None,
        (lambda rows: rows.mean(0)) if Knowledge.RULE in attack.knows else None,
    )


def _sent(attack: Attack, trained: Tensor, honest: Tensor) -> tuple[Tensor, State]:
    return attack.corrupt(_shown(attack, trained, honest), {}, _rng())


def sends_a_row_for_each_attacker(attack: Attack) -> None:
    """Checks that rows are new and reproducible, and unchanged without `corrupts`."""
    trained, honest = _cloud(3), _cloud(9, seed=1)
    before = trained.clone(), honest.clone()
    rows, _ = _sent(attack, trained, honest)
    assert (rows.shape, rows.dtype) == (trained.shape, trained.dtype)
    assert rows.isfinite().all()
    assert torch.equal(trained, before[0])
    assert torch.equal(honest, before[1])
    assert torch.equal(rows, _sent(attack, trained, honest)[0]), "resumed runs attack alike"
    assert attack.corrupts or torch.equal(rows, trained)
    assert attack.acts == (attack.corrupts or attack.poisons)


def reads_what_it_declares(attack: Attack) -> None:
    """Checks that rows beyond the declared threat model have no effect."""
    trained = _cloud(3)
    if Knowledge.ALL_HONEST in attack.knows:
        return
    alone, _ = attack.corrupt(View(1, trained), {}, _rng())
    others, _ = attack.corrupt(View(1, trained, _cloud(5), torch.sum), {}, _rng())
    assert torch.equal(alone, others)


def attacks_among_few_and_broken_rows(attack: Attack) -> None:
    """Checks that an attack omits diverged rows, as a rule does."""
    for count in (0, 1, 2):
        assert _sent(attack, _cloud(2), torch.ones(count, 6))[0].isfinite().all()
    if Knowledge.ALL_HONEST not in attack.knows:
        return
    trained, honest = _cloud(3), _cloud(9, seed=1)
    left = torch.cat([honest[:4], honest[5:]])
    expected, clean = _sent(attack, trained, left)
    for bad in (torch.nan, torch.inf, 1e25):
        spoiled = honest.clone()
        spoiled[4] = bad
        rows, state = _sent(attack, trained, spoiled)
        assert torch.equal(rows, expected)
        assert all(torch.equal(state[key], clean[key]) for key in clean)
        assert torch.equal(_sent(attack, trained, torch.full((2, 6), bad))[0], trained)


def _briefing(attack: Attack) -> Briefing:
    return Briefing(_CLASSES, 0, attack.study(_IMAGES, _LABELS, _CLASSES))


def poisons_what_it_declares(attack: Attack) -> None:
    """Checks that `poison` changes examples, and keeps their form, exactly if `poisons` is set."""
    assert attack.unfit(tuple(_IMAGES.shape[1:]), True) is None
    assert all(0 <= label < _CLASSES for label in attack.labels())
    before = _IMAGES.clone(), _LABELS.clone()
    x, y = attack.poison(_IMAGES, _LABELS, _briefing(attack), _rng())
    assert torch.equal(_IMAGES, before[0])
    assert torch.equal(_LABELS, before[1])
    assert (x.shape[1:], x.dtype, y.dtype) == (_IMAGES.shape[1:], _IMAGES.dtype, _LABELS.dtype)
    assert len(x) == len(y)
    assert 0 <= int(y.min()) <= int(y.max()) < _CLASSES
    same = len(x) == len(_IMAGES) and torch.equal(x, _IMAGES) and torch.equal(y, _LABELS)
    assert same != attack.poisons
    again = attack.poison(_IMAGES, _LABELS, _briefing(attack), _rng())
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])


def steers_where_it_declares(attack: Attack) -> None:
    """Checks that `steer` changes directions only if `steers` is set."""
    direction, away = _cloud(2, 9), _cloud(2, 9, seed=1)
    state = attack.watch(torch.ones(9), {})
    state = attack.watch(torch.full((9,), 2.0), state)
    steered = attack.steer(direction.clone(), away.clone(), 0.1, state)
    assert steered.shape == direction.shape
    assert attack.steers or torch.equal(steered, direction)
    assert not attack.steers or attack.poisons


def aims_at_labels_that_exist(attack: Attack) -> None:
    """Checks that targets are labels of existing classes."""
    aim = attack.targeted(_IMAGES, _LABELS, _briefing(attack).learned)
    if aim is None:
        return
    x, wanted = aim
    assert len(x) == len(wanted)
    assert x.shape[1:] == _IMAGES.shape[1:]
    assert all(0 <= int(label) < _CLASSES for label in wanted)
    assert {*attack.labels()} >= {*wanted.tolist()} or not attack.labels()


ATTACK_CHECKS = (
    sends_a_row_for_each_attacker,
    reads_what_it_declares,
    attacks_among_few_and_broken_rows,
    poisons_what_it_declares,
    steers_where_it_declares,
    aims_at_labels_that_exist,
)
"""All checks of an attack."""
