"""`privfed site check` and `serve`, and `privfed federation run`, as they are typed."""

import json
import logging
import os
import runpy
import signal
import sys
import time
import traceback
import warnings

import pytest
from commands import run
from hospitals import POLICY, data_text, hospitals
from waiting import LONG, until

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.deploy.files.receipts import Receipts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Hospitals in a folder whose name has spaces."""
    return hospitals(tmp_path_factory.mktemp("cli") / "three hospitals")


@pytest.fixture
def run_file(made):
    return made.run_file("secure.deadline=600", name="a run.toml")


def test_a_check_says_who_counts_what_it_costs_and_how_long_it_takes(made, run_file):
    path = made.folder(0).path
    shown = run("site", "check", path, run_file)
    assert shown.exit_code == 0, shown.output
    for part in ("this site takes part", "8 clients", "of 1e+300", "of 600 s"):
        assert part in shown.stdout
    facts = json.loads(run("site", "check", path, run_file, "--json").stdout)
    assert facts["clients"] == 8
    assert facts["budget"] == 1e300
    assert facts["deadline"] == 600
    assert 0 < facts["seconds"] < 600
    assert facts["epsilon"] > 0
    assert facts["cohort"] <= 20
    assert made.folder(0).receipts.read_bytes() == b""
    assert not made.folder(0).state.exists()


def test_a_check_says_the_word_and_the_reason_where_the_site_would_decline(made, run_file):
    folder = made.folder(0)
    folder.policy.write_text(POLICY.replace("epsilon = 1e300", "epsilon = 0.5"))
    try:
        declined = run("site", "check", folder.path, run_file)
        assert declined.exit_code == 2
        assert "the whole run would raise epsilon to" in declined.stderr
        shown = run("site", "check", folder.path, run_file, "--json")
        assert json.loads(shown.stdout)["error"]["kind"] == "refused"
        folder.policy.write_text(POLICY.replace("sites = 2", "sites = 4"))
        assert "sites: " in run("site", "check", folder.path, run_file).stderr
    finally:
        folder.policy.write_text(POLICY)


def test_a_check_refuses_a_table_that_is_not_as_declared(made, run_file):
    folder = made.folder(0)
    folder.data.write_text(data_text(made.table("h0"), clients=3))
    try:
        refused = run("site", "check", folder.path, run_file)
        assert refused.exit_code == 2
        assert "but the table has more" in refused.stderr
    finally:
        folder.data.write_text(data_text(made.table("h0")))


def test_wrong_words_are_refused_and_nothing_is_begun(made, run_file):
    out = made.root / "never"
    needed = ("--federation", made.federation_file, "--key", made.key_file, "--out", out)
    wrong = {
        ("site", "serve"): "Missing argument",
        ("site", "serve", made.folder(0).path, "--port", 80): "No such option",
        ("site", "check", made.folder(0).path): "Missing argument",
        ("site", "check", made.folder(0).path, made.root / "none.toml"): "does not exist",
        ("site", "check", made.root / "none", run_file): "",
        ("site", "serve", made.root / "none"): "",
        ("federation", "run", run_file): "Missing option",
        ("federation", "run", run_file, *needed, "--site", "h0"): "requires 2 arguments",
        (
            "federation",
            "run",
            run_file,
            *needed,
            "--site",
            "oslo",
            "x",
        ): "no such site; expected one of h0, h1, h2",
        ("federation", "run", run_file, *needed, "--seconds", "long"): "not a valid",
        ("federation", "run", made.root / "none.toml", *needed): "does not exist",
        ("federation", "run", run_file, *needed, "--key", made.folder(0).key): "not the key",
    }
    for words, reason in wrong.items():
        refused = run(*words)
        assert refused.exit_code == 2 or "key cannot be read" in refused.stderr, words
        assert reason in refused.stderr, words
        assert "Traceback" not in refused.output
    assert not out.exists()
    assert not (made.root / "none").exists()


def test_a_run_without_sites_is_busy_and_can_go_on(made, run_file):
    out = made.root / "alone"
    words = ("federation", "run", run_file, "--federation", made.federation_file)
    words = (*words, "--key", made.key_file, "--out", out, "--patience", 0, "--json")
    began = time.monotonic()
    for _ in range(2):
        busy = run(*words)
        assert busy.exit_code == 2
        error = json.loads(busy.stdout)["error"]
        assert error["kind"] == "busy"
        assert "0 of 3 sites are available" in error["message"]
    assert time.monotonic() - began < LONG  # nobody waits for a site that has no socket
    assert not Ledger.load(out / "ledger.jsonl").charges


class Agent:
    """`privfed site serve` as a process, forked from this one so that it begins at once.

    It hears Ctrl-C as at a terminal, also where this process is a background job that does not.
    """

    def __init__(self, folder, said):
        self.said, self.printed = said, said.with_suffix(".printed")
        self.returncode = None
        said.touch()
        self.pid = os.fork()
        if not self.pid:
            self._serve(folder)

    def _serve(self, folder):
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            logging.getLogger().handlers.clear()  # pytest's, which keep what is logged
            warnings.simplefilter("ignore")
            sys.stdout, sys.stderr = self.printed.open("w"), self.said.open("w", buffering=1)
            sys.argv = ["privfed", "site", "serve", str(folder)]
            runpy.run_module("privfed", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def answers(self):
        """Whether it says so. Raises `AssertionError` once it has ended."""
        assert not self.ended(), self.said.read_text()
        return "answers at" in self.said.read_text()

    def ended(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode is not None

    def kill(self):
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            until(self.ended, "a killed agent to end")


@pytest.fixture
def served(made):
    """A process of each site, which answers."""
    agents = [
        Agent(made.folder(site).path, made.root / f"{name}.said")
        for site, name in enumerate(made.names)
    ]
    try:
        for agent in agents:
            until(agent.answers, agent.said.read_text)
        yield agents
    finally:
        for agent in agents:
            agent.kill()


def test_sites_serve_a_run_until_ctrl_c(made, run_file, served):
    """Three processes and a coordinator, paths with spaces; a second agent is turned away."""
    second = run("site", "serve", made.folder(0).path)
    assert second.exit_code == 2
    assert "another agent serves" in second.stderr
    assert made.folder(0).socket.exists()
    out = made.root / "a run"
    words = ["federation", "run", made.run_file("run.rounds=2"), "--out", out]
    words += ["--seconds", LONG, "--patience", LONG]
    words += ["--federation", made.federation_file, "--key", made.key_file, "--json"]
    for name, socket in zip(made.names, made.sockets.values(), strict=True):
        words += ["--site", name, socket]
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rounds"] == 2
    assert not audit(out).problems
    spent = Ledger.load(out / "ledger.jsonl").spending
    for site in range(made.count):
        assert Receipts.load(made.folder(site).receipts).spending() == spent
        assert made.folder(site).log.stat().st_mode & 0o777 == 0o600
    for agent, how in zip(served, (signal.SIGINT, signal.SIGINT, signal.SIGTERM), strict=True):
        os.kill(agent.pid, how)
    for site, agent in enumerate(served[:2]):
        until(agent.ended, agent.said.read_text)
        warned = agent.said.read_text()
        assert agent.returncode == 0, warned
        assert agent.printed.read_text() == ""
        assert f"h{site} of the federation stays answers at" in warned
        assert "Traceback" not in warned
        assert not made.folder(site).socket.exists()
    until(served[2].ended, "the third agent to end")
    assert served[2].returncode in (0, -signal.SIGTERM)
    listed = run("site", "receipts", made.folder(0).path)
    assert "2 rounds in 2 exchanges" in listed.stdout
