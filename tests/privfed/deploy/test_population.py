"""A site's people: whose rows count, and that nobody else learns what its table holds."""

import csv
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from faulty_loopback import DescriptionRequest, Watched
from hospitals import COLUMNS, POLICY, data_text, hospitals, stays, write_table
from pyarrow import csv as pyarrow_csv
from pyarrow import parquet
from waiting import BRIEF, LONG

from privfed.core.errors import Refused
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.envelope import Kind, Reply, read_answer
from privfed.deploy.site import joining
from privfed.deploy.site.population import readable_examples, site_population, synthetic_clients
from privfed.deploy.site.run_party import FixedTime
from privfed.deploy.site.site_check import check_site
from privfed.deploy.site.site_work import SiteWork, questions_of_each_kind
from privfed.run.setup import Setup


@pytest.fixture
def made(tmp_path):
    return hospitals(tmp_path / "sites")


def population(made, declaration, site=0):
    member = made.member(site)
    table, setup = member.accepted(declaration.text, declaration.examples, declaration.constants)
    config = setup.plan.config
    examples = config.source.load(config.data.clients, setup.streams)
    return site_population(examples, config, table, declaration.examples, member.key.name)


def rows_of(path):
    with path.open() as file:
        return [*csv.reader(file)][1:]


def test_the_first_rows_of_a_person_count(made):
    declaration, _ = made.declaration()
    unspoiled = population(made, declaration)
    rng = np.random.default_rng(1)
    rows = rows_of(made.table("h0"))
    for patient in ("p0", "p3"):  # many rows more, among those of others
        rows += stays(patient, "h0", 9, rng)
    write_table(made.table("h0"), rows)
    bounded = population(made, declaration)
    assert bounded.clients == unspoiled.clients
    sizes = np.diff(bounded.offsets)
    assert sizes.max() == 5 > np.diff(unspoiled.offsets).max()
    for client in range(unspoiled.clients):
        before = unspoiled.examples.take(np.arange(*unspoiled.offsets[client : client + 2]))
        after = bounded.examples.take(np.arange(*bounded.offsets[client : client + 2]))
        assert (after.x[: len(before)] == before.x).all()
    made.folder(0).data.write_text(data_text(made.table("h0"), rows=1))
    assert set(np.diff(population(made, declaration).offsets)) == {1}


def test_they_stand_for_all_clients_of_the_run_and_are_at_this_site_alone(made):
    declaration, _ = made.declaration()
    here = population(made, declaration, site=2)
    assert here.stands_for == made.patients
    assert here.clients == made.patients // made.count
    assert set(here.sites) == {0}


SPOILED = {
    "no file": lambda made: made.table("h0").unlink(),
    "no table": lambda made: made.table("h0").write_bytes(b"\x00\xff\x00"),
    "another column": lambda made: made.table("h0").write_text(
        made.table("h0").read_text().replace("bmi", "weight", 1)
    ),
    "a value out of place": lambda made: made.table("h0").write_text(
        made.table("h0").read_text() + "p99,h0,old,heavy,yes\n"
    ),
}
ABSENT = {"no file", "another column"}
"""What depends on no client: the site declines."""
EVERYBODY = ("cohort.sampler=full", "cohort.size=0")
EMPTY = {
    "nobody at all": lambda made: write_table(made.table("h0"), []),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_table_that_is_not_as_declared_is_refused(made, case):
    declaration, _ = made.declaration()
    SPOILED[case](made)
    with pytest.raises((Refused, OSError)):
        population(made, declaration)


def test_examples_of_another_form_are_refused_without_a_word_of_them(made):
    declaration, _ = made.declaration()
    other = replace(declaration.examples, x=(3,))
    member = made.member(0)
    table, setup = member.accepted(declaration.text, declaration.examples, None)
    named = replace(declaration.examples.zeros(1), owners=np.zeros(1, dtype=int), clients=("p",))
    with pytest.raises(Refused, match="differ in shape or type") as refused:
        site_population(named, setup.plan.config, table, other, "h0")
    assert "(2,)" not in str(refused.value)


SPOILED_CELLS = {
    "no number": ("age", "old"),
    "empty": ("bmi", ""),
    "no label": ("sick", "7"),
    "infinite": ("age", "nan"),
}


def spoil(path, patients, column, cell):
    """Put `cell` into the first row of each of the `patients`."""
    rows, place = rows_of(path), COLUMNS.index(column)
    for patient in patients:
        next(row for row in rows if row[0] == patient)[place] = cell
    write_table(path, rows)


@pytest.mark.parametrize("case", SPOILED_CELLS)
@pytest.mark.parametrize("patients", [("p3",), ("p0", "p3", "p12", "p21")], ids=len)
def test_who_cannot_be_read_is_left_out_and_nobody_else(made, case, patients):
    """One person's cell would else take all others out of the sum."""
    declaration, _ = made.declaration()
    member = made.member(0)
    table, setup = member.accepted(declaration.text, declaration.examples, None)
    source = setup.plan.config.source
    unspoiled = readable_examples(source, table)
    assert (unspoiled.left_out, unspoiled.reason) == (0, "")
    spoil(made.table("h0"), patients, *SPOILED_CELLS[case])
    with pytest.raises(Refused):
        source.load(1, setup.streams)
    read = readable_examples(source, table)
    assert read.left_out == len(patients)
    assert read.reason.startswith("fewer than 10 clients: ")
    assert "h0.csv" not in read.reason
    left = [n for n, name in enumerate(unspoiled.examples.clients) if name not in patients]
    expected = unspoiled.examples.take(np.flatnonzero(np.isin(unspoiled.examples.owners, left)))
    assert torch.equal(read.examples.x, expected.x)
    assert torch.equal(read.examples.y, expected.y)
    assert [read.examples.clients[n] for n in read.examples.owners] == [
        unspoiled.examples.clients[n] for n in expected.owners
    ]


def test_a_check_says_of_how_many_people_each_cause_is(made):
    """They do not count, and an agent that serves all the same says so in its log alone."""
    spoil(made.table("h0"), ("p0", "p3", "p12"), "bmi", "")
    spoil(made.table("h0"), ("p21",), "age", "old")
    with pytest.raises(Refused) as refused:
        check_site(made.member(0), made.run_file(table="h0"))
    text = str(refused.value)
    assert "fewer than 10 of 8 clients have unreadable rows" in text
    counted = [line for line in text.splitlines() if " clients: " in line]
    assert [line.split(": ")[0] for line in counted] == ["fewer than 10 clients"] * 2
    assert "'bmi' is empty" in counted[0]
    assert "'age'" in counted[1]
    assert "row" not in counted[0].partition("'bmi'")[0]


def test_a_check_warns_of_a_table_that_others_may_read(made):
    run = made.run_file(table="h0")
    made.table("h0").chmod(0o640)
    assert check_site(made.member(0), run).warnings == ()
    made.table("h0").chmod(0o644)
    (warning,) = check_site(made.member(0), run).warnings
    assert "h0.csv has mode 644, which gives other users of this machine access" in warning


def test_rows_of_a_parquet_file_are_left_out_too(made, tmp_path):
    table = pyarrow_csv.read_csv(made.table("h0"))
    ages = table.column("age").to_numpy().copy()
    first = table.column("patient").to_pylist()[0]
    ages[0] = np.nan
    path = made.table("h0").with_suffix(".parquet")
    parquet.write_table(table.set_column(2, "age", [ages]), path)
    made.folder(0).data.write_text(data_text(path))
    declaration, _ = made.declaration()
    site, setup = made.member(0).accepted(declaration.text, declaration.examples, None)
    read = readable_examples(setup.plan.config.source, site)
    assert read.left_out == 1
    assert first not in read.examples.clients


def test_where_nobody_can_be_read_a_table_is_refused_and_half_of_them_never_take_the_others_out(
    made,
):
    declaration, _ = made.declaration()
    table, setup = made.member(0).accepted(declaration.text, declaration.examples, None)
    source = setup.plan.config.source
    patients = sorted({row[0] for row in rows_of(made.table("h0"))})
    spoil(made.table("h0"), patients[1::2], "age", "old")
    read = readable_examples(source, table)
    assert {*read.examples.clients} == {*patients[::2]}
    spoil(made.table("h0"), patients, "age", "old")
    with pytest.raises(
        Refused, match=r"h0\.csv: no client's rows .*:\nfewer than 10 clients: .*'age'"
    ):
        readable_examples(source, table)


def test_a_row_of_another_length_is_nobodys(made):
    declaration, _ = made.declaration()
    table, setup = made.member(0).accepted(declaration.text, declaration.examples, None)
    source = setup.plan.config.source
    unspoiled = readable_examples(source, table)
    with made.table("h0").open("a") as file:
        file.write("p3,h0\np0,h0,1,2,3,4,5\n")
    read = readable_examples(source, table)
    assert torch.equal(read.examples.x, unspoiled.examples.x)
    assert read.examples.clients == unspoiled.examples.clients


def test_a_run_cannot_ask_by_its_bounds_who_is_there(made):
    """Cells beyond them are clipped at a site, whatever the run says of them."""
    declaration, _ = made.declaration("data.outside=refuse")
    spoil(made.table("h0"), ("p0", "p3"), "age", "1000")
    table, setup = made.member(0).accepted(declaration.text, declaration.examples, None)
    assert setup.plan.config.source.outside == "clip"
    assert readable_examples(setup.plan.config.source, table).left_out == 0


def test_more_people_than_are_stated_count_all_the_same(made):
    """One more would else take all others out; a check refuses the table before it is served."""
    declaration, _ = made.declaration()
    unspoiled = population(made, declaration)
    made.folder(0).data.write_text(data_text(made.table("h0"), clients=3))
    assert population(made, declaration).clients == unspoiled.clients > 3
    with pytest.raises(Refused, match=r"clients is 3 .* but the table has more"):
        check_site(made.member(0), made.run_file(table="h0"))


@pytest.mark.parametrize("patients", [(), ("p0", "p3")], ids=len)
def test_reading_a_table_takes_one_time_whatever_it_holds(made, patients, asleep):
    """Where nothing is simulated; and what is not read by then counts for nobody."""
    declaration = to_be_read_within(made, LONG)
    spoil(made.table("h0"), patients, "age", "old")
    began = asleep()
    party = made.member(0).join(declaration)
    assert LONG <= asleep() - began < LONG * 1.5
    assert party.work.setup.federation.clients == 8 - len(patients)


def to_be_read_within(made, seconds):
    """The declaration of a run that site 0 joins once so many `seconds` for its table are over."""
    folder = made.folder(0)
    folder.policy.write_text(POLICY.replace("simulation = true", "simulation = false"))
    folder.data.write_text(data_text(made.table("h0")) + f"reading = {seconds}\n")
    return made.declaration(f"secure.deadline={LONG}")[0]


@pytest.fixture
def asleep(monkeypatch):
    """A clock on which work takes the time that it takes, and sleeping takes none of ours."""
    slept = []

    def clock():
        return time.monotonic() + sum(slept)

    def fixed(seconds):
        return FixedTime(seconds, clock=clock, sleep=slept.append)

    monkeypatch.setattr(joining, "FixedTime", fixed)
    return clock


@pytest.fixture
def slowed(monkeypatch):
    """Tables are read only once the event is set: as usual, or a thread would log later."""
    over, readable = threading.Event(), joining.readable_examples

    def slow(*given):
        over.wait(LONG)
        return readable(*given)

    monkeypatch.setattr(joining, "readable_examples", slow)
    yield over
    over.set()


def test_a_table_that_takes_longer_is_nobodys_at_the_same_time(made, slowed, caplog):
    declaration = to_be_read_within(made, BRIEF)
    began = time.monotonic()
    party = made.member(0).join(declaration)
    assert BRIEF <= time.monotonic() - began < LONG / 2
    slowed.set()
    assert party.work.setup.federation.clients == 0
    assert f"reading is {BRIEF} s" in caplog.text


@pytest.mark.parametrize("case", ["as ever", "some out", "no table", "late"])
def test_nothing_that_hangs_on_a_table_is_done_after_the_answers_time(
    made, case, monkeypatch, caplog, asleep, request
):
    """Neither its people nor a line of the log: how long that takes would be seen."""
    declaration = to_be_read_within(made, BRIEF if case == "late" else LONG)
    if case == "some out":
        spoil(made.table("h0"), ("p0",), "age", "old")
    elif case == "no table":
        SPOILED[case](made)
    elif case == "late":
        request.getfixturevalue("slowed")
    cut_off, after = FixedTime.cut_off, []

    def noted(leaving, *work):
        setup = cut_off(leaving, *work)
        after.append((setup.federation.clients, len(caplog.records)))
        monkeypatch.setattr(Setup, "over", lambda *_: pytest.fail("after its time"))
        return setup

    monkeypatch.setattr(FixedTime, "cut_off", noted)
    party = made.member(0).join(declaration)
    clients = {"as ever": 8, "some out": 7}.get(case, 0)
    assert after == [(clients, case != "as ever")]
    assert party.work.setup.federation.clients == clients
    assert len(caplog.records) == (case != "as ever")


def sizes_and_words(made, *keys):
    """Of all answers of site 0 in a round: how it answers, and how long that is."""
    seen = []

    def ask(site, number, data):
        answer = agents[site].answer(data)
        if site == 0:
            seen.append((read_answer(answer)[0], len(answer)))
        return answer

    agents = [made.agent(site) for site in range(made.count)]
    DescriptionRequest(made, Watched([agent.answer for agent in agents], ask), *keys).play()
    return seen


@pytest.fixture(scope="module")
def as_ever(tmp_path_factory):
    """How a site answers whose table is as it should be."""
    made = hospitals(tmp_path_factory.mktemp("people") / "sites")
    return sizes_and_words(made, *EVERYBODY)


@pytest.mark.parametrize("case", sorted(ABSENT))
def test_a_site_without_its_file_or_a_column_declines(made, case, caplog):
    """With a fixed word; the file, or the column, is named in the site's log alone."""
    SPOILED[case](made)
    declaration, _ = made.declaration()
    message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
    assert read_answer(made.agent(0).answer(message)) == (Reply.DECLINED, b"table")
    assert ("does not exist" if case == "no file" else "'bmi'") in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
@pytest.mark.parametrize("absent", [False, True])
def test_no_byte_of_a_row_changes_whether_a_site_declines(made, absent, encoding):
    """A cell that cannot be decoded, anywhere in the file."""
    table, declaration = made.table("h0"), made.declaration()[0]
    made.folder(0).data.write_text(f'{data_text(table)}encoding = "{encoding}"\n')
    if absent:
        SPOILED["another column"](made)
    message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
    clean, answers = table.read_bytes(), set()
    for spoiled in (clean, clean + b"p9,h0,\xff\x81,2,1\n", clean + b'"' + b"x" * 2_000_000):
        table.write_bytes(spoiled)
        answers.add(read_answer(made.agent(0).answer(message))[0])
    assert answers == {Reply.DECLINED if absent else Reply.ANSWERED}


@pytest.mark.parametrize("case", sorted({**SPOILED, **EMPTY}.keys() - ABSENT))
def test_a_site_without_its_table_takes_part_with_noise_alone(made, case, as_ever):
    """Nothing that leaves it says so."""
    {**SPOILED, **EMPTY}[case](made)
    assert sizes_and_words(made, *EVERYBODY) == as_ever
    assert {reply for reply, _ in as_ever} == {Reply.ANSWERED}
    assert len(as_ever) == 5


def test_a_site_of_nobody_adds_its_share_of_noise(made):
    declaration, _ = made.declaration(*EVERYBODY)
    member = made.member(0)
    _, setup = member.accepted(declaration.text, declaration.examples, None)
    empty = setup.over(synthetic_clients(setup.plan.config, declaration.examples))
    (question,) = questions_of_each_kind(setup)
    share = SiteWork(0, empty).encoding(question).noise
    rows = [SiteWork(0, empty).row(replace(question, round=n)) for n in range(1, 201)]
    drawn = np.concatenate(rows)
    stds = np.sqrt(2 / len(drawn))  # of a sample's variance, as a part of it
    assert abs(drawn.var() / share.variance - 1) < 6 * stds
    assert abs(drawn.mean()) < 6 * np.sqrt(share.variance / len(drawn))


def test_people_at_several_sites_are_known_by_their_own_names(made):
    """And all rounds of the run are charged with its first: each may draw them."""
    keys = ("data.sites_per_client=2", "privacy.noise_multiplier=3.0", "cohort.sampler=poisson")
    rows = rows_of(made.table("h1"))
    rows += [["p0", "h1", *row[2:]] for row in rows_of(made.table("h0")) if row[0] == "p0"]
    write_table(made.table("h1"), rows)
    every = rows_of(made.table("all"))
    every += [["p0", "h1", *row[2:]] for row in every if row[0] == "p0"]
    write_table(made.table("all"), every)
    declaration, _ = made.declaration(*keys)
    first, second = population(made, declaration, 0), population(made, declaration, 1)
    assert (first.clients, second.clients) == (8, 9)
    sizes_and_words(made, *keys)
    lines = made.folder(0).receipts.read_text()
    assert '"prepaid_rounds":4' in lines
    assert SiteTable.read(made.folder(0).data).population == "stays"
