"""Files of runs and canaries with other types in every place: each is refused in one sentence."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from commands import run as command
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small import trained

from privfed.canary.drawing import Drawing
from privfed.core.errors import PrivfedError, ran_out_of_memory
from privfed.core.failures import report_error
from privfed.store.run_files import CheckpointFile

OTHERS = (3, "x", [[1]], {"y": 1}, None, True, -1.5)
HEADERS = (b"{'descr': '<f4', 'shape': (2,", b"{", b"'", b"(" * 500, b"{'descr': 3}\n", b"\xff\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    trained(path, "run.rounds=1")
    return path


def mutated(value):
    """`value` with another type in each of its places, one at a time."""
    yield from OTHERS
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        for other in mutated(value[key]):
            copy = json.loads(json.dumps(value))
            copy[key] = other
            yield copy


def restate(path, lineage):
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["privfed"])
    about["lineage"] = lineage
    save_file(load_file(path), path, {"privfed": json.dumps(about)})


@pytest.mark.parametrize("lineage", [3, "x", [[1]]], ids=str)
def test_an_export_of_a_checkpoint_with_another_lineage_is_refused(finished, tmp_path, lineage):
    run = shutil.copytree(finished, tmp_path / "run")
    restate(run / "checkpoint.safetensors", lineage)
    result = command("export", run, "--to", tmp_path / "model.safetensors")
    assert result.exit_code == 5
    assert len(result.stderr.splitlines()) <= 2
    assert "checkpoint.safetensors does not fit this run" in result.stderr


def test_a_lineage_is_read_or_broken_whatever_stands_in_it(finished, tmp_path):
    path = Path(shutil.copy(finished / "checkpoint.safetensors", tmp_path))
    checkpoint = CheckpointFile(path, finished / "ledger.jsonl")
    for lineage in mutated(checkpoint.lineage()):
        restate(path, lineage)
        with contextlib.suppress(PrivfedError):
            checkpoint.lineage()


@pytest.mark.parametrize("name", ["report/summary.json", "metrics.jsonl"])
def test_claims_of_another_type_end_no_reader_in_a_bug(finished, tmp_path, name):
    run = shutil.copytree(finished, tmp_path / "run")
    *_, last = (
        (run / name).read_text("utf-8").splitlines()
        if name.endswith("l")
        else [(run / name).read_text("utf-8")]
    )
    value = json.loads(last)
    for other in [*OTHERS, *({**value, key: [[1]]} for key in value)]:
        (run / name).write_text(json.dumps(other) + "\n")
        for words in (("runs", tmp_path), ("audit", run)):
            result = command(*words)
            assert result.exit_code in (0, 2, 4, 5), (words, other, result.output)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
@pytest.mark.parametrize("name", ["coins.npy", "directions.npy"])
def test_canaries_whose_header_does_not_parse_are_broken(tmp_path, name, header):
    folder = Drawing(4, 3, 0.5, "zero-out", 1).write(tmp_path / "canaries")
    length = len(header).to_bytes(2, "little")
    (folder.path / name).write_bytes(b"\x93NUMPY\x01\x00" + length + header + bytes(100))
    read = folder.coins if name == "coins.npy" else folder.directions
    with pytest.raises(PrivfedError, match=f"{name} "):
        read()


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError("libx.so: cannot apply additional memory protection after relocation"),
        RuntimeError("can't start new thread"),
    ],
    ids=["import", "loader", "thread"],
)
def test_too_little_memory_for_a_library_is_no_bug(error, capsys):
    assert ran_out_of_memory(error)
    assert report_error(error) == 2
    assert "not enough memory" in capsys.readouterr().err


def test_other_errors_are_not_taken_for_memory():
    assert not ran_out_of_memory(ImportError("No module named 'torch'"))
    assert not ran_out_of_memory(FileNotFoundError(2, "No such file or directory"))
