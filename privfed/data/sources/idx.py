"""MNIST-format folders: images and labels as idx files, gzipped or not.

Format: Y. LeCun, C. Cortes & C. Burges, "The MNIST database", section FILE FORMATS.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from accounting import regular
from accounting.errors import Misplaced
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples
from privfed.data.pieces import Mapped
from privfed.data.preprocessing import Preprocessing

_UNSIGNED_BYTES = 0x08
_PIECE = 2**20
"""Number of bytes decompressed at once."""


class Idx(Part):
    """MNIST-format folders. x `[N, 1, height, width]`: intensities 0 … 255, scaled to [0, 1].

    `path` is the folder. `prefix` is the common prefix of the two files' names, for example "train"
    or "t10k"; if it is empty, the folder must contain only one pair. `test_prefix` is the prefix of
    a public test set. `classes` is declared, never counted from private labels. Uncompressed
    images are memory-mapped, and never read as a whole.
    """

    path: str = Field(examples=["."])
    """The folder of the files."""
    prefix: str = ""
    """Prefix of the names of the two files ("train"); empty if the folder holds only one pair."""
    test_prefix: str = ""
    """Prefix of the names of a public test set ("t10k"), if there is one."""
    classes: int = Field(10, ge=2)
    """Number of classes; labels are integers from 0."""
    natural_partition: ClassVar[bool] = False
    holds_real_clients: ClassVar[bool] = False

    @property
    def squared_norm(self) -> None:
        """None, since only the file states the size of images."""
        return None

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("idx",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(self.prefix)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._load(self.test_prefix) if self.test_prefix else None

    def load_inputs(self) -> Examples:
        """Returns the images of `path`: an idx file without labels, or a folder's pair with labels.

        Raises `Refused` if a single file's array is not `[N, height, width]`.
        """
        if not Path(self.path).is_file():
            return self._load(self.prefix)
        x = read_idx(Path(self.path))
        if x.ndim != 3:
            raise Refused(
                f"data.path: {self.path} holds an array of shape {x.shape}; expected images "
                "[N, height, width]"
            )
        unknown = np.zeros(len(x), dtype=np.uint8)
        return replace(self._examples(x, unknown), labelled=False)

    def _load(self, prefix: str) -> Examples:
        images, labels = self._pair(prefix)
        x, y = read_idx(images), np.array(read_idx(labels))
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise Refused(
                f"data.path: {images} holds an array of shape {x.shape}, and {labels} an array of "
                f"shape {y.shape}; expected [N, height, width] and [N]"
            )
        if len(y) and int(y.max()) >= self.classes:
            first = int((y >= self.classes).argmax())
            raise Refused(
                f"data.classes is {self.classes}, but label {first + 1} of {labels} is beyond "
                f"{self.classes - 1}; declare all classes",
                private=f"it is {y[first]}",
            )
        return self._examples(x, y)

    def _examples(self, x: np.ndarray, y: np.ndarray) -> Examples:
        store = torch.from_numpy(x).unsqueeze(1)
        pixels = Mapped(store, torch.arange(len(y)), bounds=(0.0, 255.0), onto=(0.0, 1.0))
        return Examples(
            pixels,
            torch.from_numpy(y).long(),
            self.classes,
            preprocessing=Preprocessing.of_mapped("intensity", pixels),
        )

    def _pair(self, prefix: str) -> tuple[Path, Path]:
        """Returns the files of images and labels whose names agree up to "images" and "labels".

        Both begin with `prefix`. Raises `Refused` unless there is exactly one such pair.
        """
        folder = Path(self.path)
        if not folder.is_dir():
            raise Refused(
                f"data.path is {self.path!r}, but there is no such folder; name the folder of files"
            )
        pairs = [
            (images, labels)
            for images in sorted(folder.glob(f"{prefix}*images?idx3-ubyte*"))
            for labels in sorted(folder.glob("*labels?idx1-ubyte*"))
            if images.name.split("images")[0] == labels.name.split("labels")[0]
            and images.suffix == labels.suffix
        ]
        if len(pairs) == 1:
            return pairs[0]
        names = sorted(path.name for path in folder.iterdir())
        raise Refused(
            f"data.path: {self.path} holds {len(pairs)} pairs of images and labels among "
            f"{len(names)} files; expected one pair, for example train-images-idx3-ubyte.gz with "
            "train-labels-idx1-ubyte.gz" + ("; name the pair by data.prefix" if pairs else ""),
            private=f"its files are {', '.join(names)}",
        )


def read_idx(path: Path) -> np.ndarray:
    """Returns the array of unsigned bytes in an idx file, memory-mapped unless it is gzipped.

    Raises:
      Refused: if the file is of another type, or truncated.
      OSError: if it cannot be read.
    """
    content: np.ndarray
    try:
        regular.refuse_irregular(path)
        if path.suffix == ".gz":
            content = np.frombuffer(_unzipped(path), np.uint8)
        elif path.stat().st_size:
            content = np.memmap(path, np.uint8, mode="c")
        else:
            content = np.empty(0, np.uint8)
    except Misplaced:
        raise Refused(f"{path} is a FIFO or a device; expected an idx file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Refused(
            f"{path} is an incomplete gzip file; download the file again", private=str(error)
        ) from None
    magic = bytes(content[:4])
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES:
        raise Refused(
            f"{path} is of another type; expected an idx file of unsigned bytes, which begins with "
            "0000 08 and the number of dimensions",
            private=f"it begins with {magic.hex()!r}",
        )
    header = 4 + 4 * magic[3]
    if len(content) < header:
        raise Refused(f"{path} is truncated: it ends within its header; download the file again")
    shape = tuple(np.frombuffer(bytes(content[4:header]), ">u4").tolist())
    if len(content) - header != math.prod(shape):
        raise Refused(
            f"{path} holds {len(content) - header} bytes after its header, but the header "
            "declares another number; download the file again, or name an idx file",
            private=f"it declares shape {shape}, {math.prod(shape)} bytes",
        )
    return content[header:].reshape(shape)


def _unzipped(path: Path) -> bytearray:
    """Returns the decompressed idx file; stops soon after the length that its header declares."""
    with regular.opened(path) as raw, gzip.open(raw) as file:
        content = bytearray(file.read(4))
        content += file.read(4 * content[3]) if len(content) == 4 else b""
        shape = np.frombuffer(bytes(content[4 : len(content) // 4 * 4]), ">u4")
        declared = len(content) + math.prod(shape.tolist())
        while len(content) <= declared and (piece := file.read(_PIECE)):
            content += piece
    return content
