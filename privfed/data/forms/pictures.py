"""Reads images in the usual file formats as arrays of bytes, with Pillow."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from privfed.core.errors import Refused, public_text

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm"})
"""Suffixes of image files."""
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""Supported formats. Others are unsafe: PostScript runs programs, and TIFF's library prints the
contents of damaged files.
"""
_MODES = {1: "L", 3: "RGB"}
_LONGEST = 2**16
"""Largest number of pixels that may be declared in each direction."""
SHAPE = f"[1, height, width] (gray) or [3, height, width] (colours), up to {_LONGEST} each way"
"""Shapes of images, for messages."""
_BYTES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
"""Modes with at most one byte per channel."""


def is_of_pictures(shape: Sequence[int]) -> bool:
    """Whether `shape` may be that of images: 1 or 3 channels, height and width up to 65,536."""
    return len(shape) == 3 and shape[0] in _MODES and max(shape) <= _LONGEST


def picture(content: bytes, shape: Sequence[int], resize: bool, called: str) -> np.ndarray:
    """Returns the image in `content` as bytes `[channels, height, width]` of a declared `shape`.

    If one channel is declared, colours are converted to gray by their luminance. Transparency is
    ignored.

    Args:
      content: bytes of an image file.
      shape: channels (1 or 3), height and width.
      resize: whether images of another size are resized; otherwise they are refused.
      called: name of the image in messages.

    Raises:
      Refused: if the image cannot be read, has another size or more than one byte per channel, or
        has more pixels than Pillow considers safe.
    """
    library = _pillow()
    channels, height, width = shape
    try:
        with _quiet(library), library.open(io.BytesIO(content), formats=_FORMATS) as image:
            _refuse_mode(image.mode, called)
            if image.size != (width, height) and not resize:
                raise Refused(
                    f"data.shape: {called} has another size; expected {height} x {width} pixels; "
                    "declare the images' size, or set data.resize = true",
                    private=f"it has {image.size[1]} x {image.size[0]}",
                )
            pixels = np.asarray(image.convert(_MODES[channels]).resize((width, height)))
    except (library.DecompressionBombError, library.DecompressionBombWarning) as error:
        raise Refused(
            f"data: {called} has more than {library.MAX_IMAGE_PIXELS} pixels; save a smaller image",
            private=str(error),
        ) from None
    except (OSError, SyntaxError, ValueError) as error:
        raise Refused(
            f"data: {called} cannot be read as an image ({public_text(error)}); expected one of "
            f"{', '.join(_FORMATS)}",
            private=str(error),
        ) from None
    return np.moveaxis(pixels.reshape(height, width, channels), -1, 0)


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Returns a context that suppresses warnings, which may quote contents of images.

    Only the warning of `library`, Pillow's module of images, about a huge image is raised.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", library.DecompressionBombWarning)
        yield


def _pillow() -> Any:
    """Returns Pillow's module of images. Raises `Refused` if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise Refused(
            "data: images are read with Pillow, which is not installed; run: "
            "pip install 'privfed[images]'"
        ) from None
    return Image


def _refuse_mode(mode: str, called: str) -> None:
    if mode not in _BYTES:
        raise Refused(
            f"data: {called} has more than one byte per channel; save the image with one byte per "
            "channel",
            private=f"its mode is {mode}",
        )
