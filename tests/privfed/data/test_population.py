"""Populations: every example once, the test set apart, partitions with the right limits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from numbered import Numbered, numbered

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Federation
from privfed.data.partitions.basic import Iid, Natural
from privfed.data.partitions.label_skew import Dirichlet
from privfed.data.population import populate
from privfed.data.sources.digits import Digits
from privfed.data.sources.synthetic import Synthetic
from privfed.run.check import check

STREAMS = Streams(5)


def owned(federation, client):
    start, end = federation.offsets[client : client + 2]
    return federation.examples.x[start:end, 0].tolist()


@settings(max_examples=40)
@given(
    clients=st.integers(1, 60),
    concentration=st.one_of(st.none(), st.floats(1e-3, 1e3)),
    holdout=st.floats(0.05, 0.9),
    seed=st.integers(0, 99),
)
def test_every_example_has_one_place_and_the_test_set_belongs_to_nobody(
    clients, concentration, holdout, seed
):
    partition = Iid() if concentration is None else Dirichlet(concentration=concentration)
    federation = populate(Numbered(), partition, clients, holdout, Streams(seed))
    train = [number for client in range(clients) for number in owned(federation, client)]
    test = federation.test.x[:, 0].tolist()
    assert sorted(train + test) == list(range(200))
    assert federation.clients == clients
    sizes = federation.sizes(np.arange(clients))
    assert sizes.max() - sizes.min() <= 1
    labels = numbered(200).y
    for part in (federation.examples, federation.test):
        assert torch.equal(part.y, labels[part.x[:, 0].long()]), "labels lost their examples"


def label_shares(federation, classes):
    shares = []
    for client in range(federation.clients):
        start, end = federation.offsets[client : client + 2]
        counts = np.bincount(federation.examples.y[start:end].numpy(), minlength=classes)
        shares.append(counts / max(counts.sum(), 1))
    return np.array(shares)


def test_dirichlet_runs_from_one_label_each_to_iid():
    examples, streams = numbered(4000), STREAMS

    def most_common_share(partition):
        owners = partition.owners(examples, 40, streams)
        federation = Federation.of(examples, owners, 40, examples)
        return label_shares(federation, 4).max(axis=1).mean()

    iid = most_common_share(Iid())
    assert most_common_share(Dirichlet(concentration=1e5)) == pytest.approx(iid, abs=0.05)
    middle = most_common_share(Dirichlet(concentration=0.5))
    extreme = most_common_share(Dirichlet(concentration=1e-4))
    assert iid + 0.1 < middle < extreme
    assert extreme > 0.93


def test_a_partition_follows_the_seed_and_nothing_else():
    examples = numbered(300)
    for partition in (Iid(), Dirichlet(concentration=0.3)):
        first = partition.owners(examples, 20, Streams(1))
        np.testing.assert_array_equal(first, partition.owners(examples, 20, Streams(1)))
        assert not np.array_equal(first, partition.owners(examples, 20, Streams(2)))


def test_grouping_by_owner_keeps_examples_and_empty_clients():
    examples = numbered(6)
    federation = Federation.of(examples, np.array([3, 0, 3, 1, 0, 3]), 5, examples)
    assert federation.offsets.tolist() == [0, 2, 3, 3, 6, 6]
    assert owned(federation, 3) == [0.0, 2.0, 5.0]
    assert owned(federation, 4) == []


def test_digits_are_the_real_images():
    examples = Digits().load(10, STREAMS)
    assert examples.x.shape == (1797, 64)
    assert (examples.x.min(), examples.x.max()) == (-0.5, 0.5)
    assert np.bincount(examples.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_over_clients_without_a_natural_partition_are_refused():
    with pytest.raises(Refused, match="natural"):
        populate(Digits(), Natural(), 5, 0.2, STREAMS)


@pytest.mark.parametrize("fraction", [1e-6, 1 - 1e-9])
def test_a_split_that_leaves_nothing_is_refused(fraction):
    with pytest.raises(Refused, match="holdout_fraction"):
        populate(Numbered(), Iid(), 5, fraction, STREAMS)


def test_synthetic_clients_keep_their_own_data():
    source = Synthetic(size_min=5, size_mean=1.0, size_std=0.5)
    examples = source.load(30, STREAMS)
    assert examples.x.shape == (len(examples), 60)
    assert set(examples.owners) == set(range(30))
    more = source.load(31, STREAMS)
    ours, theirs = examples.x[examples.owners == 7], more.x[more.owners == 7]
    torch.testing.assert_close(ours, theirs)
    federation, fewer = (populate(source, Natural(), n, 0.2, STREAMS) for n in (30, 29))
    assert federation.clients == 30
    end = federation.offsets[29]
    assert torch.equal(federation.examples.x[:end], fewer.examples.x), "a client changed others"


def test_synthetic_tests_on_further_clients_and_on_no_example_that_trains():
    source = Synthetic(size_min=5, size_mean=1.0, size_std=0.5)
    federation = populate(source, Natural(), 30, 0.2, STREAMS)
    train = {tuple(row) for row in federation.examples.x.tolist()}
    assert len(train) == len(source.load(30, STREAMS))
    assert not train & {tuple(row) for row in federation.test.x.tolist()}
    assert set(federation.test.owners) == set(range(6))


def test_a_source_that_knows_owners_is_never_split_into_a_public_test_set():
    class Owned(Numbered):
        def load(self, clients, streams):
            return replace(numbered(200), owners=np.arange(200) % clients)

    with pytest.raises(Refused, match="states the owners of examples"):
        populate(Owned(), Natural(), 5, 0.2, STREAMS)


def fitted_accuracy(train, test, classes):
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(train[1])) < 2:
        return float(np.mean(test[1] == train[1][0]))
    return float(LogisticRegression(max_iter=300).fit(*train).score(*test))


@pytest.mark.slow
def test_synthetic_alpha_sets_how_much_the_clients_models_differ():
    """A model fitted to one client fits another in the IID variant, and not at alpha = 2."""

    def transfer(**changes):
        source = Synthetic(size_min=400, size_mean=0.0, size_std=0.0, features=20, **changes)
        examples = source.load(6, STREAMS)
        parts = [
            (examples.x[examples.owners == k].numpy(), examples.y[examples.owners == k].numpy())
            for k in range(6)
        ]
        return np.mean([fitted_accuracy(parts[k], parts[k + 1], 10) for k in range(5)])

    assert transfer(iid=True) > 0.75
    assert transfer(alpha=2.0, beta=0.0) < 0.5


def test_synthetic_beta_sets_how_much_the_clients_data_differ():
    def spread(beta):
        source = Synthetic(beta=beta, size_min=50, size_mean=0.0, size_std=0.0)
        examples = source.load(60, STREAMS)
        means = [examples.x[examples.owners == k].mean() for k in range(60)]
        return float(np.std(means))

    assert spread(3.0) > 2 * spread(0.5)


@every_case("how", ["data.source=synthetic", "data.source=digits", "aggregation.root=9"])
def test_a_check_takes_no_longer_for_however_many_made_up_clients(monkeypatch, how):
    """None of a hundred million is made: a few stand for all, at the sizes that are expected."""
    made, whole = [], Synthetic._sizes
    monkeypatch.setattr(
        Synthetic, "_sizes", lambda self, rng, n: made.append(n) or whole(self, rng, n)
    )
    keys = ["data.source=synthetic", "privacy.noise_multiplier=1.0", how]
    keys += ["aggregation.rule=fltrust", "privacy.mechanism=none"] if "root" in how else []
    keys = keys if "root" not in how else [k for k in keys if "noise" not in k]
    found = check(load(None, [*keys, "data.clients=100000000", "cohort.size=100"]))
    assert sum(made) <= 512
    assert found.forecast.empty < 1e-40
    if "digits" not in how:
        assert found.forecast.examples == Synthetic().load(1, STREAMS).typical


def test_the_size_that_is_expected_of_a_client_is_that_of_many():
    source = Synthetic(size_std=1.0)
    sizes = source._sizes(np.random.default_rng(0), 200_000)
    assert source.load(1, STREAMS).typical == pytest.approx(sizes.mean(), rel=0.01)
