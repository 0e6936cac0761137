"""Images in the usual file formats as arrays of bytes, read with Pillow."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from privfed.errors import Refused, public_text

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})
"""How files end that are taken for images."""
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that are read here; others, as PostScript, run programs."""
_MODES = {1: "L", 3: "RGB"}
SHAPE = "[1, height, width] (gray) or [3, height, width] (colours)"
"""The shapes of images, as messages say them."""
_BYTES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
"""Modes of a byte per channel, at most."""


def is_of_pictures(shape: Sequence[int]) -> bool:
    """Whether images of bytes may have this shape."""
    return len(shape) == 3 and shape[0] in _MODES


def picture(content: bytes, shape: Sequence[int], resize: bool, called: str) -> np.ndarray:
    """The image in `content` as bytes `[channels, height, width]` of a declared `shape`.

    Colours become gray by their luminance where one channel is declared, and transparency is left
    out. Where it may not be resized, another size is refused before anything of it is unpacked.
    Raises `Refused`, calling the image `called`.
    """
    library = _pillow()
    channels, height, width = shape
    try:
        with _quiet(), library.open(io.BytesIO(content), formats=_FORMATS) as image:
            _refuse_mode(image.mode, called)
            if image.size != (width, height) and not resize:
                raise Refused(
                    f"data.shape: {called} has another size; expected {height} x {width} pixels; "
                    "declare it, or set data.resize = true",
                    private=f"it has {image.size[1]} x {image.size[0]}",
                )
            _refuse_huge(image.size, library.MAX_IMAGE_PIXELS, called)
            pixels = np.asarray(image.convert(_MODES[channels]).resize((width, height)))
    except (Refused, MemoryError):
        raise
    except Exception as error:  # of a library that reads what anybody may have written
        raise Refused(
            f"data: {called} is no image that can be read ({public_text(error)}); expected one of "
            f"{', '.join(_FORMATS)}",
            private=str(error),
        ) from None
    return np.moveaxis(pixels.reshape(height, width, channels), -1, 0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings, as of large images: they say what an image holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow() -> Any:
    """Pillow's module of images. Raises `Refused` where it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise Refused(
            "data: images are read with Pillow, which is not installed: "
            "pip install 'privfed[images]'"
        ) from None
    return Image


def _refuse_mode(mode: str, called: str) -> None:
    if mode not in _BYTES:
        raise Refused(
            f"data: {called} has more than a byte per channel; save it with bytes",
            private=f"its mode is {mode}",
        )


def _refuse_huge(size: tuple[int, int], most: int | None, called: str) -> None:
    if most is not None and size[0] * size[1] > most:
        raise Refused(f"data: {called} has more than {most} pixels; save it smaller")
