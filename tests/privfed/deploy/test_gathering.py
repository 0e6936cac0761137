"""A round begins when enough sites are available; a late answer counts for nothing."""

import threading
import time
from dataclasses import replace

import pytest
from faulty_loopback import DescriptionRequest
from hospitals import hospitals
from lanes import mostly_slow
from waiting import BRIEF, LONG

from privfed.core.errors import Busy, Refused
from privfed.deploy.carriers.carrier import UNREACHABLE, Loopback
from privfed.deploy.carriers.local_socket import LocalServer, Sockets
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.messages.envelope import Envelope, Kind
from privfed.round.world import NoExclusions


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("gathering") / "sites")


class Away(Loopback):
    """Site 2 is not there, or answers `says`, until it has been told of a run `until` times."""

    def __init__(self, sites, until, says=None):
        super().__init__(sites)
        self.until, self.says = until, says

    def send(self, site, data, deadline):
        if site == 2 and Envelope.decode(data).kind == Kind.DECLARATION:
            self.until -= 1
            if self.until >= 0:
                if self.says is not None:
                    self._arrived.append((2, self.says))
                return
        super().send(site, data, deadline)


def sites(made):
    return {site: made.agent(site).answer for site in range(made.count)}


def test_it_waits_until_enough_are_there(made):
    waited = []
    carrier = Away(sites(made), until=3)
    asking = DescriptionRequest(made, carrier, patience=LONG, sleep=waited.append)
    asking.play()
    assert waited == [1.0] * 3
    assert [charge.round for charge in asking.ledger.charges] == [1]


class Listed(NoExclusions):
    def before(self, round):
        return frozenset({2})


def test_who_was_proved_to_lie_is_not_even_told_of_a_run(made):
    """Here all sites are needed: nothing is charged for a round without it."""
    asked, there = [], sites(made)
    there[2] = asked.append
    asking = DescriptionRequest(made, Loopback(there), exclusions=Listed())
    with pytest.raises(Busy, match="h2: it was proved Byzantine in a secure sum"):
        asking.play()
    assert not asked
    assert not asking.ledger.charges


ABSENT = {
    "no answer": None,
    "it sent an invalid answer": b"",
    "declined budget": b"\x01budget",
    "declined": b"\x01p17 has a \x1b[31mdisease",
    "failed": b"\x04",
    "unsigned (it has agreed on another federation file)": b"\x02",
    "it saw ledger lines that this ledger lacks": b"\x00" + b"z" * 32,
}


@pytest.mark.parametrize(
    "reason",
    mostly_slow(
        *(ABSENT, "no answer", "declined", "it saw ledger lines that this ledger lacks"),
        names=["silent", "empty", "budget", "words", "failed", "unsigned", "ledger"],
    ),
)
def test_who_stays_away_is_named_and_nothing_is_charged(made, reason):
    before = [made.folder(site).receipts.read_bytes() for site in range(made.count)]
    asking = DescriptionRequest(made, Away(sites(made), 10**9, ABSENT[reason]))
    with pytest.raises(Busy) as busy:
        asking.play()
    assert f"(h2: {reason})" in str(busy.value)
    assert "2 of 3 sites are available" in str(busy.value)
    assert not asking.ledger.charges
    assert [made.folder(site).receipts.read_bytes() for site in range(made.count)] == before


def test_a_site_that_saw_more_of_the_ledger_is_not_asked(made):
    """Its coordinator's ledger was rolled back, or is another one of the same run."""
    carrier = Loopback(sites(made))
    asking = DescriptionRequest(made, carrier)
    asking.play(2)
    path = asking.ledger.path
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:3]) + b"\n")  # round 1 is charged, round 2 was
    again = type(asking.ledger).recover(path)
    other = replace(asking.coordinator, ledger=again, carrier=Loopback(sites(made)))
    with pytest.raises(Busy, match="h0: it saw ledger lines that this ledger lacks"):
        other.gather()


def test_another_coordinators_messages_are_answered_by_nobody(made):
    stranger = SiteKey.draw("coordinator")
    asking = DescriptionRequest(made, Loopback(sites(made)), key=stranger)
    with pytest.raises(Busy, match=r"h0: unsigned .*; h1: unsigned .*; h2: unsigned"):
        asking.play()


def test_a_coordinator_with_another_key_is_refused_at_once(made, tmp_path):
    SiteKey.draw("coordinator").write(tmp_path / "other")
    with pytest.raises(Refused, match="not the key of the coordinator"):
        coordinate(
            made.run_file(),
            made.federation_file,
            tmp_path / "other",
            tmp_path / "out",
            lambda _: Loopback({}),
        )
    assert not (tmp_path / "out").exists()


def test_a_run_over_other_sites_than_were_agreed_is_refused(made, tmp_path):
    def tried(*keys):
        run = made.run_file(*keys, name="other.toml")
        coordinate(
            run, made.federation_file, made.key_file, tmp_path / "out", lambda _: Loopback({})
        )

    with pytest.raises(Refused, match=r"data\.sites is 4") as refused:
        tried("data.sites=4")
    assert refused.value.key == "data.sites"
    assert not (tmp_path / "out").exists()


@pytest.fixture
def sockets(tmp_path):
    """A site that answers late to what says so, and the carrier to it and to nobody."""
    answered = threading.Event()

    def answer(data):
        if data == b"late":
            answered.wait(LONG)
        return data

    with LocalServer(tmp_path / "socket", answer, most=100, seconds=LONG).serving():
        yield Sockets({0: tmp_path / "socket", 1: tmp_path / "nobody"}), answered
        answered.set()


def test_answers_arrive_and_whoever_is_not_there_answers_nothing(sockets):
    carrier, _ = sockets
    until = time.monotonic() + LONG
    carrier.send(0, b"now", until)
    carrier.send(1, b"now", until)
    carrier.send(7, b"now", until)  # a site without a socket
    arrived = [answer for _ in range(3) for answer in carrier.receive(until)]
    assert sorted(arrived) == [(0, b"now"), (1, UNREACHABLE), (7, UNREACHABLE)]
    began = time.monotonic()
    assert carrier.receive(began + BRIEF) == []
    assert BRIEF <= time.monotonic() - began < LONG / 2


def test_a_late_answer_to_an_earlier_message_never_counts_for_a_later_one(sockets):
    carrier, answered = sockets
    carrier.send(0, b"late", time.monotonic() + LONG)
    assert carrier.receive(time.monotonic() + BRIEF) == []
    carrier.send(0, b"now", time.monotonic() + LONG)
    answered.set()
    assert carrier.receive(time.monotonic() + LONG) == [(0, b"now")]
    assert carrier.receive(time.monotonic() + BRIEF) == []


def test_a_deadline_that_is_over_answers_nothing(sockets):
    carrier, _ = sockets
    carrier.send(0, b"late", time.monotonic() - 1)
    assert carrier.receive(time.monotonic() - 1) == []
    assert carrier.receive(time.monotonic() + BRIEF) in ([], [(0, UNREACHABLE)])
