"""A site's receipts: durable before an answer, never answered twice, and counted together."""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from lanes import every_case

from accounting.durable import create
from accounting.errors import LedgerBroken
from accounting.events import Event, summable
from accounting.guarantee import guarantee
from accounting.noises import Gaussian, Skellam
from accounting.over_rounds import Separated
from accounting.releases import PoissonSampled
from privfed.core.errors import Refused
from privfed.deploy.files.receipt import Receipt
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.site.policy import Code, Declined, SpendingLimit
from privfed.plan.assumed import Assumed
from privfed.privacy.counted_noise import NoiseOfSites

ROOT = Path(__file__).resolve().parents[3]
EVENT = Event(PoissonSampled(0.1, Skellam(4e6, 2000.0, 16000.0)), "poisson", slack=1e-12)
SINGLE_PROCESS = Event(PoissonSampled(0.1, Skellam(1e6, 2000.0, 16000.0)), "poisson", slack=1e-12)
CENTRAL = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson")
PLENTY = SpendingLimit(epsilon=100.0, delta=1e-5)


def assumed(colluders=1, colluders_tolerated=3):
    """Five sites, four of which stay: up to `colluders_tolerated` open no sum of the others."""
    return Assumed(colluders=colluders, noise=(NoiseOfSites(5, 4, colluders_tolerated),))


def receipt(round=1, exchange=0, run="r1", model="a", config="b", **changes):
    facts = {
        "federation": "f" * 64,
        "run": run,
        "round": round,
        "exchange": exchange,
        "model": model * 64,
        "question": "d" * 64,
        "config": config * 64,
        "event": EVENT,
        "alone": SINGLE_PROCESS,
        "assumes": assumed(),
    }
    return Receipt(**{**facts, **changes})


@pytest.fixture
def path(tmp_path):
    create(tmp_path / "receipts.jsonl", b"")
    return tmp_path / "receipts.jsonl"


def charged(path, *receipts, limit=PLENTY):
    book = Receipts.recover(path)
    for each in receipts:
        book.charged(each, limit)
    return book


def test_a_line_is_durable_before_charged_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_bytes()))
    book = Receipts.load(path)
    head = book.charged(receipt(), PLENTY)
    assert path.read_bytes() in synced
    line = json.loads(path.read_text())
    assert line["hash"] == head == Receipts.load(path).head
    assert {**receipt().to_json(), "hash": head} == line
    assert line["type"] == "answer"
    assert not {"time", "clients", "loss"} & {*line}


def test_receipts_are_read_as_they_were_written(path):
    book = charged(path, receipt(1), receipt(1, 1), receipt(4), receipt(1, run="r2", alone=None))
    again = Receipts.load(path)
    assert again.runs == book.runs
    assert again.head == book.head
    assert [(run.run, run.rounds, run.exchanges, run.last_round) for run in again.runs] == [
        ("r1", 2, 3, 4),
        ("r2", 1, 1, 1),
    ]


def test_the_same_question_is_charged_once_also_after_a_restart(path):
    book = Receipts.load(path)
    heads = [book.charged(receipt(round), PLENTY) for round in (1, 2, 3)]
    before = path.read_bytes()
    assert [book.charged(receipt(round), PLENTY) for round in (1, 2, 3)] == heads
    again = Receipts.recover(path)
    assert [again.charged(receipt(round), PLENTY) for round in (3, 1, 2)] == [
        heads[2],
        heads[0],
        heads[1],
    ]
    assert path.read_bytes() == before
    assert book.spending() == again.spending() == {EVENT: 3}


REPLAYS = {
    "another model": (Code.QUESTION, receipt(3, 1, model="c")),
    "another question": (Code.QUESTION, receipt(3, 1, question="e" * 64)),
    "another event": (Code.QUESTION, receipt(3, 1, event=CENTRAL)),
    "an earlier exchange": (Code.QUESTION, receipt(3, 0, model="c")),
    "an earlier round": (Code.ROUND, receipt(2)),
    "an earlier round's exchange": (Code.ROUND, receipt(1, 5)),
    "another configuration": (Code.RUN, receipt(4, config="c")),
    "another federation": (Code.RUN, receipt(4, federation="0" * 64)),
    "another event within the round": (Code.RUN, receipt(3, 2, event=CENTRAL)),
    "nothing for others within the round": (Code.RUN, receipt(3, 2, alone=None)),
    "all rounds at once, now": (Code.RUN, receipt(4, prepaid_rounds=9)),
}


@pytest.mark.parametrize("case", REPLAYS)
@pytest.mark.parametrize("restarted", [False, True])
def test_any_other_question_is_declined_and_nothing_charged(path, case, restarted):
    book = charged(path, receipt(1), receipt(3), receipt(3, 1))
    if restarted:
        book = Receipts.recover(path)
    before = path.read_bytes()
    code, other = REPLAYS[case]
    with pytest.raises(Declined, match=f"^declined: {code}$") as error:
        book.charged(other, PLENTY)
    assert error.value.code is code
    assert error.value.private
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.code, again.private, str(again)) == (code, error.value.private, str(error.value))
    assert path.read_bytes() == before
    book.charged(receipt(4), PLENTY)


def test_rounds_and_runs_go_on(path):
    book = charged(path, receipt(3), receipt(3, 1), receipt(3, 4), receipt(1, run="r2"), receipt(7))
    assert book.spending() == {EVENT: 3}
    assert book.spending(alone=True) == {SINGLE_PROCESS: 3}


def test_epsilon_is_of_all_runs_together(path):
    book = charged(path, *map(receipt, range(1, 6)), receipt(run="r2"), receipt(1, 1, run="r2"))
    bound, alone = book.guarantees(1e-5)
    assert bound.epsilon == guarantee({EVENT: 6}, 1e-5).epsilon
    assert alone.epsilon == guarantee({SINGLE_PROCESS: 6}, 1e-5).epsilon
    assert bound.epsilon < alone.epsilon
    assert (bound.against, alone.against) == ("sites", "others")
    facts = book.to_json(PLENTY)
    assert [each["epsilon"] for each in facts["guarantees"]] == [bound.epsilon, alone.epsilon]


def test_one_epsilon_where_nobody_else_is_trusted_anyway(path):
    book = charged(path, receipt(alone=None))
    assert book.guarantees(1e-5)[1] is None
    mixed = charged(path, receipt(run="r2"))
    assert mixed.spending(alone=True) == {EVENT: 1, SINGLE_PROCESS: 1}


def test_separations_of_one_run_say_nothing_of_another(path):
    event = Event(Separated(4, Gaussian(3.0)), "cyclic")
    runs = [receipt(round, run=run, event=event, alone=None) for run in "ab" for round in range(5)]
    book = charged(path, *runs)
    assert book.spending() == Counter(summable({event: 5})) + Counter(summable({event: 5}))
    assert book.spending().total() == 4


def test_clients_at_several_sites_are_charged_for_the_whole_run(path):
    book = charged(
        path, receipt(2, prepaid_rounds=10), receipt(5, prepaid_rounds=10), receipt(run="r2")
    )
    assert book.spending() == {EVENT: 11}
    assert book.runs[0].charged == 10
    with pytest.raises(Declined, match="round"):
        book.charged(receipt(11, prepaid_rounds=10), PLENTY)
    with pytest.raises(Declined, match="run"):
        book.charged(receipt(6, prepaid_rounds=20), PLENTY)
    with pytest.raises(Declined, match="run"):
        book.charged(receipt(6, prepaid_rounds=10, event=CENTRAL), PLENTY)
    four = SpendingLimit(epsilon=guarantee({EVENT: 14}, 1e-5).epsilon, delta=1e-5)
    assert book.affords(four, receipt(run="r3", prepaid_rounds=3))
    assert not book.affords(four, receipt(run="r3", prepaid_rounds=4))


@pytest.mark.parametrize("stride", [1, 2, 50])
def test_the_budget_stops_at_the_last_round_that_fits(path, stride):
    limit = SpendingLimit(epsilon=guarantee({CENTRAL: 7}, 1e-5).epsilon, delta=1e-5)
    book = charged(path, *(receipt(n, run="r0", event=CENTRAL, alone=None) for n in (1, 2)))
    for round in range(1, 6):
        book.charged(receipt(round, event=CENTRAL, alone=None), limit, stride)
    before = path.read_bytes()
    with pytest.raises(Declined, match="budget"):
        book.charged(receipt(6, event=CENTRAL, alone=None), limit, stride)
    assert path.read_bytes() == before
    book.charged(receipt(5, 1, event=CENTRAL, alone=None), limit, stride)  # of a paid round
    with pytest.raises(Declined, match="budget"):
        Receipts.recover(path).charged(receipt(1, run="r9", event=CENTRAL, alone=None), limit)


def test_no_epsilon_covers_events_of_different_meaning(path):
    book = charged(path, receipt())
    other = replace(EVENT, relation="replace-one")
    assert not book.affords(PLENTY, receipt(2, event=other))
    with pytest.raises(Declined, match="budget"):
        book.charged(receipt(2, event=other), PLENTY)


def test_a_torn_line_was_never_answered(path):
    charged(path, receipt(1), receipt(2))
    intact = path.read_bytes()
    charged(path, receipt(3))
    last = path.read_bytes()[len(intact) :]
    for cut in (1, len(last) // 2, len(last) - 1):
        path.write_bytes(intact + last[:cut])
        looked = Receipts.load(path)
        assert looked.torn
        assert looked.spending() == {EVENT: 2}
        with pytest.raises(LedgerBroken, match="start the site again"):
            looked.charged(receipt(3), PLENTY)
        assert path.read_bytes() == intact + last[:cut]
        book = Receipts.recover(path)
        assert path.read_bytes() == intact
        book.charged(receipt(3, model="c"), PLENTY)
    path.chmod(0o600)
    path.write_bytes(last[:9])
    assert Receipts.recover(path).runs == ()
    assert path.read_bytes() == b""
    assert path.stat().st_mode & 0o777 == 0o600


def test_edits_cuts_and_lines_of_others_are_seen(path):
    charged(path, receipt(1), receipt(2), receipt(3))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    forged = second.replace(b'"round":2', b'"round":9')
    for lines in ((first, third), (second, first, third), (first, forged), (first, b"{}\n")):
        path.write_bytes(b"".join(lines))
        with pytest.raises(LedgerBroken, match="line "):
            Receipts.load(path)
    path.unlink()
    with pytest.raises(LedgerBroken, match="cannot be read"):
        Receipts.load(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "update"),
        ({"type": "charge"}, "update"),
        ({"round": 1.0}, "an integer"),
        ({"round": True}, "an integer"),
        ({"run": "a\x1b"}, "1 to 128 letters"),
        ({"model": "A" * 64}, "digits"),
        ({"event": {}}, "no receipt"),
        ({"more": 1}, "keys or values"),
    ],
)
def test_lines_that_are_no_receipts_are_named(path, change, reason):
    from accounting import chain

    body = {**receipt().to_json(), **change}
    path.write_bytes(chain.sealed(chain.START, body)[0])
    with pytest.raises(LedgerBroken, match=reason):
        Receipts.load(path)


def test_chained_lines_that_contradict_each_other_are_broken(path):
    from accounting import chain

    first, link = chain.sealed(chain.START, receipt(2).to_json())
    for other in (receipt(2), receipt(1), receipt(3, config="c")):
        path.write_bytes(first + chain.sealed(link["hash"], other.to_json())[0])
        with pytest.raises(LedgerBroken, match="line 2: run r1"):
            Receipts.load(path)


def test_two_processes_do_not_write_to_one_file(path):
    book, other = Receipts.load(path), Receipts.load(path)
    book.charged(receipt(1), PLENTY)
    with pytest.raises(LedgerBroken, match="another process"):
        other.charged(receipt(1, model="c"), PLENTY)
    assert Receipts.load(path).spending() == {EVENT: 1}


def test_after_a_write_that_failed_nothing_is_charged(path, monkeypatch):
    book = Receipts.load(path)
    with monkeypatch.context() as failing:
        failing.setattr("accounting.durable.append", lambda *_: (_ for _ in ()).throw(OSError(28)))
        with pytest.raises(OSError):
            book.charged(receipt(1), PLENTY)
    with pytest.raises(LedgerBroken, match="could not be written"):
        book.charged(receipt(1), PLENTY)
    Receipts.recover(path).charged(receipt(1), PLENTY)


@every_case(
    "change",
    [{"run": ""}, {"round": -1}, {"exchange": 0.5}, {"federation": "b"}, {"prepaid_rounds": True}],
)
def test_what_is_no_receipt_cannot_be_made(change):
    with pytest.raises(Refused, match="in a receipt"):
        receipt(**change)


CHARGE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_receipts import PLENTY, Receipts, receipt
book = Receipts.recover(Path(sys.argv[1]))
start = int(sys.argv[2])
print(start, flush=True)
for round in range(start, start + 100_000):
    book.charged(receipt(round), PLENTY, 1000)
    print(round, flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_has_charged_all_that_it_said(path):
    """What was printed after `charged` is in the file; at most one more line is."""
    start, printed_in_all = 1, 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", CHARGE, str(path), str(start), str(Path(__file__).parent)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))},
            stdout=subprocess.PIPE,
            text=True,
        )
        printed = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        printed += [int(line) for line in process.stdout.read().splitlines(keepends=False)]
        process.wait()
        process.stdout.close()
        printed_in_all += len(printed) - 1
        book = Receipts.recover(path)
        (run,) = book.runs
        assert run.last_round in (printed[-1], printed[-1] + 1)
        start = run.last_round + 1
    assert printed_in_all <= run.rounds <= printed_in_all + 3


def test_all_runs_are_charged_for_the_most_colluding_sites_of_any(path):
    """Epsilon over both runs is against as many colluding sites as either withstands."""
    weak = receipt(run="r1")
    strong = receipt(run="r2", assumes=assumed(colluders=2))
    book = charged(path, weak, strong)
    assert isinstance(EVENT.release, PoissonSampled)
    half = replace(EVENT.release.of, variance=EVENT.release.of.variance * 2 / 3)
    wanted = {EVENT: 1, replace(EVENT, release=replace(EVENT.release, of=half)): 1}
    bound, alone = book.guarantees(1e-5)
    assert bound.epsilon == guarantee(wanted, 1e-5).epsilon
    assert alone.epsilon == guarantee({SINGLE_PROCESS: 2}, 1e-5).epsilon  # counts on nobody else
    assert bound.epsilon > guarantee({EVENT: 2}, 1e-5).epsilon


def test_a_run_whose_sums_more_colluders_open_promises_nothing_beside_one_that_withstands_them(
    path,
):
    book = charged(path, receipt(run="r1", assumes=assumed(1, colluders_tolerated=1)))
    with pytest.raises(Declined) as declined:
        book.charged(receipt(run="r2", assumes=assumed(2)), PLENTY)
    assert declined.value.refusal.code is Code.BUDGET
    bound, _ = book.guarantees(1e-5)
    assert bound.epsilon < math.inf


def test_the_order_of_runs_makes_no_difference_to_the_budget(path, tmp_path):
    """Each new receipt is charged for the strongest adversary of those before it, too."""
    weak, strong = receipt(run="r1"), receipt(run="r2", assumes=assumed(colluders=2))
    both = charged(path, weak, strong).guarantees(1e-5)[0].epsilon
    tight = SpendingLimit(epsilon=both * 0.999, delta=1e-5)
    for first, second in ((weak, strong), (strong, weak)):
        other = tmp_path / first.run
        create(other, b"")
        book = charged(other, first, limit=tight)
        with pytest.raises(Declined):
            book.charged(second, tight)
        assert book.guarantees(1e-5)[0].epsilon < tight.epsilon


def test_a_run_that_trusts_the_server_is_not_added_up_with_one_that_does_not(path):
    central = receipt(
        event=CENTRAL, alone=None, assumes=Assumed(("a client's own site", "the server"))
    )
    book = charged(path, central)
    with pytest.raises(Declined):
        book.charged(receipt(run="r2"), PLENTY)
    assert len(book.runs) == 1


def test_receipts_that_state_no_assumptions_are_read():
    silent = receipt(assumes=None)
    line = {**silent.to_json(), "hash": "0" * 64}
    del line["assumes"]
    assert Receipt.from_json(line) == silent
