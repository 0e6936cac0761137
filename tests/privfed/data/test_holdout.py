"""What models are scored on belongs to nobody that the guarantee covers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import rows_of, trainer
from lanes import every_case
from numbered import Numbered, numbered

from privfed.client.exchange import Exchange
from privfed.client.executor import LocalExecutor
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.core.vector import Layout
from privfed.data.federation import Examples, client_number
from privfed.data.holdout import held_out
from privfed.data.partitions.basic import Iid, Natural
from privfed.data.partitions.label_skew import Dirichlet, Shards
from privfed.data.population import populate
from privfed.models.recipes import Logistic
from privfed.sampling.cohort import Cohort, Witness

STREAMS = Streams(5)


def owned(names, size=6):
    """Clients called `names` with `size` examples each, whose feature is their client's name."""
    x = torch.tensor([float(client_number(name) % 10**6) for name in names for _ in range(size)])
    y = torch.arange(len(x)) % 3
    return Examples(x[:, None], y, 3, np.repeat(np.arange(len(names)), size), tuple(names))


class Source:
    natural_partition = True
    holds_real_clients = True

    def __init__(self, pool, test=None):
        self.pool, self.test = pool, test

    def load(self, clients, streams):
        return self.pool

    def load_test(self, clients, streams):
        return self.test


NAMES = [f"client {n}" for n in range(60)]


def test_public_clients_are_excluded_whole_and_named():
    federation = populate(Source(owned(NAMES)), Natural(), 50, 0.3, STREAMS, "clients")
    public, train = set(federation.public), set(federation.examples.clients)
    assert public | train == set(NAMES)
    assert not public & train
    assert 8 <= len(public) <= 28
    assert federation.clients == len(train)
    assert not set(federation.test.x.flatten().tolist()) & set(
        federation.examples.x.flatten().tolist()
    )
    assert federation.typical == 6.0


def test_who_is_public_and_who_shuffles_how_depends_on_nobody_else():
    """Removing one client must change neither another's side nor another's randomness."""
    whole = populate(Source(owned(NAMES)), Natural(), 50, 0.3, STREAMS, "clients")
    removed = whole.examples.clients[3]
    rest = [name for name in NAMES if name != removed]
    without = populate(Source(owned(rest)), Natural(), 50, 0.3, STREAMS, "clients")
    assert without.public == whole.public

    def own(federation):
        numbers = federation.identify(np.arange(federation.clients))
        return dict(zip(federation.examples.clients, numbers.tolist(), strict=True))

    before, after = own(whole), own(without)
    assert before.pop(removed) not in after.values()
    assert before == after
    assert len(set(before.values())) == len(before)


def test_a_clients_shuffling_follows_its_name_whoever_else_there_is():
    """Through the executor: the same client sends the same row in a smaller population."""

    def rows(names):
        source = Source(owned(names), owned(["x"]))
        population = populate(source, Natural(), 60, 0.3, STREAMS, "test")
        local = replace(trainer(population, model=Logistic(), shape=(1,)), batch_size=2)
        executor = LocalExecutor(local, STREAMS, 8, by_examples=False)
        ids = np.arange(population.clients)
        cohort = Cohort(1, ids, 1.0, Witness("poisson", 1.0, "add/remove"))
        exchange = Exchange(
            "train", {"params": local.network.initial_params}, Layout((("delta", 6),))
        )
        found = rows_of(executor, exchange, cohort)
        return dict(zip(population.examples.clients, found, strict=True))

    everybody, fewer = rows(NAMES), rows([n for n in NAMES if n != "client 3"])
    for name, row in fewer.items():
        torch.testing.assert_close(row, everybody[name], rtol=1e-5, atol=1e-7)


def test_what_is_typical_follows_from_what_is_public():
    split = populate(Numbered(), Iid(), 10, 0.25, STREAMS)
    assert split.typical == pytest.approx(len(split.test) * 3 / 10)
    uneven = replace(owned(NAMES), owners=np.sort(np.arange(360) % 59))
    held = held_out(uneven, None, "clients", 0.3, 5, STREAMS)
    assert held.typical == len(held.test) / len(np.unique(held.test.owners))


def test_examples_held_out_of_clients_that_train_cover_each_of_them():
    federation = populate(Source(owned(NAMES, 20)), Natural(), 60, 0.25, STREAMS, "examples")
    assert federation.clients == 60
    assert len(federation.test) + len(federation.examples) == 1200
    assert 200 < len(federation.test) < 400
    assert len(set(federation.test.x.flatten().tolist())) > 50


def test_a_public_test_file_that_holds_clients_who_train_is_refused():
    with pytest.raises(Refused, match="1 clients of the test set also train") as refused:
        populate(Source(owned(NAMES), owned(["client 7", "x"])), Natural(), 5, 0.2, STREAMS)
    assert "client 7" in refused.value.private
    assert "client 7" not in str(refused.value)
    fine = populate(Source(owned(NAMES), owned(["x", "y"])), Natural(), 60, 0.2, STREAMS)
    assert len(fine.test) == 12
    assert fine.clients == 60


@every_case(
    "pool, holdout, fraction, message",
    [
        (owned(NAMES), "test", 0.2, "states the owners of examples"),
        (numbered(20), "clients", 0.2, "does not state the owner"),
        (owned(["only"]), "clients", 0.5, "one has to be held out and one to train"),
        (owned(NAMES), "examples", 1e-9, "none to test"),
    ],
)
def test_a_holdout_that_is_not_public_or_leaves_nothing_is_refused(
    pool, holdout, fraction, message
):
    with pytest.raises(Refused, match=message):
        held_out(pool, None, holdout, fraction, 5, STREAMS)


def test_natural_clients_may_be_more_or_fewer_than_declared():
    for declared in (3, 60, 1000):
        federation = populate(Source(owned(NAMES)), Natural(), declared, 0.5, STREAMS, "examples")
        assert federation.clients == 60


def test_an_empty_client_stays_a_client():
    pool = owned(NAMES[:4])
    kept = replace(pool.take(np.flatnonzero(pool.owners != 2)), clients=pool.clients)
    federation = populate(Source(kept, owned(["x"])), Natural(), 4, 0.5, STREAMS)
    assert federation.sizes(np.arange(4)).tolist() == [6, 6, 0, 6]


def sizes(partition, clients=50, count=5000):
    owners = partition.owners(numbered(count), clients, STREAMS)
    return np.bincount(owners, minlength=clients), owners


def test_sizes_follow_a_power_law():
    for partition in (Iid(size_exponent=1.2), Dirichlet(size_exponent=1.2, concentration=0.5)):
        found, _ = sizes(partition)
        ordered = np.sort(found)[::-1]
        slope = np.polyfit(np.log(np.arange(1, 31)), np.log(ordered[:30]), 1)[0]
        assert slope == pytest.approx(-1.2, abs=0.05)
        assert found.sum() == 5000
        assert np.argmax(found) != 0, "who is largest is drawn by chance"
    equal, _ = sizes(Iid())
    assert equal.max() - equal.min() <= 1


def test_shards_give_each_client_few_labels():
    found, owners = sizes(Shards(shards=2))
    assert found.max() - found.min() <= 2
    labels = numbered(5000).y.numpy()
    distinct = [len(np.unique(labels[owners == k])) for k in range(50)]
    assert max(distinct) <= 4
    assert np.mean(distinct) < 2.5
    many = [len(np.unique(labels[sizes(Shards(shards=100))[1] == k])) for k in range(50)]
    assert np.mean(many) == 4


def test_partitions_by_class_refuse_what_has_none():
    examples = Examples(torch.zeros(4, 1), torch.zeros(4, 2), 2)
    for partition in (Shards(), Dirichlet()):
        with pytest.raises(Refused, match="assigns examples by class"):
            partition.owners(examples, 2, STREAMS)
