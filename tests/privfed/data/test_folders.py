"""Folders of images by client: what is in them, and every way in which they are broken."""

import io
import sys
import warnings

import numpy as np
import pytest
import torch
from lanes import every_case
from PIL import Image

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.sources.folders import Folders
from privfed.run.check import check
from privfed.run.train import train

STREAMS = Streams(0)
GRAY = np.arange(6, dtype=np.uint8).reshape(2, 3)
COLOURS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
DECLARED = {"shape": [1, 2, 3], "labels": ["cat", "dog"]}


def stored(folder, name, pixels=GRAY, kind="PNG"):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    file.write_bytes(content.getvalue())
    return folder


def test_folders_name_clients_and_classes(tmp_path):
    stored(tmp_path, "bob/dog/2.bmp", GRAY + 1, "BMP")
    stored(tmp_path, "bob/cat/.hidden.png")
    stored(tmp_path, "ann/dog/1.png", COLOURS)
    stored(tmp_path, "ann/cat/9.PNG", GRAY + 2)
    (tmp_path / "cy").mkdir()
    source = Folders(path=str(tmp_path), **DECLARED)
    examples = source.load(3, STREAMS)
    assert examples.clients == ("ann", "bob", "cy")
    assert examples.owners.tolist() == [0, 0, 1]
    assert examples.y.tolist() == [0, 1, 1]
    gray = np.asarray(Image.fromarray(COLOURS).convert("L"))
    x = examples.x[torch.arange(3)][:, 0].numpy()
    np.testing.assert_allclose(x, np.stack([GRAY + 2, gray, GRAY + 1]) / 127.5 - 1, atol=1e-6)
    assert source.squared_norm == 6 >= (x**2).sum((1, 2)).max()
    colours = Folders(path=str(tmp_path), shape=[3, 2, 3], labels=["cat", "dog"])
    turned = colours.load(3, STREAMS).x[torch.arange(3)][1].numpy()
    np.testing.assert_allclose(turned, np.moveaxis(COLOURS, -1, 0) / 127.5 - 1, atol=1e-6)


def test_a_table_may_name_the_labels(tmp_path):
    stored(tmp_path / "people", "ann/1.png")
    stored(tmp_path / "people", "bob/1.jpeg", kind="JPEG")
    table = tmp_path / "labels.csv"
    source = Folders(path=str(tmp_path / "people"), label_table=str(table), **DECLARED)
    table.write_text("who,file,label\n-,bob/1.jpeg,dog\n-,ann/1.png,cat\n-,gone/1.png,cat\n")
    assert source.load(2, STREAMS).y.tolist() == [0, 1]
    for content, message in {
        "file,label\nann/1.png,cat\n": "no label of .*client 2, image 1",
        "file,label\nann/1.png,cat\nann/1.png,dog\n": "names a file twice",
        "file,label\nann/1.png,\n": "row 1 has an empty cell",
        "file,class\nann/1.png,cat\n": "names 'label', but .* has no such column",
    }.items():
        table.write_text(content)
        with pytest.raises(Refused, match=message):
            source.load(2, STREAMS)


def test_a_private_run_trains_on_them(tmp_path):
    for client in range(8):
        for place, label in (("train", "dog"), ("train", "cat"), ("test", "dog")):
            bright = GRAY + 200 * (label == "dog")
            stored(tmp_path / place, f"{place}{client}/{label}/1.png", bright)
    keys = [f"data.{key}={value}" for key, value in DECLARED.items()]
    keys += ["data.source=folders", f"data.path={tmp_path / 'train'}", "data.clients=8"]
    keys += ["cohort.size=4", "run.rounds=2", "run.randomness=seeded", "privacy.delta=0.01"]
    with pytest.raises(Refused, match="states the owners of examples and has no public"):
        check(load(None, keys))
    outcome = train(load(None, [*keys, f"data.test_path={tmp_path / 'test'}"]), tmp_path / "run")
    assert outcome.test_examples == 8
    assert outcome.plan.guarantee.epsilon <= 4


def test_another_size_is_refused_or_resized(tmp_path):
    stored(tmp_path, "ann/dog/1.png", np.zeros((9, 9), np.uint8))
    with pytest.raises(Refused, match="client 1, image 1 has another size; expected 2 x 3 pixels"):
        Folders(path=str(tmp_path), **DECLARED).load(1, STREAMS)
    resized = Folders(path=str(tmp_path), resize=True, **DECLARED).load(1, STREAMS)
    assert resized.x.shape == (1, 1, 2, 3)


@pytest.mark.parametrize("most", [1000, 100], ids=["large", "a bomb"])
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, most):
    stored(tmp_path, "ann/dog/1.png", np.zeros((40, 40), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
    with pytest.raises(Refused, match=f"image 1 has more than {most} pixels"):
        Folders(path=str(tmp_path), resize=True, **DECLARED).load(1, STREAMS)


@every_case(
    "broken, message",
    [
        (
            lambda place: stored(place, "ann/cow/1.png"),
            "client 1, image 1 is no class; .* cat, dog",
        ),
        (
            lambda place: stored(place, "ann/1.png"),
            "client 1 holds another entry; expected only folders",
        ),
        (lambda place: stored(place, "1.png"), "holds another entry; expected only folders"),
        (
            lambda place: stored(place, "ann/dog/1.txt"),
            "label 1 holds another entry; expected only im",
        ),
        (lambda place: stored(place, "ann/dog/1.tif", kind="TIFF"), "label 1 holds another entry"),
        (
            lambda place: stored(place, "ann/dog/1.png", kind="TIFF"),
            "image 1 cannot be read as an image",
        ),
        (lambda place: (place / "ann").symlink_to("."), "holds a link, which is never followed"),
        (lambda place: stored(place, "ann/dog/x/1.png"), "label 1 holds another entry"),
        (lambda place: (place / "ann").mkdir(), "the 1 clients of .* hold no image"),
        (lambda place: place.rmdir(), "no such folder; name a folder"),
    ],
)
def test_other_folders_are_refused(tmp_path, broken, message):
    place = tmp_path / "people"
    place.mkdir()
    broken(place)
    with pytest.raises(Refused, match=message):
        Folders(path=str(place), **DECLARED).load(1, STREAMS)


def test_without_its_library_the_extra_is_named(tmp_path, monkeypatch):
    stored(tmp_path, "ann/dog/1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Refused, match=r"pip install 'privfed\[images\]'"):
        Folders(path=str(tmp_path), **DECLARED).load(1, STREAMS)


def test_a_link_to_an_image_is_not_followed(tmp_path):
    other = stored(tmp_path / "other", "1.png")
    label = tmp_path / "people/ann/dog"
    label.mkdir(parents=True)
    (label / "1.png").symlink_to(other / "1.png")
    with pytest.raises(Refused, match="label 1 holds a link, which is never followed"):
        Folders(path=str(tmp_path / "people"), **DECLARED).load(1, STREAMS)


@every_case("content", [b"", b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\x89PNG\r\n\x1a\n cut"])
def test_what_is_no_image_is_refused(tmp_path, content):
    folder = stored(tmp_path, "ann/dog/1.png")
    (folder / "ann/dog/1.png").write_bytes(content)
    with pytest.raises(Refused, match="client 1, image 1 cannot be read as an image"):
        Folders(path=str(tmp_path), **DECLARED).load(1, STREAMS)


def test_what_a_library_warns_of_is_not_shown(tmp_path):
    """Warnings quote what stands in a file."""
    content = io.BytesIO()
    Image.fromarray(GRAY).save(content, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    image = content.getvalue().replace(b"JFIF", b"NONE")
    with pytest.warns(UserWarning, match="EXIF"):
        Image.open(io.BytesIO(image)).load()
    path = tmp_path / "ann/dog/1.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(image)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Folders(path=str(tmp_path), **DECLARED).load(1, STREAMS)


@every_case("shape", [[2, 3], [2, 2, 3], [1, 2, 3, 4], [1, 10**10, 10**10]])
def test_a_shape_is_an_images(shape):
    with pytest.raises(ValueError, match="expected the shape of an image"):
        Folders(path=".", shape=shape, classes=2)
