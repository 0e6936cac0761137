"""At which sites clients are: made up by the seed, or as a column says; entries, and refusals."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from lanes import every_case
from numbered import Numbered, numbered

import privfed
from privfed.config.population_identity import population_identity
from privfed.config.reading import load as load_run
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation, client_number
from privfed.data.partitions.basic import Iid, Natural, Shuffled
from privfed.data.partitions.label_skew import Shards
from privfed.data.partitions.shift import Covariate
from privfed.data.population import populate
from privfed.data.sites import Sites
from privfed.data.sources.table import GivenTable, Table
from privfed.data.sources.text import Text
from privfed.data.tables.readable import TableObject
from privfed.run.population import load_population, load_representatives

STREAMS = Streams(5)
HOLDS = pd.DataFrame(
    {
        "patient": ["ann", "bob", "ann", "cid", "bob", "dan", "eve", "cid"],
        "hospital": ["north", "south", "north", "east", "south", "east", "north", "east"],
        "x": np.arange(8) / 8,
        "ill": [0, 1] * 4,
    }
)
"""Who has rows where: each at one hospital."""
MOVED = HOLDS.assign(hospital=["north", "south", "south", "east", "south", "east", "north", "west"])
"""The same, with ann and cid at two hospitals each."""
KEYS = {
    "client": "patient",
    "site": "hospital",
    "label": "ill",
    "classes": 2,
    "features": {"x": [0.0, 1.0]},
}


def given(frame=HOLDS, test=None, **changes):
    public = None if test is None else TableObject(test, "the test table")
    return GivenTable.of(TableObject(frame, "the table"), public)(**{**KEYS, **changes})


def csv(tmp_path, frame=HOLDS, **changes):
    frame.to_csv(tmp_path / "stays.csv", index=False)
    return Table(path=str(tmp_path / "stays.csv"), **{**KEYS, **changes})


class Everything:
    """A source that has its test set apart, so that all of a table trains."""

    natural_partition = True
    holds_real_clients = True

    def __init__(self, source):
        self.source = source

    def load(self, clients, streams):
        return self.source.load(clients, streams)

    def load_test(self, clients, streams):
        return numbered(3)


def housed(source, sites, holdout="test", partition=None, seed=5):
    partition = partition or Natural()
    return populate(Everything(source), partition, 4, 0.4, Streams(seed), holdout, sites=sites)


def assigned(sites, clients=60, partition=None, source=None, seed=5, **more):
    return populate(
        source or Numbered(), partition or Iid(), clients, 0.2, Streams(seed), sites=sites, **more
    )


def rows_of(federation):
    """Where each row is: its feature -> (client's place, site)."""
    ids = np.arange(federation.clients)
    persons = ids if federation.persons is None else federation.persons
    entry = np.repeat(ids, federation.sizes(ids))
    x = federation.examples.x[:, 0].tolist()
    return dict(zip(x, zip(persons[entry], federation.sites[entry], strict=True), strict=True))


@every_case("clients, count", [(60, 7), (60, 1), (3, 10)])
def test_sites_of_even_size_differ_by_one_client_at_most(clients, count):
    federation = assigned(Sites(count), clients)
    held = np.bincount(federation.sites, minlength=count)
    assert len(held) == count
    assert held.max() - held.min() <= 1
    assert held.sum() == federation.clients == federation.population_size == clients
    assert federation.persons is None


def test_who_is_at_a_site_of_even_size_is_drawn_by_chance():
    first, again, other = (assigned(Sites(4), seed=seed).sites for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert len({tuple(np.diff(np.flatnonzero(first == site))) for site in range(4)}) > 1


def test_sites_by_size_hold_shares_that_fall_off():
    """Shares 1, 1/2, 1/3, 1/4 of 40,000 clients; a deviation is below 100 clients."""
    federation = assigned(Sites(4, partition="size"), 40_000)
    expected = 40_000 / np.arange(1, 5) / (1 / np.arange(1, 5)).sum()
    np.testing.assert_allclose(np.bincount(federation.sites), expected, atol=500)
    fewer = assigned(Sites(4, partition="size"), 100)
    np.testing.assert_array_equal(fewer.sites, federation.sites[:100], "others moved a client")


def label_shares(federation, count):
    shares = np.zeros((count, 4))
    owners = np.repeat(np.arange(federation.clients), np.diff(federation.offsets))
    np.add.at(shares, (federation.sites[owners], federation.examples.y.numpy()), 1)
    return shares / np.maximum(shares.sum(1, keepdims=True), 1)


def test_sites_by_label_differ_in_labels_and_even_ones_do_not():
    class Many(Numbered):
        def load(self, clients, streams):
            return numbered(8000)

    pure = Shards(shards=1)  # so that a client's label is that of all its examples
    spread = {}
    for rule in ("even", "label"):
        federation = assigned(Sites(5, partition=rule), 400, pure, Many())
        spread[rule] = label_shares(federation, 5).std(axis=0).mean()
    assert spread["even"] < 0.08
    assert spread["label"] > 0.15


def test_the_most_frequent_label_decides_and_the_least_of_several():
    """Who holds some of another label is where it would be without; a client of none holds 0."""
    owners = np.array([0, 0, 0, 1, 1, 1, 2, 2, 4, 4, 4, 4, 4])
    mixed, pure = ([1, 1, 0, 0, 0, 1, 1, 0, 2, 1, 1, 2, 2], [1] * 3 + [0] * 5 + [2] * 5)

    def at(labels):
        class Labelled(Numbered):
            natural_partition = True

            def load(self, clients, streams):
                x = torch.arange(13.0)[:, None]
                return Examples(x, torch.tensor(labels), 3, owners, tuple("abcde"))

            def load_test(self, clients, streams):
                return numbered(3)

        return assigned(Sites(1000, partition="label"), 5, Natural(), Labelled()).sites.tolist()

    assert at(mixed) == at(pure)
    other = at([1 - label if label < 2 else 0 for label in pure])
    assert [a != b for a, b in zip(at(pure), other, strict=True)] == [True, True, True, False, True]


def test_sites_by_label_are_refused_where_examples_have_no_class_each():
    class Several(Numbered):
        def load(self, clients, streams):
            return replace(numbered(200), y=torch.zeros(200, 3), classes=3)

    with pytest.raises(Refused, match=r'site_partition is "label".*use "even" or "size"'):
        assigned(Sites(3, partition="label"), source=Several())
    assert assigned(Sites(3), source=Several()).clients == 60


@every_case("rule", ["even", "size", "label"])
def test_sites_change_nobodys_examples_nor_who_is_who(rule):
    plain, sited = assigned(Sites(0)), assigned(Sites(7, partition=rule))
    assert torch.equal(plain.examples.x, sited.examples.x)
    assert torch.equal(plain.test.x, sited.test.x)
    np.testing.assert_array_equal(plain.offsets, sited.offsets)
    assert plain.sites is None
    assert sited.identities is None


@every_case("rule", ["even", "size", "label"])
@every_case("several", [2, 5])
def test_a_made_up_client_is_at_so_many_different_sites(rule, several):
    plain = assigned(Sites(0), 50)
    federation = assigned(Sites(5, several, rule), 50)
    assert federation.clients == 50 * several
    assert federation.population_size == 50
    np.testing.assert_array_equal(federation.persons, np.repeat(np.arange(50), several))
    at = federation.sites.reshape(50, several)
    assert (np.diff(at, axis=1) > 0).all(), "a client is twice at a site"
    assert at.min() >= 0
    assert at.max() < 5
    assert len(set(federation.identify(np.arange(federation.clients)).tolist())) == 50 * several
    whose = {x: person for x, (person, _) in rows_of(federation).items()}
    owners = np.repeat(np.arange(50), np.diff(plain.offsets))
    assert whose == dict(zip(plain.examples.x[:, 0].tolist(), owners, strict=True))
    assert federation.typical == plain.typical / several


def test_a_made_up_clients_examples_are_dealt_to_its_sites_by_chance():
    federation = assigned(Sites(6, 3), 2, Iid())
    sizes = federation.sizes(np.arange(6)).reshape(2, 3)
    assert sizes.sum(1).tolist() == [80, 80]
    assert sizes.min() > 10
    alone = assigned(Sites(6, 3), 160, Iid())
    assert (alone.sizes(np.arange(480)) == 0).any(), "an entry may hold nothing"


def test_the_further_sites_are_uniform_over_all_others():
    """All ten pairs of five sites, of 4,000 clients: 400 each, give or take 19."""
    federation = assigned(Sites(5, 2), 4000)
    pairs, counts = np.unique(federation.sites.reshape(-1, 2), axis=0, return_counts=True)
    assert len(pairs) == 10
    np.testing.assert_allclose(counts, 400, atol=100)


class Named(Numbered):
    natural_partition = True

    def __init__(self, names):
        self.names = names

    def load(self, clients, streams):
        """Nine examples of each, whose feature is their client's name and their place."""
        numbers = [client_number(name) % 10**6 + n / 16 for name in self.names for n in range(9)]
        owners = np.repeat(np.arange(len(self.names)), 9)
        y = torch.tensor([client_number(name) % 4 for name in self.names for _ in range(9)])
        x = torch.tensor(numbers, dtype=torch.float64)[:, None]
        return Examples(x, y, 4, owners, tuple(self.names))

    def load_test(self, clients, streams):
        return numbered(3)


@pytest.mark.parametrize("rule", ["size", "label"])
def test_where_a_named_client_and_its_rows_are_depends_on_nobody_else(rule):
    names = [f"n{k}" for k in range(30)]

    def placed(names):
        federation = assigned(Sites(6, 2, rule), 30, Natural(), Named(names))
        ids = np.arange(federation.clients)
        entry = np.repeat(ids, federation.sizes(ids))
        number = federation.identify(ids)[entry]
        rows = zip(number, federation.sites[entry], strict=True)
        return dict(zip(federation.examples.x[:, 0].tolist(), rows, strict=True))

    everybody, fewer = placed(names), placed(names[:4] + names[5:])
    assert len(everybody) == 270
    assert len(fewer) == 261
    assert fewer.items() <= everybody.items()


def test_speakers_of_a_play_are_dealt_to_sites(tmp_path):
    text = "".join(f"P{k}:\n{'so it goes ' * (k + 1)}\n\n" for k in range(12)) + "SILENT:\n\n"
    (tmp_path / "play.txt").write_text(text)
    source = Text(path=str(tmp_path / "play.txt"), window=10)
    whole, sited = (
        populate(source, Natural(), 13, 0.3, STREAMS, "clients", sites=sites)
        for sites in (Sites(0), Sites(3))
    )
    assert sited.public == whole.public
    np.testing.assert_array_equal(sited.identities, whole.identities)
    np.testing.assert_array_equal(sited.offsets, whole.offsets)
    held = np.bincount(sited.sites, minlength=3)
    assert held.sum() == len(sited.examples.clients)
    assert held.max() - held.min() <= 1
    with pytest.raises(Refused, match="have no class labels"):
        populate(source, Natural(), 13, 0.3, STREAMS, "clients", sites=Sites(3, 1, "label"))


@pytest.mark.parametrize("kind", ["csv", "given"])
def test_a_column_says_at_which_site_a_client_is(tmp_path, kind):
    source = csv(tmp_path) if kind == "csv" else given()
    federation = housed(source, Sites(5))
    assert federation.examples.site_names == ("east", "north", "south")
    assert federation.examples.clients == ("ann", "bob", "cid", "dan", "eve")
    assert federation.sites.tolist() == [1, 2, 0, 0, 1]
    assert federation.persons is None
    assert federation.identities.tolist() == [
        client_number(n) for n in ["ann", "bob", "cid", "dan", "eve"]
    ]
    for entry in range(5):
        rows = slice(*federation.offsets[entry : entry + 2])
        assert set(federation.examples.sites[rows]) == {federation.sites[entry]}
        assert set(federation.examples.owners[rows]) == {entry}


@pytest.mark.parametrize("kind", ["csv", "given"])
def test_a_client_at_two_sites_has_an_entry_at_each(tmp_path, kind):
    source = csv(tmp_path, MOVED) if kind == "csv" else given(MOVED)
    federation = housed(source, Sites(4, 2))
    names = federation.examples.clients
    places = [(names[p], s) for p, s in zip(federation.persons, federation.sites, strict=True)]
    east, north, south, west = range(4)
    assert places == [
        ("ann", north),
        ("ann", south),
        ("bob", south),
        ("cid", east),
        ("cid", west),
        ("dan", east),
        ("eve", north),
    ]
    assert (federation.clients, federation.population_size) == (7, 5)
    assert len(set(federation.identities.tolist())) == 7
    x = (federation.examples.x[:, 0] + 1) / 2
    assert x.tolist() == [row / 8 for row in (0, 2, 1, 4, 3, 7, 5, 6)]
    owners = np.repeat(np.arange(7), np.diff(federation.offsets))
    np.testing.assert_array_equal(federation.examples.owners, federation.persons[owners])
    np.testing.assert_array_equal(federation.examples.sites, federation.sites[owners])


def test_who_else_there_is_changes_no_entrys_number():
    fewer = MOVED[MOVED.patient != "bob"]
    whole, without = (housed(given(frame), Sites(4, 2)) for frame in (MOVED, fewer))
    bob = whole.persons == 1
    np.testing.assert_array_equal(whole.identities[~bob], without.identities)
    pairs = MOVED.assign(patient=MOVED.patient + " at", hospital="x")
    other = housed(given(pairs), Sites(4, 2))
    assert not {*other.identities.tolist()} & {*whole.identities.tolist()}


def test_clients_held_out_leave_the_others_at_their_sites():
    whole = housed(given(MOVED), Sites(4, 2))
    names = whole.examples.clients
    expected = {
        (names[person], site) for person, site in zip(whole.persons, whole.sites, strict=True)
    }
    for seed in range(4):
        source = given(MOVED)
        split = populate(source, Natural(), 4, 0.4, Streams(seed), "clients", sites=Sites(4, 2))
        left = split.examples.clients
        places = {(left[p], s) for p, s in zip(split.persons, split.sites, strict=True)}
        assert places == {(name, site) for name, site in expected if name in left}
        assert split.public
        assert not {*split.public} & {*left}
        owners = np.repeat(np.arange(split.clients), np.diff(split.offsets))
        np.testing.assert_array_equal(split.examples.sites, split.sites[owners])
        pairs = {*zip(split.test.owners.tolist(), split.test.sites.tolist(), strict=True)}
        assert split.typical == len(split.test) / len(pairs)


def test_a_client_whose_examples_are_all_scored_on_keeps_its_sites():
    whole = housed(given(MOVED), Sites(4, 2))
    empty = 0
    for seed in range(3):
        source = given(pd.concat([MOVED, MOVED]))
        split = populate(source, Natural(), 4, 0.6, Streams(seed), "examples", sites=Sites(4, 2))
        np.testing.assert_array_equal(split.sites, whole.sites)
        np.testing.assert_array_equal(split.persons, whole.persons)
        owners = np.repeat(np.arange(split.clients), np.diff(split.offsets))
        np.testing.assert_array_equal(split.examples.sites, split.sites[owners])
        empty += int((split.sizes(np.arange(7)) == 0).sum())
    assert empty > 0


def test_a_test_table_and_one_to_predict_for_may_lack_the_column_of_sites():
    bare = HOLDS.drop(columns=["patient", "hospital"]).assign(x=0.5)
    source = given(test=bare)
    federation = populate(source, Natural(), 4, 0.2, STREAMS, sites=Sites(3))
    assert federation.test.sites is None
    assert len(federation.test) == 8
    unlabelled = given(HOLDS.drop(columns=["hospital", "ill"])).load_inputs()
    assert unlabelled.sites is None
    assert unlabelled.clients == ("ann", "bob", "cid", "dan", "eve")


def test_a_pattern_never_means_the_column_of_sites():
    numbers = HOLDS.assign(hospital=[1, 2, 1, 3, 2, 3, 1, 3])
    examples = given(numbers, features={"*": [0.0, 1.0]}).load(4, STREAMS)
    assert examples.x.shape == (8, 1)
    assert examples.site_names == ("1", "2", "3")


REFUSED = {
    "sites that are not declared": (
        HOLDS,
        Sites(0),
        "data.sites is 0.*set data.sites",
        "north",
    ),
    "more than declared": (HOLDS, Sites(2), "data.sites is 2", "there are 3: 'east'"),
    "a client at two": (MOVED, Sites(4), "data.sites_per_client is 1, but", "'ann' has rows at"),
    "sites that would be made up": (
        HOLDS,
        Sites(3, 1, "size"),
        "states the site of each row",
        None,
    ),
    "an empty cell": (
        HOLDS.assign(hospital=HOLDS.hospital.where(HOLDS.index != 3)),
        Sites(4),
        "row 4: the site column 'hospital' is empty",
        None,
    ),
    "a site but for blanks": (
        HOLDS.assign(hospital=HOLDS.hospital.where(HOLDS.index != 3, "north ")),
        Sites(4),
        "row 4: the site column 'hospital' holds.*one name for the site",
        "'north '",
    ),
}


@every_case("case", REFUSED)
def test_what_is_not_as_declared_is_refused_and_names_stay_private(case):
    frame, sites, message, private = REFUSED[case]
    with pytest.raises(Refused, match=message) as refused:
        housed(given(frame), sites)
    if private and sites.count:
        assert private in refused.value.private
    said = str(refused.value)
    assert not any(word in said for word in ("north", "south", "east", "west", "ann", "cid "))
    assert "there are 3" not in said


def test_a_client_at_more_sites_than_declared_is_refused_whatever_trains():
    everywhere = MOVED.assign(patient="ann")
    with pytest.raises(Refused, match="sites_per_client is 3"):
        housed(given(everywhere), Sites(4, 3))
    assert housed(given(everywhere), Sites(4, 4)).population_size == 1


@pytest.mark.parametrize("partition", [Iid(), Shuffled()])
def test_rows_whose_site_is_known_are_not_dealt_to_others(partition):
    with pytest.raises(Refused, match="the rows are partitioned over synthetic clients"):
        housed(given(), Sites(3), partition=partition)


def test_a_source_that_knows_sites_and_no_clients_is_refused():
    class Bare(Numbered):
        def load(self, clients, streams):
            return replace(numbered(200), sites=np.arange(200) % 3)

    class Odd(Iid):
        assigns = False

    for partition in (Iid(), Odd()):
        with pytest.raises(Refused, match="partitioned over synthetic clients"):
            assigned(Sites(3), source=Bare(), partition=partition)


@every_case(
    "changes, message",
    [
        ({"site": "patient"}, "'patient' is both the site column and the client column"),
        ({"site": "ill"}, "'ill' is both the site column and the label"),
        ({"site": "x"}, "'x' is the site column, but is also a feature"),
        (
            {"categories": {"hospital": ["north"]}},
            "'hospital' is the site column, but is also a feature",
        ),
        ({"client": ""}, "no column names each row's client.*name the client column"),
    ],
)
def test_a_site_column_that_is_another_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        given(**changes)


def test_a_column_of_sites_that_is_not_there_is_refused():
    with pytest.raises(Refused, match="site names 'hospitl', but the table has no such column"):
        given(site="hospitl").load(4, STREAMS)


@every_case(
    "settings, message",
    [
        (["data.sites_per_client=2"], "sites_per_client is 2, but sites is 0"),
        (["data.site_partition=size"], "site_partition is 'size', but sites is 0"),
        (["data.sites=2", "data.sites_per_client=3"], "is 3, but sites is 2"),
        (["data.sites=10001"], "data.sites is 10001; expected a number of at most 10000"),
        (["data.sites=100", "data.sites_per_client=65"], "at most 64"),
        (
            ["data.sites=2", "data.site_partition=odd"],
            "expected 'even', 'size', 'label' or 'elsewhere'",
        ),
        (["data.site=hospital"], "data.site is not a known key"),
    ],
)
def test_sites_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(Refused) as refused:
        load_run(None, settings)
    assert message in str(refused.value)


def test_a_configuration_and_its_representatives_have_sites():
    config = load_run(None, ["data.sites=5", "data.site_partition=size", "data.clients=90000"])
    few = load_representatives(config, STREAMS)
    assert few.population_size == 90_000
    assert few.clients == len(few.sites) < 90_000
    assert set(few.sites.tolist()) == set(range(5))
    several = load_run(None, ["data.sites=5", "data.sites_per_client=3", "data.clients=300"])
    few, everybody = load_representatives(several, STREAMS), load_population(several, STREAMS)
    assert few.population_size == everybody.population_size == 300
    assert few.clients == len(few.persons) == 3 * 256
    assert everybody.clients == 900
    assert few.typical == everybody.typical


def test_sites_do_not_change_who_a_run_is_about():
    base = ["data.clients=300", "run.seed=4"]
    plain = population_identity(load_run(None, base))
    for more in (["data.sites=5"], ["data.sites=7", "data.site_partition=label"]):
        assert population_identity(load_run(None, [*base, *more])) == plain
    assert population_identity(load_run(None, ["data.clients=301", "run.seed=4"])) != plain
    table = ["source=table", "path=p", "client=who", "label=y", "classes=2", "clients=9"]
    table = [f"data.{key}" for key in [*table, "features={x=[0,1]}"]]
    named = population_identity(load_run(None, table))
    sited = load_run(None, [*table, "data.site=hospital", "data.sites=3"])
    assert population_identity(sited) == named


def test_a_client_sees_through_the_same_camera_at_all_its_sites():
    picture = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    same = Examples(picture.expand(6, -1, -1, -1), torch.zeros(6, dtype=torch.int64), 2)
    population = Federation(
        same,
        np.arange(7),
        same,
        identities=np.array([50, 51, 60, 61, 70, 71]),
        sites=np.array([0, 1, 0, 1, 0, 1]),
        persons=np.array([0, 0, 1, 1, 2, 2]),
    )
    assert population.first_entries().tolist() == [0, 0, 2, 2, 4, 4]
    seen = Covariate(rotation=90.0).apply(population, STREAMS).examples.x
    for first in (0, 2, 4):
        assert torch.equal(seen[first], seen[first + 1])
    assert not torch.equal(seen[0], seen[2])
    alone = replace(population, persons=None)
    assert alone.first_entries().tolist() == list(range(6))


def test_what_is_made_of_a_population_keeps_its_sites():
    federation = assigned(Sites(4, 2), 30)
    rooted = federation.with_root_set(9).to(torch.device("cpu"))
    np.testing.assert_array_equal(rooted.sites, federation.sites)
    np.testing.assert_array_equal(rooted.persons, federation.persons)
    assert rooted.population_size == 30
    assert federation.with_root_set(9).server_population().sites is None


def test_a_run_over_a_table_with_sites_trains(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "patient": [f"p{n // 3}" for n in range(90)],
            "hospital": [f"h{n // 3 % 4}" for n in range(90)],
            "x": rng.random(90),
        }
    )
    frame["ill"] = (frame.x > 0.5).astype(int)
    declared = {**KEYS, "clients": 25, "sites": 4, "holdout": "clients"}
    population = privfed.Table(frame, **declared)
    arguments = {"cohort": {"size": 10}, "rounds": 2}
    privacy = {"mechanism": "gaussian", "noise_multiplier": 1.0, "delta": 1e-3}
    run = privfed.train(population, out=tmp_path / "run", privacy=privacy, **arguments)
    assert 'site = "hospital"' in (tmp_path / "run" / "config.toml").read_text()
    other = frame.drop(columns=["patient", "hospital"])
    assert len(run.predict(other)) == 90
