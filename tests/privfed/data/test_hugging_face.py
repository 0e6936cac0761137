"""Data sets as Hugging Face's library saves them, and every way in which they are broken."""

import io
import json

import datasets
import numpy as np
import pyarrow
import pytest
import torch
from lanes import every_case
from PIL import Image
from pyarrow import parquet

from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.streams import Streams
from privfed.data.forms.labels import ClassForm
from privfed.data.partitions.basic import Iid, Natural
from privfed.data.population import populate
from privfed.data.sources.hugging_face import HuggingFace
from privfed.run.check import check

STREAMS = Streams(0)
OWNERS = ["bo", "ann", "bo"]
PICTURES = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
NAMED = {
    "x": "image",
    "label": "label",
    "client": "who",
    "classes": 2,
    "shape": [3, 4, 5],
    "bounds": [0.0, 255.0],
}
TEXTS = {"x": "text", "label": "label", "client": "who", "text": True, "labels": ["sad", "glad"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One data set in every form: saved, as splits, as Parquet; images, arrays and texts."""
    folder = tmp_path_factory.mktemp("saved")
    columns = {
        "image": [Image.fromarray(picture) for picture in PICTURES],
        "array": PICTURES[..., 0].tolist(),
        "number": [0.0, 127.5, 255.0],
        "text": ["ab", "", "ba b"],
        "label": [0, 1, 1],
        "mood": ["sad", "glad", "glad"],
        "who": OWNERS,
    }
    features = datasets.Features(
        image=datasets.Image(),
        array=datasets.Array2D((4, 5), "uint8"),
        number=datasets.Value("float64"),
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["sad", "glad"]),
        mood=datasets.Value("string"),
        who=datasets.Value("string"),
    )
    train = datasets.Dataset.from_dict(columns, features=features)
    public = train.select([0]).remove_columns("who").add_column("who", ["zoe"])
    train.save_to_disk(folder / "one", num_shards=2)
    datasets.DatasetDict(train=train, test=public).save_to_disk(folder / "splits")
    (folder / "files/data").mkdir(parents=True)
    train.select([0, 1]).to_parquet(folder / "files/data/train-00000-of-00002.parquet")
    train.select([2]).to_parquet(folder / "files/data/train-00001-of-00002.parquet")
    public.to_parquet(folder / "files/data/test-00000-of-00001.parquet")
    train.to_parquet(folder / "one.parquet")
    return folder


@every_case("form", ["one", "splits", "files", "one.parquet"])
def test_images_are_read_from_every_form(saved, form):
    examples = HuggingFace(path=str(saved / form), **NAMED).load(2, STREAMS)
    assert examples.clients == ("bo", "ann")
    assert examples.owners.tolist() == [0, 1, 0]
    assert examples.y.tolist() == [0, 1, 1]
    x = examples.x[torch.arange(3)].numpy()
    np.testing.assert_allclose(x, np.moveaxis(PICTURES, -1, 1) / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize("form", ["splits", "files"])
def test_a_public_split_is_the_test_set(saved, form):
    source = HuggingFace(path=str(saved / form), test_split="test", **NAMED)
    assert populate(source, Natural(), 2, 0.2, STREAMS).test.y.tolist() == [0]
    everything = HuggingFace(path=str(saved / "one"), test_split="test", **NAMED)
    with pytest.raises(Refused, match="holds only one split, which is used for training"):
        everything.load_test(2, STREAMS)
    with pytest.raises(Refused, match=r"data\.split is 'gone'"):
        HuggingFace(path=str(saved / form), split="gone", **NAMED).load(2, STREAMS)


def test_arrays_and_numbers_are_scaled_from_their_bounds(saved):
    declared = {"path": str(saved / "one"), "label": "mood", "labels": ["glad", "sad"]}
    arrays = HuggingFace(x="array", shape=[1, 4, 5], bounds=[0.0, 200.0], **declared)
    examples = arrays.load(2, STREAMS)
    x = examples.x[torch.arange(3)][:, 0].numpy()
    np.testing.assert_allclose(x, PICTURES[..., 0].clip(0, 200) / 100 - 1, atol=1e-6)
    assert examples.counts == {"clipped_values": int((PICTURES[..., 0] > 200).sum())}
    assert examples.y.tolist() == [1, 0, 0]
    assert examples.owners is None
    numbers = HuggingFace(x="number", shape=[1], bounds=[0.0, 255.0], **declared)
    assert numbers.load(2, STREAMS).x[torch.arange(3)].tolist() == [[-1.0], [0.0], [1.0]]


def test_numbers_of_an_arrow_file_stay_in_it_whatever_its_batches(tmp_path):
    features = datasets.Features(
        array=datasets.Sequence(datasets.Value("uint8"), 6),
        label=datasets.Value("int64"),
        who=datasets.Value("string"),
    )
    arrays = np.random.default_rng(1).integers(0, 256, (50, 6), dtype=np.uint8)
    columns = {"array": arrays, "label": np.arange(50) % 3, "who": [f"c{n % 7}" for n in range(50)]}
    made = datasets.Dataset.from_dict(columns, features=features)
    made.save_to_disk(tmp_path / "set", num_shards=3)
    declared = {"x": "array", "label": "label", "client": "who", "shape": [6], "classes": 3}
    source = HuggingFace(path=str(tmp_path / "set"), bounds=[0.0, 255.0], **declared)
    population = populate(source, Natural(), 7, 0.2, STREAMS, "none")
    store = population.examples.x.store
    assert len(store.pieces) == 3
    assert not any(piece.flags.owndata or piece.flags.writeable for piece in store.pieces)
    x, y = population.gather(torch.arange(50))
    order = np.argsort(np.arange(50) % 7, kind="stable")
    np.testing.assert_allclose(x, arrays[order] / 127.5 - 1, atol=1e-6)
    assert y.tolist() == (order % 3).tolist()


@pytest.mark.parametrize("labels, expected", [([], [0, 2, 1]), (["2", "0", "1"], [1, 0, 2])])
def test_whole_numbers_are_classes_by_number_or_by_name(labels, expected):
    form = ClassForm(0 if labels else 3, tuple(labels))
    for kind in ("i8", "u1"):
        assert form.encoded(np.array([0, 2, 1], kind), str).tolist() == expected
    with pytest.raises(Refused, match="label of 1 is no class"):
        form.encoded(np.array([0, 7]), str)


def test_texts_become_sequences_or_shares_of_tokens(saved):
    keys = {**TEXTS, "label": "mood", "vocabulary": "ab", "window": 3, "path": str(saved / "one")}
    sequences = HuggingFace(**keys).load(2, STREAMS)
    assert sequences.x.tolist() == [[2, 3, 0], [0, 0, 0], [3, 2, 1]]
    assert sequences.y.tolist() == [0, 1, 1]
    source = HuggingFace(bag=True, **keys)
    shares = source.load(2, STREAMS).x
    assert shares.tolist() == [[0, 0, 0.5, 0.5], [0] * 4, [0, 0.25, 0.25, 0.5]]
    assert source.squared_norm == 1 >= shares.square().sum(1).max()
    predicted = HuggingFace(**{**keys, "label": "", "labels": []}).load(2, STREAMS)
    assert predicted.owners.tolist() == [0, 0]
    assert predicted.y.tolist() == [[3, -1, -1], [2, 1, 3]]


def test_without_a_client_column_rows_are_dealt(saved):
    source = HuggingFace(path=str(saved / "one"), **{**NAMED, "client": ""})
    federation = populate(source, Iid(), 3, 0.4, STREAMS)
    assert federation.sizes(np.arange(3)).sum() == 2


def test_a_run_is_planned_from_it(saved):
    declared = {**NAMED, "source": "huggingface", "path": saved / "splits", "clients": 2}
    keys = [f"data.{key}={value}" for key, value in declared.items()]
    keys += ["data.test_split=test", "cohort.size=1", "privacy.delta=0.1"]
    assert check(load(None, keys)).plan.guarantee.unit == "client"
    with pytest.raises(Refused, match="name its column of clients"):
        check(load(None, [*keys, "data.client="]))


def test_images_of_another_size_are_refused_or_resized(saved):
    other = {**NAMED, "shape": [1, 2, 2]}
    with pytest.raises(Refused, match=r"row 1 has another size; expected 2 x 2 pixels"):
        HuggingFace(path=str(saved / "one"), **other).load(2, STREAMS)
    resized = HuggingFace(path=str(saved / "one"), resize=True, **other).load(2, STREAMS)
    assert resized.x.shape == (3, 1, 2, 2)


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


NO_IMAGES = {**TEXTS, "shape": [], "bounds": [], "classes": 0}
GOOD = {"image": [png(PICTURES[0])] * 2, "label": [0, 1], "who": ["a", "b"], "text": ["a", "b"]}
OUTSIDE = [{"bytes": None, "path": "/elsewhere.png"}] * 2


@every_case(
    "columns, changes, message",
    [
        ({"image": [b"no image", b""]}, {}, "row 1 cannot be read as an image"),
        ({"image": OUTSIDE}, {}, "row 1 holds no image, or only an image's path"),
        ({"image": [png(PICTURES[0]), None]}, {}, "row 2 holds no image"),
        ({"image": [png(np.zeros((4, 5), np.uint16))] * 2}, {}, "more than one byte per channel"),
        ({"image": [[1.0, 2.0], [1.0]]}, {}, "'image' has another shape in .*row 2"),
        ({"image": [[1.0], [2.0]]}, {}, r"an example of 'image' has another shape; expected \(3, "),
        ({"image": [[1.0], None]}, {}, "another shape in .*row 2"),
        ({"image": [1.0, None]}, {}, "'image' has empty cells"),
        ({"image": ["a", "b"]}, {}, "'image' holds no numbers"),
        ({"image": [float("nan"), 1.0]}, {"shape": [1]}, "row 1 holds a number that is not finite"),
        ({}, {"shape": [60]}, r"shape is \[60\], but the column 'image' holds images"),
        ({"label": [0, 2]}, {}, "row 2 is no class; expected an integer from 0 to 1"),
        ({"label": [0, None]}, {}, "row 2 is no class"),
        ({"who": ["a", None]}, {}, "row 2: .*'who'"),
        ({"who": ["a", "a "]}, {}, "row 2: .*'who'"),
        ({"other": [1, 2]}, {"client": "owner"}, "0 columns 'owner' among 5"),
        ({}, {**NO_IMAGES, "x": "label"}, "holds no text"),
        ({"label": [[0], [1]]}, {}, "the column 'label' holds neither text nor numbers"),
        ({"who": [["a"], ["b"]]}, {}, "the column 'who' holds neither text nor numbers"),
        ({"image": [{"bytes": "a"}] * 2}, {}, "'image' holds no numbers"),
        (
            {"text": ["a", None]},
            {**TEXTS, "shape": [], "bounds": [], "classes": 0},
            "row 2: .* empty",
        ),
    ],
)
def test_what_is_not_as_declared_is_refused(tmp_path, columns, changes, message):
    parquet.write_table(pyarrow.table({**GOOD, **columns}), tmp_path / "train.parquet")
    with pytest.raises(Refused, match=message):
        HuggingFace(path=str(tmp_path), **{**NAMED, **changes}).load(2, STREAMS)


def test_other_folders_are_refused(tmp_path):
    def refused(message, path=tmp_path):
        with pytest.raises(Refused, match=message):
            HuggingFace(path=str(path), **NAMED).load(2, STREAMS)

    refused("does not exist .* by name: save the data set first", tmp_path / "gone")
    refused("holds no such split")
    (tmp_path / "train.parquet").write_bytes(b"PAR1 and no more")
    refused("cannot be read")
    for listed in ([{"filename": "../train.parquet"}], []):
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": listed}))
        refused("lists no files, or files of other folders")
    for state in (
        "{",
        "[1]",
        '{"_data_files": 1}',
        '{"_data_files": [1]}',
        '{"_data_files": [{}]}',
    ):
        (tmp_path / "state.json").write_text(state)
        refused(r"state\.json cannot be read")


@every_case("column", ["text", "mood", "who"])
def test_what_is_no_utf_8_is_refused(tmp_path, column):
    columns = {"text": ["a", "b"], "mood": ["sad", "glad"], "who": ["a", "b"]}
    columns[column] = ["spoilt", columns[column][1]]
    file = tmp_path / "train.parquet"
    table = pyarrow.table(columns)
    parquet.write_table(table, file, compression="none", use_dictionary=False)
    file.write_bytes(file.read_bytes().replace(b"spoilt", b"spoi\xff\xfe"))
    with pytest.raises(Refused, match="cannot be read"):
        HuggingFace(path=str(tmp_path), **{**TEXTS, "label": "mood"}).load(2, STREAMS)


def test_a_public_set_that_is_broken_is_refused(saved, tmp_path):
    (tmp_path / "state.json").write_text("{")
    source = HuggingFace(path=str(saved / "one"), test_path=str(tmp_path), **NAMED)
    with pytest.raises(Refused, match=r"state\.json cannot be read"):
        source.load_test(2, STREAMS)
