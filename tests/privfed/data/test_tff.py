"""TensorFlow Federated's HDF5 files: what is in them, and every way in which they are broken."""

import sys

import h5py
import numpy as np
import pytest
import torch
from lanes import every_case

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.partitions.basic import Natural
from privfed.data.population import populate
from privfed.data.sources.text import PADDING
from privfed.data.sources.tff import Tff
from privfed.run.check import check
from privfed.run.train import train

STREAMS = Streams(0)
DIGITS = {"x": "pixels", "label": "label", "classes": 3, "shape": [1, 2, 3], "bounds": [0.0, 1.0]}
SNIPPETS = {"x": "snippets", "text": True, "window": 4, "vocabulary": "ab "}
PIXELS = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 2, 3)
LABELS = np.array([2, 0], dtype=np.int32)
ANN = {"pixels": PIXELS, "label": LABELS}
PAIRS = np.zeros(2, dtype=[("first", "i4"), ("second", "i4")])
BOB = {"pixels": 1 - PIXELS[:1], "label": LABELS[:1]}


def published(path, clients, root="examples"):
    """A file of TensorFlow Federated's form: a group for every client, an array for every field."""
    with h5py.File(path, "w") as file:
        for client, fields in clients.items():
            for name, array in fields.items():
                file[f"{root}/{client}/{name}"] = array
    return str(path)


def test_images_keep_their_clients(tmp_path):
    path = published(tmp_path / "train.h5", {"f_1": BOB, "f_0": ANN, "f_2": _none(ANN)})
    test = published(tmp_path / "test.h5", {"f_9": BOB})
    source = Tff(path=path, test_path=test, **DIGITS)
    federation = populate(source, Natural(), 3, 0.4, STREAMS)
    assert federation.examples.clients == ("f_0", "f_1", "f_2")
    assert federation.sizes(np.arange(3)).tolist() == [2, 1, 0]
    assert federation.examples.y.tolist() == [2, 0, 2]
    assert federation.test.y.tolist() == [2]
    x = federation.examples.x[torch.arange(3)]
    np.testing.assert_allclose(x[:2, 0], 2 * PIXELS - 1, atol=1e-6)
    assert x.shape == (3, 1, 2, 3)


@every_case("kind", ["?", "u1", "u2", "u4", "u8", "i1", ">i2", "f2", ">f4", "f8"])
def test_numbers_of_every_type_are_read(tmp_path, kind):
    fields = {"pixels": np.array([[[0, 1]], [[1, 0]]], dtype=kind), "label": LABELS}
    path = published(tmp_path / "train.h5", {"a": fields})
    x = Tff(path=path, **{**DIGITS, "shape": [1, 1, 2]}).load(1, STREAMS).x[torch.arange(2)]
    assert x.flatten().tolist() == [-1.0, 1.0, 1.0, -1.0]


@every_case("labels", [LABELS, LABELS.astype("f4"), np.array([b"2", b"0"])])
def test_labels_are_named_as_they_are_written(tmp_path, labels):
    path = published(tmp_path / "train.h5", {"a": {"pixels": PIXELS, "label": labels}})
    named = {**DIGITS, "classes": 0, "labels": ["2", "0"]}
    assert Tff(path=path, **named).load(1, STREAMS).y.tolist() == [0, 1]


def _none(fields):
    return {name: array[:0] for name, array in fields.items()}


def test_images_whose_channels_are_last_are_turned(tmp_path):
    image = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    fields = {"image": image, "coarse_label": np.array([1, 0]), "label": np.array([[7], [3]])}
    path = published(tmp_path / "train.h5", {"0": fields})
    declared = {"shape": [3, 4, 5], "bounds": [0.0, 255.0]}
    for label, classes, expected in (("coarse_label", 2, [1, 0]), ("label", 8, [7, 3])):
        source = Tff(path=path, x="image", label=label, classes=classes, **declared)
        examples = source.load(1, STREAMS)
        assert examples.y.tolist() == expected
        turned = examples.x[torch.arange(2)].numpy()
        np.testing.assert_allclose(turned, np.moveaxis(image, -1, 1) / 127.5 - 1, atol=1e-6)
        assert source.squared_norm == 60 >= (turned**2).sum((1, 2, 3)).max()


def test_snippets_predict_the_next_character(tmp_path):
    snippets = np.array([b"abba", b"", b"b"], dtype=h5py.string_dtype())
    path = published(tmp_path / "train.h5", {"ANN": {"snippets": snippets}, "B": {"snippets": []}})
    _strings(path, "B")
    examples = Tff(path=path, **SNIPPETS).load(2, STREAMS)
    assert examples.x.tolist() == [[2, 3, 3, PADDING]]
    assert examples.y.tolist() == [[3, 3, 2, -1]]
    assert examples.owners.tolist() == [0]
    assert examples.clients == ("ANN", "B"), "who has nothing to predict is a client all the same"


def _strings(path, client):
    with h5py.File(path, "a") as file:
        del file[f"examples/{client}/snippets"]
        file[f"examples/{client}/snippets"] = np.array([], dtype=h5py.string_dtype())


def test_tokens_are_those_of_a_public_list_of_words(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("the 1234\nC# 50\ncode 7\n")
    tokens = np.array([b'The code , "code" of C#'], dtype=h5py.string_dtype())
    path = published(tmp_path / "train.h5", {"1": {"tokens": tokens}})
    source = Tff(path=path, x="tokens", text=True, words=str(words), window=5)
    examples = source.load(1, STREAMS)
    assert examples.x.tolist() == [[2, 4, 1, 4, 1]]
    assert examples.y.tolist() == [[4, 1, 4, 1, 3]]
    assert examples.meaning.names == ("", "\ufffd", "the", "C#", "code")


def test_a_share_is_of_clients_by_their_names_alone(tmp_path):
    population = {f"f_{n}": ANN for n in range(60)}
    some = Tff(path=published(tmp_path / "a.h5", population), share=0.3, **DIGITS).load(60, STREAMS)
    fewer = dict.fromkeys([*population][:30], ANN)
    less = Tff(path=published(tmp_path / "b.h5", fewer), share=0.3, **DIGITS).load(60, STREAMS)
    assert 8 < len(some.clients) < 30
    assert {*less.clients} == {*some.clients} & {*fewer}


def test_the_published_test_file_is_of_clients_who_train(tmp_path):
    """As LEAF's split by example: scored on without privacy, or as a simulation."""
    rng = np.random.default_rng(0)

    def split(name, rows):
        fields = {"pixels": rng.random((rows, 2, 3)), "label": rng.integers(0, 3, rows)}
        return published(tmp_path / name, {f"f_{n}": fields for n in range(8)})

    keys = [
        "data.source=tff",
        f"data.path={split('train.h5', 6)}",
        f"data.test_path={split('test.h5', 2)}",
        *(f"data.{key}={value}" for key, value in DIGITS.items()),
        "data.clients=8",
        "cohort.size=4",
        "run.rounds=2",
    ]
    with pytest.raises(Refused, match="also train"):
        check(load(None, keys))
    outcome = train(load(None, [*keys, "privacy.mechanism=none"]), tmp_path / "run")
    assert outcome.test_examples == 16


@every_case(
    "clients, changes, message",
    [
        ({"a": {"label": LABELS}}, {}, "client 1 has no array 'pixels'"),
        ({"a": ANN, "b": {"pixels": PIXELS}}, {}, "client 2 has no array 'label'"),
        ({"a": {**ANN, "pixels": PIXELS[..., :2]}}, {}, r"expected \(1, 2, 3\) or \(2, 3, 1\) or"),
        (
            {"a": {**ANN, "pixels": PIXELS[:1]}},
            {},
            "another number of labels 'label' than of examples",
        ),
        ({"a": {**ANN, "label": LABELS + 1}}, {}, "client 1, example 1 is no class; .* 0 to 2"),
        (
            {"a": {**ANN, "pixels": np.full_like(PIXELS, np.nan)}},
            {},
            "holds a number that is not finite",
        ),
        ({"a": {**ANN, "pixels": np.array([b"a", b"b"])}}, {}, "holds no numbers"),
        ({"a": ANN}, {"text": True, "shape": [], "bounds": []}, "is no list of texts"),
        ({"a": ANN, "b": {**ANN, "pixels": PIXELS[:, None]}}, {}, "client 2.* another shape"),
        ({"a": ANN, "b": {**ANN, "label": PAIRS}}, {}, "client 2, example 1 is no class"),
        ({"a": ANN, "a ": BOB}, {}, "client 2 has spaces before or after its name"),
        ({"a": _none(ANN)}, {}, "has no example of the 1 clients"),
        ({"a": ANN}, {"share": 1e-9}, "has no example of the 0 clients"),
    ],
)
def test_what_is_not_as_declared_is_refused(tmp_path, clients, changes, message):
    path = published(tmp_path / "train.h5", clients)
    with pytest.raises(Refused, match=message):
        Tff(path=path, **{**DIGITS, **changes}).load(2, STREAMS)


def test_nothing_is_followed_out_of_the_file(tmp_path):
    other = published(tmp_path / "other.h5", {"a": ANN})
    links = {
        "examples": h5py.ExternalLink(other, "examples"),
        "examples/a": h5py.SoftLink("/elsewhere"),
        "examples/a/pixels": h5py.ExternalLink(other, "examples/a/pixels"),
    }
    for number, (name, link) in enumerate(links.items()):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file["elsewhere/label"] = LABELS
            file[name] = link
        with pytest.raises(Refused, match="a link to another place, but links are never followed"):
            Tff(path=str(path), **DIGITS).load(1, STREAMS)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        outside = [(str(tmp_path / "secret.bin"), 0, PIXELS.nbytes)]
        file.create_dataset("examples/a/pixels", PIXELS.shape, "f4", external=outside)
        file["examples/a/label"] = LABELS
    layout = h5py.VirtualLayout(PIXELS.shape, "f4")
    layout[:] = h5py.VirtualSource(other, "examples/a/pixels", PIXELS.shape, "f4")
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("examples/a/pixels", layout)
        file["examples/a/label"] = LABELS
    for name in ("raw.h5", "virtual.h5"):
        with pytest.raises(Refused, match="'pixels' is a link to another file"):
            Tff(path=str(tmp_path / name), **DIGITS).load(1, STREAMS)


@pytest.mark.parametrize("name", ["pixels", "label"])
def test_a_bomb_is_not_unpacked(tmp_path, name):
    """A terabyte, of which no chunk is written."""
    path = published(tmp_path / "train.h5", {"a": ANN})
    with h5py.File(path, "a") as file:
        del file[f"examples/a/{name}"]
        shape = (2**38, 2, 3) if name == "pixels" else (2**38,)
        packed = {"chunks": (64, *shape[1:]), "compression": "gzip"}
        file.create_dataset(f"examples/a/{name}", shape, "f4", **packed)
    with pytest.raises(Refused, match=f"'{name}' is larger than its stored content"):
        Tff(path=path, **DIGITS).load(1, STREAMS)


def test_without_its_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(Refused, match=r"pip install 'privfed\[hdf5\]'"):
        Tff(path=str(tmp_path / "train.h5"), **DIGITS).load(1, STREAMS)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "cut.h5").write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    with pytest.raises(Refused, match=r"cut\.h5 cannot be read"):
        Tff(path=str(tmp_path / "cut.h5"), **DIGITS).load(1, STREAMS)
    with pytest.raises(Refused, match="there is no such file"):
        Tff(path=str(tmp_path / "gone.h5"), **DIGITS).load(1, STREAMS)
    path = published(tmp_path / "flat.h5", {"a": ANN}, root="clients")
    with pytest.raises(Refused, match="no group 'examples'"):
        Tff(path=path, **DIGITS).load(1, STREAMS)


@every_case(
    "changes, message",
    [
        ({"classes": 0}, "exactly one of them must declare"),
        ({"labels": ["a", "b"]}, "exactly one of them must declare"),
        ({"shape": []}, "shape is missing"),
        ({"bounds": []}, r"bounds is \[\]"),
        ({"bounds": [1.0, 1.0]}, r"bounds is \[1.0, 1.0\]"),
        ({"label": ""}, "label is missing"),
        ({"bag": True}, "bag or words is set"),
        ({"text": True}, "shape or bounds is set"),
    ],
)
def test_everything_is_declared(changes, message):
    with pytest.raises(ValueError, match=message):
        Tff(path=".", **{**DIGITS, **changes})
