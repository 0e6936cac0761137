"""What every mechanism keeps: it releases with the noise and the clip that its event states."""

import numpy as np
import pytest
import torch
from contracts.registered import contract_tests
from contracts.runs import spelled

from accounting.events import REPLACE_ONE
from accounting.noises import Gaussian
from accounting.releases import noise_of
from privfed.auditing.mechanism_audit import examine
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Layout
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.privacy.setting import ClientShares, CohortSize, Setting
from privfed.sampling.samplers import Poisson

BASE = ("data.clients=12", "cohort.size=6", "privacy.noise_multiplier=1.0", "privacy.clip=0.4")
FULL_PARTICIPATION = ("cohort.sampler=full", "cohort.size=0", "run.rounds=3")
SETTINGS = (
    (),
    ("cohort.sampler=cyclic", "cohort.separation=12", "cohort.size=0"),
    ("secure.protocol=masks", *FULL_PARTICIPATION),
    FULL_PARTICIPATION,
)
"""Runs, the first of which that a mechanism has a proof for is taken."""


def planned(part):
    for keys in SETTINGS:
        try:
            named = f"privacy.mechanism={spelled('mechanism', part)}"
            return plan_of_mechanism(load(None, [*BASE, named, *keys]))
        except Refused as refused:
            reason = refused
    raise AssertionError(f"no setting suits it: {reason}")


def releases_with_the_noise_that_it_charges(part):
    """Of idle clients, by the audit of mechanisms: no less, at 1e-4, and not twice as much."""
    if not part.private:
        assert part.trust == "nobody"
        return
    judged = examine(*scenarios_of(planned(part)), 24, delta=1e-4, confidence=0.95, seed=1)
    assert judged.noise_p_value > 1e-4, f"{judged.noise:g} of the noise that is charged"
    assert judged.noise < 2


def bounds_rows_by_its_clip(part):
    """Before any noise; rows that are not finite, too."""
    if not part.private:
        return
    layout = Layout((("delta", 20), ("other", 20)))
    setting = Setting(cohort=CohortSize(6, 6), noise=ClientShares(6), bits=32, length=40)
    mechanism = part.model_copy(update={"clip": 0.3}).at(0.0).resolved(setting)
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    rows[1], rows[2, 5], rows[3, 25] = 1e3, 1e3, torch.nan
    keys = Streams(1, simulated=True).at("noise/client/0", 1, np.arange(6))
    bounded = mechanism.bound(rows, layout, keys, mechanism.init())
    norms = bounded.rows.double().norm(dim=1)
    assert (norms <= 0.3).all(), norms
    assert (norms[:3] > 0.29).all(), norms


def charges_for_the_draw_of_its_cohort(part):
    """By the witness alone: its rate, its separation, its relation or a stronger one."""
    if not part.private:
        return
    plan = planned(part)
    witness, mechanism = plan.config.sampler.witness(1, 12), plan.cost.mechanism.at(1.0)
    event = mechanism.event(witness, 1)
    assert getattr(event.release, "rate", witness.rate) == witness.rate
    assert getattr(event.release, "separation", 1) <= max(witness.separation, 1)
    assert event.relation in (witness.relation, REPLACE_ONE)
    assert event.sampler == witness.sampler
    for quieter in (2.0, 4.0):
        assert mechanism.at(quieter).event(witness, 1) != event, "the noise is not charged"


def charges_several_exchanges_as_one_event(part):
    """Four exchanges over one cohort have half the noise, and no event comes uncalibrated."""
    if not part.private or part.remembers:
        return
    plan = planned(part)
    mechanism = plan.cost.mechanism.at(1.0)
    witness = plan.config.sampler.witness(1, 12)
    single, several = (noise_of(mechanism.event(witness, n).release) for n in (1, 4))
    if isinstance(single, Gaussian):
        assert several.noise_multiplier == pytest.approx(single.noise_multiplier / 2)
    else:
        assert several != single
    with pytest.raises(ValueError, match="calibrate"):
        mechanism.at(None).event(witness, 1)


def noises_bounded_sums_alone(part):
    if part.trust != "server":
        return
    mechanism = part.at(1.0).resolved(
        Setting(cohort=CohortSize(4, 4), noise=ClientShares(4), length=3)
    )
    zeros = torch.zeros(3, dtype=torch.float64)
    for total in (zeros, BoundedSum(zeros, float("inf"), 2), BoundedSum(zeros, 1e-9, 2)):
        with pytest.raises(TypeError, match="BoundedSum"):
            mechanism.release(total, 1.0, Streams(0).at("noise", 1), mechanism.init())


class FourFifths(CentralGaussian):
    """A fifth of its noise is missing."""

    def release(self, total, divisor, keys, state):
        less = self.model_copy(update={"noise_multiplier": 0.8 * self.noise_multiplier})
        return CentralGaussian.release(less, total, divisor, keys, state)


class Unclipped(CentralGaussian):
    """Rows of any length pass for bounded ones."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows, self.clip)


class OfAnotherDraw(CentralGaussian):
    """Its event amplifies by another rate than that of the draw."""

    def event(self, witness, exchanges):
        return super().event(Poisson(size=1).witness(1, 1000), exchanges)


class EachForItself(CentralGaussian):
    """It charges for one exchange, however many there are."""

    def event(self, witness, exchanges):
        return super().event(witness, 1)


class Trusting(CentralGaussian):
    """It takes any tensor for a bounded sum."""

    def release(self, total, divisor, keys, state):
        return getattr(total, "total", total) / divisor, state


class Hopeful(NoPrivacy):
    """Not private, and trusts the server with noise."""

    trust = "server"


def rejected(contract):
    """`contract`, which a missing refusal fails too."""

    def with_refusals(part):
        try:
            contract(part)
        except pytest.fail.Exception as failed:
            raise AssertionError(str(failed)) from failed

    with_refusals.__name__ = contract.__name__
    return with_refusals


test_every_mechanism_keeps, test_a_wrong_mechanism_is_rejected_by = contract_tests(
    "mechanism",
    {
        releases_with_the_noise_that_it_charges: [FourFifths(), Hopeful()],
        bounds_rows_by_its_clip: [Unclipped()],
        charges_for_the_draw_of_its_cohort: [OfAnotherDraw()],
        rejected(charges_several_exchanges_as_one_event): [EachForItself()],
        rejected(noises_bounded_sums_alone): [Trusting()],
    },
)
