"""Where an exception came from in a user's own code: its file, line and function."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PRIVFED = tuple(_ROOT / name for name in ("accounting", "attacks", "defenses", "privfed"))
_PLACES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in _PLACES)


def own_frames(error: BaseException) -> str:
    """The frames of `error` in nobody's library, with their lines of code; "" without any.

    As Python writes them: none of it is the exception's text, or a value.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return "".join(traceback.format_list([f for f in frames if _is_own(f.filename)])).rstrip()


def in_own_code(error: BaseException) -> str:
    """`own_frames`, below a line that says what follows; "" without any."""
    frames = own_frames(error)
    return f"\nin your own code:\n{frames}" if frames else ""


def _is_own(filename: str) -> bool:
    """Whether `filename` is a file that neither privfed nor an installed package brought."""
    path = Path(filename)
    libraries = (*_PRIVFED, *_INSTALLED)
    return path.is_file() and not any(path.resolve().is_relative_to(at) for at in libraries)
