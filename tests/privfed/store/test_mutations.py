"""Files of runs and canaries with other types in every place: each is refused in one sentence."""

import contextlib
import fcntl
import json
import math
import shutil
import zipfile
from collections import Counter
from glob import escape
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from commands import run as command
from lanes import FULL, every_case, mostly_slow
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small import stop_after, trained

from accounting import chain
from accounting.errors import AccountingError
from accounting.events import Event
from accounting.guarantee import spent
from accounting.ledger import Ledger
from accounting.noises import Skellam
from accounting.releases import PoissonSampled
from privfed.__main__ import LoadsWithinLimit
from privfed.auditing.judged_models import models
from privfed.auditing.run_audit import audit
from privfed.canary.drawing import CanaryRequest
from privfed.core.errors import PrivfedError, Refused, free_memory, ran_out_of_memory
from privfed.core.failures import report_error, reporting
from privfed.data.tables.columns import column_names, read_array, refuse_repeated_names
from privfed.data.tables.delimited import Dialect
from privfed.data.tables.features import DeclaredNames
from privfed.deploy.files.receipt import Receipt
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.site.policy import SpendingLimit
from privfed.plan.assumed import Assumed
from privfed.plan.composed_guarantees import counted_priors
from privfed.privacy.counted_noise import NoiseOfSites
from privfed.report.runs.run_row import row_at
from privfed.run.train import resume
from privfed.secure.summation import Reason
from privfed.store.round_logs import AbortLog, ExclusionLog
from privfed.store.run_files import CheckpointFile

OTHERS = (3, "x", [[1]], {"y": 1}, None, True, -1.5)
HEADERS = (b"{'descr': '<f4', 'shape': (2,", b"{", b"'", b"(" * 500, b"{'descr': 3}\n", b"\xff\n")
ODD_HEADERS = [
    f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    for kind, shape in (
        *(("'|O'", "(6,)"), ("'<M8[s]'", "(6,)"), ("'V9'", "(6,)"), ("[('a', '<f8')]", "(6,)")),
        *(("'<f8'", "(999999999999,)"), ("'<f8'", "(-6,)"), ("'<f8'", "(10**30,)")),
        *(("'U1000000000'", "(6,)"), ("'<f8'", "None"), ("3", "(6,)"), ("'<c16'", "(6,)")),
    )
]


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


@every_case("lineage", [3, "x", [[1]]], ids=str)
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


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that counts an earlier one, within a budget, with a release and without its end."""
    folder = tmp_path_factory.mktemp("interrupted")
    trained(folder / "first", "run.rounds=1")
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(folder / "run", "run.rounds=3", f'privacy.prior=["{folder / "first"}"]')
    return folder / "run"


def resealed(lines):
    """The lines of a ledger or of receipts with a chain that holds; None where JSON has none."""
    head, content = chain.START, b""
    for line in lines:
        body = {key: value for key, value in line.items() if key != "hash"}
        text, link = chain.sealed(head, body)
        head, content = link["hash"], content + text
    return content


def forged(path, every=False):
    """The chained file at `path` with another type in each place of each kind of line."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    of_kinds = {place if every else tuple(line): place for place, line in enumerate(lines)}
    for place in of_kinds.values():
        line = lines[place]
        for other in mutated({key: value for key, value in line.items() if key != "hash"}):
            if isinstance(other, dict):
                yield resealed([*lines[:place], other, *lines[place + 1 :]])


def ends_well(read, *arguments):
    """Whether `read` ended with what it read, and not with an error that is meant for its user."""
    try:
        read(*arguments)
    except (PrivfedError, AccountingError):
        return False
    return True


def spent_of(run):
    """What a resume reads of a ledger."""
    ledger = Ledger.load(run / "ledger.jsonl")
    spent(ledger, 1e-3)
    counted_priors(ledger.terms)


@FULL
def test_a_ledger_that_was_forged_is_read_or_refused(interrupted, tmp_path, full):
    run = shutil.copytree(interrupted, tmp_path / "runs" / "run")
    outcomes = Counter()
    for content in forged(interrupted / "ledger.jsonl", every=full):
        (run / "ledger.jsonl").write_bytes(content)
        outcomes[ends_well(spent_of, run)] += 1
        row_at(run)
    assert outcomes[False] > (20 if full else 10)


def test_a_forged_ledger_ends_every_command_in_a_sentence(interrupted, tmp_path):
    lines = [json.loads(line) for line in (interrupted / "ledger.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        for key in line.keys() - {"hash"}:
            run = shutil.copytree(interrupted, tmp_path / f"{place}-{key}" / "run")
            other = {**line, key: [[1]]}
            content = resealed([*lines[:place], other, *lines[place + 1 :]])
            (run / "ledger.jsonl").write_bytes(content)
            assert command("runs", run.parent).exit_code == 0
            for words in (("audit", run), ("train", "--resume", run)):
                result = command(*words)
                assert result.exit_code in (0, 2, 3, 4, 5), (words, place, key, result.output)


@FULL
@pytest.mark.parametrize("name", ["releases/000001.safetensors", "checkpoint.safetensors"])
def test_what_rounds_released_is_replayed_or_refused(interrupted, tmp_path, name, full):
    path = interrupted / name
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["privfed"])
    tensors = load_file(path)
    cases = [(tensors, other) for other in mutated(about)]
    for key, now in tensors.items():
        others = (now.reshape(-1)[:0], now[None], now.double(), now.int(), torch.tensor(3.0))
        cases += [({**tensors, key: other}, about) for other in others]
        cases.append(({other: tensors[other] for other in tensors if other != key}, about))
    outcomes = Counter()
    for number, (held, facts) in enumerate(cases[:: 1 + len(cases) // (50 if full else 24)]):
        run = shutil.copytree(interrupted, tmp_path / f"{number}")
        save_file(held, run / name, {"privfed": json.dumps(facts)})
        outcomes[ends_well(resume, run, lambda config: config)] += 1
        ends_well(audit, run)
        shutil.rmtree(run)
    assert outcomes[False] > (10 if full else 4)


@pytest.mark.parametrize("name", mostly_slow(["aborts.jsonl", "excluded.jsonl"], "excluded.jsonl"))
def test_lists_of_rounds_with_other_values_end_no_reader_in_a_bug(finished, tmp_path, name):
    line = {
        "aborts.jsonl": {"round": 1, "reason": "too few"},
        "excluded.jsonl": {
            "round": 1,
            "exchange": 0,
            "client": 3,
            "complaints": 2,
            "reason": get_args(Reason)[0],
        },
    }[name]
    run = shutil.copytree(finished, tmp_path / "run")
    log = AbortLog(run / name) if name == "aborts.jsonl" else ExclusionLog(run / name, run)
    read = log.reasons if name == "aborts.jsonl" else lambda: np.array([*log.before(9)], np.int64)
    for other in mutated(line):
        (run / name).write_text(json.dumps(other) + "\n")
        read()
        log.mend()
        row_at(run)
    for number in (math.inf, 10**400):
        (run / name).write_text(json.dumps({**line, "round": number, "client": number}) + "\n")
        assert command("report", run).exit_code == 0
        assert command("train", "--resume", run).exit_code == 0


def test_a_manifest_of_canaries_with_other_values_is_broken(tmp_path):
    folder = CanaryRequest(12, 6, 1.0, "zero-out", 1).write(tmp_path / "canaries")
    declared = json.loads(folder.manifest_path.read_text())
    for other in mutated(declared):
        folder.manifest_path.write_text(json.dumps(other))
        if ends_well(folder.manifest):
            assert isinstance(other, dict)
            ends_well(folder.check_commitments)
    folder.manifest_path.write_text(json.dumps({**declared, "length": 10**400}))
    result = command(
        *("canary", "judge", folder.path, "--releases", tmp_path),
        *("--claimed-epsilon", 1, "--delta", 0.1),
    )
    assert result.exit_code == 5
    assert "damaged" in result.stderr


def test_receipts_that_were_forged_are_broken(tmp_path):
    site = tmp_path / "site"
    assert command("site", "init", site, "--name", "h0").exit_code == 0
    path, plenty = site / "receipts.jsonl", SpendingLimit(epsilon=99.0, delta=1e-5)
    event, alone = (
        Event(PoissonSampled(0.1, Skellam(variance, 2000.0, 16000.0)), "poisson", slack=1e-12)
        for variance in (4e6, 1e6)
    )
    digests = {"federation": "f" * 64, "model": "a" * 64, "question": "d" * 64, "config": "b" * 64}
    against = Assumed(colluders=1, noise=(NoiseOfSites(5, 4, 3),))
    facts = {**digests, "alone": alone, "assumes": against}
    book = Receipts.recover(path)
    book.charged(Receipt(**facts, run="r", round=1, exchange=0, event=event), plenty)
    book.committed("r", 2)
    book.charged(Receipt(**facts, run="r", round=2, exchange=0, event=event), plenty)
    for content in [*forged(path)]:
        path.write_bytes(content)
        result = command("site", "receipts", site, "--json")
        assert result.exit_code in (0, 5), (content, result.output)
        assert result.exit_code == 0 or len(result.stderr.splitlines()) <= 2


@every_case("header", [*HEADERS, *ODD_HEADERS], ids=str)
@every_case("kind", ["npy", "npz"])
def test_a_judged_model_with_another_header_is_refused(tmp_path, header, kind):
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(100)
    path = tmp_path / f"1.{kind}"
    if kind == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", content)
    with pytest.raises((PrivfedError, MemoryError)):
        next(models([path], 6))


def test_an_archive_that_unpacks_to_more_than_is_free_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("privfed.core.errors.free_memory", lambda: 2**20)
    monkeypatch.setattr(np.lib.format, "read_array", None)
    path = tmp_path / "1.npz"
    np.savez_compressed(path, a=np.zeros(2**20))
    for read in (lambda: read_array(path, "a", "column 'a'"), lambda: next(models([path], 6))):
        with pytest.raises(Refused, match=r"unpacks to 0.0 GiB.*are free"):
            read()


def test_memory_that_is_free_is_known(tmp_path, monkeypatch):
    assert free_memory() is None or free_memory() > 2**20
    monkeypatch.setattr("privfed.core.errors._MEMORY", tmp_path / "none")
    assert free_memory() is None


@every_case("header", HEADERS, ids=range(len(HEADERS)))
@every_case("name", ["inclusion.npy", "directions.npy"])
def test_canaries_whose_header_does_not_parse_are_broken(tmp_path, name, header):
    folder = CanaryRequest(4, 3, 0.5, "zero-out", 1).write(tmp_path / "canaries")
    length = len(header).to_bytes(2, "little")
    (folder.path / name).write_bytes(b"\x93NUMPY\x01\x00" + length + header + bytes(100))
    read = folder.inclusion if name == "inclusion.npy" else folder.directions
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


def test_a_library_that_finds_too_little_memory_is_one_line(capsys):
    with reporting(quotes=False, as_json=False):
        report_error(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_limit_below_what_libraries_need_is_refused_before_they_are_loaded(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (250_000 << 10, -1))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for library in ("numpy", "torch"):
        with pytest.raises(Refused, match=rf"loading {library} takes \d+ MiB; raise the limit"):
            LoadsWithinLimit.find_spec(library)
    assert LoadsWithinLimit.find_spec("pandas") is None


def test_a_row_longer_than_what_is_read_at_once_is_named(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("label," + ",".join(f"c{n}" for n in range(200_000)) + "\n")
    with pytest.raises(Refused, match="a row is longer than 1 MiB"):
        column_names(path, Dialect())
    path.write_text("\n")
    with pytest.raises(Refused, match="the file is empty"):
        column_names(path, Dialect())


def test_names_of_columns_are_looked_up_in_linear_time():
    names = [f"c[{n}]" for n in range(20_000)]
    declared = DeclaredNames(names, {"c[7]"})
    assert [declared.matching(escape(name)) for name in names[6:8]] == [["c[6]"], []]
    assert sum(len(declared.matching(escape(name))) for name in names) == len(names) - 1
    assert declared.matching("c[[]1999?]") == [f"c[{n}]" for n in range(19_990, 20_000)]
    assert declared.public_name("c[3]", "c*") == "number 4 (of 'c*')"
    with pytest.raises(Refused, match="the same name for columns 3 and 20001"):
        refuse_repeated_names([*names, names[2]], "t")


def test_a_run_that_may_not_be_written_to_is_exported(finished, tmp_path, monkeypatch):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / ".lock").touch()
    monkeypatch.setattr("os.access", lambda path, _: path != run)
    monkeypatch.setattr("filelock.FileLock", None)
    assert command("export", run, "--to", tmp_path / "m.safetensors").exit_code == 0
    with (run / ".lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = command("export", run, "--to", tmp_path / "n.safetensors")
    assert result.exit_code == 2
    assert "in use" in result.stderr


def test_an_interrupt_after_a_charge_does_not_say_that_nothing_was_changed(
    finished, tmp_path, monkeypatch
):
    run = shutil.copytree(finished, tmp_path / "run")
    stop_after(2, monkeypatch)
    result = command("evaluate", run, "--federated", "--epsilon", 0.5)
    assert result.exit_code == 130
    assert "interrupted; a charged round remains charged" in result.stderr
