"""Checks that every attack has to pass, including attacks of your own.

Each check is a function of the attack, and raises `AssertionError`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    """Returns a view with the knowledge that the attack declares, and nothing else."""
    return View(
        1,
        trained,
        honest if Knowledge.ALL_HONEST in attack.knows else None,
        (lambda rows: rows.mean(0)) if Knowledge.RULE in attack.knows else None,
    )


def _sent(attack: Attack, trained: Tensor, honest: Tensor) -> tuple[Tensor, State]:
    return attack.corrupt(_shown(attack, trained, honest), {}, _rng())


def sends_a_row_for_each_attacker(attack: Attack) -> None:
    """Checks that an attack returns a finite row for each attacker, and equal ones at a second
    call.

    Arguments must not be changed in place. An attack without `corrupts` must return the trained
    rows, and `acts` must be True exactly if `corrupts` or `poisons` is.
    """
    trained, honest = _cloud(3), _cloud(9, seed=1)
    before = trained.clone(), honest.clone()
    rows, _ = _sent(attack, trained, honest)
    form, expected = ((tuple(each.shape), each.dtype) for each in (rows, trained))
    assert form == expected, f"rows are {form}; expected {expected}"
    assert rows.isfinite().all(), "rows are not finite"
    assert torch.equal(trained, before[0]), "the attackers' own rows are changed in place"
    assert torch.equal(honest, before[1]), "the honest rows are changed in place"
    again, _ = _sent(attack, trained, honest)
    assert torch.equal(rows, again), "rows differ at a second call; draw from `rng` only"
    assert attack.corrupts or torch.equal(rows, trained), "rows are changed; declare corrupts"
    acts = attack.corrupts or attack.poisons
    assert attack.acts == acts, f"acts is {attack.acts}; expected corrupts or poisons: {acts}"


def reads_what_it_declares(attack: Attack) -> None:
    """Checks that an attack depends on nothing beyond what it declares to know."""
    trained, honest = _cloud(3), _cloud(9, seed=1)
    declared = _shown(attack, trained, honest)
    undeclared: dict[str, Any] = {}
    if Knowledge.ALL_HONEST not in attack.knows:
        undeclared |= {"honest": honest, "identities": np.arange(len(honest))}
    if Knowledge.RULE not in attack.knows:
        undeclared["rule"] = lambda rows: -9 * rows.sum(0)
    rows, state = attack.corrupt(declared, {}, _rng())
    others, remembered = attack.corrupt(replace(declared, **undeclared), {}, _rng())
    assert torch.equal(rows, others), "rows depend on values that `knows` does not declare"
    same = {*state} == {*remembered} and all(torch.equal(state[k], remembered[k]) for k in state)
    assert same, "the state depends on values that `knows` does not declare"


def attacks_among_few_and_broken_rows(attack: Attack) -> None:
    """Checks that an attack works with few honest rows, and ignores unusable rows as rules do."""
    for count in (0, 1, 2):
        rows, _ = _sent(attack, _cloud(2), torch.ones(count, 6))
        assert rows.isfinite().all(), f"rows are not finite among {count} honest rows"
    if Knowledge.ALL_HONEST not in attack.knows:
        return
    trained, honest = _cloud(3), _cloud(9, seed=1)
    left = torch.cat([honest[:4], honest[5:]])
    expected, clean = _sent(attack, trained, left)
    for bad in (torch.nan, torch.inf, 1e25):
        spoiled = honest.clone()
        spoiled[4] = bad
        rows, state = _sent(attack, trained, spoiled)
        assert torch.equal(rows, expected), f"an honest row of {bad:g} changes the rows"
        same = all(torch.equal(state[key], clean[key]) for key in clean)
        assert same, f"an honest row of {bad:g} changes the state"
        rows, _ = _sent(attack, trained, torch.full((2, 6), bad))
        assert torch.equal(rows, trained), f"rows are changed where all honest ones are {bad:g}"


def _briefing(attack: Attack) -> Briefing:
    return Briefing(_CLASSES, 0, attack.study(_IMAGES, _LABELS, _CLASSES))


def poisons_what_it_declares(attack: Attack) -> None:
    """Checks that `poison` changes examples if and only if `poisons` is set.

    An example's shape, types and number of classes must be kept, arguments must not be changed in
    place, and a second call with the same randomness must return the same.
    """
    shape = tuple(_IMAGES.shape[1:])
    unfit_reason = attack.unfit_reason(shape, True)
    assert unfit_reason is None, f"the attack refuses images {shape}: {unfit_reason}"
    named = f"`labels` names {list(attack.labels())}; expected labels below {_CLASSES}"
    assert all(0 <= label < _CLASSES for label in attack.labels()), named
    before = _IMAGES.clone(), _LABELS.clone()
    x, y = attack.poison(_IMAGES, _LABELS, _briefing(attack), _rng())
    assert torch.equal(_IMAGES, before[0]), "examples are changed in place"
    assert torch.equal(_LABELS, before[1]), "labels are changed in place"
    form, expected = (tuple(x.shape[1:]), x.dtype, y.dtype), (shape, _IMAGES.dtype, _LABELS.dtype)
    assert form == expected, f"an example and the types are {form}; expected {expected}"
    assert len(x) == len(y), f"{len(x)} examples have {len(y)} labels"
    least, most = int(y.min()), int(y.max())
    assert 0 <= least <= most < _CLASSES, (
        f"labels are from {least} to {most}, of {_CLASSES} classes"
    )
    same = len(x) == len(_IMAGES) and torch.equal(x, _IMAGES) and torch.equal(y, _LABELS)
    assert same != attack.poisons, (
        f"poisons is {attack.poisons}, but examples are unchanged: {same}"
    )
    again = attack.poison(_IMAGES, _LABELS, _briefing(attack), _rng())
    repeated = torch.equal(x, again[0]) and torch.equal(y, again[1])
    assert repeated, "examples differ at a second call; draw from `rng` only"


def steers_where_it_declares(attack: Attack) -> None:
    """Checks that `steer` changes directions only if `steers` is set."""
    direction, away = _cloud(2, 9), _cloud(2, 9, seed=1)
    state = attack.watch(torch.ones(9), {})
    state = attack.watch(torch.full((9,), 2.0), state)
    steered = attack.steer(direction.clone(), away.clone(), 0.1, state)
    shape = tuple(steered.shape)
    assert steered.shape == direction.shape, f"directions are {shape}; expected (2, 9)"
    assert attack.steers or torch.equal(steered, direction), "directions change; declare steers"
    assert not attack.steers or attack.poisons, "steers is declared without poisons; declare both"


def aims_at_labels_that_exist(attack: Attack) -> None:
    """Checks that target labels are labels of existing classes, and among `attack.labels()` if
    any.
    """
    aim = attack.targeted(_IMAGES, _LABELS, _briefing(attack).learned)
    if aim is None:
        return
    x, wanted = aim
    shape, labels = tuple(x.shape[1:]), {*wanted.tolist()}
    assert len(x) == len(wanted), f"{len(x)} examples have {len(wanted)} targets"
    assert x.shape[1:] == _IMAGES.shape[1:], f"an example has the shape {shape}"
    exist = all(0 <= label < _CLASSES for label in labels)
    assert exist, f"targets are {labels}; expected labels below {_CLASSES}"
    stated = f"targets are {labels}, but `labels` names {list(attack.labels())}"
    assert {*attack.labels()} >= labels or not attack.labels(), stated


ATTACK_CHECKS = (
    sends_a_row_for_each_attacker,
    reads_what_it_declares,
    attacks_among_few_and_broken_rows,
    poisons_what_it_declares,
    steers_where_it_declares,
    aims_at_labels_that_exist,
)
"""All checks that an attack has to pass."""
