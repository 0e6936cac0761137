"""What operators meet: clocks, full disks, revoked sites, other versions, shared budgets.

docs/how-to/operate_a_site.md has a row for each.
"""

import json
import re
import shutil
import threading
import time
from dataclasses import replace

import pytest
from commands import run as command
from hospitals import POLICY, hospitals

from accounting import durable
from accounting.documents import from_toml
from accounting.ledger import Ledger
from privfed.config.config import digest
from privfed.core.errors import Busy, Refused
from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.messages.envelope import Envelope, Kind, Reply, read_answer
from privfed.deploy.site import joining
from privfed.deploy.site.agent import agent_of
from privfed.deploy.site.site_check import check_site
from privfed.deploy.site.site_setup import site_config

ALL = "secure.minimum=3"
"""All three sites are needed, so that a site that declines is named."""
CAUTIOUS = POLICY.replace("epsilon = 1e300", "epsilon = 6.0")


@pytest.fixture
def made(tmp_path):
    return hospitals(tmp_path / "sites")


def agents(made):
    return {site: made.agent(site).answer for site in range(made.count)}


def played(made, out, *keys, sites=None, federation=None):
    facts = (federation or made.federation_file, made.key_file, out)
    file = made.run_file("data.site_partition=elsewhere", *keys, name=f"{out.name}.toml")
    connect = Loopback(sites or agents(made))
    return coordinate(file, *facts, connect=lambda _: connect, seconds=20, patience=0)


def rounds(made, site=0):
    return [run.last_round for run in made.member(site).receipts.runs]


def agreed(made, federation, path):
    """Writes the file for the coordinator and for sites 0 and 2."""
    federation.write_new(path)
    for site in (0, 2):
        made.folder(site).federation.unlink()
        federation.write_new(made.folder(site).federation)


@pytest.mark.parametrize("years", [-50, 50])
def test_a_wrong_clock_changes_no_run(made, tmp_path, monkeypatch, years):
    """A round's times are those of a monotonic clock; only an approval's end is a date."""
    true = time.time
    monkeypatch.setattr(time, "time", lambda: max(0.0, true() + years * 365 * 86_400))
    assert played(made, tmp_path / "out", ALL).updates == 4
    assert rounds(made) == [4]


def full_for(path, append):
    def full(each, line):
        if each == path:
            raise OSError(28, "No space left on device")
        append(each, line)

    return full


def test_a_full_disk_at_a_site_ends_its_part_and_loses_nothing(made, tmp_path, monkeypatch):
    """The site fails before it samples, and declines until it is started again."""
    sites, append = agents(made), durable.append
    monkeypatch.setattr(durable, "append", full_for(made.folder(1).receipts, append))
    outcome = played(made, tmp_path / "out", "secure.minimum=2", sites=sites)
    assert outcome.updates == 4
    assert (rounds(made, 0), rounds(made, 1)) == ([4], [])
    monkeypatch.setattr(durable, "append", append)
    played(made, tmp_path / "second", ALL)
    assert rounds(made, 1) == [4]


def test_a_full_disk_at_one_site_does_not_spend_the_budgets_of_all(made, tmp_path, monkeypatch):
    """Where all sites are needed, one round is charged and aborted, and no other begins."""
    sites, append = agents(made), durable.append
    monkeypatch.setattr(durable, "append", full_for(made.folder(1).receipts, append))
    with pytest.raises(Busy, match="h1: declined storage"):
        played(made, tmp_path / "out", ALL, sites=sites)
    assert len(Ledger.load(tmp_path / "out" / "ledger.jsonl").charges) == 1
    assert rounds(made, 0) == [1]


def test_a_site_with_little_space_left_joins_no_run(made, tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(Busy, match="h0: declined storage"):
        played(made, tmp_path / "out", ALL)
    assert Ledger.load(tmp_path / "out" / "ledger.jsonl").charges == ()


def test_a_full_disk_at_the_coordinator_ends_the_command_and_the_run_goes_on(
    made, tmp_path, monkeypatch
):
    append, out = durable.append, tmp_path / "out"

    def full(path, line):
        if path == out / "ledger.jsonl" and json.loads(line).get("round") == 3:
            raise OSError(28, "No space left on device")
        append(path, line)

    monkeypatch.setattr(durable, "append", full)
    with pytest.raises(OSError, match="No space left"):
        played(made, out, ALL)
    assert 0 < rounds(made)[-1] < 4
    monkeypatch.setattr(durable, "append", append)
    assert played(made, out, ALL).updates == 4
    assert rounds(made)[-1] == 4


def test_a_revoked_site_takes_no_part(made, tmp_path):
    """The new file names two sites, and has another digest: the others need it, too."""
    remaining = {name: key for name, key in made.federation.sites.items() if name != "h1"}
    smaller = tmp_path / "smaller.toml"
    federation = FederationFile(name="stays", coordinator=str(made.key.public), sites=remaining)
    agreed(made, federation, smaller)
    sites = agents(made)
    outcome = played(
        made,
        tmp_path / "out",
        "data.sites=2",
        sites={0: sites[0], 1: sites[2]},
        federation=smaller,
    )
    assert outcome.updates == 4
    greeting = Envelope(
        bytes.fromhex(federation.digest()), bytes(32), Kind.HELLO, b"x" * 32
    ).signed(made.key.identity)
    assert read_answer(sites[1](greeting.encode()))[0] is Reply.UNSIGNED


def test_a_site_that_kept_the_old_file_is_named(made, tmp_path):
    renamed, path = made.federation.model_copy(update={"name": "beds"}), tmp_path / "new.toml"
    agreed(made, renamed, path)
    with pytest.raises(Busy, match=r"h1: unsigned"):
        played(made, tmp_path / "out", ALL, federation=path)


def test_a_key_of_a_newer_version_is_declined(made):
    declaration, _ = made.declaration()
    text = declaration.text.replace("[cohort]", "[cohort]\nnewer_key = 1")
    ledger = Ledger.create(made.root / "newer.jsonl", {"config": digest(from_toml(text))})
    opening = ledger.path.read_bytes().split(b"\n")[0]
    newer = replace(declaration, opening=opening, text=text)
    message = made.signed(Kind.DECLARATION, newer.run, newer.encode())
    assert read_answer(made.agent(0).answer(message)) == (Reply.DECLINED, b"proof")


def test_a_version_with_another_cost_of_a_round_is_declined(made, tmp_path, monkeypatch):
    """A site computes the cost itself. Here its noise multiplier is half of the coordinator's."""
    member, replies = made.member(1), []
    agent = agent_of(member)

    def older(data):
        with monkeypatch.context() as there:
            there.setattr(joining, "site_config", half_the_noise)
            replies.append(read_answer(answer := agent.answer(data)))
        return answer

    def half_the_noise(text, table):
        return site_config(text.replace("noise_multiplier = 1.5", "noise_multiplier = 0.75"), table)

    carrier = {**agents(made), 1: older}
    assert played(made, tmp_path / "out", "secure.minimum=2", sites=carrier).updates == 4
    assert (Reply.DECLINED, b"ledger") in replies
    assert rounds(made, 1) == []


def test_a_raised_budget_is_read_before_the_next_charge_without_a_restart(made, tmp_path):
    made.folder(1).policy.write_text(CAUTIOUS)
    sites = agents(made)
    with pytest.raises(Busy, match="h1: declined budget"):
        played(made, tmp_path / "out", ALL, "run.rounds=40", sites=sites)
    spent = rounds(made, 1)[0]
    charged = len(Ledger.load(tmp_path / "out" / "ledger.jsonl").charges)
    assert 0 < spent < 40
    assert charged == spent + 1, "one round was charged and declined; no other was begun"
    made.folder(1).policy.write_text(POLICY)
    assert played(made, tmp_path / "out", ALL, "run.rounds=40", sites=sites).updates > 0
    assert rounds(made) == [40]


def test_two_runs_at_the_limit_of_one_budget_never_exceed_it_together(made, tmp_path):
    """Each fits alone, and both at once do not: the site declines the round that exceeds it."""
    probe = made.run_file("data.site_partition=elsewhere", ALL, "run.rounds=8", name="p.toml")
    alone = check_site(made.member(1), probe).epsilon
    limit = 1.3 * alone
    made.folder(1).policy.write_text(POLICY.replace("epsilon = 1e300", f"epsilon = {limit}"))
    assert check_site(made.member(1), probe).epsilon <= limit
    sites, ends, lock = agents(made), {}, threading.Lock()

    def locked(answer):
        def one_at_a_time(data):  # as the agent's socket does
            with lock:
                return answer(data)

        return one_at_a_time

    shared = {site: locked(answer) for site, answer in sites.items()}

    def one(name):
        try:
            played(made, tmp_path / name, ALL, "run.rounds=8", sites=shared)
            ends[name] = "done"
        except Busy as busy:
            ends[name] = str(busy)

    both = [threading.Thread(target=one, args=(name,)) for name in ("a", "b")]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert any("h1: declined budget" in end for end in ends.values())
    bound, _ = made.member(1).receipts.guarantees(1e-3)
    assert alone < bound.epsilon <= limit
    answer = command("site", "check", made.folder(1).path, probe)
    assert answer.exit_code == 2
    assert re.search(r"declines .*p\.toml: budget: budget\.epsilon is", answer.stderr)


def test_a_refused_check_names_the_file_of_a_model_that_is_not_listed(made, tmp_path, monkeypatch):
    (tmp_path / "unread23.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Linear(2, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = made.run_file("data.site_partition=elsewhere", "model.name=unread23:make")
    with pytest.raises(Refused, match=r"unread23\.py, but allow\.models .* sha256:[0-9a-f]{64}"):
        check_site(made.member(0), file)
