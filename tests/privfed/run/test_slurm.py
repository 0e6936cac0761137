"""The recipe for Slurm: a run that is requeued several times is one run."""

import sys
from pathlib import Path

import pytest
from one_node_slurm import missing, one_node
from small import SMALL
from waiting import until

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "experiments/clusters/train.sbatch"
ROUNDS = 1000


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"Slurm lacks {missing()}")
def test_a_requeued_job_continues_its_run(tmp_path):
    """Requeued by hand, after its processes were killed, and near its time limit."""
    settings = [*SMALL, f"run.rounds={ROUNDS}", f"run.evaluate_every={ROUNDS}"]
    (tmp_path / "run.toml").write_text("format = 1\n")
    ledger, log = tmp_path / "runs/one/ledger.jsonl", tmp_path / "one.log"

    def charged():
        return [charge.round for charge in Ledger.load(ledger).charges] if ledger.exists() else []

    def becomes(state):
        until(lambda: state == node.state(job), lambda: log.read_text())

    def rounds_more_than(count):
        def there():
            assert node.state(job) in ("PENDING", "RUNNING"), log.read_text()
            return len(charged()) > count

        until(there, lambda: log.read_text())

    python = Path(sys.executable).parent
    paths = {"PATH": f"{python}:/usr/sbin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    with one_node(tmp_path / "slurm", **paths) as node:
        words = [word for each in settings for word in ("--set", each)]
        sbatch = ("sbatch", "--parsable", "--job-name=one", "--cpus-per-task=2", RECIPE)
        job = node.call(*sbatch, "run.toml", *words, cwd=tmp_path)

        rounds_more_than(10)
        second_job = node.call(*sbatch, "run.toml", cwd=tmp_path)
        assert "Reason=Dependency" in node.call("scontrol", "show", "job", second_job)
        node.call("scancel", second_job)
        node.call("scontrol", "requeue", job)
        becomes("PENDING")
        first = len(charged())
        assert f"at {first} charges. Resume by" in log.read_text()

        rounds_more_than(first + 10)
        node.call("scancel", "--signal=KILL", f"{job}.0")
        becomes("FAILED")
        second = len(charged())
        node.call("scontrol", "requeue", job)

        rounds_more_than(second + 10)
        node.call("scancel", "--batch", "--signal=USR1", job)  # as 120 s before the time limit
        becomes("PENDING")
        third = len(charged())
        assert f"at {third} charges. Resume by" in log.read_text()

        becomes("COMPLETED")
    assert 10 < first < second < third < ROUNDS
    assert charged() == [*range(1, ROUNDS + 1)]
    assert audit(ledger.parent).problems == ()
