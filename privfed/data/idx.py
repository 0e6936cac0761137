"""MNIST-format folders: images and labels as idx files, gzipped or not.

Format: Y. LeCun, C. Cortes & C. Burges, "The MNIST database", section FILE FORMATS.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from privfed.errors import Refused
from privfed.federation import Examples
from privfed.parts import Part
from privfed.streams import Streams

_UNSIGNED_BYTES = 0x08


class Idx(Part):
    """x `[N, 1, height, width]`: intensities, scaled by public constants from 0 … 255 to [0, 1].

    `path` is the folder, `prefix` how the two files' names begin ("train", "t10k"; empty: the only
    pair there). `classes` is declared, never counted from private labels.
    """

    path: str
    prefix: str = ""
    classes: int = Field(10, ge=2)
    natural_partition: ClassVar[bool] = False

    def load(self, clients: int, streams: Streams) -> Examples:
        images, labels = self._pair()
        x, y = read_idx(images), read_idx(labels)
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise Refused(
                f"data.path: {images} holds an array of shape {x.shape} and {labels} one of "
                f"{y.shape}; expected [N, height, width] and [N]"
            )
        if len(y) and int(y.max()) >= self.classes:
            raise Refused(
                f"data.classes is {self.classes}, but {labels} holds labels beyond "
                f"{self.classes - 1}; declare all classes"
            )
        scaled = torch.from_numpy(x).float().unsqueeze(1) / 255
        return Examples(scaled, torch.from_numpy(y).long(), self.classes)

    def load_test(self, clients: int, streams: Streams) -> None:
        return None

    def _pair(self) -> tuple[Path, Path]:
        folder = Path(self.path)
        if not folder.is_dir():
            raise Refused(f"data.path is {self.path!r}; expected a folder of idx files")
        pairs = [
            (images, labels)
            for images in sorted(folder.glob(f"{self.prefix}*images?idx3-ubyte*"))
            for labels in sorted(folder.glob("*labels?idx1-ubyte*"))
            if images.name.split("images")[0] == labels.name.split("labels")[0]
            and images.suffix == labels.suffix
        ]
        if len(pairs) == 1:
            return pairs[0]
        found = sorted(path.name for path in folder.iterdir())
        raise Refused(
            f"data.path: {self.path} holds {len(pairs)} pairs of images and labels (files: "
            f"{found}); expected one, as train-images-idx3-ubyte.gz with train-labels-idx1-ubyte.gz"
            + ("; name it by data.prefix" if pairs else "")
        )


def read_idx(path: Path) -> np.ndarray:
    """The array of unsigned bytes in an idx file. Raises `Refused` where it is not one, whole."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Refused(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise Refused(
            f"{path} begins with {content[:4].hex()!r}; expected an idx file of unsigned bytes "
            "(0000 08 and the number of dimensions)"
        )
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise Refused(f"{path} ends inside its header; it was cut")
    shape = tuple(np.frombuffer(content[4:header], ">u4").tolist())
    if len(content) - header != math.prod(shape):
        raise Refused(
            f"{path} declares shape {shape}, {math.prod(shape)} bytes, but holds "
            f"{len(content) - header}; it was cut or is of another type"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
