"""Who is proved to lie in a run's secure sum takes part in none of later rounds, and moves none."""

import json
import stat
from dataclasses import replace
from functools import partial

import committee_sums
import numpy as np
import pytest
from helpers import Rounds
from html_page import Document
from lanes import every_case
from masked_sums import signed, tampering
from rich.console import Console
from small import same_run, small, stop_after, trained

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.core.errors import TooManyByzantine
from privfed.plan.byzantine import (
    byzantine_limit,
    exclusion_text,
    lost_claims,
    refuse_more_culprits,
)
from privfed.plan.plan import plan
from privfed.report.audit import audit_table
from privfed.report.outcome import outcome_table
from privfed.report.page.write import write_run_page
from privfed.report.runs.listed import list_runs
from privfed.report.runs.listing_table import RunsTable
from privfed.report.runs.run_row import row_at
from privfed.round.updates import ClientUpdates
from privfed.round.world import NoExclusions
from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients
from privfed.run.train import resume
from privfed.sampling.cohort import Cohort
from privfed.secure.committee import evidence as committee_evidence
from privfed.secure.committee import protocol as committee_protocol
from privfed.secure.committee.channel import CommitteeChannel
from privfed.secure.committee.messages import Disclosure
from privfed.secure.identities import client_directory
from privfed.secure.limits import Leaves
from privfed.secure.masked import protocol
from privfed.secure.masked.channel import MaskedChannel
from privfed.secure.masked.evidence import proves
from privfed.secure.masked.messages import wire
from privfed.secure.regional.channel import FIRST_COORDINATOR
from privfed.secure.summation import Culprit
from privfed.store.run_directory import RunDirectory

KEYS = (
    *("run.randomness=seeded", "cohort.sampler=full", "cohort.size=0", "run.rounds=3"),
    *("secure.protocol=masks", "secure.threshold=0.5", "run.checkpoint_every=1"),
)
BYZANTINE = 8


@pytest.fixture
def senders(monkeypatch):
    """Who sends a row in each round of runs with a client that tells wrong shares of seeds."""
    senders = []

    def lying(message):
        return signed(message, seeds=tuple((who, value ^ 1) for who, value in message.seeds))

    class Listening(MaskedChannel):
        def total(self):
            summed = super().total()
            senders.append(set(self.server._senders))
            return summed

    wired = partial(Listening, wire=tampering(wire.Unmask, lying, victim=BYZANTINE))
    monkeypatch.setattr(protocol, "MaskedChannel", wired)
    return senders


def test_a_run_goes_on_without_who_was_proved_to_lie_also_after_a_crash(tmp_path, senders):
    outcome = trained(tmp_path / "whole", *KEYS)
    everybody = set(range(12))
    assert senders == [everybody, everybody - {BYZANTINE}, everybody - {BYZANTINE}]
    assert (outcome.updates, outcome.excluded, outcome.aborts) == (3, 1, {})
    directory = RunDirectory(tmp_path / "whole")
    (line,) = (directory.path / "excluded.jsonl").read_text().splitlines()
    about = {
        "round": 1,
        "exchange": 0,
        "client": BYZANTINE,
        "reason": "wrong share",
        "complaints": 0,
    }
    assert json.loads(line) == about
    (file,) = directory.exclusions.proofs.iterdir()
    culprit = replace(directory.exclusions.culprits()[0], proof=file.read_bytes())
    assert proves(culprit, client_directory(range(12)))
    assert {stat.S_IMODE(path.stat().st_mode) for path in file.parents[:2]} == {0o700}
    with pytest.MonkeyPatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "parts", *KEYS)
    assert resume(tmp_path / "parts", lambda stored: stored).excluded == 1
    same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_goes_on_without_who_lied_in_a_region(tmp_path, senders):
    outcome = trained(tmp_path, *KEYS, "secure.protocol=regions")
    even, odd = {*range(0, 12, 2)}, {*range(1, 12, 2)}
    top = {FIRST_COORDINATOR, FIRST_COORDINATOR + 1}
    assert senders == [even, odd, top, *[even - {BYZANTINE}, odd, top] * 2]
    assert (outcome.updates, outcome.excluded, outcome.aborts) == (3, 1, {})
    (culprit,) = RunDirectory(tmp_path).exclusions.culprits()
    assert (culprit.client, culprit.round, culprit.reason) == (BYZANTINE, 1, "wrong share")


def test_a_run_goes_on_without_who_lied_in_a_committee(tmp_path, monkeypatch):
    ended = []

    class Listening(CommitteeChannel):
        def total(self):
            summed = super().total()
            ended.append(self.server)
            return summed

    wire = committee_sums.Changing(Disclosure, committee_sums.spoiled, {BYZANTINE})
    monkeypatch.setattr(committee_protocol, "CommitteeChannel", partial(Listening, wire=wire))
    outcome = trained(tmp_path, *KEYS, "secure.protocol=committee", "secure.threshold=0.75")
    everybody = tuple(range(12))
    without = tuple(who for who in everybody if who != BYZANTINE)
    assert [server._survivors for server in ended] == [everybody, without, without]
    assert (outcome.updates, outcome.excluded, outcome.aborts) == (3, 1, {})
    exclusions = RunDirectory(tmp_path).exclusions
    (culprit,), (file,) = exclusions.culprits(), exclusions.proofs.iterdir()
    assert (culprit.client, culprit.round, culprit.reason) == (BYZANTINE, 1, "wrong share")
    culprit = replace(culprit, proof=file.read_bytes())
    assert committee_evidence.proves_violation(culprit, ended[-1]._terms)


def test_with_somebody_left_out_no_round_rests_on_a_secret_draw(tmp_path, senders):
    """Its sums abort more often than is charged, and each abort tells of the draw."""
    keys = ("cohort.sampler=poisson", "cohort.size=11", "privacy.delta=0.05", "secure.admitted=5")
    with pytest.raises(TooManyByzantine, match=r"is 1 \(excluded.jsonl\)"):
        trained(tmp_path / "run", *KEYS, *keys)
    directory = RunDirectory(tmp_path / "run")
    named = {each.round for each in directory.exclusions.culprits()}
    charged = [charge.round for charge in Ledger.load(directory.path / "ledger.jsonl").charges]
    assert named == {charged[-1]}, "the round after the liar is named is neither charged nor drawn"


SHARED = ("privacy.mechanism=skellam", "secure.colluders=0.2", "run.rounds=2")


def printed(table):
    with (console := Console(width=400)).capture() as capture:
        console.print(table)
    return " ".join(capture.get().split())


def flat(page, tag):
    return " ".join(" ".join(page.texts(tag)).split())


def test_noise_that_counts_on_nobody_hostile_is_not_claimed_with_a_liar(tmp_path, senders):
    """The run stops before the next charge; its files and page say what no longer holds."""
    path = tmp_path / "run"
    with pytest.raises(
        TooManyByzantine, match=r"one of the clients .* aggregation\.byzantine = 1 or"
    ):
        trained(path, *KEYS, *SHARED)
    assert [charge.round for charge in Ledger.load(path / "ledger.jsonl").charges] == [1]
    summary = json.loads((path / "report/summary.json").read_text())
    assert summary["rounds"] == summary["excluded"] == 1
    assert "left out its share of the noise" in summary["stopped_by_byzantine"]
    (lost,) = summary["lost_claims"]
    assert lost.startswith("Neither ε against the server nor ε against readers")
    row = row_at(path)
    assert (row.state, row.excluded, row.lost_claims) == ("stopped by Byzantine clients", 1, lost)
    assert audit(path).excluded == 1
    assert "excluded 1 proved to be Byzantine in secure sums" in printed(audit_table(audit(path)))
    assert (
        f"run: left out 1 proved to be Byzantine in secure sums (excluded.jsonl). {lost}"
        in printed(RunsTable(list_runs(tmp_path)))
    )
    page = Document(write_run_page(path, None, simulation=False).path.read_text("utf-8"))
    assert page.texts("blockquote") == [lost]
    assert "client round exchange violation by 8 1 0 revealed a share" in flat(page, "table")
    assert f"No longer holds. {lost}" in flat(page, "div")
    before = (path / "ledger.jsonl").read_bytes()
    with pytest.raises(TooManyByzantine, match=r"one of the clients"):
        resume(path, lambda stored: stored)
    assert (path / "ledger.jsonl").read_bytes() == before


def test_what_a_liar_of_the_last_round_takes_away_is_said_where_the_run_ends(tmp_path, senders):
    outcome = trained(tmp_path / "run", *KEYS, *SHARED, "run.rounds=1")
    assert not outcome.stopped_by_byzantine
    words = printed(outcome_table(outcome))
    assert "no longer holds Neither ε" in words
    assert "none of a cohort's clients is Byzantine (aggregation.byzantine)" in words


def test_who_lied_after_the_end_is_none_of_the_runs_culprits(tmp_path):
    """A later round named it, as one that evaluates a run that has ended."""
    path = trained(tmp_path / "run", *KEYS, *SHARED, "secure.simulate=arithmetic").path
    for client, round in ((3, 2), (5, 3)):
        RunDirectory(path).exclusions.note(Culprit(client, round, 0, "wrong share"))
    outcome = resume(path, lambda stored: stored)
    assert [(each.client, each.round) for each in outcome.culprits] == [(3, 2)]
    assert outcome.to_json()["excluded"] == 1


def test_as_many_liars_as_were_declared_take_nothing_away_and_others_do(tmp_path, senders):
    path, declared = tmp_path / "run", "aggregation.byzantine=1"
    outcome = trained(path, *KEYS, *SHARED, declared)
    assert (outcome.updates, outcome.excluded, outcome.lost_claims) == (2, 1, ())
    RunDirectory(path).exclusions.note(Culprit(3, 2, 0, "garbled shares", complaints=5))
    with pytest.raises(
        TooManyByzantine, match=r"2 clients were .* aggregation\.byzantine = 2 or more"
    ):
        resume(path, lambda stored: stored.with_run(rounds=3))
    page = Document(write_run_page(path, None, simulation=False).path.read_text("utf-8"))
    assert "complaints of 5 holders" in flat(page, "table")
    assert "they prove nothing to third parties" in flat(page, "ul")


@every_case(
    ("keys", "limit", "words"),
    [
        ((), None, "excluded from all later rounds, and the run goes on"),
        (SHARED, 0, "stops the run: ε holds only if none of a cohort's clients is Byzantine"),
        ((*SHARED, "privacy.sizing=layers"), 0, "stops the run: ε holds only if none"),
        (
            (*SHARED, "aggregation.byzantine=2"),
            2,
            "; with more than 2 the run stops, because ε holds",
        ),
        (("cohort.sampler=poisson", "cohort.size=11"), None, "stops the run: ε requires a secret"),
        (("secure.simulate=arithmetic",), None, ""),
        (
            ("secure.protocol=committee", "secure.threshold=0.6"),
            None,
            "excluded from all later rounds, and the run goes on",
        ),
    ],
    ids=[
        "central",
        "shared",
        "layers",
        "declared",
        "secret_draw",
        "arithmetic",
        "committee",
    ],
)
def test_before_a_run_it_is_said_what_a_liar_would_do(keys, limit, words):
    planned = plan(small(*KEYS, "privacy.delta=0.05", *keys), length=21)
    stated = byzantine_limit(planned)
    assert (stated and stated.most) == limit
    assert words in exclusion_text(planned)
    assert bool(words) is bool(exclusion_text(planned))


def test_a_sum_of_sites_counts_on_all_but_those_that_collude():
    """And what holds against all other sites counts on none of these."""
    keys = ("data.sites=5", "secure.colluders=0.3", "cohort.sampler=poisson", "cohort.size=4")
    planned = plan(small("secure.protocol=masks", *SHARED, *keys), length=21)
    culprits = [Culprit(site, 1, 0, "wrong share") for site in range(3)]
    refuse_more_culprits(planned, 2, culprits=2)
    assert lost_claims(planned, culprits[:2]) == ()
    with pytest.raises(
        TooManyByzantine, match=r"3 sites were .* at most 2 of the sites are Byzantine"
    ):
        refuse_more_culprits(planned, 2, culprits=3)
    (lost,) = lost_claims(planned, culprits)
    assert lost.startswith("ε against the server, readers and colluding sites does not hold")
    assert lost.endswith("holds, since it does not depend on other parties' noise.")
    assert "a site that is proved to be Byzantine" in exclusion_text(planned)


def test_no_evaluation_after_the_run_rests_on_a_secret_draw(tmp_path):
    keys = ("cohort.sampler=poisson", "cohort.size=11", "privacy.delta=0.05", "secure.admitted=5")
    path = trained(tmp_path / "run", *KEYS, *keys).path
    RunDirectory(path).exclusions.note(Culprit(3, 2, 0, "garbled shares", complaints=5))
    before = (path / "ledger.jsonl").read_bytes()
    with pytest.raises(TooManyByzantine, match="proved to be Byzantine in secure sums is 1"):
        evaluate_by_clients(path, 0.5, {"size": 11})
    assert (path / "ledger.jsonl").read_bytes() == before


def test_a_list_of_culprits_survives_a_torn_line_and_names_each_once(tmp_path):
    log = RunDirectory(tmp_path).exclusions
    log.note(Culprit(5, 3, 0, "garbled shares", complaints=4))
    with log.path.open("a") as file:
        file.write('{"round": 4, "rea')
    assert log.before(4) == {5}
    log.mend()
    log.note(Culprit(7, 4, 1, "garbled shares", complaints=4))
    log.note(Culprit(7, 4, 1, "garbled shares", complaints=4))
    assert [(each.client, each.complaints) for each in log.culprits()] == [(5, 4), (7, 4)]
    assert [log.before(round) for round in (3, 4, 5)] == [set(), {5}, {5, 7}]
    assert not log.proofs.exists()


class Listed(NoExclusions):
    """These were proved to lie before."""

    def __init__(self, *clients):
        self.clients = frozenset(clients)

    def before(self, round):
        return self.clients


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_leaving_somebody_out_moves_nobody_elses_coins(tmp_path, dropout):
    """Nor the draw: the cohort is the same, and so are rate, divisor and population."""
    rounds = Rounds(tmp_path, [3] * 20)
    algorithm = replace(rounds.algorithm, dropout=dropout)
    for round in range(1, 9):
        clients = np.arange(round, 20)
        cohort = Cohort(round, clients, 10.0, None)
        leavings = []
        for listed in (Listed(), Listed(4, 11)):
            world = replace(rounds.world, exclusions=listed)
            updates = ClientUpdates(algorithm, world, rounds.state, cohort)
            present, leaves = updates.present(0)
            session = updates.session(0, b"h" * 32, leaves)
            assert session.clients is clients
            assert present.divisor == cohort.divisor
            assert set(present.clients) == set(session.senders)
            leavings.append(leaves)
        out = np.isin(clients, [4, 11])
        assert np.array_equal(leavings[0][~out], leavings[1][~out])
        assert (leavings[1][out] == Leaves.BEFORE_SHARING).all()
