"""Plays by speaker, and LEAF's folders."""

import io
import json
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import DATA
from lanes import every_case
from rich.console import Console

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.partitions.basic import Natural
from privfed.data.population import populate
from privfed.data.sources.leaf import Leaf
from privfed.data.sources.text import PADDING, UNKNOWN, Characters, Text, speeches
from privfed.plan.plan import ON_TRAINED
from privfed.report import outcome as report
from privfed.run.train import train
from privfed.trained.evaluate import evaluate

STREAMS = Streams(0)
SHAKESPEARE = DATA / "shakespeare" / "tinyshakespeare.txt"
PLAY = """FIRST WITCH:
When shall we three meet again
In thunder: lightning, or in rain?

SECOND WITCH:

THIRD WITCH:
That will be ere the set of sun.

FIRST WITCH:
Where the place?
"""


def spell(characters, tokens):
    return "".join(characters.meaning.names[token] for token in tokens if token > 0)


def play(tmp_path, text=PLAY, name="play.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_line_goes_to_its_speaker(tmp_path):
    found = speeches(play(tmp_path))
    assert found["FIRST WITCH"] == [
        "When shall we three meet again\nIn thunder: lightning, or in rain?",
        "Where the place?",
    ]
    assert found["SECOND WITCH"] == [""]
    assert found["THIRD WITCH"] == ["That will be ere the set of sun."]


def test_windows_say_the_next_character_at_every_position(tmp_path):
    source = Text(path=str(play(tmp_path)), window=10)
    examples = source.load(3, STREAMS)
    characters = Characters(source.vocabulary)
    assert examples.clients == ("FIRST WITCH", "SECOND WITCH", "THIRD WITCH")
    assert Counter(examples.owners.tolist()) == {0: 9, 2: 4}, "a silent speaker has no example"
    whole = "That will be ere the set of sun."
    x, y = examples.x[examples.owners == 2], examples.y[examples.owners == 2]
    assert spell(characters, x.flatten()) == whole[:-1]
    assert spell(characters, y.flatten().clamp(min=0)) == whole[1:]
    assert (y[x == PADDING] == -1).all()
    assert (x[y == -1] == PADDING).all()
    assert torch.equal(x.flatten()[1:31], y.flatten()[:30])


def test_a_character_that_was_not_declared_is_unknown():
    characters = Characters("ab")
    assert characters.encode("abé").tolist() == [2, 3, UNKNOWN]
    assert characters.count == 4
    with pytest.raises(Refused, match="one character or more, each once"):
        Characters("aab")


def test_a_folder_of_plays_joins_speakers(tmp_path):
    play(tmp_path, name="a.txt")
    play(tmp_path, "FIRST WITCH:\nHail!\n", name="b.txt")
    assert speeches(tmp_path)["FIRST WITCH"][-1] == "Hail!"


@every_case(
    "content, message",
    [
        (b"No speech at all.\n", "holds no speech"),
        (b"A:\n\xff\xfe\n", "is not UTF-8"),
        (None, "does not exist"),
    ],
)
def test_what_is_no_play_is_refused(tmp_path, content, message):
    path = tmp_path / "play.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=message):
        Text(path=str(path)).load(3, STREAMS)


@pytest.mark.slow
@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="Shakespeare's plays are not at hand")
def test_shakespeare_trains_by_speaker(tmp_path):
    found = speeches(SHAKESPEARE)
    assert sum(map(len, found.values())) == 7222
    assert len(found["MENENIUS"]) == 162
    outcome = train(
        load(
            None,
            [
                "data.source=text",
                f"data.path={SHAKESPEARE}",
                "data.clients=250",
                "data.holdout=clients",
                "data.holdout_fraction=0.05",
                "model.name=lstm",
                "model.hidden=24",
                "client.epochs=1",
                "client.lr=1.0",
                "cohort.size=8",
                "run.rounds=3",
                "run.evaluate_every=3",
                "run.randomness=seeded",
                "privacy.noise_multiplier=0.01",
                "privacy.clip=3.0",
            ],
        ),
        tmp_path / "run",
    )
    assert outcome.measures["accuracy"] > 0.12, "spaces alone are 15 % of the characters"
    assert outcome.public > 3


def leaf(tmp_path, part, users, **changes):
    folder = tmp_path / "leaf" / part
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "users": list(users),
        "num_samples": [len(data["y"]) for data in users.values()],
        "user_data": users,
    } | changes
    (folder / f"data{len(list(folder.iterdir()))}.json").write_text(json.dumps(document))
    return tmp_path / "leaf"


NUMBERS = {
    "ann": {"x": [[0.0, 1.0, 0.5, 2.0], [1.0, 1.0, 1.0, 1.0]], "y": [3, 0]},
    "bob": {"x": [], "y": []},
    "cy": {"x": [[0.25] * 4], "y": [1.0]},
}


def test_leaf_numbers_keep_their_users(tmp_path):
    path = leaf(tmp_path, "train", NUMBERS)
    leaf(tmp_path, "test", {"dan": {"x": [[0.5] * 4], "y": [2]}})
    source = Leaf(path=str(path), classes=4, shape=[1, 2, 2], bounds=[0.0, 1.0])
    federation = populate(source, Natural(), 3, 0.2, STREAMS)
    assert federation.examples.clients == ("ann", "bob", "cy")
    assert federation.sizes(np.arange(3)).tolist() == [2, 0, 1]
    assert federation.examples.x[0].flatten().tolist() == [-1.0, 1.0, 0.0, 1.0]
    assert federation.examples.y.tolist() == [3, 0, 1]
    assert federation.test.x.shape == (1, 1, 2, 2)


def test_bounds_that_nobody_declared_clip_nothing(tmp_path):
    path = str(leaf(tmp_path, "train", {"ann": {"x": [[0.5, -3.0]], "y": [1]}}))
    with pytest.raises(Refused, match=r"bounds is not declared, but .*user 1, example 1 holds"):
        Leaf(path=path, classes=2).load(1, STREAMS)
    assert Leaf(path=path, classes=2, bounds=[]).load(1, STREAMS).x.tolist() == [[0.5, -3.0]]
    clipped = Leaf(path=path, classes=2, bounds=[0.0, 1.0]).load(1, STREAMS)
    assert clipped.x.tolist() == [[0.0, -1.0]]
    assert clipped.counts == {"clipped_values": 1}


def test_classes_are_asked_for_and_never_assumed(tmp_path):
    keys = ["data.source=leaf", f"data.path={tmp_path}", "data.clients=3"]
    with pytest.raises(Refused, match="data: classes is missing; set it to the number"):
        load(None, keys)
    assert load(None, [*keys, "data.text=true"]).source.classes == 0


def synthetic(folder, clients=12, features=6, classes=3):
    """Synthetic(1, 1) of FedProx (Li et al. 2020, section 5.1), as published: split by example.

    As its generator writes it: 90 % of each user's examples in train/mytrain.json, the others in
    test/mytest.json, under the same users.
    """
    rng = np.random.default_rng(0)
    parts = {"train/mytrain.json": {}, "test/mytest.json": {}}
    for client in range(clients):
        u, center = rng.normal(0, 1), rng.normal(rng.normal(0, 1), 1, features)
        x = rng.normal(center, np.arange(1, features + 1) ** -0.6, (40, features))
        y = (x @ rng.normal(u, 1, (features, classes)) + rng.normal(u, 1, classes)).argmax(1)
        for part, rows in zip(parts.values(), (slice(36), slice(36, None)), strict=True):
            part[f"f_{client:05d}"] = {"x": x[rows].tolist(), "y": y[rows].tolist()}
    for name, users in parts.items():
        file = folder / name
        file.parent.mkdir(parents=True)
        counts = [len(data["y"]) for data in users.values()]
        document = {"users": [*users], "num_samples": counts, "user_data": users}
        file.write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("holdout", ["test", "examples"])
def test_published_splits_by_example_train_and_are_marked(tmp_path, holdout):
    """Without privacy as they are; else as a simulation, or not at all."""
    keys = [
        "data.source=leaf",
        f"data.path={synthetic(tmp_path / 'data')}",
        "data.classes=3",
        "data.bounds=[]",
        "data.clients=12",
        f"data.holdout={holdout}",
        "cohort.size=6",
        "client.lr=0.05",
        "run.rounds=12",
        "run.randomness=secret",
    ]
    replayed = ["privacy.mechanism=none", "run.randomness=seeded", "run.rounds=40"]
    open_run = train(load(None, [*keys, *replayed]), tmp_path / "open")
    assert open_run.test_examples == 12 * 4
    assert open_run.measures["accuracy"] > 0.5, "a third is chance"
    assert "48 examples of clients that train" in shown(open_run)
    assert evaluate(tmp_path / "open").note == ON_TRAINED
    private = load(None, keys)
    if holdout == "test":
        with pytest.raises(Refused, match="released without noise"):
            train(private, tmp_path / "private")
        assert not (tmp_path / "private").exists()
    else:
        outcome = train(private, tmp_path / "private")
        assert outcome.plan.simulation == ON_TRAINED
        assert outcome.test_examples == 12 * 4, "the published examples, no fraction of the others"
    with pytest.raises(Refused, match=r"aggregation\.root.* of clients that train"):
        train(load(None, [*keys, "privacy.mechanism=none", *ROOTED]), tmp_path / "rooted")


ROOTED = ("aggregation.rule=fltrust", "aggregation.root=3")


def shown(outcome):
    screen = Console(file=io.StringIO(), width=200)
    screen.print(report.outcome_table(outcome))
    return screen.file.getvalue()


def test_leaf_text_predicts_the_next_character_at_every_position(tmp_path):
    path = leaf(tmp_path, "train", {"ann": {"x": ["To be", "o be "], "y": [" ", "o"]}})
    examples = Leaf(path=str(path), text=True).load(1, STREAMS)
    characters = Characters(Leaf(path=".", text=True).vocabulary)
    assert [spell(characters, row) for row in examples.x] == ["To be", "o be "]
    assert [spell(characters, row) for row in examples.y] == ["o be ", " be o"]


TWEETS = {
    "ann": {
        "x": [["1", "d", "q", "ann", "ab!", "AB"], ["2", "d", "q", "ann", "", ""]],
        "y": [4, 0],
    },
    "bob": {"x": [["3", "d", "q", "bob", "b", "b"]], "y": ["4"]},
}


def test_sentences_of_a_field_are_classified(tmp_path):
    """As in Sent140, whose x are lists of fields and whose y are 0 and 4, or 0 and 1."""
    path = leaf(tmp_path, "train", TWEETS)
    keys = {"text": True, "labels": ["0", "4"], "field": 4, "window": 3, "vocabulary": "ab"}
    examples = Leaf(path=str(path), **keys).load(2, STREAMS)
    assert examples.x.tolist() == [[2, 3, UNKNOWN], [PADDING] * 3, [3, PADDING, PADDING]]
    assert examples.y.tolist() == [1, 0, 1]
    assert examples.owners.tolist() == [0, 0, 1]
    assert examples.meaning.names == ("0", "4")
    (tmp_path / "words.txt").write_text("b\nab\n")
    shares = Leaf(path=str(path), words=str(tmp_path / "words.txt"), bag=True, **keys)
    assert shares.load(2, STREAMS).x.tolist() == [[0, 0, 0, 1], [0] * 4, [0, 0, 1, 0]]
    assert shares.squared_norm == 1


@every_case(
    "changes, message",
    [
        ({"field": 7}, "user 1, example 1 has no text there"),
        ({"field": -1}, r"data\.field is -1, but .* no text"),
        ({"labels": ["0", "1"]}, "user 1, example 1 is no class; expected one of 0, 1"),
        ({"words": "gone.txt"}, r"data\.words is gone\.txt, but there is no such file"),
    ],
)
def test_sentences_that_are_not_as_declared_are_refused(tmp_path, changes, message):
    path = leaf(tmp_path, "train", TWEETS)
    with pytest.raises(Refused, match=message):
        Leaf(path=str(path), **{"text": True, "labels": ["0", "4"], "field": 4, **changes}).load(
            2, STREAMS
        )


@every_case(
    "keys",
    [
        {"classes": 2, "labels": ["0", "1"]},
        {"text": True, "field": 4},
        {"text": True, "labels": ["0"]},
    ],
)
def test_keys_of_classified_texts_go_together(keys):
    with pytest.raises(ValueError, match=r"labels, field, words or bag is set|must declare two"):
        Leaf(path=".", **keys)


def test_users_who_train_are_no_public_test_set(tmp_path):
    path = leaf(tmp_path, "train", NUMBERS)
    leaf(tmp_path, "test", {"ann": NUMBERS["ann"]})
    with pytest.raises(Refused, match=r"also train.*data\.holdout = .clients"):
        populate(Leaf(path=str(path), classes=4, bounds=[]), Natural(), 3, 0.2, STREAMS)


@every_case(
    "users, changes, message",
    [
        ({}, {"user_data": [1, 2]}, "no object 'user_data'"),
        ({"ann": {"x": [[1.0]], "y": [1, 2]}}, {}, "lists x and y of one length"),
        ({"ann": {"x": [[1.0], [1.0, 2.0]], "y": [1, 2]}}, {}, "its length differs"),
        ({"ann": {"x": [["a"]], "y": [1]}}, {}, r"for text set data\.text"),
        (
            {"ann": {"x": [[1.0]], "y": [9]}},
            {},
            r"json, user 1, example 1 is no class; expected integers from 0 to 3",
        ),
        ({"ann": {"x": [[1.0]], "y": ["cat"]}}, {}, "is no class"),
        ({"ann": {"x": [[1.0]], "y": [10**30]}}, {}, "is no class"),
        ({"ann": {"x": [[1.0]], "y": [float("nan")]}}, {}, "is no class"),
        ({"ann": {"x": [[10**400]], "y": [1]}}, {}, "not a list of numbers"),
        ({"ann": {"x": [], "y": []}}, {}, "1 users of .* hold no example"),
        ({"ann": {"x": [[float("nan")]], "y": [1]}}, {}, "not finite"),
    ],
)
def test_json_of_the_wrong_shape_is_refused(tmp_path, users, changes, message):
    for data in users.values():
        data.setdefault("y", [])
    path = leaf(tmp_path, "train", users, **changes)
    with pytest.raises(Refused, match=message):
        Leaf(path=str(path), classes=4).load(1, STREAMS)


def test_a_folder_that_is_none_of_leafs_is_refused(tmp_path):
    with pytest.raises(Refused, match=r"holds no \.json"):
        Leaf(path=str(tmp_path), classes=4).load(1, STREAMS)
    (tmp_path / "cut.json").write_text('{"users": ["ann"')
    with pytest.raises(Refused, match="not valid JSON"):
        Leaf(path=str(tmp_path), classes=4).load(1, STREAMS)
    path = leaf(tmp_path, "train", NUMBERS)
    leaf(tmp_path, "train", NUMBERS)
    with pytest.raises(Refused, match="is also at"):
        Leaf(path=str(path), classes=4).load(1, STREAMS)
    single = leaf(tmp_path / "b", "train", NUMBERS)
    with pytest.raises(Refused, match=r"data\.shape is \[3, 3\]"):
        Leaf(path=str(single), classes=4, shape=[3, 3], bounds=[]).load(1, STREAMS)
