"""The command line as a user meets it: exit codes, one message, and nothing lost."""

import dis
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys

import click
import pytest
from commands import run
from lanes import every_case
from small import SMALL, trained
from waiting import LONG

from accounting import durable
from privfed.cli.main import main

SETTINGS = [word for option in SMALL for word in ("--set", option)]


def last_object(result):
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a finished run"
    trained(path)
    return path


def test_help_imports_neither_torch_nor_numpy():
    """Either takes longer than all else that it does; how long that is, is a benchmark."""
    command = [sys.executable, "-X", "importtime", "-m", "privfed", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "train" in shown.stdout
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "privfed.cli.main" in imported
    assert not imported & {"torch", "numpy"}


def options(command, names=()):
    """Every option of a command and its subcommands, with the words that lead to it."""
    yield from ((names, each) for each in command.params if isinstance(each, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from options(command.get_command(click.Context(command), name), (*names, name))


def test_every_flag_has_a_help_text():
    found = list(options(main))
    silent = [" ".join((*names, *each.opts)) for names, each in found if not each.help]
    assert len(found) > 100
    assert not silent, "give click.option a help that says what the flag does and its default"


def unread(function):
    """The parameters of `function` that its code does not read."""
    called = inspect.unwrap(function)
    loads = {
        name
        for step in dis.get_instructions(called)
        if step.opname.startswith("LOAD")
        for name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))
    }
    return [name for name in inspect.signature(called).parameters if name not in loads]


def unread_flags(command):
    """The flags of a command that its function does not take, or takes and does not read."""
    function = inspect.unwrap(command.callback)
    parameters = inspect.signature(function).parameters.values()
    takes = {each.name for each in parameters} - {*unread(function)}
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters)
    flags = [each for each in command.params if each.expose_value and each.name != "show_values"]
    return [each.opts[0] for each in flags if each.name not in takes and not rest]


def test_every_flag_is_read():
    """By its command, and by the functions of the command line that the command hands it to."""
    leaves = [main]
    for command in leaves:
        if isinstance(command, click.Group):
            names = command.list_commands(click.Context(command))
            leaves += [command.get_command(click.Context(command), name) for name in names]
    flags = {each.name: unread_flags(each) for each in leaves if each.callback}
    assert len(flags) > 30
    assert not any(flags.values()), "read the flag in the command's function, or remove it"
    given = {"_", "parameter"}  # by signal and by click, read or not
    ignored = {
        each.__qualname__: {*unread(each)} - given
        for name in (name for name in sys.modules if name.startswith("privfed.cli."))
        for each in vars(sys.modules[name]).values()
        if inspect.isfunction(each) and each.__module__ == name
    }
    assert len(ignored) > 40
    assert {name: names for name, names in ignored.items() if names} == {}


def test_a_flag_that_nothing_reads_is_named():
    @click.command("planted")
    @click.option("--read")
    @click.option("--taken")
    @click.option("--untaken")
    def planted(read, taken):
        return read

    assert sorted(unread_flags(planted)) == ["--taken", "--untaken"]


def test_train_json_ends_with_one_object(tmp_path):
    out = tmp_path / "a run"
    result = run("train", *SETTINGS, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["rounds"] == printed["charges"] == 7
    assert printed["run"] == str(out)
    assert 0 <= printed["accuracy"] <= 1
    assert printed["epsilon"] == min(printed["accountants"].values())
    assert (printed["delta"], printed["unit"], printed["relation"]) == (
        1e-3,
        "client",
        "add/remove",
    )
    assert printed["simulation"] is False
    assert json.loads((out / "report/summary.json").read_text())["epsilon"] == printed["epsilon"]


def test_train_without_privacy_says_infinity_and_never_a_number(tmp_path):
    result = run(
        "train", *SETTINGS, "--set", "privacy.mechanism=none", "--out", tmp_path / "r", "--json"
    )
    assert last_object(result)["epsilon"] == "inf"
    assert "ε = ∞" in result.stderr
    assert json.loads(run("audit", tmp_path / "r", "--json").stdout)["epsilon"] == "inf"


def test_plain_lines_name_round_accuracy_and_epsilon_of_budget(tmp_path):
    overrides = ["--set", "privacy.epsilon=3"]
    result = run("train", *SETTINGS, *overrides, "--out", tmp_path / "r")
    assert result.exit_code == 0
    assert "round 6/7  accuracy" in result.stdout
    assert "of 3" in result.stdout
    for word in ("unit", "one client", "add/remove", "δ = 0.001", "tightest", str(tmp_path)[:9]):
        assert word in result.stdout


def test_a_seeded_run_says_simulation_everywhere(tmp_path):
    out = tmp_path / "r"
    result = run("train", *SETTINGS, "--set", "run.randomness=seeded", "--out", out, "--json")
    assert last_object(result)["simulation"] is True
    assert "simulation" in result.stderr
    assert "nominal" in result.stderr
    says_so_in_its_files(out)


def says_so_in_its_files(out):
    assert "simulation" in (out / "ledger.jsonl").read_text().splitlines()[0]
    assert "simulation" in json.loads(run("audit", out, "--json").stdout)["note"]
    assert "simulation" in run("audit", out).stdout
    assert json.loads((out / "report/summary.json").read_text())["simulation"] is True


def test_only_public_fields_leave_by_default(tmp_path):
    """Cohort sizes, clip counts and losses on clients are in no file, unless opted in."""
    out = tmp_path / "private"
    run("train", *SETTINGS, "--out", out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {key for line in lines for key in line} == {
        "format",
        "round",
        "accuracy",
        "loss",
        "epsilon",
    }
    opened = tmp_path / "open"
    result = run(
        "train",
        *SETTINGS,
        "--set",
        "run.simulation_metrics=true",
        "--set",
        "run.checkpoint_every=4",
        "--out",
        opened,
    )
    assert "nominal" in result.stdout
    says_so_in_its_files(opened)
    lines = [json.loads(line) for line in (opened / "metrics.jsonl").read_text().splitlines()]
    counts = {"cohort", "clipped", "not_finite", "median_norm"}
    totals = {"examples", "bytes", "device_seconds"}
    assert counts | totals == set(lines[0]["simulation_only"])


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@every_case(
    "words, message",
    [
        (["--set", "server.nothing=1"], "server.nothing is not a known key"),
        (["--set", "run.rounds=many"], "expected an integer"),
        (["--set", "privacy.clip=-2"], "privacy.clip is -2"),
        (["--set", "privacy.delta=1"], "privacy.delta is 1"),
        (["--set", "cohort.size=13"], "cohort.size is 13, but data.clients is 12"),
        (["no such file.toml"], "does not exist"),
        (["--resume", "nowhere"], "not a run directory"),
        (["--out", "a", "--resume", "b"], "are both given"),
        (["--set", "model.init=gone.safetensors"], "gone.safetensors, but it cannot be read"),
        (["--set", "client.lr=1e38", "--set", "privacy.mechanism=none"], "not finite"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    result = run("train", *SETTINGS, *words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("privfed:") == 1


def test_out_that_holds_another_run_is_refused_and_left_alone(finished):
    before = files(finished)
    result = run("train", *SETTINGS, "--out", finished)
    assert result.exit_code == 2
    assert "contains another run" in result.stderr
    assert "--resume" in result.stderr
    assert files(finished) == before


def test_out_that_holds_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    result = run("train", *SETTINGS, "--out", tmp_path)
    assert result.exit_code == 2
    assert "other files" in result.stderr
    assert files(tmp_path) == {tmp_path / "thesis.txt": b"years of work"}
    assert run("train", *SETTINGS, "--out", tmp_path / "thesis.txt").exit_code == 2


def test_resume_with_a_changed_configuration_is_refused(finished):
    before = files(finished)
    result = run("train", "--resume", finished, "--set", "privacy.clip=0.7")
    assert result.exit_code == 2
    assert "privacy.clip was 0.4 and is now 0.7" in result.stderr
    assert files(finished) == before


def test_resume_of_a_finished_run_repeats_its_result(finished):
    result = run("train", "--resume", finished, "--json")
    assert result.exit_code == 0
    assert last_object(result)["rounds"] == 7


def test_json_speaks_of_a_broken_run_too(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "r")
    lines = (path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (path / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    result = run("train", "--resume", path, "--json")
    assert result.exit_code == 5
    printed = json.loads(result.stdout)
    assert (printed["ledger_ok"], printed["epsilon"]) == (False, "inf")
    assert "does not contain the head in the checkpoint" in printed["problems"][0]


def test_files_of_a_run_without_privacy_are_strict_json(tmp_path):
    run("train", *SETTINGS, "--set", "privacy.mechanism=none", "--out", tmp_path / "r")
    for name in ("report/summary.json", "metrics.jsonl", "ledger.jsonl"):
        text = (tmp_path / "r" / name).read_text()
        assert "Infinity" not in text
        assert "NaN" not in text
    assert run("audit", tmp_path / "r").exit_code == 0


def python(*words, **changes):
    return [sys.executable, "-m", "privfed", *map(str, words)], {**os.environ, **changes}


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_cost_the_run(tmp_path):
    command, environment = python("train", *SETTINGS, "--out", tmp_path / "r")
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=LONG) == 0
    assert (tmp_path / "r/report/summary.json").exists()


@pytest.mark.slow
def test_a_terminal_without_greek_is_spoken_to_in_latin(finished):
    command, environment = python("audit", finished, PYTHONIOENCODING="ascii")
    shown = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"epsilon" in shown.stdout
    assert b"delta = 0.001" in shown.stdout


def test_a_model_that_starts_from_elsewhere_is_said_to(finished, tmp_path):
    init = f"model.init={finished / 'checkpoint.safetensors'}"
    settings = [*SETTINGS, "--set", "run.seed=1", "--set", init]  # other people
    result = run("train", *settings, "--out", tmp_path / "r")
    shown = " ".join(result.stdout.split())
    assert shown.count("this does not cover what the starting model (") == 2
    opened = json.loads((tmp_path / "r/ledger.jsonl").read_text().splitlines()[0])
    content = (finished / "checkpoint.safetensors").read_bytes()
    assert opened["terms"]["start"] == hashlib.sha256(content).hexdigest()


@every_case(
    "value, shown",
    [
        (3.99991, "4.0000"),
        (4.00001, "4.0001"),
        (1e-9, "1e-09"),
        (1.2345e-5, "1.24e-05"),
        (0.0, "0"),
        (float("inf"), "∞"),
        (None, "—"),
    ],
)
def test_what_is_shown_is_never_less_than_what_was_spent(value, shown):
    from privfed.core.text import ceiling

    assert ceiling(value) == shown


def test_the_budget_stops_a_longer_run_with_exit_code_3(tmp_path):
    out = tmp_path / "r"
    settings = [*SETTINGS, "--set", "privacy.epsilon=2"]
    assert run("train", *settings, "--out", out).exit_code == 0
    result = run("train", "--resume", out, "--set", "run.rounds=50", "--json")
    assert result.exit_code == 3
    assert last_object(result)["stopped_at_budget"] is True
    assert last_object(result)["exit"] == 3
    assert "error" not in last_object(result)
    assert last_object(result)["rounds"] == 7
    assert last_object(result)["epsilon"] <= 2
    assert "stopped at the budget" in result.stderr


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_refused_for_ordinary_users(tmp_path):
    tmp_path.chmod(0o500)
    result = run("train", *SETTINGS, "--out", tmp_path / "r")
    tmp_path.chmod(0o700)
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr


def test_a_directory_that_cannot_be_written_is_one_message(tmp_path, monkeypatch):
    from pathlib import Path

    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    result = run("train", *SETTINGS, "--out", tmp_path / "r")
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_disk_loses_nothing_and_the_run_goes_on(tmp_path, monkeypatch):
    out, real, left = tmp_path / "r", durable.write_parts_atomically, [9]

    def filling(path, content):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device", str(path))
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_parts_atomically", filling)
        result = run("train", *SETTINGS, "--out", out)
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert run("audit", out).exit_code == 0
    assert run("train", "--resume", out).exit_code == 0


def test_audit_json_recomputes_what_was_claimed(finished):
    result = run("audit", finished, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    claimed = json.loads((finished / "report/summary.json").read_text())
    assert printed["ledger_ok"] is True
    assert printed["rounds"] == 7
    assert printed["sampler"] == "poisson"
    for key in ("epsilon", "delta", "unit", "relation", "accountants", "noise_multiplier"):
        assert printed[key] == claimed[key], key
    assert printed["sampling_rate"] == pytest.approx(1 / 3)
    assert printed["arithmetic"] == "exact sums, Gaussian noise rounded to their grid"


@every_case("accountant", ["rdp", "pld", "tightest"])
def test_audit_by_another_accountant(finished, accountant):
    printed = json.loads(run("audit", finished, "--accountant", accountant, "--json").stdout)
    expected = printed["accountants"].get(accountant, min(printed["accountants"].values()))
    assert printed["epsilon"] == expected


def test_audit_with_an_unknown_accountant(finished):
    result = run("audit", finished, "--accountant", "gdp")
    assert result.exit_code == 2
    assert "opacus_prv" in result.stderr


def test_audit_of_no_run(tmp_path):
    result = run("audit", tmp_path)
    assert result.exit_code == 2
    assert "not a run directory" in result.stderr


@pytest.mark.parametrize("target", ["noise-multiplier", "epsilon"])
def test_calibrate_both_ways(target):
    basis = ["--sampling-rate", 0.1, "--rounds", 100, "--delta", 1e-4, "--json"]
    forward = json.loads(run("calibrate", *basis, "--epsilon", 4).stdout)
    assert forward.keys() >= {
        "epsilon",
        "accountants",
        "accountant",
        "noise_multiplier",
        "sampling_rate",
        "rounds",
        "delta",
        "relation",
        "sampler",
    }
    assert 3.99 < forward["epsilon"] <= 4
    back = json.loads(
        run("calibrate", *basis, "--noise-multiplier", forward["noise_multiplier"]).stdout
    )
    assert back["epsilon"] == forward["epsilon"]
    assert back["accountants"]["rdp"] > back["epsilon"]


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibrate_by_accountant(accountant):
    result = run(
        "calibrate",
        "--sampling-rate",
        0.1,
        "--rounds",
        100,
        "--delta",
        1e-4,
        "--epsilon",
        4,
        "--accountant",
        accountant,
        "--json",
    )
    printed = json.loads(result.stdout)
    assert printed["epsilon"] == printed["accountants"][accountant] <= 4


def test_calibrate_without_noise_is_infinite():
    result = run(
        "calibrate",
        "--sampling-rate",
        0.1,
        "--rounds",
        10,
        "--delta",
        1e-4,
        "--noise-multiplier",
        0,
        "--json",
    )
    assert json.loads(result.stdout)["epsilon"] == "inf"


@every_case(
    "words",
    [
        ["--epsilon", 4, "--noise-multiplier", 1],
        [],
        ["--epsilon", 4, "--sampler", "fixed_size"],
        ["--epsilon", 4, "--sampler", "cyclic", "--mechanism", "banded", "--separation", 3],
        ["--epsilon", 4, "--bands", 3],
        ["--epsilon", 0],
        ["--epsilon", "nan"],
        ["--noise-multiplier", -1],
        ["--noise-multiplier", "nan"],
        ["--epsilon", 4, "--delta", 1],
        ["--epsilon", 4, "--delta", "nan"],
        ["--epsilon", 4, "--sampling-rate", 1.5],
        ["--epsilon", 4, "--sampling-rate", 0],
        ["--epsilon", 4, "--sampling-rate", "nan"],
        ["--epsilon", 4, "--rounds", 0],
        ["--epsilon", 1e-9, "--delta", 1e-10],
    ],
)
def test_calibrate_refuses_bad_numbers(words):
    basis = ["--sampling-rate", 0.1, "--rounds", 100, "--delta", 1e-4]
    result = run("calibrate", *basis, *words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
