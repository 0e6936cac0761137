"""The commands of sites and federations, as they are typed."""

import json

import pytest
from commands import run

from accounting.events import Event
from accounting.noises import Skellam
from accounting.releases import PoissonSampled
from privfed.deploy.files.keys import SiteKey
from privfed.deploy.files.receipts import Receipt, Receipts
from privfed.deploy.site.policy import SpendingLimit
from privfed.plan.assumed import Assumed

EVENT, ALONE = (
    Event(PoissonSampled(0.1, Skellam(variance, 2000.0, 16000.0)), "poisson")
    for variance in (4e6, 1e6)
)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "berlin"
    assert run("site", "init", folder, "--name", "berlin").exit_code == 0
    return folder


def answered(site, rounds):
    receipts = Receipts.recover(site / "receipts.jsonl")
    for round in rounds:
        each = Receipt(
            "f" * 64, "r1", round, 0, "a" * 64, "c" * 64, "b" * 64, EVENT, ALONE, assumes=Assumed()
        )
        receipts.charged(each, SpendingLimit(epsilon=9.0))
    return receipts


def test_a_site_is_begun_once_and_for_its_owner_alone(site):
    assert site.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in site.iterdir()}
    assert modes == dict.fromkeys(("key", "policy.toml", "data.toml", "receipts.jsonl"), 0o600)
    assert (site / "receipts.jsonl").read_bytes() == b""
    before = (site / "key").read_bytes()
    again = run("site", "init", site, "--name", "paris")
    assert again.exit_code == 2
    assert "nothing was changed" in again.stderr
    assert (site / "key").read_bytes() == before


def test_a_coordinator_is_not_asked_to_fill_in_a_table(tmp_path):
    begun = run("site", "init", tmp_path / "office", "--name", "coordinator")
    assert "A coordinator needs no other step; at a site, read" in begun.stderr


def test_a_folder_that_holds_anything_is_left_alone(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("taken", "file"):
        assert run("site", "init", tmp_path / name, "--name", "a").exit_code == 2
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes"]
    bad = run("site", "init", tmp_path / "new", "--name", "a b")
    assert bad.exit_code == 2
    assert not (tmp_path / "new").exists()


def test_the_key_is_printed_alone(site):
    printed = run("site", "key", site)
    assert printed.exit_code == 0
    assert printed.stdout == f"{SiteKey.read(site / 'key').public}\n"
    (site / "key").chmod(0o644)
    assert run("site", "key", site).exit_code == 5


def test_receipts_say_what_was_spent_by_the_sites_own_count(site):
    nothing = run("site", "receipts", site)
    assert "nothing was answered" in nothing.stdout
    receipts = answered(site, range(1, 4))
    bound, alone = receipts.guarantees(1e-5)
    shown = run("site", "receipts", site)
    assert shown.exit_code == 0
    for part in ("run r1", "3 rounds in 3 exchanges", "of 2,", "if only this site is trusted"):
        assert part in shown.stdout
    assert receipts.head in shown.stdout
    facts = json.loads(run("site", "receipts", site, "--json").stdout)
    assert [each["epsilon"] for each in facts["guarantees"]] == [bound.epsilon, alone.epsilon]
    assert [each["against"] for each in facts["guarantees"]] == ["sites", "others"]
    assert facts["budget"] == {"epsilon": 2.0, "delta": 1e-5}
    assert facts["runs"][0]["rounds"] == 3
    assert facts["head"] == receipts.head


def test_a_broken_chain_ends_with_five(site):
    answered(site, (1, 2))
    path = site / "receipts.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":0', 1))
    broken = run("site", "receipts", site, "--json")
    assert broken.exit_code == 5
    assert json.loads(broken.stdout)["error"]["kind"] == "broken"


def test_looking_changes_nothing_and_says_that_a_line_was_torn(site):
    answered(site, (1, 2))
    path = site / "receipts.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    before = path.read_bytes()
    shown = run("site", "receipts", site)
    assert shown.exit_code == 0
    assert "incomplete after a crash" in shown.stdout
    assert path.read_bytes() == before


def test_a_federation_is_begun_filled_and_checked(tmp_path):
    path = tmp_path / "federation.toml"
    keys = {name: SiteKey.draw(name).public for name in ("coordinator", "rome", "berlin", "paris")}
    begun = ("federation", "new", path, "--name", "stays", "--coordinator", keys["coordinator"])
    assert run(*begun).exit_code == 0
    assert run(*begun).exit_code == 2
    assert run("federation", "check", path).exit_code == 2  # nobody is there yet
    for name in ("rome", "berlin", "paris"):
        assert run("federation", "add", path, "--site", name, keys[name]).exit_code == 0
    assert run("federation", "add", path, "--site", "oslo", keys["rome"]).exit_code == 2
    facts = json.loads(run("federation", "check", path, "--json").stdout)
    assert facts["shares"] == {"curious": 2, "malicious": 3}
    assert facts["sites"] == {name: str(keys[name]) for name in ("rome", "berlin", "paris")}
    shown = run("federation", "check", path).stdout
    assert facts["digest"] in "".join(shown.split())
    assert shown.index("berlin") < shown.index("paris") < shown.index("rome")
    assert "2 of 3 shares" in shown
    assert "3 of 3 shares" in shown


def test_a_threshold_that_a_lying_server_gets_around_is_said_to_be_low(tmp_path):
    path = tmp_path / "federation.toml"
    keys = [SiteKey.draw("x").public for _ in range(6)]
    begun = ("--name", "stays", "--coordinator", keys[5], "--threshold", 3)
    assert run("federation", "new", path, *begun).exit_code == 0
    for number in range(5):
        run("federation", "add", path, "--site", f"s{number}", keys[number])
    shown = run("federation", "check", path)
    assert shown.exit_code == 0
    assert "too low" in shown.stdout
    facts = json.loads(run("federation", "check", path, "--json").stdout)
    assert facts["shares"] == {"curious": 3, "malicious": None}
    low = run("federation", "check", path, "--colluders", 3)
    assert low.exit_code == 2
    assert "at least 4" in low.stderr


def test_a_key_that_is_none_is_refused_before_a_file_is_written(tmp_path):
    path = tmp_path / "federation.toml"
    refused = run("federation", "new", path, "--name", "stays", "--coordinator", "ed25519:x")
    assert refused.exit_code == 2
    assert "43 letters" in refused.stderr
    assert not path.exists()
