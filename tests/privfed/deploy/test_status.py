"""What a site's operators see: its status, the metrics of Prometheus, and its two logs."""

import json
import logging
import re
import stat
import threading

import pytest
from commands import run
from hospitals import POLICY, data_text, hospitals
from waiting import LONG

from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.carriers.local_socket import ask
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.messages.envelope import Kind
from privfed.deploy.site import agent_log
from privfed.deploy.site.agent import Agent, open_member, serving
from privfed.deploy.site.agent_log import event, logging_to
from privfed.deploy.site.policy import Code
from privfed.deploy.site.status import DeclinedCounts, site_status


@pytest.fixture
def made(tmp_path):
    return hospitals(tmp_path / "sites")


def played(made, out):
    agents = {site: made.agent(site).answer for site in range(made.count)}
    file = made.run_file("data.site_partition=elsewhere", name=f"{out.name}.toml")
    facts = (made.federation_file, made.key_file, out)
    coordinate(file, *facts, connect=lambda _: Loopback(agents), seconds=20, patience=0)


def declined(made, *keys):
    declaration, _ = made.declaration(*keys)
    made.agent(0).answer(made.signed(Kind.DECLARATION, declaration.run, declaration.encode()))


def test_a_status_states_epsilon_answers_and_what_was_declined(made, tmp_path):
    made.folder(0).policy.write_text(POLICY.replace("1e300", "50.0"))
    played(made, tmp_path / "first")
    declined(made, "client.objective=feddane", "privacy.noise_multiplier=0.0001")
    status = site_status(open_member(made.folder(0), alone=False))
    receipts = json.loads(run("site", "receipts", made.folder(0).path, "--json").output)
    assert status.epsilon == receipts["guarantees"][0]["epsilon"] > 0
    assert (status.runs, status.answers, status.last_round) == (1, 4, 4)
    assert status.declined["budget"] == 1
    assert sum(status.declined.values()) == 1
    answer = run("site", "status", made.folder(0).path)
    assert re.search(r"^agent    down", answer.output)
    assert "declined budget 1" in answer.output
    assert answer.exit_code == 2


def test_the_exit_code_states_whether_an_agent_answers(made, caplog):
    folder = made.folder(0)
    with serving(folder):
        assert run("site", "status", folder.path).exit_code == 0
    assert not caplog.records, "a supervisor's questions would fill the log"
    assert run("site", "status", folder.path).exit_code == 2


def test_an_agent_at_work_answers_a_supervisor(made, monkeypatch):
    """An agent answers one message at a time, and trains for minutes."""
    working, finished = threading.Event(), threading.Event()

    def slow(agent, data):
        working.set()
        finished.wait(LONG)
        return b""

    monkeypatch.setattr(Agent, "answer", slow)
    folder = made.folder(0)
    with serving(folder):
        asking = threading.Thread(target=ask, args=(folder.socket, b"question", LONG))
        asking.start()
        assert working.wait(LONG)
        assert run("site", "status", folder.path).exit_code == 0
        finished.set()
        asking.join(LONG)


METRIC = re.compile(r'privfed_site_(\w+)\{site="h0",federation="stays"(?:,code="(\w+)")?\} (\S+)')


def test_prometheus_reads_every_line(made, tmp_path):
    played(made, tmp_path / "first")
    file = tmp_path / "privfed.prom"
    run("site", "status", made.folder(0).path, "--prometheus", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    values, typed = {}, set()
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            typed.add(line.split()[2])
            continue
        name, code, value = METRIC.fullmatch(line).groups()
        assert f"privfed_site_{name}" in typed
        values[name, code] = float(value)
    assert values["answers_total", None] == 4
    assert values["up", None] == 0
    assert {code for name, code in values if name == "declined_total"} == {*map(str, Code)}


def test_metrics_do_not_depend_on_the_table(made, tmp_path):
    """Sites with other patients, or whose rows cannot be read, state the same."""
    made.folder(1).data.write_text(data_text(made.table("h2")))
    lines = made.table("h2").read_text().splitlines()
    broken = [re.sub(r",[01]$", ",x", line) for line in lines]
    made.table("h2").write_text("\n".join(broken) + "\n")
    played(made, tmp_path / "first")
    texts = []
    for site in range(2):
        status = site_status(open_member(made.folder(site), alone=False))
        text = status.prometheus().replace(f'"h{site}"', '"h"')
        texts.append(re.sub(r".*timestamp.*", "", text))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"budget": "many"}', '{"budget": {}}'])
def test_damaged_counts_are_begun_again(tmp_path, content):
    counts = DeclinedCounts(tmp_path / "declined.json")
    counts.path.write_text(content)
    counts.add(Code.BUDGET)
    assert counts.read()["budget"] == 1


def test_a_full_disk_does_not_change_an_answer(made, monkeypatch):
    from privfed.deploy.site import status as module

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_atomically", full)
    declined(made, "client.objective=feddane", "privacy.noise_multiplier=0.0001")
    assert site_status(open_member(made.folder(0), alone=False)).declined["budget"] == 0


SECRET = "patient p7: 'positive'"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_terminal_shows_events_without_the_text_of_entries(tmp_path, capsys, as_json):
    """Also where a library has given the root logger a terminal of its own."""
    path, library = tmp_path / "log", logging.StreamHandler()
    logging.getLogger().addHandler(library)
    log = logging.getLogger("privfed.deploy.site.agent")
    with logging_to(path, as_json):
        log.warning("declined: %s", SECRET, extra=event("declined", code="budget"))
        log.error("unreadable: %s", SECRET)
        log.debug("not recorded")
    logging.getLogger().removeHandler(library)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2
    assert SECRET not in "".join(shown)
    assert path.read_text().count(SECRET) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if as_json:
        first, second = map(json.loads, shown)
        assert (first["event"], first["code"], first["level"]) == ("declined", "budget", "warning")
        assert (second["event"], second["file"]) == ("logged", str(path))


def test_a_log_is_rotated_by_size_and_stays_private(tmp_path, monkeypatch):
    from privfed.deploy.site import agent_log

    monkeypatch.setattr(agent_log, "_LARGEST", 1000)
    log = logging.getLogger("privfed.deploy.site.agent")
    with logging_to(tmp_path / "log"):
        for number in range(200):
            log.info("entry %d", number)
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["log", "log.1", "log.2", "log.3", "log.4", "log.5"]
    for each in tmp_path.iterdir():
        assert each.stat().st_size <= 1000
        assert stat.S_IMODE(each.stat().st_mode) == 0o600


def test_an_agent_logs_a_run_as_events(made, tmp_path, capsys):
    with logging_to(tmp_path / "log", as_json=True):
        played(made, tmp_path / "first")
        declined(made, "client.objective=feddane", "privacy.noise_multiplier=0.0001")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[0] == "{"]
    kinds = [each["event"] for each in events]
    assert kinds.count("joined") == 3
    assert [each["round"] for each in events if each["event"] == "answered"][::3] == [1, 2, 3, 4]


def test_an_entry_that_cannot_be_written_is_not_shown_instead(tmp_path, capsys, monkeypatch):
    """The standard library would print the entry and its arguments, which may quote the table."""
    log = logging.getLogger("privfed.deploy.site.agent")

    def full(*_):
        raise OSError(28, "No space left on device")

    with logging_to(tmp_path / "log", as_json=True):
        monkeypatch.setattr(agent_log._PrivateFile, "shouldRollover", full)
        log.error("unreadable: %s", SECRET)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "logged"


def test_a_site_that_cannot_state_its_status_leaves_no_older_metrics(made, tmp_path):
    file = tmp_path / "privfed.prom"
    run("site", "status", made.folder(0).path, "--prometheus", file)
    assert file.exists()
    made.folder(0).policy.write_text("[budget")
    assert run("site", "status", made.folder(0).path, "--prometheus", file).exit_code == 2
    assert not file.exists()


def test_a_status_notices_an_older_copy_of_the_receipts(made, tmp_path):
    before = made.folder(0).receipts.read_bytes()
    played(made, tmp_path / "first")
    assert run("site", "status", made.folder(0).path).exit_code == 2  # no agent
    made.folder(0).receipts.write_bytes(before)
    answer = run("site", "status", made.folder(0).path)
    assert (answer.exit_code, "site recover" in answer.stderr) == (5, True)
