"""What every availability keeps: public draws, of each client by itself, and no client is lost."""

import numpy as np
from contracts.registered import contract_tests

from privfed.core.streams import Streams
from privfed.sampling.availability import Always

WHO = np.arange(100, 600)
STREAMS = Streams(3, simulated=True)


def rounds_of(part, who=WHO, streams=STREAMS):
    return np.stack([part.present(round, who, streams) for round in range(1, 61)])


def follows_from_public_constants(part):
    """The round, the run's seed and each client's own number; not from who else is there."""
    present = rounds_of(part)
    assert (present.dtype, present.shape) == (np.bool_, (60, len(WHO)))
    assert np.array_equal(present, rounds_of(part)), "it depends on what was asked before"
    assert np.array_equal(present, rounds_of(part, streams=Streams(3))), "it is drawn in secret"
    some = np.array([7, 3, 450])
    assert np.array_equal(present[:, some], rounds_of(part, WHO[some]))


def has_every_client_available_at_times(part):
    present = rounds_of(part)
    assert present.any(0).all()
    assert present.any(1).all(), "there is a round without any client"


def varies_as_it_declares(part):
    changes = bool((rounds_of(part) != rounds_of(part)[0]).any())
    assert changes == part.varies
    assert part.varies or rounds_of(part).all()


class FirstFew(Always):
    """Clients are identified by their place among those asked about."""

    def present(self, round, who, streams):
        return np.arange(len(who)) < 50


class Secret(Always):
    """It draws afresh whenever it is asked."""

    def present(self, round, who, streams):
        return np.random.default_rng().random(len(who)) < 0.5


class Unsteady(Always):
    """All clients, in odd rounds only, declared as if availability did not vary."""

    def present(self, round, who, streams):
        return np.full(len(who), round % 2 == 1)


test_every_availability_keeps, test_a_wrong_availability_is_rejected_by = contract_tests(
    "availability",
    {
        follows_from_public_constants: [FirstFew(), Secret()],
        has_every_client_available_at_times: [FirstFew(), Unsteady()],
        varies_as_it_declares: [FirstFew(), Unsteady()],
    },
)
