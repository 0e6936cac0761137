"""Text on its way to a terminal: what a terminal would obey, or hide, is spelt out.

Names of files, columns, clients and parts, and the texts of exceptions, are others' words. As they
stand, an escape sequence among them recolours, moves and overwrites what is shown, a carriage
return hides the line before it, and marks of direction or of no width show another name than is
meant. Everything that privfed prints goes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from unicodedata import category

_KEPT_AS_THEY_ARE = "\n\t"
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control and format characters, bytes that were no text, and separators of lines."""


def visible(text: str) -> str:
    r"""`text`, with such characters as Python writes them; newlines and tabs stay.

    >>> print(visible("runs/a\x1b[31m\u202e"))
    runs/a\x1b[31m\u202e
    """
    return _spelt(text, lambda letter: letter.encode("unicode_escape").decode())


def visible_toml(text: str) -> str:
    r"""TOML of the same meaning: such characters stand in strings only, and are escaped there.

    >>> print(visible_toml('name = "a\x9b"'))
    name = "a\u009b"
    """
    return _spelt(text, _in_toml)


def _spelt(text: str, spell: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(spell(letter) if _unseen(letter) else letter for letter in text)


def _in_toml(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _unseen(letter: str) -> bool:
    return category(letter) in _UNSEEN and letter not in _KEPT_AS_THEY_ARE
