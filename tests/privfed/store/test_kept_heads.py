"""Heads kept elsewhere: charges that were cut off a run that was killed are missed there."""

import json
import shutil

import pytest
from click.testing import CliRunner
from lanes import every_case
from small import SMALL, small, trained

from accounting.heads import HeadsFile
from accounting.ledger import Ledger
from privfed.cli.main import main
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.store.round_logs import Releases

SETTINGS = [word for option in SMALL for word in ("--set", option)]
LATE = ("run.checkpoint_every=100", "run.evaluate_every=100")


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "400"})


def last_object(ended):
    return json.loads(ended.stdout.splitlines()[-1])


def ledger_of(path):
    return Ledger.load(path / "ledger.jsonl")


def stopped(path, *settings):
    """A run that Ctrl-C stops after the release of round 5, with what its command said."""
    real = Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        if charge.round == 5:
            raise KeyboardInterrupt

    options = [word for setting in (*LATE, *settings) for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Releases, "write", write)
        return run("train", *SETTINGS, *options, "--out", path)


def cut(path, rounds):
    """Remove the last `rounds` charges, and what they released: nothing in `path` shows it."""
    ledger = path / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-rounds]))
    for release in sorted((path / "releases").iterdir())[-rounds:]:
        release.unlink()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    assert stopped(folder / "run", f"run.heads={folder / 'heads'}").exit_code == 130
    return folder


@pytest.fixture
def copy(killed, tmp_path):
    """The run, and its file of heads as the run left it."""
    heads = killed / "heads"
    content = heads.read_bytes()
    yield shutil.copytree(killed / "run", tmp_path / "run"), heads
    heads.write_bytes(content)


def where(heads):
    """The heads in a file, but for whose they are: a copy of a run lies elsewhere."""
    return [head[2:] for head in HeadsFile(heads).read()]


def test_an_interrupted_run_says_where_its_ledger_stands(tmp_path):
    ended = stopped(tmp_path / "run")
    head = ledger_of(tmp_path / "run").head().hex()
    assert ended.exit_code == 130
    assert f"the ledger's head is {head} at 5 charges. Resume by: privfed train" in ended.stderr
    assert run("audit", tmp_path / "run", "--head", head).exit_code == 0
    cut(tmp_path / "run", 2)
    assert run("audit", tmp_path / "run").exit_code == 0, "the cut leaves no trace here"
    ended = run("audit", tmp_path / "run", "--head", head)
    assert ended.exit_code == 5
    assert "this ledger was never at the head" in ended.stdout


def test_a_run_and_its_audit_end_with_the_head(tmp_path):
    ended = run("train", *SETTINGS, "--out", tmp_path / "run", "--json")
    ledger = ledger_of(tmp_path / "run")
    head = ledger.head().hex()
    assert f"{head} at 7 charges" in ended.stderr
    assert last_object(ended)["ledger_head"] == head
    assert json.loads((tmp_path / "run/report/summary.json").read_text())["ledger_head"] == head
    assert f"ledger head {head} at 7 charges" in " ".join(
        run("audit", tmp_path / "run").stdout.split()
    )
    told = last_object(run("audit", tmp_path / "run", "--json"))
    assert (told["ledger_head"], told["charges_since_head"], told["heads"]) == (head, None, None)
    fourth = ledger.charges[3].hash
    for given in (fourth, fourth[:12], fourth[:20].upper()):
        told = last_object(run("audit", tmp_path / "run", "--json", "--head", given))
        assert told["charges_since_head"] == 3
    shown = run("audit", tmp_path / "run", "--head", fourth[:12]).stdout
    assert "the ledger had this head, and 3 charges followed" in shown
    assert (
        last_object(run("audit", tmp_path / "run", "--json", "--head", head))["charges_since_head"]
        == 0
    )
    unknown = run("audit", tmp_path / "run", "--json", "--head", "f" * 64)
    assert unknown.exit_code == 5
    assert last_object(unknown)["ledger_ok"] is False


@every_case("head", ["", "abc", "f" * 11, "f" * 65, "g" * 12])
def test_what_is_no_head_is_refused(killed, head):
    ended = run("audit", killed / "run", "--head", head)
    assert ended.exit_code == 2
    assert "expected 12 to 64 hexadecimal digits" in ended.stderr


def test_a_head_is_about_one_run(killed):
    assert run("audit", killed / "run", killed / "run", "--head", "f" * 64).exit_code == 2
    assert run("audit", "--mechanism", "r.toml", "--head", "f" * 64).exit_code == 2


def test_the_file_holds_every_head_and_the_run_goes_on_with_it(copy):
    path, heads = copy
    assert where(heads) == [head[2:] for head in ledger_of(path).trail()]
    assert "agrees" in run("audit", path).stdout
    assert run("train", "--resume", path).exit_code == 0
    assert where(heads) == [head[2:] for head in ledger_of(path).trail()]
    assert len(ledger_of(path).charges) == 7
    told = last_object(run("audit", path, "--json"))
    assert told["heads"] == {"file": str(heads), "agrees": True}


def test_charges_that_were_cut_off_are_missed_there(copy):
    path, heads = copy
    cut(path, 2)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for words in (("audit", path), ("audit", path, path), ("train", "--resume", path)):
        ended = run(*words)
        assert ended.exit_code == 5
        output = " ".join(ended.output.split())
        assert (
            f"{heads} contains 2 heads that the ledger lacks: 2 charges were removed from its end"
            in output
        )
    prior = run("train", *SETTINGS, "--set", f'privacy.prior=["{path}"]', "--out", path / "next")
    assert prior.exit_code == 2
    assert "2 charges were removed from its end" in prior.stderr
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert before == after


def test_a_ledger_that_was_written_anew_is_none_of_the_files(copy):
    path, heads = copy
    trail = ledger_of(path).trail()
    heads.write_text(heads.read_text().replace(trail[0].hash, "a" * 64))
    ended = run("audit", path)
    assert ended.exit_code == 5
    assert "lacks 6 heads from before the ledger's last head" in ended.stdout


def test_a_crash_between_a_line_and_its_head_is_none_of_an_edit(copy):
    path, heads = copy
    whole = heads.read_text()
    heads.write_text("".join(whole.splitlines(keepends=True)[:-1]) + whole.splitlines()[-1][:70])
    assert run("audit", path).exit_code == 0
    assert run("train", "--resume", path).exit_code == 0
    assert where(heads) == [head[2:] for head in ledger_of(path).trail()]


def test_lines_that_are_gone_from_the_file_are_noticed_and_come_again_at_its_end(copy):
    path, heads = copy
    lines = heads.read_text().splitlines(keepends=True)
    heads.write_text("".join(lines[:-3]))
    assert run("audit", path).exit_code == 5
    heads.write_text("".join([*lines[:2], *lines[3:]]))
    assert run("audit", path).exit_code == run("train", "--resume", path).exit_code == 5
    heads.write_text("".join(lines[:-3]))
    assert run("train", "--resume", path).exit_code == 0
    assert run("audit", path).exit_code == 0


def test_without_its_file_a_run_is_audited_but_does_not_go_on(copy):
    path, heads = copy
    heads.unlink()
    ended = run("audit", path)
    assert ended.exit_code == 0
    assert "not compared" in ended.stdout
    assert last_object(run("audit", path, "--json"))["heads"]["agrees"] is None
    ended = run("train", "--resume", path)
    assert ended.exit_code == 5
    assert "create an empty file" in ended.stderr
    heads.touch()
    assert run("train", "--resume", path).exit_code == 0
    assert where(heads) == [head[2:] for head in ledger_of(path).trail()]


def test_of_two_copies_only_one_goes_on(copy, tmp_path):
    path, _ = copy
    other = shutil.copytree(path, tmp_path / "other")
    assert run("train", "--resume", path).exit_code == 0
    ended = run("train", "--resume", other)
    assert ended.exit_code == 5
    assert "2 charges were removed from its end" in ended.stderr


def test_another_file_cannot_be_named_later(copy, tmp_path):
    path, _ = copy
    ended = run("train", "--resume", path, "--set", f"run.heads={tmp_path / 'other'}")
    assert ended.exit_code == 2
    assert "run.heads was" in ended.stderr


def test_runs_share_a_file(tmp_path):
    heads = tmp_path / "heads"
    for name in ("a", "b"):
        trained(tmp_path / name, f"run.heads={heads}", "run.rounds=2")
    assert len(HeadsFile(heads).read()) == 8
    for name in ("a", "b"):
        assert "agrees" in run("audit", tmp_path / name).stdout


def test_a_file_of_somebody_elses_is_left_alone(copy, tmp_path):
    (tmp_path / "notes").write_text("my notes\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run2/heads")
    for heads, said in (
        (tmp_path / "notes", "line 1 is not a ledger head"),
        (tmp_path / "folder", "that is not a file"),
        (tmp_path / "missing/heads", "cannot be written"),
        (tmp_path / "run2/heads", "inside the run directory"),
        (tmp_path / "link", "inside the run directory"),
        ("/dev/null", "that is not a file"),
    ):
        options = [*SETTINGS, "--set", f"run.heads={heads}"]
        ended = run("train", *options, "--out", tmp_path / "run2")
        assert ended.exit_code == 2
        assert said in ended.stderr
        assert not (tmp_path / "run2").exists()
        if "inside" not in said:
            assert run("check", *options).exit_code == 2
    assert (tmp_path / "notes").read_text() == "my notes\n"
    path, heads = copy
    heads.write_text("my notes\n")
    assert run("audit", path).exit_code == 5
    assert run("train", "--resume", path).exit_code == 5
    assert heads.read_text() == "my notes\n"


def test_a_ledger_that_took_the_place_of_another_is_seen(tmp_path):
    """Whoever can cut a ledger can remove it whole, and have the run begin anew."""
    path, heads = tmp_path / "run", tmp_path / "heads"
    trained(path, f"run.heads={heads}", "run.rounds=2")
    lines = len(HeadsFile(heads).read())
    for file in ("ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl"):
        (path / file).unlink()
    shutil.rmtree(path / "report")
    ended = run("train", "--resume", path)
    assert ended.exit_code == 5
    assert "2 charges of another ledger at this path: the ledger was replaced" in ended.stderr
    assert run("audit", path).exit_code == 5
    shutil.rmtree(path)
    options = [*SETTINGS, "--set", f"run.heads={heads}"]
    ended = run("train", *options, "--out", path)
    assert ended.exit_code == 2
    assert f"contains the heads of an earlier run in {path}" in ended.stderr
    assert not path.exists()
    assert len(HeadsFile(heads).read()) == lines, "a refusal changes nothing"


def test_a_seeded_run_keeps_no_heads():
    with pytest.raises(
        Refused, match=r"run\.heads is .*, which protects a ledger against truncation"
    ):
        plan(small("run.heads=heads", "run.randomness=seeded"))


def test_a_relative_path_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "run", "run.heads=heads", "run.rounds=1")
    monkeypatch.chdir("/")
    assert last_object(run("audit", tmp_path / "run", "--json"))["heads"]["agrees"] is True
    assert (
        str(tmp_path / "heads")
        in run("check", *SETTINGS, "--set", f"run.heads={tmp_path}/heads").stdout
    )
