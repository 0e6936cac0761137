"""What every protocol keeps: the sum of the rows that were sent, and of nothing else, once."""

import contextlib

import numpy as np
import pytest
import torch
from contracts.registered import contract_tests

from privfed.core.streams import Streams
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows, BoundedSum, Encoding
from privfed.secure.limits import Leaves, Limits
from privfed.secure.plain_sum import PlainAccumulator, PlainSum
from privfed.secure.summation import Aborted, Session

CLIENTS, LENGTH = 8, 5
IDS = 3 + 5 * np.arange(CLIENTS)
LIMITS = Limits(capacity=CLIENTS, arithmetic=True)
ROWS = clip_rows(torch.randn(CLIENTS, LENGTH, generator=torch.Generator().manual_seed(0)), 1.0)
STAY = np.full(CLIENTS, Leaves.NEVER, dtype=np.int64)


def opened(protocol, leaves=STAY):
    summation = protocol.over(LIMITS)
    session = Session(1, 0, b"h" * 32, IDS, leaves, Streams(3, simulated=True))
    return summation, summation.open(session, LENGTH, Encoding(1.0))


def added(accumulator, places):
    for place in places:
        rows = BoundedRows(ROWS.rows[place : place + 1], ROWS.bound)
        accumulator.add(IDS[place : place + 1], rows)
    return accumulator.close()


def slack(summation):
    """How far a sum of encoded rows may be from that of the rows: a step for each."""
    step = summation.step(Encoding(1.0), LENGTH)
    return 1e-6 if step is None else 2 * CLIENTS * step + 1e-6


def near(protocol, total, expected, summation):
    tolerance = max(slack(summation), 1e-3 if protocol.approximate else 0.0)
    torch.testing.assert_close(total.total, expected.double(), rtol=0, atol=tolerance)


def sums_the_rows_that_were_sent(protocol):
    summation, accumulator = opened(protocol)
    total = added(accumulator, range(CLIENTS))
    assert total.survivors == CLIENTS
    assert (total.total.dtype, tuple(total.total.shape)) == (torch.float64, (LENGTH,))
    near(protocol, total, ROWS.rows.sum(0), summation)
    assert summation.encoded(Encoding(1.0), LENGTH) >= 1.0
    assert total.bound >= ROWS.bound, "noise has to cover what was really summed"


def counts_the_survivors(protocol):
    """Of two that drop out after they sent, or before they did, the first kind is in the sum."""
    leaves = STAY.copy()
    leaves[1], leaves[4] = Leaves.BEFORE_MASKING, Leaves.BEFORE_UNMASKING
    try:
        summation, accumulator = opened(protocol, leaves)
        sending = [place for place in range(CLIENTS) if place != 1]
        total = added(accumulator, sending)
    except Aborted:
        assert protocol.hides_rows
        return
    assert total.survivors == CLIENTS - 1
    near(protocol, total, ROWS.rows[sending].sum(0), summation)


def takes_each_client_once(protocol):
    _, accumulator = opened(protocol)
    twice = None
    with contextlib.suppress(Exception):
        twice = added(accumulator, [0, 0, *range(1, CLIENTS)])
    assert twice is None, "a client was added twice"


def states_what_it_takes(protocol):
    summation = protocol.over(LIMITS)
    costs = [summation.download(CLIENTS), summation.upload(LENGTH, CLIENTS),
             summation.seconds(LENGTH, CLIENTS)]  # fmt: skip
    assert all(np.isfinite(cost) and cost >= 0 for cost in costs)
    assert summation.upload(10**5, CLIENTS) > summation.upload(10, CLIENTS)
    assert summation.stops(CLIENTS, 0.0) == pytest.approx(0.0, abs=1e-9)
    assert 0 <= summation.stops(CLIENTS, 0.3) <= 1
    assert protocol.seen
    assert protocol.opener
    if protocol.hides_rows:
        assert protocol.fewest(LIMITS) >= 2, "a sum of one row would be that row"
        assert protocol.begun(LIMITS) >= protocol.fewest(LIMITS)
        assert 0 <= protocol.honest(LIMITS) <= protocol.added(LIMITS) <= 1


class Changed(PlainAccumulator):
    """An accumulator whose total is not that of its rows."""

    def close(self):
        total = super().close()
        return BoundedSum(2 * total.total, total.bound, total.survivors)


class Unnoticing(PlainAccumulator):
    """It adds all that arrive, and counts all clients."""

    def add(self, ids, rows):
        super().add(ids + 1000 * self.added, rows)
        self.added += 1

    added = 0

    def close(self):
        total = super().close()
        return BoundedSum(total.total, total.bound, CLIENTS)


class Doubling(PlainSum):
    def open(self, session, length, encoding):
        return Changed(length, encoding.bound)


class Careless(PlainSum):
    def open(self, session, length, encoding):
        return Unnoticing(length, encoding.bound)


class Free(PlainSum):
    """Rows of any length cost nothing."""

    def upload(self, length, clients, noise=None):
        return 0.0


test_every_protocol_keeps, test_a_wrong_protocol_is_rejected_by = contract_tests(
    "protocol",
    {
        sums_the_rows_that_were_sent: [Doubling()],
        counts_the_survivors: [Careless(), Doubling()],
        takes_each_client_once: [Careless()],
        states_what_it_takes: [Free()],
    },
)
