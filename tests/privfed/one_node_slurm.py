"""Slurm on this machine alone, as the present user: one node, without systemd and cgroups."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from waiting import LONG, until

DAEMONS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd"}
"""The programs of a node, and the files that hold their process ids."""


def missing() -> str:
    """Returns the programs of Slurm that this machine lacks."""
    programs = (*DAEMONS, "sbatch", "scontrol", "srun")
    return ", ".join(each for each in programs if _path(each) is None)


@dataclass(frozen=True)
class Node:
    """A running node, whose commands have `environment`."""

    environment: Mapping[str, str]

    def call(self, *words: object, cwd: Path | None = None) -> str:
        """Returns what a command of Slurm prints."""
        command = [_path(str(words[0])), *map(str, words[1:])]
        ran = subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=LONG
        )
        assert ran.returncode == 0, f"{words}: {ran.stderr}"
        return ran.stdout.strip()

    def state(self, job: str) -> str:
        """Returns the state of a job, as Slurm names it."""
        facts = dict(
            fact.partition("=")[::2] for fact in self.call("scontrol", "show", "job", job).split()
        )
        return facts["JobState"]


@contextlib.contextmanager
def one_node(folder: Path, **environment: str) -> Iterator[Node]:
    """Yields a node whose files are in `folder`; its daemons are ended when the block ends."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    ports = _free_ports(2)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    conf = folder / "slurm.conf"
    conf.write_text(_CONF.format(host=host, user=user, folder=folder, ports=ports))
    node = Node({**os.environ, **environment, "SLURM_CONF": str(conf)})
    files = [f"--{name}={folder}/munge.{end}" for name, end in _MUNGE.items()]
    try:
        node.call("munged", "--force", f"--key-file={key}", *files)
        node.call("slurmctld", "-c")
        node.call("slurmd", "-c")
        until(lambda: node.call("sinfo", "-h", "-o", "%T") == "idle", "an idle node")
        yield node
    finally:
        for name in ("slurmctld", "slurmd", "munge"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{name}.pid").read_text()), 15)


def _path(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


_MUNGE = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
_CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its credential has expired: 120 s by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
