"""Distributed noise: the distribution of a sum, whoever drops out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from distributed_noise import SETTING, STREAMS, fits, gaussian_cdf, skellam_cdf, variance_of
from lanes import FULL, every_case, mostly_slow
from scipy import stats

from accounting.noises import Gaussian
from privfed.core.errors import Refused
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Layout
from privfed.privacy.codec import Codec
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms.distributed import DiscreteGaussianNoise, SkellamNoise
from privfed.privacy.noise.shares import SMOOTHED, WASTE, Layers
from privfed.privacy.setting import ClientShares, CohortSize
from privfed.sampling.samplers import Full
from privfed.secure.channel import Wire
from privfed.secure.identities import client_identity
from privfed.secure.limits import Leaves, Limits
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.messages import wire
from privfed.secure.masked.protocol import MaskedSums
from privfed.secure.summation import Aborted, Session


def summed(mechanism, leaves, rounds, *, protocol=None, arithmetic=False, tolerance=1.0, minimum=0):
    """`[rounds, d]` whole numbers of the sum of zero rows: noise alone."""
    clients, width = len(leaves), 256
    limits = Limits(clients, minimum, arithmetic, tolerance)
    summation = (protocol or MaskedSums(threshold=0.3, bits=20)).over(limits)
    encoding = mechanism.encoding(mechanism.init())
    found = []
    for round in range(rounds):
        session = Session(round, 0, b"h" * 32, np.arange(clients), np.array(leaves), STREAMS)
        accumulator = summation.open(session, width, encoding)
        for client in np.flatnonzero(np.isin(leaves, (Leaves.NEVER, Leaves.BEFORE_UNMASKING))):
            accumulator.add(np.array([client]), BoundedRows(torch.zeros(1, width), mechanism.clip))
        found.append((accumulator.close().total / encoding.step).numpy())
    return np.concatenate(found)


def test_a_grid_has_room_for_the_canaries_of_a_cohort():
    """Their rows are summed as well: without room for them sums would wrap around."""
    alone, more = CohortSize(20, 400), CohortSize(20, 400, canaries=200)
    assert alone.likely_largest < 60 < 200 < more.likely_largest <= 400
    assert CohortSize(20, 24, canaries=200).likely_largest == 24
    steps = [
        SkellamNoise(noise_multiplier=2.0).resolved(replace(SETTING, cohort=cohort)).grid().step
        for cohort in (alone, more)
    ]
    assert steps[1] > 2 * steps[0]


@every_case("keys", [{"sizing": "minimum"}, {"sizing": "layers", "tolerance": 0.0}])
def test_no_share_below_three_steps_is_charged_as_gaussian(keys):
    """Of a cohort of the largest size, whose shares are the smallest."""
    noise = ClientShares(16, 16, 0.75)
    setting = replace(SETTING, cohort=CohortSize(20, 60), bits=14, noise=noise)
    proved = 0
    for z in np.geomspace(0.05, 30, 120):
        mechanism = DiscreteGaussianNoise(noise_multiplier=float(z), **keys).resolved(setting)
        if isinstance(mechanism._release(0.75, 1), Gaussian):
            proved, share = proved + 1, mechanism.share()
            assert (share.base(60) if isinstance(share, Layers) else share).variance >= 9
    assert proved


@every_case(
    ("kind", "keys"),
    [
        (SkellamNoise, {}),
        (DiscreteGaussianNoise, {}),
        (DiscreteGaussianNoise, {"adaptive_clip": True, "count_noise": 2.0}),
    ],
)
def test_what_is_not_bounded_by_the_clip_is_never_released(kind, keys):
    mechanism = kind(clip=0.5, noise_multiplier=2.0, **keys).resolved(SETTING)
    state, sums = mechanism.init(), torch.zeros(SETTING.length + bool(keys), dtype=torch.float64)
    for total in (sums, *(BoundedSum(sums, bound, 2) for bound in (0.4, math.inf, math.nan))):
        with pytest.raises(TypeError, match="BoundedSum"):
            mechanism.release(total, 1.0, Keys(None), state)


GONE = [Leaves.BEFORE_MASKING, Leaves.BEFORE_SHARING, Leaves.BEFORE_UNMASKING]


@pytest.mark.parametrize(
    ("kind", "cdf"), [(SkellamNoise, skellam_cdf), (DiscreteGaussianNoise, None)]
)
@pytest.mark.parametrize(
    ("gone", "arithmetic"),
    mostly_slow([(n, how) for n in range(3) for how in (False, True)], (0, True), (2, False)),
)
def test_with_layers_the_total_is_the_same_whoever_dropped(gone, arithmetic, kind, cdf):
    setting = replace(SETTING, cohort=CohortSize(8, 8), noise=ClientShares(1), bits=24)
    mechanism = kind(noise_multiplier=2.0, sizing="layers", tolerance=0.3).resolved(setting)
    leaves = [*GONE[:gone], *[Leaves.NEVER] * (8 - gone)]
    protocol = MaskedSums(threshold=0.3, bits=24)
    sample = summed(mechanism, leaves, 25, protocol=protocol, arithmetic=arithmetic, tolerance=0.3)
    variance = (2.0 * mechanism.clip / mechanism.grid().step) ** 2
    spread, cdf = 3 * math.sqrt(variance), cdf or (lambda v: gaussian_cdf(math.sqrt(v)))
    assert mechanism._variance() == pytest.approx(variance)
    assert fits(sample, cdf(variance), -spread, spread) > 1e-6
    assert fits(sample, cdf(variance * 6 / 8), -spread, spread) < 1e-6


@pytest.mark.parametrize("kind", [SkellamNoise, DiscreteGaussianNoise])
def test_sized_by_a_minimum_survivors_make_up_what_is_charged_or_more(kind):
    setting = replace(SETTING, cohort=CohortSize(8, 8), noise=ClientShares(6))
    mechanism = kind(noise_multiplier=2.0).resolved(setting)
    for gone in (0, 2):
        leaves = [*[Leaves.BEFORE_MASKING] * gone, *[Leaves.NEVER] * (8 - gone)]
        sample = summed(mechanism, leaves, 15, minimum=6)
        share = mechanism.grid().share
        spread = math.sqrt(8 - gone) * share
        statistic = (sample.astype(float) ** 2).sum() / spread**2
        tail = min(stats.chi2.cdf(statistic, len(sample)), stats.chi2.sf(statistic, len(sample)))
        assert tail > 1e-6
        charged = mechanism._release(1.0, 1).noise_multiplier * mechanism.grid().l2
        assert spread >= charged * (1 - 1e-9)
        if gone == 2:
            smoothed = SMOOTHED if kind is DiscreteGaussianNoise else 0.0
            assert charged == pytest.approx(spread * math.sqrt(1 - smoothed / share**2))
    with pytest.raises(Aborted):
        summed(mechanism, [*[Leaves.BEFORE_MASKING] * 3, *[Leaves.NEVER] * 5], 1, minimum=6)


def shares_make_up_what_is_charged(kind):
    """As many shares as are counted have the variance (z C)^2 of the event, exactly, in steps."""
    mechanism = kind(noise_multiplier=1.2, clip=0.5).resolved(SETTING)
    charged = mechanism.event(Full().of(20).witness(1, 20), 1).release
    variance, shares = mechanism.share().variance, SETTING.clients
    assert variance * shares.minimum == pytest.approx((1.2 * 0.5 / mechanism.grid().step) ** 2)
    smoothed = 0.0 if kind is SkellamNoise else SMOOTHED
    honest = shares.minimum * shares.honest * (variance - smoothed)
    assert variance_of(charged, mechanism.grid()) == pytest.approx(honest)


class FixedStep(DiscreteGaussianNoise):
    """Planted: steps do not follow the clip, so that rows grow in steps and noise does not."""

    def encoding(self, state):
        return replace(super().encoding(state), step=self.grid().step)


def each_clip_has_the_first_ones_event(kind):
    """In steps, rows and shares are those that are charged, whatever the clip has become."""
    mechanism = kind(noise_multiplier=1.2, adaptive_clip=True, count_noise=3.0).resolved(SETTING)
    charged = mechanism.event(Full().of(20).witness(1, 20), 1).release
    first, grid, shares = mechanism.init(), mechanism.grid(), SETTING.clients
    assert grid.length == 16 >= SETTING.length + 1, "the count is one more column"
    for clip in (0.02, float(first["clip"]), 9.0):
        state = {**first, "clip": torch.tensor(clip, dtype=torch.float64)}
        encoding = mechanism.encoding(state)
        bound = Codec(encoding.bound, encoding.step, grid.length, SETTING.bits).bound
        added = encoding.noise.variance * shares.minimum * shares.honest
        assert (charged.noise_multiplier * bound) ** 2 <= added, "more noise is charged"
        rows = torch.randn(3, SETTING.length) * 100 * clip
        bounded = mechanism.bound(rows, Layout((("delta", SETTING.length),)), Keys(None), state)
        assert bounded.bound == encoding.bound
        assert bounded.rows.norm(dim=1).max() <= encoding.bound


def test_an_adaptive_clip_changes_steps_and_no_event():
    each_clip_has_the_first_ones_event(DiscreteGaussianNoise)
    with pytest.raises(AssertionError, match="more noise"):
        each_clip_has_the_first_ones_event(FixedStep)
    mechanism = DiscreteGaussianNoise(noise_multiplier=1.2, adaptive_clip=True, count_noise=0.5)
    with pytest.raises(Refused, match="above half of the noise multiplier"):
        mechanism.resolved(SETTING).noise_on_update(20)
    with pytest.raises(Refused, match="adapts to the norms of one exchange"):
        mechanism.resolved(SETTING).event(Full().of(20).witness(1, 20), 2)
    assert not mechanism.with_clip(1.0).adaptive


def three_percent_low(monkeypatch, kind):
    real = kind.share

    def low(self):
        share = real(self)
        return replace(share, variance=0.94 * share.variance)

    monkeypatch.setattr(kind, "share", low)


@pytest.mark.parametrize("kind", [SkellamNoise, DiscreteGaussianNoise])
def test_shares_make_up_what_is_charged_and_less_is_noticed(kind, monkeypatch):
    shares_make_up_what_is_charged(kind)
    three_percent_low(monkeypatch, kind)
    with pytest.raises(AssertionError):
        shares_make_up_what_is_charged(kind)


def test_too_many_missing_for_the_layers_abort():
    setting = replace(SETTING, cohort=CohortSize(8, 8), noise=ClientShares(1, honest=0.75))
    mechanism = SkellamNoise(noise_multiplier=1.0, sizing="layers", tolerance=0.3).resolved(setting)
    leaves = [*[Leaves.BEFORE_MASKING] * 3, *[Leaves.NEVER] * 5]
    with pytest.raises(Aborted, match="too few clients sent"):
        summed(mechanism, leaves, 1, tolerance=0.3)


def test_a_client_unmasks_no_sum_of_fewer_survivors_than_its_noise_needs():
    """Whatever the server says: it knows how many there were, and what was promised."""
    codec = Codec.finest(1.0, 1.0, 4, 32, 9, 2.0**20)

    class Forging(Wire):
        def carry(self, client, data, upward):
            message = wire.decode(data)
            if isinstance(message, wire.Survivors):
                return wire.encode(replace(message, clients=message.clients[:6]))
            return data

    session = Session(1, 0, b"h" * 32, np.arange(9), streams=STREAMS)
    channel = MaskedChannel(
        session, codec, MaskedSums(threshold=0.4).policy(0), Limits(9, 8), wire=Forging()
    )
    for client in range(9):
        channel.send(client, np.ones(4, dtype=np.int64))
    with pytest.raises(Aborted):
        channel.total()
    assert any("fewer survivors than the noise" in fault for fault in channel.faults)


def test_arithmetic_draws_no_noise_for_a_sum_that_is_lost():
    """Of so few that a share of theirs could not be drawn: it aborts, as real ones do."""
    setting = replace(SETTING, cohort=CohortSize(20, 200), noise=ClientShares(1, 10, 0.75), bits=32)
    mechanism = SkellamNoise(noise_multiplier=2.0, sizing="layers", tolerance=0.5).resolved(setting)
    limits = Limits(200, 0, True, 0.5, 20)
    for protocol in (MaskedSums(threshold=0.5), MaskedSums(threshold=0.9)):
        summation = protocol.over(limits)
        session = Session(1, 0, b"h" * 32, np.arange(3), streams=STREAMS)
        with pytest.raises(Aborted, match="for the expected cohort"):
            summation.open(session, 16, mechanism.encoding(mechanism.init()))


class Telling(Wire):
    """Client 2 tells of layers what `change` makes of what it would."""

    def __init__(self, change):
        self.change = change

    def carry(self, client, data, upward):
        message = wire.decode(data)
        if client == 2 and isinstance(message, wire.Unmask):
            changed = replace(message, layers=self.change(message.layers))
            signature = client_identity(2).sign(changed.text)
            return wire.encode(replace(changed, signature=signature))
        return data


def layered(change, leaves=()):
    """A sum of eight clients with noise in layers, up to the end: its channel."""
    codec = Codec.finest(1.0, 1.0, 4, 32, 8, 2.0**20)
    session = Session(1, 0, b"h" * 32, np.arange(8), np.array(leaves), streams=STREAMS)
    policy, limits = MaskedSums(threshold=0.6).policy(0), Limits(8, tolerance=0.3)
    channel = MaskedChannel(session, codec, policy, limits, Layers(50.0, 0.3), wire=Telling(change))
    for client in range(8):
        channel.send(client, np.ones(4, dtype=np.int64))
    return channel, channel.total()[0].tolist()


def test_a_wrong_share_of_a_layer_is_left_out_and_who_told_it_is_named():
    honest, expected = layered(lambda layers: layers)
    lied, total = layered(lambda layers: [(who, at, value ^ 1) for who, at, value in layers])
    assert total == expected
    assert honest.server.culprits == ()
    assert [(each.client, each.reason) for each in lied.server.culprits] == [(2, "wrong share")]


def test_an_answer_with_a_share_of_a_layer_that_stays_is_refused():
    """With two of eight gone nobody loses a layer."""
    leaves = [*[Leaves.NEVER] * 6, Leaves.BEFORE_MASKING, Leaves.BEFORE_MASKING]
    _, expected = layered(lambda layers: layers, leaves)
    channel, total = layered(lambda layers: ((3, 1, 5), *layers), leaves)
    assert total == expected
    assert channel.faults == ["wrong shares: some shares open layers that survivors have to keep"]


@FULL
@every_case("colluders", [0, 3])
@every_case("waste", [0.0, WASTE, 0.3])
def test_layers_add_up_to_what_is_asked_for_and_waste_little(waste, colluders, full):
    """Whoever is gone or colludes: v at least of those who count, little more of all."""
    layers = Layers(100.0, 0.4, colluders, waste)
    for clients in (5, 7, 22, 50, 400 if full else 120):
        shares = [layers.layer(clients, k + 1) for k in range(layers.count(clients))]
        sums = np.cumsum([share.variance for share in (layers.base(clients), *shares)])
        alike = [layers.remaining(clients, staying).variance for staying in range(len(sums))]
        assert alike == pytest.approx(sums.tolist())
        before = np.zeros(clients)
        for gone in range(layers.most_dropouts(clients) + 1):
            staying = layers.keeping(clients, gone, range(gone, clients))
            left = np.sort([sums[staying[who]] for who in range(gone, clients)])
            counted = clients - gone - colluders
            assert left[:counted].sum() >= 100 * (1 - 1e-9), "those who lost most"
            assert left.sum() <= 100 * (clients - gone) / counted * (1 + waste + 1e-9)
            spare = left[:counted].sum() - 100
            assert spare < layers.layer(clients, 1).variance, "another could have lost a layer"
            now = np.array([staying.get(who, len(sums)) for who in range(clients)])
            assert (now >= before).all(), "whose layer goes with more gone goes with fewer"
            before = now
        assert layers.boundaries(clients)[-1] == max(layers.most_dropouts(clients), 0)


def test_layers_are_few_and_exact_ones_are_for_amplified_readers_alone():
    assert Layers(1.0, 0.2, 0, WASTE).boundaries(100) == (0, 20)
    assert [Layers(1.0, 0.2, 0, waste).boundaries(23) for waste in (WASTE, 0)] == [
        (0, 4),
        (0, 1, 3, 4),
    ]
    assert Layers(1.0, 0.3, 2, WASTE).boundaries(7) == (0, 1, 2), "a step of two wastes 16 %"
    for against, added, waste in (
        ("server", 1.0, WASTE),
        ("readers", 1.0, 0),
        ("readers", 0.9, WASTE),
    ):
        setting = replace(SETTING, against=against, noise=ClientShares(16, added=added))
        mechanism = SkellamNoise(noise_multiplier=2.0, sizing="layers").resolved(setting)
        assert mechanism.share().waste == waste


def test_encoding_is_right_on_average_on_a_coarse_grid():
    setting = replace(SETTING, bits=9, cohort=CohortSize(10, 10), noise=ClientShares(8))
    mechanism = SkellamNoise(noise_multiplier=0.5).resolved(setting)
    summation = MaskedSums(bits=9, threshold=0.3).over(Limits(10, 0, True))
    rows = torch.nn.functional.normalize(torch.randn(10, 10), dim=1) * 0.3
    encoding, state, found = mechanism.encoding(mechanism.init()), mechanism.init(), []
    for round in range(300):
        streams = Streams(round, simulated=True)
        session = Session(round, 0, b"", np.arange(10), streams=streams)
        accumulator = summation.open(session, 16, encoding)
        accumulator.add(np.arange(10), mechanism.bound(rows, None, Keys(None), state))
        released, state = mechanism.release(accumulator.close(), 1.0, Keys(None), state)
        found.append(released.numpy())
    found = np.array(found)
    error = found.mean(0) - rows.sum(0).numpy()
    std = found.std(0) / math.sqrt(len(found))
    assert np.abs(error / std).max() < 5
