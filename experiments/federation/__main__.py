"""A federation of three hospitals on this machine: trains, loses a site, resumes, and audits.

python -m experiments.federation              # or: make federation python -m experiments.federation
--rounds 6 --keep /tmp/federation
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from experiments.federation.agreement import compare
from experiments.federation.engine import environment
from experiments.federation.hospitals import NAMES
from experiments.federation.loopback import Loopback
from experiments.federation.processes import ProgramEnded, Programs
from experiments.federation.sites import PRIVFED

PATIENTS, SEED = 360, 7
DEADLINE, PATIENCE = 3.0, 300
"""Seconds of training per round by default, and seconds per step, also on a slow machine."""
LOST = NAMES[1]


class Account:
    """Prints events with their times."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, text: str) -> None:
        for number, line in enumerate(text.splitlines()):
            seconds = f"{time.monotonic() - self.began:6.1f} s" if not number else " " * 8
            print(f"{seconds}  {line}", flush=True)


def main() -> int:
    """Runs the demonstration; returns 0 if all results are as expected."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE, help="seconds of training in each round"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for all files, which stays")
    parser.add_argument(
        "--shim", action="store_true", help="Flower's processes, not the sites' own"
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="privfed-"))
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        with Programs(folder, environment(folder)) as programs:
            federation = Loopback(folder, programs, not asked.shim)
            problems = _problems(federation, asked.rounds, asked.deadline)
        return 1 if problems else 0
    except ProgramEnded as error:
        print(f"{error}\nA slow machine needs more time: --deadline 10", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return 130
    finally:
        if not asked.keep:
            shutil.rmtree(folder)


def _problems(federation: Loopback, rounds: int, deadline: float) -> tuple[str, ...]:
    """Runs all steps, and returns the contradictions found at the end."""
    tell = Account()
    tell(f"three hospitals of {PATIENTS} made-up patients agree on a federation:")
    tell(federation.agree(PATIENTS, SEED))
    federation.start()
    tell("Flower runs with TLS and node keys; every hospital has its agent and its node")
    app = federation.hospitals.declare(rounds, PATIENTS, deadline)
    run = federation.engine.run(app, patience="5.0")
    tell(f"flwr run: {run}")
    federation.wait_for(lambda log: 1 in log.over, PATIENCE, "the first round")
    tell("round 1 is over")
    federation.programs.kill(f"agent-{LOST}")
    tell(f"the agent of {LOST} is killed; of three with a curious one nobody may drop out")
    log = federation.wait_for(
        lambda log: log.aborted and log.errors, PATIENCE, "the end of the run"
    )
    for round, why in log.aborted.items():
        tell(f"round {round} aborted: {why}")
    tell(f"the run ended: {log.errors[-1]}")
    federation.hospitals.start_agent(LOST)
    federation.wait(lambda: federation.hospitals.serves(LOST), 30, f"agent-{LOST}")
    again = federation.engine.run(app)
    tell(f"{LOST} is back; flwr run: {again}")
    log = federation.wait_for(lambda log: log.done, PATIENCE, "the run")
    tell(log.lines[-1][2])
    return _checked(federation, deadline, tell)


def _checked(federation: Loopback, deadline: float, tell: Account) -> tuple[str, ...]:
    """Audits the ledger, compares it with every site's receipts, and prints the costs."""
    hospitals, log = federation.hospitals, federation.journal()
    audit = json.loads(
        federation.programs.call([*PRIVFED, "audit", str(hospitals.run), "--json"], 120)
    )
    tell(f"privfed audit: ε = {audit['epsilon']:.4f} from {audit['rounds']} charges")
    sites = {name: hospitals.site(name) for name in NAMES}
    agreement = compare(hospitals.run / "ledger.jsonl", sites, set(log.over))
    tell("\n".join(agreement.lines()))
    took = log.seconds_per_round()
    sent, back = log.bytes_per_site(len(agreement.charged))
    if took:
        tell(
            f"{statistics.mean(took):.1f} s a round, of five exchanges; {deadline:g} s of it is "
            f"for training"
        )
    tell(
        f"an exchange with a site: {log.seconds_per_exchange():.1f} s (median); the engine alone, "
        f"for a greeting: {log.seconds_per_greeting():.1f} s"
    )
    tell(f"a round's bytes for each site: {sent:,.0f} there, {back:,.0f} back")
    return agreement.problems


if __name__ == "__main__":
    sys.exit(main())
