"""A run that goes on: what a resume takes up, changes, refuses; crashes are in `trials`."""

import json
import math
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from lanes import every_case, mostly_slow
from safetensors.torch import save_file
from small import SMALL, about, model, same_run, small, trained
from waiting import LONG, until

from accounting import chain
from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.config.reading import restated
from privfed.core.errors import Broken, Refused
from privfed.run.last_state import state_from_releases
from privfed.run.ledger_terms import terms
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.store.checkpoint import Checkpoint
from privfed.store.config_file import ConfigFile
from privfed.store.round_logs import Releases
from privfed.store.run_directory import RunDirectory


class Crash(BaseException):
    """The machine is gone: nothing after this point runs."""


def keep(config):
    return config


SCAFFOLD = ("client.objective=scaffold", "data.setting=cross_silo", "run.rounds=5")


SECRET = "run.randomness=secret"
"""Seeded runs train a round again instead of replaying it."""


def test_a_run_whose_clients_memory_is_gone_or_of_others_is_broken(tmp_path):
    path = tmp_path / "run"
    trained(path, *SCAFFOLD)
    file = path / "private/settled.f32"
    whole = file.read_bytes()
    for content in (None, whole[:-4]):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(Broken, match="the clients' states"):
            resume(path, lambda stored: stored.with_run(rounds=9))
    file.write_bytes(whole)
    (path / "private").chmod(0o755)
    owner = (path / "private/of.txt").read_text()
    (path / "private/of.txt").write_text("another")
    with pytest.raises(Broken, match="of another run"):
        resume(path, lambda stored: stored.with_run(rounds=9))
    (path / "private/of.txt").write_text(owner)
    assert (path / "private").stat().st_mode & 0o777 == 0o700
    assert resume(path, lambda stored: stored.with_run(rounds=9)).updates == 9


def test_a_resume_replays_stored_releases_byte_for_byte(tmp_path, monkeypatch):
    """Kill after round 5's release: the resumed model after round 5 is the one that was shown."""
    path = tmp_path / "run"
    seen = {}
    real = Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        seen[charge.round] = released[0].cpu().clone()
        if charge.round == 5:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Releases, "write", write)
        with pytest.raises(Crash):
            trained(path, "server.optimizer=fedavg", "server.lr=1.0", "run.rounds=5")
    resume(path, keep)
    expected = sum(seen[round] for round in range(1, 6))
    parts = model(path)
    flat = torch.cat([parts["model/1.weight"].reshape(-1), parts["model/1.bias"]])
    torch.testing.assert_close(flat, expected, rtol=1e-6, atol=1e-7)
    assert about(path)["updates"] == 5


@every_case(
    "rule",
    [
        ("aggregation.rule=geometric_median", "aggregation.passes=1"),
        ("aggregation.rule=sign_majority",),
    ],
)
def test_a_resume_replays_the_releases_of_any_rule_by_sums(tmp_path, monkeypatch, rule):
    """Also of a rule whose clients send more than their update: nothing charged is lost."""
    path, real = tmp_path / "run", Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        if charge.round == 3:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Releases, "write", write)
        with pytest.raises(Crash):
            trained(path, *rule, "run.rounds=3", SECRET)
    resume(path, keep)
    assert about(path)["updates"] == 3


def test_a_release_of_another_run_is_refused(tmp_path, monkeypatch):
    """A stored release cites its charge's hash, which no other run's ledger holds."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, rounds in zip(paths, (7, 8), strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "save", dying_after_round(2))
            with pytest.raises(Crash):
                trained(path, f"run.rounds={rounds}", f"data.clients={rounds + 5}")
    name = "releases/000002.safetensors"
    shutil.copy(paths[1] / name, paths[0] / name)
    assert "has no charge" in audit(paths[0]).problems[0]
    with pytest.raises(Broken, match="does not belong to its charge"):
        resume(paths[0], keep)


def dying_after_round(last):
    real = Checkpoint.save

    def save(self, directory, network):
        if self.round > last:
            raise Crash
        real(self, directory, network)

    return save


def test_a_finished_run_resumes_to_the_same_result(tmp_path):
    path = tmp_path / "run"
    first = trained(path)
    before = {p: p.read_bytes() for p in (path / "ledger.jsonl", path / "metrics.jsonl")}
    again = resume(path, keep)
    assert again.to_json() == first.to_json()
    assert {p: p.read_bytes() for p in before} == before


def test_more_rounds_go_on_from_where_the_run_ended(tmp_path):
    path, whole = tmp_path / "run", tmp_path / "whole"
    trained(path, "run.randomness=seeded", "run.rounds=4")
    resumed = resume(path, lambda _: small("run.randomness=seeded"))
    assert resumed.updates == 7
    direct = trained(whole, "run.randomness=seeded")
    assert resumed.accuracy == direct.accuracy
    assert resumed.guarantee == direct.guarantee
    for name, tensor in model(path).items():
        assert torch.equal(tensor, model(whole)[name])


def test_more_rounds_than_the_budget_stop_at_the_budget(tmp_path):
    path = tmp_path / "run"
    first = trained(path, "privacy.epsilon=2.0", "run.rounds=7")
    longer = resume(path, lambda _: small("privacy.epsilon=2.0", "run.rounds=40"))
    assert longer.stopped_at_budget
    assert longer.updates == first.updates == 7
    assert longer.guarantee.epsilon <= 2.0
    richer = resume(path, lambda _: small("privacy.epsilon=3.0", "run.rounds=40"))
    assert richer.stopped_at_budget
    assert richer.updates > 7
    assert 2.0 < richer.guarantee.epsilon <= 3.0
    assert audit(path).problems == ()


@every_case(
    "change, named",
    [
        ("privacy.clip=0.9", "privacy.clip was 0.4 and is now 0.9"),
        ("privacy.noise_multiplier=9.0", "privacy.noise_multiplier"),
        ("server.optimizer=fedavg", "server.optimizer"),
        ("run.rounds=6", "raise run.rounds"),
        ("run.seed=1", "run.seed"),
        ("cohort.size=5", "cohort.size"),
    ],
)
def test_any_other_change_is_refused_and_changes_nothing(tmp_path, change, named):
    path = tmp_path / "run"
    trained(path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(Refused, match=named):
        resume(path, lambda _: small(change))
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_a_ledger_behind_the_checkpoint_is_broken(tmp_path):
    path = tmp_path / "run"
    trained(path)
    lines = (path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (path / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(Broken, match="does not contain the head in the checkpoint"):
        resume(path, keep)


@every_case("left", ["releases", "metrics.jsonl", "report/summary.json"])
def test_a_used_run_without_its_ledger_is_never_begun_again(tmp_path, monkeypatch, left):
    """Else its rounds would be drawn twice and charged once."""
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", dying_after_round(2))
        with pytest.raises(Crash):
            trained(path)
    for name in ("ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl"):
        if name != left:
            (path / name).unlink()
    if left != "releases":
        shutil.rmtree(path / "releases")
        (path / "releases").mkdir()
        (path / left).touch()
    with pytest.raises(Broken, match="has begun"):
        resume(path, keep)


def test_a_partial_round_is_spent_and_not_replayed(tmp_path, monkeypatch):
    """A round of two exchanges that died after its first: its release moves no model."""
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", dying_after_round(2))
        with pytest.raises(Crash):
            trained(path)
    setup = prepare(RunDirectory.open(path).config.read())
    charge = Ledger.load(path / "ledger.jsonl").charged(2)
    state = setup.initial_state()
    assert state_from_releases(charge, setup, state, RunDirectory.open(path)) is not None
    monkeypatch.setattr("privfed.round.algorithm.releases_per_round", lambda *_: 2)
    assert state_from_releases(charge, setup, state, RunDirectory.open(path)) is None


def test_a_resume_does_not_need_the_file_that_the_run_started_from(tmp_path):
    start = tmp_path / "start.safetensors"
    trained(tmp_path / "first", "run.seed=1")
    shutil.copy(tmp_path / "first/checkpoint.safetensors", start)
    path = tmp_path / "run"
    trained(path, f"model.init={start}", "run.rounds=4")
    start.unlink()
    assert resume(path, lambda stored: stored.with_run(rounds=7)).updates == 7


def test_an_interrupted_start_can_be_started_again(tmp_path, monkeypatch):
    def die(*_):
        raise Crash

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "write", die)
        with pytest.raises(Crash):
            trained(path)
    assert (path / "releases").is_dir()
    assert trained(path).updates == 7


def test_a_budget_below_what_was_spent_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "run"
    trained(path, "privacy.epsilon=3.0")
    before = (path / "config.toml").read_bytes()
    with pytest.raises(Refused, match="already spent"):
        resume(path, lambda _: small("privacy.epsilon=1.0"))
    assert (path / "config.toml").read_bytes() == before


AT = ("cohort.sampler=full", "cohort.size=0")
"""What is accounted for in no time."""


def changes(path):
    ledger_read = Ledger.load(path / "ledger.jsonl").budgets
    return [(one.round, one.before, one.epsilon) for one in ledger_read]


def test_a_budget_that_changes_is_said_with_its_round(tmp_path):
    path = tmp_path / "run"
    trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=3")
    assert changes(path) == []
    first = (path / "ledger.jsonl").read_bytes()
    richer = resume(path, lambda _: small(*AT, "privacy.epsilon=6.0", "run.rounds=5"))
    resume(path, keep)
    resume(path, lambda _: small(*AT, "privacy.epsilon=8.0", "run.rounds=6"))
    lower = resume(path, lambda _: small(*AT, "privacy.epsilon=7.5", "run.rounds=7"))
    expected = [(4, 3.0, 6.0), (6, 6.0, 8.0), (7, 8.0, 7.5)]
    assert changes(path) == expected
    assert (path / "ledger.jsonl").read_bytes().startswith(first), "it is appended to"
    assert [tuple(one.values()) for one in richer.to_json()["budgets"]] == expected[:1]
    assert audit(path).problems == ()
    summary = json.loads((path / "report/summary.json").read_text())
    for told in (lower.to_json(), summary, audit(path).to_json()):
        assert [tuple(one.values()) for one in told["budgets"]] == expected
    assert summary["budget"] == 7.5
    for words in (["train", "--resume", path], ["audit", path], ["audit", path, path]):
        found = CliRunner().invoke(main, [*map(str, words)], env={"COLUMNS": "400"})
        assert " ".join(found.output.split()).count(
            "raised from ε = 3 to 6 from round 4 on; raised from ε = 6 to 8 from round 6 on; "
            "lowered from ε = 8 to 7.5 from round 7 on"
        ) == (2 if "train" in words else 1)


def test_a_budget_without_end_is_strict_json(tmp_path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    path = tmp_path / "run"
    trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=2")
    endless = Ledger.create(tmp_path / "endless.jsonl", {"budget": math.inf})
    assert Ledger.load(endless.path).budget == endless.budget == math.inf
    resume(path, lambda _: small(*AT, "privacy.epsilon=inf", "run.rounds=3"))
    resume(path, lambda _: small(*AT, "privacy.epsilon=50.0", "run.rounds=4"))
    for file in (path / "ledger.jsonl", endless.path):
        for line in file.read_text().splitlines():
            json.loads(line, parse_constant=refuse)
    assert changes(path) == [(3, 3.0, math.inf), (4, math.inf, 50.0)]
    assert audit(path).problems == ()
    assert resume(path, keep).plan.budget == 50.0
    assert changes(path)[1:] == [(4, math.inf, 50.0)], "nothing changed"
    event = Ledger.load(path / "ledger.jsonl").charges[0].event.to_json()
    change = {"round": 1, "before": 8.0, "epsilon": math.inf}
    opened, older = chain.sealed(
        chain.START, {"type": "open", "format": 1, "terms": {"budget": math.inf}}
    )
    written, _ = chain.sealed(
        older["hash"], {"type": "define", "id": 0, "event": event, "budget": change}
    )
    (tmp_path / "older.jsonl").write_bytes(opened + written)
    assert Ledger.load(tmp_path / "older.jsonl").budget == math.inf


def test_older_versions_read_a_changed_budget_as_an_event_without_charges(tmp_path):
    path = tmp_path / "run"
    trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=3")
    resume(path, lambda _: small(*AT, "privacy.epsilon=6.0", "run.rounds=5"))
    lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds == ["open", "define", *["charge"] * 3, "define", *["charge"] * 2]
    assert lines[5]["event"] == lines[1]["event"]
    assert lines[5]["id"] == 1
    assert {line["event"] for line in lines if line["type"] == "charge"} == {0}


def test_a_resume_at_the_old_budget_after_such_a_crash_says_that_too(tmp_path, monkeypatch):
    path = tmp_path / "run"
    trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=3")
    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "change", dying)
        with pytest.raises(Crash):
            resume(path, lambda _: small(*AT, "privacy.epsilon=6.0", "run.rounds=5"))
    outcome = resume(path, keep)
    assert changes(path) == [(4, 3.0, 6.0), (4, 6.0, 3.0)]
    assert outcome.plan.budget == 3.0


def dying(*_):
    raise Crash


def test_a_configuration_edited_by_hand_does_not_raise_a_budget_in_silence(tmp_path):
    path = tmp_path / "run"
    trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=3")
    RunDirectory(path).config.change(5, 6.0)
    resume(path, keep)
    assert changes(path) == [(4, 3.0, 6.0)]


def test_the_budget_of_a_ledger_that_states_none_is_the_stored_one(tmp_path, monkeypatch):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("privfed.run.train.terms", lambda *args: without_budget(terms(*args)))
        trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=3")
    assert Ledger.load(path / "ledger.jsonl").budget is None
    resume(path, keep)
    assert changes(path) == []
    resume(path, lambda _: small(*AT, "privacy.epsilon=6.0", "run.rounds=5"))
    assert changes(path) == [(4, 3.0, 6.0)]


def without_budget(stated):
    return {key: value for key, value in stated.items() if key != "budget"}


def test_a_counted_run_keeps_its_budget(tmp_path):
    path = tmp_path / "run"
    trained(path, *AT, "privacy.epsilon=3.0", "run.rounds=3")
    RunDirectory(path).mark_counted_by(tmp_path / "next")
    with pytest.raises(Refused, match="counted as an earlier run"):
        resume(path, lambda _: small(*AT, "privacy.epsilon=6.0", "run.rounds=3"))
    assert changes(path) == []


def test_empty_folders_that_got_lost_are_made_again(tmp_path):
    path = tmp_path / "run"
    trained(path)
    (path / "releases").rmdir()
    shutil.rmtree(path / "report")
    assert resume(path, keep).updates == 7


def not_finite(tensors, about):
    tensors["model/1.bias"][0] = torch.nan


def of_another_shape(tensors, about):
    tensors["model/1.bias"] = torch.zeros(4)


def without_momentum(tensors, about):
    del tensors["server/momentum"]


def momentum_of_another_type(tensors, about):
    tensors["server/momentum"] = tensors["server/momentum"].double()


def without_a_head(tensors, about):
    del about["ledger_head"]


def of_another_format(tensors, about):
    about["format"] = 2


@every_case(
    "spoil",
    [
        not_finite,
        of_another_shape,
        without_momentum,
        momentum_of_another_type,
        without_a_head,
        of_another_format,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_checkpoint_that_was_edited_is_broken(tmp_path, spoil):
    path = tmp_path / "run"
    trained(path)
    tensors, facts = model(path), about(path)
    spoil(tensors, facts)
    save_file(tensors, path / "checkpoint.safetensors", {"privfed": json.dumps(facts)})
    with pytest.raises(Broken):
        resume(path, keep)


def test_an_edited_configuration_is_broken(tmp_path):
    path = tmp_path / "run"
    trained(path)
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("clip = 0.4", "clip = 0.5"))
    with pytest.raises(Broken, match=r"config\.toml"):
        resume(path, keep)


def test_a_run_file_changes_what_it_states_and_no_default(tmp_path):
    """Later versions may take another rate by default: the run keeps its own."""
    path, file = tmp_path / "run", tmp_path / "run.toml"
    trained(path, "client.lr=0.123")
    file.write_text("[run]\nrounds = 8\n")
    outcome = resume(path, lambda stored: restated(stored, file, ()))
    assert outcome.plan.config.run.rounds == 8
    assert outcome.plan.config.client.lr == 0.123
    file.write_text("[client]\nlr = 0.2\n")
    with pytest.raises(Refused, match=r"client\.lr was 0\.123 and is now 0\.2"):
        resume(path, lambda stored: restated(stored, file, ()))


def test_a_directory_is_held_by_one_process(tmp_path):
    path = tmp_path / "run"
    trained(path)
    with RunDirectory.open(path).locked(), pytest.raises(Refused, match="in use"):
        resume(path, keep)


STOPPED = (*SMALL, "run.randomness=seeded", "run.rounds=60")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped") / "whole"
    trained(path, *STOPPED)
    return path


@pytest.mark.parametrize(
    "stop", mostly_slow([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], signal.SIGTERM)
)
def test_a_process_that_is_stopped_goes_on(tmp_path, whole, stop):
    """The real thing: signals to a real process, a path with spaces, and the command line."""
    path = tmp_path / "a run"
    settings = [word for option in STOPPED for word in ("--set", option)]
    # As in a background job of a script; else as at a terminal, whatever this process inherited.
    interrupts = signal.SIG_IGN if stop == signal.SIGTERM else signal.SIG_DFL
    process = subprocess.Popen(
        [sys.executable, "-m", "privfed", "train", *settings, "--out", str(path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, interrupts),
    )

    def released():
        assert process.poll() is None
        return [*(path / "releases").glob("0*")]

    until(released, "a release")
    process.send_signal(stop)
    _, message = process.communicate(timeout=LONG)
    if stop == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert f"--resume '{path}'".encode() in message
    again = CliRunner().invoke(main, ["train", "--resume", str(path)])
    assert again.exit_code == 0, again.output
    same_run(whole, path)
