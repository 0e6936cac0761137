"""A federation of real programs: who is turned away, and what kill -9 leaves of a run."""

import functools
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from waiting import LONG, until

pytest.importorskip("flwr", reason="Flower is not installed: privfed[flower]")

from experiments.federation.agreement import compare
from experiments.federation.certificates import Authority, node_key
from experiments.federation.engine import Engine, environment
from experiments.federation.hospitals import NAMES
from experiments.federation.loopback import Loopback
from experiments.federation.processes import Programs, listens
from experiments.federation.sites import PRIVFED

pytestmark = pytest.mark.slow
PATIENTS, ROUNDS = 360, 200
QUICK = {"seconds": "25.0"}
"""A dead node is noticed after so long."""


@pytest.fixture
def programs():
    """Programs in a folder with a short path; none of them is left, nor a port of theirs."""
    folder = Path(tempfile.mkdtemp(prefix="pf-"))
    try:
        with Programs(folder, environment(folder)) as programs:
            yield programs
        assert programs.left() == []
    finally:
        shutil.rmtree(folder)


def refused(programs, engine, name, *command, words):
    """A node ends by itself, and says why."""
    programs.start(name, ["flower-supernode", "--host", "127.0.0.1", *command])
    until(lambda: programs.code(name) is not None, lambda: programs.log(name)[-800:])
    assert programs.code(name) == 1
    assert words in programs.log(name)
    assert "SuperNode ID" not in programs.log(name)


def test_who_has_no_registered_key_or_no_tls_is_turned_away(programs):
    engine = Engine(programs.logs, programs)
    engine.start_link()
    link = ("--superlink", f"127.0.0.1:{engine.port}")
    roots = ("--root-certificates", str(engine.authority.root))
    stranger = str(node_key(programs.logs, "stranger"))
    key = ("--auth-supernode-private-key", stranger)
    refused(programs, engine, "unregistered", *link, *roots, *key, words="2004")
    refused(programs, engine, "keyless", *link, *roots, words="2001")
    refused(
        programs, engine, "plain", *link, "--insecure", "--max-retries", "2", words="disconnected"
    )
    (programs.logs / "other").mkdir()
    other = Engine(programs.logs / "other", programs).authority.root
    wrong = ("--root-certificates", str(other))
    refused(programs, engine, "other-root", *link, *wrong, *key, words="CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize("own_executor", [True, False])
def test_a_run_with_and_without_executors_of_the_sites(programs, own_executor):
    federation = Loopback(programs.logs, programs, own_executor)
    federation.agree(PATIENTS, seed=1)
    federation.start()
    app = federation.hospitals.declare(2, PATIENTS, deadline=5.0)
    federation.engine.run(app)
    federation.wait_for(lambda seen: seen.done, LONG, "the run")
    assert agreement(federation).problems == ()
    for name in NAMES:  # what comes with a run is unpacked where Flower's own processes run it
        unpacked = list(federation.engine.home(name).rglob("client_app.py"))
        assert bool(unpacked) != own_executor


def agreement(federation):
    sites = {name: federation.hospitals.site(name) for name in NAMES}
    opened = set(federation.journal().over)
    return compare(federation.hospitals.run / "ledger.jsonl", sites, opened)


def kill_agent(federation, site):
    federation.programs.kill(f"agent-{site}")
    federation.hospitals.start_agent(site)
    serves = functools.partial(federation.hospitals.serves, site)
    federation.wait(serves, LONG, f"agent-{site}")


def kill_node(federation, site):
    """Its key is locked out until its heartbeats lapse: it is started until it may join."""
    node = f"node-{site}"
    federation.programs.kill(node)
    before = federation.programs.log(node).count("SuperNode ID")

    def joined():
        if federation.programs.code(node) is not None:
            federation.start_node(site)
        return federation.programs.log(node).count("SuperNode ID") > before

    federation.start_node(site)
    until(joined, lambda: federation.programs.log(node)[-800:])


def kill_server(federation, site):
    assert federation.programs.kill_started("flwr-serverapp")


def kill_link(federation, site):
    """The server's process ends by itself when another SuperLink answers it."""
    federation.programs.kill("superlink", alone=True)
    federation.engine.start_link()
    federation.wait(lambda: not federation.programs.runs("flwr-serverapp"), LONG, "superlink")


VICTIMS = {"agent": kill_agent, "node": kill_node, "server": kill_server, "link": kill_link}
MOMENTS = [
    ("agent", 2),
    ("server", 1),
    ("link", 4),
    ("node", 7),
    ("server", 8),
    ("agent", 10),
    ("link", 13),
    ("server", 14),
    ("node", 2),
    ("agent", 5),
    ("link", 9),
    ("node", 12),
]
"""Who is killed, and after how many answers of a round: each exchange has three."""


def test_what_is_killed_at_a_dozen_moments_answers_nothing_twice_and_the_run_goes_on(programs):
    federation = Loopback(programs.logs, programs)
    federation.agree(PATIENTS, seed=2)
    federation.start()
    app = federation.hospitals.declare(ROUNDS, PATIENTS, deadline=5.0)
    federation.engine.run(app, **QUICK)
    for turn, (victim, moment) in enumerate(MOMENTS):
        resuming(federation, app, lambda seen: seen.exchanged() >= moment, f"{victim} {moment}")  # noqa: B023
        VICTIMS[victim](federation, NAMES[turn % len(NAMES)])
        if victim in ("server", "link"):
            federation.engine.run(app, **QUICK)
        assert agreement(federation).problems == ()
    over = len(federation.journal().over)
    resuming(federation, app, lambda seen: len(seen.over) >= over + 2, "two more rounds")
    held = agreement(federation)
    assert held.problems == ()
    assert len(held.unopened) >= 3  # kills met rounds that were under way
    assert all(set(rounds.values()) == {1} for rounds in held.answered.values())
    programs.end("superlink")
    programs.call([*PRIVFED, "audit", str(federation.hospitals.run)], LONG)
    ports = [federation.engine.port, *federation.engine.ports.values()]
    programs.end(*(f"node-{name}" for name in NAMES))
    assert not any(map(listens, ports))


def certify(federation, authority):
    """Restarts SuperLink with a new key and a new certificate of the `authority`."""
    federation.engine.authority = authority
    federation.engine.certificate, federation.engine.key = authority.certify_server()
    federation.programs.end("superlink")
    federation.engine.start_link()


def test_nodes_reconnect_after_a_renewal_and_need_a_restart_for_another_authority(programs):
    federation = Loopback(programs.logs, programs)
    federation.agree(PATIENTS, seed=3)
    federation.start()
    app = federation.hospitals.declare(8, PATIENTS, deadline=5.0)
    federation.engine.run(app, **QUICK)
    resuming(federation, app, lambda seen: seen.over, "the first round")
    certify(federation, federation.engine.authority)
    federation.engine.run(app, **QUICK)
    over = len(federation.journal().over)
    resuming(federation, app, lambda seen: len(seen.over) > over, "a round after the renewal")
    certify(federation, Authority.new(programs.logs))  # its ca.crt replaces the earlier one
    for node in (f"node-{name}" for name in NAMES):
        until(lambda: "CERTIFICATE_VERIFY_FAILED" in programs.log(node), node)  # noqa: B023
        assert programs.code(node) is None  # its process stays, and does not connect again
        assert programs.log(node).count("SuperNode ID") == 1
    for name in NAMES:
        kill_node(federation, name)


def resuming(federation, app, seen, what):
    """Wait for what is `seen` of the run; start it again where no server's process is left."""
    started = [time.monotonic()]

    def goes_on():
        if time.monotonic() - started[0] > 60 and not federation.programs.runs("flwr-serverapp"):
            federation.engine.run(app, **QUICK)
            started[0] = time.monotonic()
        return seen(federation.journal())

    until(goes_on, lambda: (what, federation.journal().lines[-12:]))
