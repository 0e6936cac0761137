"""Three sites on one machine, each a user of the system: the script that root runs."""

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import hospitals
from waiting import LONG

SCRIPT = Path(__file__).parents[3] / "experiments/federation/three_users.sh"
USERS = (62001, 62002, 62003)


def as_user(user, *words):
    setpriv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "env"]
    return subprocess.run([*setpriv, *map(str, words)], capture_output=True, timeout=LONG)


def command(folder):
    """A script that starts privfed by an interpreter that other users may run."""
    version = f"python3.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        if as_user(USERS[0], python, "-c", "").returncode == 0:
            break
    else:
        pytest.skip("other users of this machine may not run a Python of this version")
    paths = ":".join([str(SCRIPT.parents[2]), *site.getsitepackages()])
    script = folder / "privfed"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {python} -m privfed "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as other users")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_three_users_train_and_none_reads_another_ones_table():
    root = Path(f"/tmp/privfed-users-{os.getpid()}")  # other users may not enter pytest's folders
    root.mkdir(mode=0o755)
    try:
        made = hospitals(root / "tables", patients=60)
        for name, table in zip(("berlin", "paris", "rome"), ("h0", "h1", "h2"), strict=True):
            shutil.copy(made.table(table), root / f"{name}.csv")
        shutil.copy(made.table("public"), root / "public.csv")
        (root / "run.toml").write_text(RUN)
        environment = {**os.environ, "PRIVFED": str(command(root))}
        words = [SCRIPT, root / "fed", root / "run.toml", *USERS]
        ended = subprocess.run(
            [*map(str, words)], cwd=root, env=environment, capture_output=True, timeout=4 * LONG
        )
        assert ended.returncode == 0, ended.stderr.decode()
        assert "3 charged" in ended.stdout.decode()
        for user, name in zip(USERS, ("berlin", "paris", "rome"), strict=True):
            folder = root / "fed" / name
            assert folder.stat().st_uid == user
            assert as_user(user, "cat", folder / "stays.csv").returncode == 0
            for other in {*USERS} - {user}:
                for file in ("stays.csv", "site/key", "site/receipts.jsonl"):
                    assert as_user(other, "cat", folder / file).returncode != 0
            events = (root / "fed" / f"{name}.events").read_text()
            assert events.count("event=answered") == 3
    finally:
        shutil.rmtree(root)


RUN = """
format = 1
[run]
rounds = 3
[data]
source = "table"
path = "at the sites"
test_path = "public.csv"
client = "patient"
clients = 60
sites = 3
site_partition = "elsewhere"
label = "sick"
classes = 2
features = { age = [18, 94], bmi = [11, 42] }
[model]
name = "logistic"
[cohort]
size = 20
[privacy]
epsilon = 2
delta = 1e-5
mechanism = "discrete_gaussian"
sizing = "layers"
[secure]
protocol = "masks"
threat = "malicious"
deadline = 5.0
"""
