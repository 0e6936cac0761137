"""All readers of files that others may have written, each as a `Target`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import struct
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import safetensors.numpy
import tomli_w
from pyarrow import parquet
from small import SMALL, small
from trials import published
from trials.fuzz import MEANT, Target
from trials.mutations import VALUES, Files, as_json, spoiled, spoiled_document, spoiled_files

from accounting import chain
from accounting.guarantee import spent
from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.config.reading import load, read_resolved
from privfed.core.streams import Streams
from privfed.data.declaring.declare import declare
from privfed.data.sources.idx import Idx
from privfed.data.sources.leaf import Leaf
from privfed.data.sources.table import Table
from privfed.data.sources.text import Text
from privfed.grid.cells import cells
from privfed.grid.load import load_grid
from privfed.plan.plan import plan
from privfed.run.train import resume, train
from privfed.secure.committee import messages as committees
from privfed.secure.committee.channel import simulated_keys
from privfed.secure.committee.dealing import DIGEST, Dealt
from privfed.secure.committee.key_book import KeyBook
from privfed.secure.committee.keyring import Keyring
from privfed.secure.frames import BadMessage
from privfed.secure.homomorphic import messages as homomorphic_messages
from privfed.secure.masked.messages import wire as messages
from privfed.secure.masked.messages.roster import Attestation
from privfed.secure.primitives import KEY, SIGNATURE
from privfed.trained.evaluate import evaluate

STREAMS = Streams(0)
CSV = b"""ward,age,weight,sex,ill,stay
a,20,50.0,f,no,1.5
b,60,80.0,m,yes,9
"b, c",100,110,f,no,4
a,31,,m,yes,
"""
COLUMNS = {
    "client": "ward",
    "label": "ill",
    "labels": ["no", "yes"],
    "features": {"age": [0.0, 100.0], "weight": [50.0, 110.0]},
    "categories": {"sex": ["m", "f"]},
    "missing": 0.0,
}


def table(name: str, **changes: Any) -> Any:
    def read(place: Path) -> None:
        keys = {**COLUMNS, **changes, "path": str(place / name)}
        Table(**keys).load(2, STREAMS)

    return read


def _csv(folder: Path) -> list[Files]:
    return [{"t.csv": CSV}, {"t.csv": CSV.replace(b"\n", b"\r\n")}]


def _parquet(folder: Path) -> list[Files]:
    columns = pyarrow.table(
        {
            "ward": ["a", "b", "b", "c"],
            "age": [20, 60, 100, 3],
            "weight": [50.0, None, 80.0, 1e300],
            "sex": ["f", "m", "f", "f"],
            "ill": ["no", "yes", "no", "no"],
        }
    )
    written = []
    for compression in ("none", "snappy", "gzip"):
        sink = io.BytesIO()
        parquet.write_table(columns, sink, compression=compression)
        written.append({"t.parquet": sink.getvalue()})
    return written


def _arrays() -> dict[str, np.ndarray]:
    return {
        "ward": np.array(["a", "b", "b", "c"]),
        "age": np.array([20.0, 60, 100, 3]),
        "weight": np.array([50, 80, 110, 60], dtype=">i4"),
        "sex": np.array(["f", "m", "f", "f"]),
        "ill": np.array(["no", "yes", "no", "no"]),
    }


def _npz(arrays: dict[str, np.ndarray], packed: bool = False) -> Files:
    sink = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(sink, **arrays)
    return {"t.npz": sink.getvalue()}


def _spoiled_npz(files: Files, rng: random.Random) -> Files:
    """Returns spoiled bytes, or a valid archive with arrays of other types, shapes and headers."""
    if rng.random() < 0.5:
        return spoiled_files(files, rng)
    arrays, name = _arrays(), rng.choice(sorted(_arrays()))
    kind = rng.choice(
        (
            *(
                "float16",
                "float32",
                "complex64",
                "bool",
                "uint64",
                "S3",
                "U0",
                "V4",
                "datetime64[s]",
            ),
            *("deep", "flat", "long", "none"),
        )
    )
    if kind == "none":
        del arrays[name]
    elif kind == "deep":
        arrays[name] = np.zeros((4,) + (1,) * rng.randrange(1, 9))
    elif kind == "flat":
        arrays[name] = np.array(rng.choice((1.0, np.nan, np.inf, 2.0**70)))
    elif kind == "long":
        arrays[name] = np.zeros((rng.choice((0, 3, 5)), rng.choice((0, 1, 3))))
    else:
        arrays[name] = np.zeros(4, dtype=kind)
    files = _npz(arrays, packed=rng.random() < 0.5)
    claimed = rng.choice((b"(999999999999,), }", b"(-4,), }          ", b"(4, 4, 4), }      "))
    spot = files["t.npz"].find(b"(4,), }")
    if spot > 0 and rng.random() < 0.3:  # a header with a wrong shape
        content = files["t.npz"]
        files = {"t.npz": content[:spot] + claimed + content[spot + len(claimed) :]}
    return files


def _idx(folder: Path) -> list[Files]:
    def packed(array: np.ndarray) -> bytes:
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()

    images = packed(np.arange(240, dtype=np.uint8).reshape(12, 4, 5))
    labels = packed(np.arange(12, dtype=np.uint8) % 10)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    plain = dict(zip(names, (images, labels), strict=True))
    return [plain, {f"{name}.gz": gzip.compress(text, mtime=0) for name, text in plain.items()}]


def _leaf(folder: Path) -> list[Files]:
    users = {"a": {"x": [[0.5, 1.0], [0, 1]], "y": [0, 3]}, "b": {"x": [[1, 1]], "y": [1]}}
    return [{"train/all.json": as_json({"users": ["a", "b"], "user_data": users})}]


def _spoiled_json(files: Files, rng: random.Random) -> Files:
    if rng.random() < 0.5:
        return spoiled_files(files, rng)
    ((name, content),) = files.items()
    return {name: as_json(spoiled_document(json.loads(content), rng))}


def _play(folder: Path) -> list[Files]:
    return [{"play.txt": b"FIRST:\nWhen shall we?\n\nSECOND:\n\nTHIRD:\nEre the set of sun.\n"}]


def _configurations(folder: Path) -> list[Files]:
    kinds = (
        (),
        ("client.objective=scaffold", "data.setting=cross_silo"),
        ("privacy.epsilon=3.0",),
        ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0"),
        ("privacy.mechanism=none", "aggregation.rule=median"),
    )
    return [{"run.toml": small(*kind).toml().encode()} for kind in kinds]


def _spoiled_toml(files: Files, rng: random.Random) -> Files:
    if rng.random() < 0.5:
        return spoiled_files(files, rng)
    ((name, content),) = files.items()
    try:
        document = spoiled_document(tomllib.loads(content.decode()), rng)
        return {name: tomli_w.dumps(document).encode("utf-8", "surrogatepass")}
    except (
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ):  # not representable in TOML
        return spoiled_files(files, rng)


def planned(place: Path) -> None:
    """Does what `check` does first; larger runs are skipped, because they are valid but slow."""
    config = load(place / "run.toml")
    config.toml()
    if config.data.clients <= 10_000 and config.run.rounds <= 10_000:
        plan(config)


def _words(folder: Path) -> list[Files]:
    words = (*SMALL[SMALL.index("data.clients=12") :], "privacy.epsilon=inf", 'attack.name="alie"')
    return [{"words": word.encode()} for word in words]


def _spoiled_words(files: Files, rng: random.Random) -> Files:
    word = files["words"].decode()
    if rng.random() < 0.5:
        word = f"{word.partition('=')[0]}={rng.choice(VALUES)}"
        return {"words": word.encode("utf-8", "surrogatepass")}
    return {"words": spoiled(files["words"], rng)}


def overridden(place: Path) -> None:
    load(None, (place / "words").read_bytes().decode("utf-8", "surrogateescape").splitlines())


GRID = {
    "base": "",
    "grid": {"server.lr": [0.1, 1.0], "privacy.epsilon": [1.0, 2.0]},
    "seeds": [0, 1],
}


def _ledgers(folder: Path) -> list[Files]:
    path = folder / "ledgers"
    for name, settings in {
        "a": ("run.rounds=3",),
        "b": ("privacy.epsilon=5.0", "run.rounds=2", "cohort.sampler=full", "cohort.size=0"),
    }.items():
        train(small(*settings), path / name)
    return [{"ledger.jsonl": (path / name / "ledger.jsonl").read_bytes()} for name in "ab"]


def _spoiled_ledger(files: Files, rng: random.Random) -> Files:
    """Returns spoiled bytes, or a valid hash chain over invalid lines."""
    if rng.random() < 0.5:
        return spoiled_files(files, rng)
    lines = [json.loads(line) for line in files["ledger.jsonl"].splitlines()]
    spot, head, content = rng.randrange(len(lines)), chain.START, b""
    lines[spot] = spoiled_document(lines[spot], rng)
    for line in lines:
        items = line.items() if isinstance(line, dict) else ()
        body = {key: value for key, value in items if key != "hash"}
        try:
            text, link = chain.sealed(head, body)
        except (TypeError, ValueError, RecursionError):
            return spoiled_files(files, rng)
        head, content = link["hash"], content + text
    return {"ledger.jsonl": content}


def spent_of(place: Path) -> None:
    ledger = Ledger.load(place / "ledger.jsonl")
    if ledger.opened and len(ledger.charges) < 10_000:
        spent(ledger, 1e-3)


def _run_directories(folder: Path) -> list[Files]:
    kinds = (
        (),
        ("client.objective=scaffold", "data.setting=cross_silo"),
        ("data.clients=24", "audit.canaries=20"),
    )
    whole = []
    for number, kind in enumerate(kinds):
        path = folder / f"{number}"
        train(small("run.rounds=4", *kind), path)
        whole.append(
            {
                str(item.relative_to(path)): item.read_bytes()
                for item in path.rglob("*")
                if item.is_file() and item.name != ".lock"
            }
        )
    return whole


def _spoiled_run(files: Files, rng: random.Random) -> Files:
    """Returns spoiled bytes of any file, or a well-formed checkpoint with other contents."""
    if rng.random() < 0.6:
        return spoiled_files(files, rng)
    name = "checkpoint.safetensors"
    size = int.from_bytes(files[name][:8], "little")
    about = json.loads(json.loads(files[name][8 : 8 + size])["__metadata__"]["privfed"])
    tensors = safetensors.numpy.load(files[name])
    if rng.random() < 0.5:
        about = spoiled_document(about, rng)
    else:
        tensor = rng.choice(sorted(tensors))
        now = tensors[tensor]
        others = (
            *(now.astype(np.float64), now.reshape(-1)[:0], now[None], -now),
            *(np.float32([np.nan]), np.zeros((2, 2, 2), np.uint8)),
        )
        tensors[tensor] = np.asarray(rng.choice(others))
    metadata = {"privfed": as_json(about).decode("utf-8", "replace")}
    return files | {name: safetensors.numpy.save(tensors, metadata)}


def resumed(place: Path) -> None:
    """Checks that a refused resume removed nothing from the ledger, and left the checkpoint
    unchanged.
    """
    ledger, checkpoint = place / "ledger.jsonl", place / "checkpoint.safetensors"
    before = [path.read_bytes() if path.exists() else b"" for path in (ledger, checkpoint)]
    if _rounds(place) > 12:
        return  # it would run the additional rounds
    try:
        resume(place, lambda config: config)
    except Exception:
        after = [path.read_bytes() if path.exists() else b"" for path in (ledger, checkpoint)]
        lines, state = after
        assert lines.startswith(before[0][: before[0].rfind(b"\n") + 1]), "the ledger lost a line"
        assert state == before[1] or len(lines) > len(before[0]), "the checkpoint has changed"
        raise


def _rounds(place: Path) -> int:
    try:
        return read_resolved((place / "config.toml").read_text()).run.rounds
    except Exception:  # the resume will report it
        return 0


def _messages(folder: Path) -> list[Files]:
    context, key, signature = bytes(KEY), bytes(range(32)), bytes(SIGNATURE)
    advertise = messages.Advertise(context, 3, key, key, key, signature=signature)
    pairs, texts = ((1, 5), (2, 2**100)), ((2, b"sealed"), (3, b"sealet"))
    attestation = Attestation(3, (1, 9), signature)
    every = (
        messages.Invitation(key, 1, 0, key, 16, 10, key),
        advertise,
        messages.Roster(context, (1, 3), (key, key), 1, 2, key, (advertise, advertise)),
        messages.Shares(context, 1, key, key, texts, texts),
        messages.Inbox(context, texts, texts),
        messages.Masked(context, 1, b"words" * 9, (2, 3), attestation),
        messages.Survivors(context, (1, 2, 5), (attestation, attestation)),
        messages.Vote(context, 1, signature),
        messages.Votes(context, (messages.Vote(context, 1, signature),) * 2),
        messages.Unmask(context, 1, pairs, pairs[:1], ((1, 1, 5), (2, 3, 2**100))),
    )
    assert {type(message).kind for message in every} == messages._FORMS._kinds.keys()
    return [{"message": messages.encode(message)} for message in every]


def decoded(place: Path) -> None:
    """Checks that bytes have one meaning, and a message one form."""
    data = (place / "message").read_bytes()
    assert messages.encode(messages.decode(data)) == data


def _to_committees(folder: Path) -> list[Files]:
    key, signature, digest = bytes(range(32)), bytes(SIGNATURE), bytes(DIGEST)
    call = committees.Call(1, 0, key, 16, 10, key, (1, 3, 8))
    dealt = Dealt(digest * 3, b"corrections" * 9, digest * 3)
    sealed = (bytes(committees.SEALED),) * 3
    every = (
        call,
        committees.Contribution(key, 3, sealed, dealt, b"words" * 9, signature=signature),
        committees.MemberInbox(key, ((1, sealed[0]), (8, sealed[1]))),
        committees.Ballot(key, 3, signature, (digest, digest), signature=signature),
        committees.Ballots(key, (committees.MemberVote(3, signature),) * 2),
        committees.Disclosure(key, 3, ((1, b"numbers" * 9), (8, b"")), signature=signature),
    )
    assert {type(message).kind for message in every} == committees._FORMS._kinds.keys()
    return [{"message": committees.message_bytes(message)} for message in every]


def decoded_by_committees(place: Path) -> None:
    """Checks that bytes have one meaning, and a message one form."""
    data = (place / "message").read_bytes()
    assert committees.message_bytes(committees.read_message(data)) == data


def _rings(folder: Path) -> list[Files]:
    """Returns rings of a client with itself and with two others, at some exchange."""
    stored = []
    for clients in ((3,), (3, 5, 8)):
        ring = simulated_keys(clients).ring(3)
        ring.take(2, 1)
        stored.append({"ring": ring.to_bytes()})
    return stored


def _spoiled_ring(files: Files, rng: random.Random) -> Files:
    """Returns spoiled bytes, some with a matching hash."""
    data = spoiled(files["ring"], rng)
    if rng.random() < 0.7:
        data = data[:-KEY] + hashlib.sha256(data[:-KEY]).digest()
    return {"ring": data}


def restored(place: Path) -> None:
    """Checks that an accepted ring is written as it was read."""
    data = (place / "ring").read_bytes()
    me = int.from_bytes(data[36:44], "little")
    book = KeyBook(b"", {}, dict.fromkeys((3,) if len(data) < 200 else (3, 5, 8)))
    book.__dict__["digest"] = data[4:36]
    assert Keyring.from_bytes(data, me, book, lambda _: None).to_bytes() == data


def _encrypted(folder: Path) -> list[Files]:
    key = bytes(range(32))
    opening = homomorphic_messages.Opening(b"bfv", 1, 0, 16, 10, key, key, key, b"public key" * 9)
    row = homomorphic_messages.Row(key, 5, (b"one" * 20, b"two" * 20))
    total = homomorphic_messages.Total(key, 5, (b"one" * 20,))
    return [{"message": message.encode()} for message in (opening, row, total)]


def opened(place: Path) -> None:
    data = (place / "message").read_bytes()
    kinds = (homomorphic_messages.Opening, homomorphic_messages.Row, homomorphic_messages.Total)
    kind = kinds[data[3] - 1] if len(data) > 3 and data[3] in (1, 2, 3) else kinds[0]
    assert kind.decode(data).encode() == data


def _spoiled_message(files: Files, rng: random.Random) -> Files:
    return {"message": spoiled(files["message"], rng)}


def _declared(place: Path) -> None:
    declare(place / "t.csv", "ill", "ward", "t.csv", ",")


def _grid(folder: Path) -> list[Files]:
    return [{"grid.toml": tomli_w.dumps(GRID).encode()}]


def _cells(place: Path) -> None:
    grid = load_grid(place / "grid.toml")
    if len(grid.seeds) < 100:
        cells(place / "grid.toml", grid)


TARGETS = {
    "tables, CSV": Target(_csv, spoiled_files, table("t.csv")),
    "tables, Parquet": Target(_parquet, spoiled_files, table("t.parquet")),
    "tables, npz": Target(
        lambda _: [_npz(_arrays()), _npz(_arrays(), packed=True)], _spoiled_npz, table("t.npz")
    ),
    "tables, declared": Target(_csv, spoiled_files, _declared),
    "idx": Target(_idx, spoiled_files, lambda place: Idx(path=str(place)).load(3, STREAMS)),
    "LEAF": Target(
        _leaf, _spoiled_json, lambda place: Leaf(path=str(place), classes=4).load(2, STREAMS)
    ),
    "HDF5 by client": Target(published.hdf5, spoiled_files, published.TFF),
    "saved data sets": Target(published.saved, spoiled_files, published.SAVED),
    "folders of images": Target(published.pictures, spoiled_files, published.PICTURES),
    "text of plays": Target(
        _play, spoiled_files, lambda place: Text(path=str(place / "play.txt")).load(2, STREAMS)
    ),
    "configurations": Target(_configurations, _spoiled_toml, planned),
    "--set": Target(_words, _spoiled_words, overridden),
    "grids": Target(_grid, _spoiled_toml, _cells),
    "ledgers": Target(_ledgers, _spoiled_ledger, spent_of, (*MEANT, OSError)),
    "run directories, audited": Target(_run_directories, _spoiled_run, audit),
    "run directories, scored": Target(_run_directories, _spoiled_run, evaluate),
    "run directories, resumed": Target(_run_directories, _spoiled_run, resumed, changes=True),
    "messages of masked sums": Target(_messages, _spoiled_message, decoded, (BadMessage,)),
    "messages of committees": Target(
        _to_committees, _spoiled_message, decoded_by_committees, (BadMessage,)
    ),
    "keyrings of committees": Target(_rings, _spoiled_ring, restored),
    "messages of homomorphic sums": Target(_encrypted, _spoiled_message, opened, (BadMessage,)),
}
