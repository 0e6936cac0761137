"""A site whose receipts were restored from an older copy is noticed, and can be recovered."""

import json
import shutil

import pytest
from commands import run
from faulty_loopback import DescriptionRequest
from hospitals import data_text, hospitals
from lanes import every_case

from accounting.errors import LedgerBroken
from privfed.core.errors import Broken, Busy
from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.coordinator.answered import ANSWERED, AnsweredRecord
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.messages.envelope import NO_RUN, Kind, Reply, read_answer
from privfed.deploy.messages.place import Place
from privfed.deploy.site.policy import Code, SpendingLimit
from privfed.secure.frames import BadMessage
from privfed.secure.summation import Aborted

ALL = "secure.minimum=3"
"""All three sites are needed."""


@pytest.fixture
def made(tmp_path):
    return hospitals(tmp_path / "sites")


def played(made, out, *keys, sites=None):
    """A run of four rounds, by the file of the run."""
    sites = sites or {site: made.agent(site).answer for site in range(made.count)}
    facts = (made.federation_file, made.key_file, out)
    file = made.run_file("data.site_partition=elsewhere", *keys, name=f"{out.name}.toml")
    return coordinate(file, *facts, connect=lambda _: Loopback(sites), seconds=20, patience=0)


def backed_up(made, site):
    copy = made.root / f"backup{site}"
    shutil.copytree(made.folder(site).path, copy)
    return copy


def restored(made, site, copy):
    shutil.rmtree(made.folder(site).path)
    shutil.copytree(copy, made.folder(site).path)


@every_case("rolled_back", [(1,), (0, 2)])
def test_a_site_restored_after_a_run_declines_the_next(tmp_path, rolled_back):
    """The coordinator tells it of its last answer; without that, the run would go through."""
    made = hospitals(tmp_path / "sites")
    copies = {site: backed_up(made, site) for site in rolled_back}
    played(made, tmp_path / "first", ALL)
    for site, copy in copies.items():
        restored(made, site, copy)
    with pytest.raises(Busy) as refused:
        played(made, tmp_path / "second", ALL)
    for site in range(3):
        assert (f"h{site}: declined receipts" in str(refused.value)) == (site in rolled_back)
    (made.root / ANSWERED).unlink()
    played(made, tmp_path / "third", ALL)


def test_a_site_restored_within_a_run_answers_no_further_round(made):
    record = AnsweredRecord(made.root / ANSWERED)
    agents = {site: made.agent(site).answer for site in range(3)}
    asking = DescriptionRequest(made, Loopback(agents), answered=record, least=3)
    asking.play()
    copy = backed_up(made, 1)
    asking.play()
    restored(made, 1, copy)
    agents[1] = made.agent(1).answer  # its agent was started again, from the older folder
    again = DescriptionRequest(
        made, Loopback(agents), answered=AnsweredRecord(made.root / ANSWERED), least=3
    )
    with pytest.raises(Busy, match="h1: declined receipts"):
        again.play()


def test_receipts_restored_next_to_a_running_coordinator_are_noticed_by_the_state(made):
    """The stored question of an unfinished or finished sum has no receipt."""
    agents = {site: made.agent(site).answer for site in range(3)}
    asking = DescriptionRequest(made, Loopback(agents), least=3)
    asking.play(2)
    made.folder(1).receipts.write_bytes(b"")
    with pytest.raises(LedgerBroken, match="lacks a question"):
        made.agent(1)


def test_coordinators_that_share_the_record_keep_each_others_notes(made):
    path, sites = made.root / ANSWERED, [bytes([n]) * 32 for n in range(3)]
    first, second = AnsweredRecord(path), AnsweredRecord(path)
    first.note(sites, Place("a" * 64, 1, 0))
    second.note(sites[:1], Place("b" * 64, 2, 0))
    first.note(sites[1:2], Place("a" * 64, 2, 0))
    fresh = AnsweredRecord(path)
    assert [fresh.of(site).run[0] + str(fresh.of(site).round) for site in sites] == [
        "b2",
        "a2",
        "a1",
    ]
    path.write_text('{"00": {"run": "x", "round": 1e999, "exchange": 0}}')
    with pytest.raises(Broken, match="damaged"):
        first.of(sites[0])


def test_a_record_that_cannot_be_written_is_refused_before_a_charge(made, tmp_path):
    (made.root / f"{ANSWERED}.lock").mkdir()
    with pytest.raises(Broken, match="cannot be written"):
        played(made, tmp_path / "out")
    assert not Receipts.load(made.folder(0).receipts).runs


def test_only_sites_that_answered_are_told(made):
    record, told = AnsweredRecord(), []
    agents = {site: made.agent(site) for site in range(3)}

    def answer(site, data):
        told.append((site, data[3 + 64]))  # the kind follows format, federation and run
        return agents[site].answer(data)

    sites = {site: lambda data, site=site: answer(site, data) for site in agents}
    DescriptionRequest(made, Loopback(sites), answered=record).play()
    assert Kind.ANSWERED not in {kind for _, kind in told}
    told.clear()
    DescriptionRequest(made, Loopback(sites), answered=record).play()
    assert [site for site, kind in told if kind == Kind.ANSWERED] == [0, 1, 2]


def test_an_unknown_exchange_is_declined_with_a_fixed_word(made):
    agent = made.agent(0)
    place = Place("ab" * 32, 3, 0)
    answer = agent.answer(made.signed(Kind.ANSWERED, NO_RUN, place.encode()))
    assert read_answer(answer) == (Reply.DECLINED, b"receipts")
    forged = {"run": "a\\nERROR", "round": 1, "exchange": 0}
    bad = [json.dumps(forged | each) for each in ({}, {"run": "a" * 64, "round": 1e999})]
    for body in (b"", b"[]", b'{"run": 1}', b"\xff", *(text.encode() for text in bad)):
        reply, _ = read_answer(agent.answer(made.signed(Kind.ANSWERED, NO_RUN, body)))
        assert reply == Reply.MALFORMED
    with pytest.raises(BadMessage):
        Place.decode(b"{}")


def test_a_damaged_record_is_refused_before_the_run(made, tmp_path):
    (made.root / ANSWERED).write_text('{"00": {"run": "x"}}')
    with pytest.raises(Broken, match=r"answered.json is damaged.*move it away"):
        played(made, tmp_path / "out")


@pytest.fixture
def witnessed(made):
    """The first site keeps a second copy of its receipts in another folder."""
    path = made.root / "elsewhere" / "receipts"
    path.parent.mkdir()
    path.touch(0o600)
    text = data_text(made.table("h0")) + f'witness = "{path}"\n'
    made.folder(0).data.write_text(text)
    return path


def test_a_witness_has_every_line_and_notices_a_restored_backup(made, witnessed, tmp_path):
    played(made, tmp_path / "first")
    receipts = made.folder(0).receipts
    assert witnessed.read_bytes() == receipts.read_bytes()
    assert witnessed.stat().st_mode & 0o777 == 0o600
    whole = receipts.read_bytes()
    receipts.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(LedgerBroken, match=r"lacks \d+ of the lines in its witness"):
        made.agent(0)
    checked = run("site", "check", made.folder(0).path, made.run_file())
    assert checked.exit_code == 5
    assert "privfed site recover" in checked.output
    answer = run("site", "recover", made.folder(0).path)
    assert answer.exit_code == 0
    assert "restored" in answer.output
    assert receipts.read_bytes() == whole
    made.agent(0)


def test_a_witness_that_is_behind_catches_up(made, witnessed, tmp_path):
    """A crash may stop a site between the two files; an incomplete line does not count."""
    played(made, tmp_path / "first")
    whole = made.folder(0).receipts.read_bytes()
    for behind in (b"", whole[: len(whole) // 2], whole[:-1]):
        witnessed.write_bytes(behind)
        made.agent(0)
        assert witnessed.read_bytes() == whole
    witnessed.unlink()
    with pytest.raises(LedgerBroken, match="does not exist"):
        made.agent(0)


def test_a_witness_that_is_no_second_copy_is_refused(made, witnessed):
    """The receipts themselves, a file next to them, a link, and a file of something else."""
    folder = made.folder(0)
    (made.root / "link").symlink_to(witnessed)
    (made.root / "valuable").write_text("valuable, no newline")
    for place in (folder.receipts, folder.path / "w", made.root / "link", made.root / "valuable"):
        if not place.exists():
            place.touch()
        text = data_text(made.table("h0")) + f'witness = "{place}"\n'
        folder.data.write_text(text)
        with pytest.raises(LedgerBroken, match="witness"):
            made.agent(0)
    assert (made.root / "valuable").read_text() == "valuable, no newline"


def test_an_edited_witness_and_one_that_is_away_are_refused(made, witnessed, tmp_path):
    played(made, tmp_path / "first")
    witnessed.write_bytes(b"#" + witnessed.read_bytes())
    with pytest.raises(LedgerBroken, match="differ"):
        made.agent(0)
    assert run("site", "recover", made.folder(0).path).exit_code == 5
    shutil.rmtree(witnessed.parent)
    with pytest.raises(LedgerBroken, match="does not exist"):
        made.agent(0)


def test_no_answer_leaves_a_site_whose_witness_cannot_be_written(made, witnessed, tmp_path):
    agents = {site: made.agent(site).answer for site in range(3)}
    shutil.rmtree(witnessed.parent)
    witnessed.parent.write_text("a file")
    asking = DescriptionRequest(made, Loopback(agents), ALL, least=3)
    with pytest.raises(Aborted, match="2 sites take part"):
        asking.play()


def test_lost_receipts_end_all_runs_on_the_population(made, tmp_path):
    """No bound on epsilon is known any more, however large the budget."""
    copy = backed_up(made, 1)
    played(made, tmp_path / "first", ALL)
    restored(made, 1, copy)
    folder = made.folder(1).path
    answer = run("site", "recover", folder)
    assert answer.exit_code == 2
    assert "--lost" in answer.output
    assert run("site", "recover", folder, "--lost").exit_code == 0
    receipts = Receipts.load(made.folder(1).receipts)
    assert receipts.lost
    bound, _ = receipts.guarantees(1e-3)
    assert bound.epsilon == float("inf")
    assert "were lost" in bound.missing
    stated = json.loads(run("site", "receipts", folder, "--json").stdout)
    assert stated["lost"]
    with pytest.raises(Busy, match="h1: declined receipts"):
        played(made, tmp_path / "second", ALL)
    (made.root / ANSWERED).unlink()
    with pytest.raises(Busy, match=f"h1: declined {Code.BUDGET}"):
        played(made, tmp_path / "third", ALL)


def test_lost_receipts_afford_no_round_that_was_charged_already(made, tmp_path):
    """Its line may be among those that were lost, and its clients would be sampled twice."""
    played(made, tmp_path / "first")
    receipts = Receipts.recover(made.folder(0).receipts)
    run_of_all = receipts.runs[0].run
    limit, charged = SpendingLimit(epsilon=1e300, delta=1e-3), receipts.last(run_of_all)
    assert receipts.affords(limit, charged)
    receipts.declare_lost()
    assert not receipts.affords(limit, charged)


def test_recovery_waits_for_the_agent_and_changes_nothing_without_need(made):
    from privfed.deploy.site.agent import serving

    folder = made.folder(0)
    before = folder.receipts.read_bytes()
    with serving(folder):
        answer = run("site", "recover", folder.path)
        assert answer.exit_code == 2
        assert "stop it first" in answer.output
    assert run("site", "recover", folder.path).exit_code == 2
    assert folder.receipts.read_bytes() == before
    assert Receipts.load(folder.receipts).guarantees(1e-3)[0].epsilon == 0.0
    assert SpendingLimit(epsilon=1.0, delta=1e-3).epsilon == 1.0


def test_damaged_receipts_are_kept_and_recorded_as_lost(made, tmp_path):
    played(made, tmp_path / "first")
    receipts = made.folder(1).receipts
    receipts.write_bytes(receipts.read_bytes().replace(b"answer", b"bnswer", 1))
    assert run("site", "recover", made.folder(1).path).exit_code == 5
    assert run("site", "recover", made.folder(1).path, "--lost").exit_code == 0
    assert Receipts.load(receipts).lost
    assert [*receipts.parent.glob("receipts.damaged.*")]
    receipts.unlink()
    assert run("site", "recover", made.folder(1).path).exit_code == 5
    assert not receipts.exists()  # an empty file would give the budget back
    assert run("site", "recover", made.folder(1).path, "--lost").exit_code == 0
    assert Receipts.load(receipts).lost


def test_a_witness_that_is_away_does_not_cost_the_receipts(made, witnessed, tmp_path):
    played(made, tmp_path / "first")
    shutil.rmtree(witnessed.parent)
    assert run("site", "recover", made.folder(0).path).exit_code == 5
    whole = made.folder(0).receipts.read_bytes()
    assert run("site", "recover", made.folder(0).path, "--lost").exit_code == 0
    assert made.folder(0).receipts.read_bytes().startswith(whole)
    assert Receipts.load(made.folder(0).receipts).lost


def test_a_new_site_may_name_its_witness(tmp_path):
    place = tmp_path / "a disk" / "w"
    wrong = run("site", "init", tmp_path / "berlin", "--name", "berlin", "--witness", place)
    assert wrong.exit_code == 2
    assert not (tmp_path / "berlin").exists()
    place.parent.mkdir()
    answer = run("site", "init", tmp_path / "berlin", "--name", "berlin", "--witness", place)
    assert answer.exit_code == 0, answer.output
    assert place.read_bytes() == b""
    assert f'\nwitness = "{place}"' in (tmp_path / "berlin" / "data.toml").read_text()
    run("site", "init", tmp_path / "paris", "--name", "paris")
    assert "\n# witness = " in (tmp_path / "paris" / "data.toml").read_text()


def test_damaged_receipts_are_replaced_by_their_witness(tmp_path):
    """No answer is lost: a line is in the witness before its question is answered."""
    made = hospitals(tmp_path / "sites")
    folder, witness = made.folder(1), tmp_path / "elsewhere"
    witness.write_bytes(b"")
    folder.data.write_text(f'{data_text(made.table("h1"))}witness = "{witness}"\n')
    played(made, tmp_path / "first", ALL)
    intact = folder.receipts.read_bytes()
    folder.receipts.write_bytes(intact + b"junk\n")
    for words in ((), ("--lost",)):
        folder.receipts.write_bytes(intact + b"junk\n")
        answer = run("site", "recover", folder.path, *words)
        assert (answer.exit_code, "restored" in answer.output) == (0, True)
        assert folder.receipts.read_bytes() == intact == witness.read_bytes()
    assert len(list(folder.path.glob("receipts.damaged.*"))) == 2
    assert made.member(1).receipts.runs[-1].last_round == 4
