"""Files of the sources of published data sets, as they are written and spoiled."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet
from trials.mutations import Files

from privfed.core.streams import Streams
from privfed.data.sources.folders import Folders
from privfed.data.sources.hugging_face import HuggingFace
from privfed.data.sources.tff import Tff

IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)
DECLARED = {"label": "label", "classes": 3, "shape": [1, 3, 4], "bounds": [0.0, 255.0]}


def hdf5(folder: Path) -> list[Files]:
    """Returns clients' arrays, plain and packed."""
    written = []
    for packing in ({}, {"chunks": True, "compression": "gzip"}):
        stored = io.BytesIO()
        with h5py.File(stored, "w") as file:
            for client in ("a", "b"):
                fields = {"pixels": np.stack([IMAGE, IMAGE]), "label": np.array([0, 2])}
                for name, array in fields.items():
                    file.create_dataset(f"examples/{client}/{name}", data=array, **packing)
        written.append({"t.h5": stored.getvalue()})
    return written


def saved(folder: Path) -> list[Files]:
    """Returns images in Parquet files, and saved arrays, with the list of their files."""
    pictures = [_picture("PNG"), _picture("BMP")]
    columns = {"x": pictures, "label": [0, 2], "who": ["a", "b"]}
    packed, plain = io.BytesIO(), io.BytesIO()
    parquet.write_table(pyarrow.table(columns), packed)
    arrays = pyarrow.table(columns | {"x": [IMAGE.tolist(), IMAGE.tolist()]})
    with pyarrow.ipc.new_stream(plain, arrays.schema) as stream:
        stream.write_table(arrays)
    state = b'{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'
    return [
        {"train.parquet": packed.getvalue()},
        {"data-00000-of-00001.arrow": plain.getvalue(), "state.json": state},
    ]


def pictures(folder: Path) -> list[Files]:
    """Returns images of several formats by client, and a table of their labels."""
    table = b"file,label\na/1.png,0\na/2.gif,1\nb/1.jpg,2\nb/2.webp,1\n"
    images = {"a/1.png": "PNG", "a/2.gif": "GIF", "b/1.jpg": "JPEG", "b/2.webp": "WEBP"}
    return [
        {f"people/{name}": _picture(kind) for name, kind in images.items()} | {"t.csv": table},
    ]


def _picture(kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(IMAGE).save(content, kind)
    return content.getvalue()


def reads(part: type, **keys: Any) -> Callable[[Path], None]:
    """Returns a reader of a folder with a part; keys that begin with "@" are paths in it."""

    def read(place: Path) -> None:
        here = {k: str(place / v[1:]) if str(v).startswith("@") else v for k, v in keys.items()}
        part(**here).load(2, Streams(0))

    return read


TFF = reads(Tff, path="@t.h5", x="pixels", **DECLARED)
SAVED = reads(HuggingFace, path="@.", x="x", client="who", **DECLARED)
PICTURES = reads(Folders, path="@people", label_table="@t.csv", classes=3, shape=[1, 3, 4])
