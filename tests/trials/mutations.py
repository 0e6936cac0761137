"""Faults of files: bits, truncation, numbers, words, structures, types, all from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

Files = dict[str, bytes]
"""Contents by path below a folder."""

NUMBERS = (
    *(b"-1", b"0", b"1e999", b"-1e999", b"NaN", b"1" * 400, b"-0.0", b"1e-400", b"0x10", b"1_0"),
)
TEXTS = (
    *(b"\x00", b"\x1b[31m", b"\xff\xfe", b"\r", b"\n\n", b'"', b"\\", b",", b"\xe2\x80\xae"),
    *(b"{}", b"[[["),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), "", "\x00", "\x1b[2J", "x" * 10_000, "../../etc", "٣", "\ud800"),
    *([], {}, [[]], [None], {"": {}}, [1, "a"], [[1.0], [1.0, 2.0]]),
)


def spoiled(content: bytes, rng: random.Random) -> bytes:
    """Returns `content` with one to four faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(_FAULTS)(content, rng)
    return content


def spoiled_files(files: Files, rng: random.Random) -> Files:
    """Returns `files` with one of them spoiled, missing, empty or replaced by another."""
    name = rng.choice(sorted(files))
    kind = rng.random()
    if kind < 0.03:
        return {other: content for other, content in files.items() if other != name}
    if kind < 0.06:
        return files | {name: b""}
    if kind < 0.09:
        return files | {name: files[rng.choice(sorted(files))]}
    return files | {name: spoiled(files[name], rng)}


def spoiled_document(document: Any, rng: random.Random) -> Any:
    """Returns a JSON or TOML document with one to three values changed, removed or unknown."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(list(_places(document)) or [(None, None)])
        if holder is None:
            return rng.choice(VALUES)
        kind = rng.random()
        if kind < 0.15:
            del holder[key]
        elif kind < 0.25 and isinstance(holder, dict):
            holder[rng.choice(("unknown", "", str(key) + "s", "\x1b[1m"))] = rng.choice(VALUES)
        elif kind < 0.3:
            holder[key] = _nested(rng.choice((20, 200)))
        elif kind < 0.5 and type(holder[key]) in (int, float):
            holder[key] = rng.choice((-1, 2, 10, 1000)) * holder[key]
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return document


def as_json(document: Any) -> bytes:
    """Encodes like a program that ignores the restrictions of strict JSON."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(document: Any) -> Any:
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\x01"
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


def _overwrite(content: bytes, rng: random.Random) -> bytes:
    at, count = rng.randrange(len(content) + 1), rng.choice((1, 2, 4, 8))
    fill = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80"))
    return content[:at] + fill * count + content[at + count :]


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _remove(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.randrange(1, 40) :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    part = content[at : at + rng.randrange(1, 200)]
    return content[:at] + part * rng.choice((2, 3, 50)) + content[at:]


def _lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines.insert(second, lines[first])
    return b"\n".join(lines)


def _insert(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(TEXTS) + content[at:]


def _number(content: bytes, rng: random.Random) -> bytes:
    """Replaces a number by another one, if there is one."""
    places = [at for at, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        return _insert(content, rng)
    first = last = rng.choice(places)
    while last < len(content) and chr(content[last]) in "0123456789.eE+-":
        last += 1
    return content[:first] + rng.choice(NUMBERS) + content[last:]


def _deepen(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice((b"[", b"{", b'{"a":', b"(")) * 5_000 + content[at:]


def _append(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.choice((1, 8, 1000)))


_FAULTS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _flip, _overwrite, _cut, _remove, _repeat, _lines, _insert, _number, _deepen, _append),
)
