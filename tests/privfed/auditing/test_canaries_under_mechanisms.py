"""Canaries under every relation, draw, sum and clip: honest runs pass, and broken ones do not."""

import numpy as np
import pytest
import torch
from small import small, trained

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, Event
from accounting.noises import Gaussian
from accounting.releases import WithoutReplacement
from privfed.auditing.run_audit import audit
from privfed.privacy import clipping
from privfed.privacy.mechanisms import central_gaussian, distributed_noise, local_gaussian
from privfed.privacy.noise.shares import DiscreteGaussianShare, Layers, SkellamShare
from privfed.run.prepare import plan_with_length
from privfed.secure import plain_sum

FULL = ("cohort.sampler=full", "cohort.size=0")
FIXED = ("cohort.sampler=fixed_size",)
CUT = ("cohort.sampler=truncated_poisson",)
CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=4", "cohort.size=0")
MASKS = ("secure.protocol=masks", "secure.simulate=arithmetic")
SKELLAM = (*MASKS, "privacy.mechanism=skellam")
LAYERS = (*SKELLAM, "privacy.sizing=layers")
LOCAL = ("privacy.mechanism=local_gaussian",)
ADAPTIVE = ("privacy.adaptive_clip=true", "privacy.count_noise=40")
SITES = ("data.sites=5",)
TWO = (*SITES, "data.sites_per_client=2")

KINDS = {
    "poisson": (ADD_REMOVE, ()),
    "fixed size": (REPLACE_ONE, FIXED),
    "cut": (ADD_REMOVE, CUT),
    "adaptive": (ADD_REMOVE, ADAPTIVE),
    "adaptive, everybody": (ZERO_OUT, (*ADAPTIVE, *FULL)),
    "adaptive, fixed size": (REPLACE_ONE, (*ADAPTIVE, *FIXED)),
    "adaptive, masks, everybody": (ZERO_OUT, (*ADAPTIVE, *FULL, *MASKS)),
    "local": (REPLACE_ONE, LOCAL),
    "local, everybody": (REPLACE_ONE, (*LOCAL, *FULL)),
    "masks": (ADD_REMOVE, MASKS),
    "masks, everybody": (ZERO_OUT, (*MASKS, *FULL)),
    "masks, fixed size": (REPLACE_ONE, (*MASKS, *FIXED)),
    "masks, cut": (ADD_REMOVE, (*MASKS, *CUT)),
    "masks, slots": (
        ADD_REMOVE,
        (*MASKS, "cohort.sampler=allocation", "cohort.slots=4", "cohort.size=0"),
    ),
    "bfv": (ADD_REMOVE, ("secure.protocol=bfv", "secure.simulate=arithmetic")),
    "skellam": (ZERO_OUT, SKELLAM),
    "skellam, everybody": (ZERO_OUT, (*SKELLAM, *FULL)),
    "skellam, cyclic": (ZERO_OUT, (*SKELLAM, *CYCLIC)),
    "skellam, fixed size": (ZERO_OUT, (*SKELLAM, *FIXED)),
    "layers": (ZERO_OUT, (*LAYERS, *FULL)),
    "layers against readers": (ADD_REMOVE, (*LAYERS, "privacy.against=readers")),
    "discrete": (ZERO_OUT, (*MASKS, *FULL, "privacy.mechanism=discrete_gaussian")),
    "sites": (ADD_REMOVE, (*SITES, *SKELLAM)),
    "sites, layers": (ADD_REMOVE, (*SITES, *LAYERS)),
    "sites, everybody": (ZERO_OUT, (*SITES, *SKELLAM, *FULL)),
    "sites, central": (ADD_REMOVE, (*SITES, *MASKS)),
    "sites, local": (ADD_REMOVE, (*SITES, *LOCAL)),
    "two sites": (ADD_REMOVE, TWO),
    "two sites, masks": (ADD_REMOVE, (*TWO, *MASKS)),
    "two sites, skellam": (ADD_REMOVE, (*TWO, *SKELLAM)),
    "two sites, local": (ADD_REMOVE, (*TWO, *LOCAL)),
}
"""Runs by the relation that their claim is about."""
FEW = (
    "run.randomness=seeded",
    "data.clients=100",
    "cohort.size=40",
    "data.features=12",
    "privacy.noise_multiplier=4.0",
    "run.rounds=3",
    "run.evaluate_every=3",
)
CANARIES = ("audit.canaries=60",)
MANY = (
    *("data.features=60", "data.classes=10", "audit.canaries=100"),
    *("privacy.noise_multiplier=60.0", "privacy.delta=1e-4", "run.rounds=4"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_run_is_not_refuted(kind, tmp_path):
    relation, keys = KINDS[kind]
    trained(tmp_path / "run", *FEW, *CANARIES, *keys)
    audited = audit(tmp_path / "run")
    assert not audited.problems
    assert audited.terms["relation"] == relation
    evidence = audited.canaries
    assert evidence.p_value == 1.0
    assert evidence.epsilon_lower_bound <= evidence.epsilon_claimed
    assert evidence.epsilon_estimate_all_iterates < 4 * evidence.epsilon_claimed + 2
    assert evidence.epsilon_estimate_final is not None


def without_noise(monkeypatch):
    """Neither server, sites nor clients add any."""
    for module in (central_gaussian, local_gaussian, plain_sum):
        monkeypatch.setattr(module, "gaussian_on_grid", lambda keys, deviation, n: np.zeros(n))
    for share in (SkellamShare, DiscreteGaussianShare):
        monkeypatch.setattr(share, "draw", lambda self, keys, n: np.zeros(n, dtype=np.int64))


def without_clip(monkeypatch):
    """A row of a thousand clips is called bounded."""

    def unclipped(rows, clip):
        return clipping.BoundedRows(rows, clip)

    for module in (central_gaussian, distributed_noise, local_gaussian):
        monkeypatch.setattr(module, "clip_rows", unclipped)


BROKEN = [
    ("fixed size", without_noise),
    ("adaptive, everybody", without_noise),
    ("local, everybody", without_noise),
    ("masks, fixed size", without_noise),
    ("masks, everybody", without_noise),
    ("skellam, everybody", without_noise),
    ("skellam, cyclic", without_noise),
    ("sites, everybody", without_noise),
    ("two sites", without_noise),
    ("cut", without_clip),
    ("fixed size", without_clip),
    ("local", without_clip),
    ("sites, local", without_clip),
]
"""What some hundred canaries can see in four rounds: half of all rows, and no noise but theirs."""


@pytest.mark.parametrize(
    "kind, fault", BROKEN, ids=[f"{kind}, {fault.__name__}" for kind, fault in BROKEN]
)
def test_a_broken_run_is_refuted(kind, fault, tmp_path, monkeypatch):
    fault(monkeypatch)
    trained(tmp_path / "run", *FEW, *MANY, *KINDS[kind][1])
    evidence = audit(tmp_path / "run").canaries
    assert evidence.refuted
    assert evidence.epsilon_lower_bound > evidence.epsilon_claimed
