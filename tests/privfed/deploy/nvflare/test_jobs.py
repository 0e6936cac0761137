"""A federation of real programs over NVIDIA FLARE: kills, an abort, and code that a job brings."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: privfed[nvflare]")

from flare_programs import Flare, environment
from hospitals_here import agreement, journal
from waiting import LONG, until

from experiments.federation.hospitals import NAMES, write_tables
from experiments.federation.processes import Programs
from experiments.federation.sites import PRIVFED, Hospitals
from privfed.deploy.carriers.nvflare.new_job import SITE

pytestmark = pytest.mark.slow
PATIENTS, ROUNDS = 360, 14


@pytest.fixture
def programs():
    """Programs in a folder with a short path; none of them is left."""
    folder = Path(tempfile.mkdtemp(prefix="pf-"))
    try:
        with Programs(folder, environment(folder)) as programs:
            yield programs
        assert programs.left() == []
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def federation(programs):
    """Three hospitals with agents and NVIDIA FLARE's programs, and the job of a run."""
    write_tables(programs.logs, PATIENTS, seed=1)
    hospitals = Hospitals(programs.logs, programs)
    hospitals.agree()
    hospitals.declare(ROUNDS, PATIENTS, deadline=2.0)
    flare = Flare(programs.logs, programs)
    flare.provision({name: hospitals.site(name) / "socket" for name in NAMES})
    files = ("--run", hospitals.coordinator / "run.toml", "--federation", hospitals.federation)
    programs.call([*PRIVFED, "nvflare", "new", str(flare.job), *map(str, files)], LONG)
    for name in NAMES:
        hospitals.start_agent(name)
    flare.start()
    for name in NAMES:
        until(functools.partial(hospitals.serves, name), f"the agent of {name}")
    return hospitals, flare


def rounds_more(hospitals, count):
    """Waits until `count` more rounds have moved the model, and the next has begun."""
    before = len(journal(hospitals).over)

    def moved():
        log = journal(hospitals)
        return len(log.over) >= before + count and log.exchanged() > 2

    until(moved, lambda: journal(hospitals).lines[-12:])


def test_a_run_goes_on_after_kills_and_an_abort_and_its_books_agree(federation, programs):
    hospitals, flare = federation
    flare.submit(flare.job)
    rounds_more(hospitals, 1)

    programs.kill("agent-berlin")
    hospitals.start_agent("berlin")
    rounds_more(hospitals, 1)
    assert agreement(hospitals).problems == ()

    flare.kill_job_process("paris")
    until(lambda: not flare.works(), lambda: journal(hospitals).lines[-12:])
    job = flare.submit(flare.job)
    rounds_more(hospitals, 2)
    assert agreement(hospitals).problems == ()

    flare.abort(job)
    until(lambda: not flare.works(), "the end of the aborted job")
    flare.submit(flare.job)
    until(lambda: journal(hospitals).done, lambda: journal(hospitals).lines[-12:])

    held = agreement(hospitals)
    assert held.problems == ()
    assert held.charged == tuple(range(1, ROUNDS + 1))
    assert len(held.unopened) >= 2  # the kills met rounds that had begun
    assert all(set(rounds.values()) == {1} for rounds in held.answered.values())
    audit = json.loads(programs.call([*PRIVFED, "audit", str(hospitals.run), "--json"], LONG))
    assert audit["rounds"] == ROUNDS


def changed_job(flare, name, site_class, files):
    """Returns a copy of the job in which sites run `site_class`, with more `files`."""
    job = flare.job.with_name(name)
    shutil.copytree(flare.job, job)
    config = job / "app" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace(SITE, site_class))
    for path, text in files.items():
        (job / path).parent.mkdir()
        (job / path).write_text(text)
    return job


def test_a_site_runs_no_code_of_a_job_and_no_other_class(federation, programs):
    """The server permits both; each site refuses both, and no agent is asked."""
    hospitals, flare = federation
    programs.end("flare-server")
    (flare.kits / "server" / "local" / "authorization.json").unlink()
    flare.start_server()
    mark = programs.logs / "mark"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    brought = changed_job(flare, "brought", "brought.Relay", {"app/custom/brought.py": code})
    flare.submit(brought)
    until(lambda: "BYOC not permitted" in flare.log("server"), lambda: flare.log("server")[-900:])
    other = "nvflare.app_common.np.np_trainer.NPTrainer"
    flare.submit(changed_job(flare, "other", other, {}))
    for name in NAMES:
        until(lambda: "is not in allow_list" in flare.log(name), lambda: flare.log(name)[-900:])  # noqa: B023
        assert "allowing it because" not in flare.log(name)
    assert not mark.exists()
    receipts = [(hospitals.site(name) / "receipts.jsonl").read_text() for name in NAMES]
    assert not any('"answer"' in each for each in receipts)
