"""Claims about runs of other frameworks, from a description of their releases."""

import json

import pytest
from commands import run

from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled, WithoutReplacement
from privfed.claims.verified import verify

OPACUS = """
framework = "opacus 1.5"
name = "cifar"
unit = "record"
adjacency = "add/remove"
delta = 1e-5
population = 50000
clip = 1.0

[[releases]]
count = 1000
noise_multiplier = 1.1
sampling_rate = 0.01

[[releases]]
purpose = "evaluation"
count = 2
noise_multiplier = 20.0
"""
FLOWER = """
framework = "flower"
name = "server-side DP with fixed cohorts"
unit = "client"
adjacency = "replace-one"
delta = 1e-5
population = 1000
trust = "the server adds the noise"

[[releases]]
count = 50
noise_multiplier = 2.0
cohort = 20
"""


def imported(tmp_path, text):
    path, out = tmp_path / "run.toml", tmp_path / "claim.json"
    path.write_text(text)
    answer = run("claim", "import", path, "--out", out)
    return answer, out


def test_what_an_opacus_user_knows_gives_a_verified_claim(tmp_path):
    answer, out = imported(tmp_path, OPACUS)
    assert answer.exit_code == 0, answer.output
    assert not verify(out).differences
    claim = json.loads(out.read_text())
    sampled = Event(PoissonSampled(0.01, Gaussian(1.1)), "poisson", unit="record")
    full = Event(Gaussian(20.0), "full participation", unit="record")
    expected = guarantee({sampled: 1000, full: 2}, 1e-5).epsilon
    assert claim["guarantee"]["reported"]["epsilon"] == pytest.approx(expected, rel=1e-12)
    assert [each["purpose"] for each in claim["releases"]] == ["training", "evaluation"]
    assert "whether it is in the data" in claim["guarantee"]["reported"]["meaning"]
    for section, fact in (
        ("trust", "trusts"),
        ("mechanism", "randomness"),
        ("subject", "ledger_head"),
        ("subject", "model_sha256"),
    ):
        assert claim[section][fact].keys() == {"unknown"}, fact
    assert "statement" in claim["not_covered"][0]


def test_noise_is_relative_to_the_sensitivity(tmp_path):
    """Under replace-one a client changes a sum by two clipping norms."""
    answer, out = imported(tmp_path, FLOWER)
    assert answer.exit_code == 0, answer.output
    claim = json.loads(out.read_text())
    event = Event(
        WithoutReplacement(20, 1000, Gaussian(1.0)), "without replacement", "replace-one", "client"
    )
    expected = guarantee({event: 50}, 1e-5).epsilon
    assert claim["guarantee"]["reported"]["epsilon"] == pytest.approx(expected, rel=1e-12)
    assert claim["trust"]["model"] == "the server adds the noise"


def test_an_edited_import_is_refused(tmp_path):
    _, out = imported(tmp_path, OPACUS)
    out.write_text(out.read_text().replace("1.1", "1.2"))
    assert run("verify", out).exit_code == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("delta = 1e-5", "", "delta: Field required"),
        ("delta = 1e-5", "delta = 2.0", "delta: Input should be less than 1"),
        ("count = 1000", "count = 0", "releases.0.count"),
        ("count = 1000", "count = 10000000", "releases.0.count"),
        ("sampling_rate = 0.01", "rate = 0.01", "releases.0.rate"),
        ("sampling_rate = 0.01", "sampling_rate = 0.01\ncohort = 3", "at most one of"),
        ("sampling_rate = 0.01", "cohort = 3", "needs population"),
        ('adjacency = "add/remove"', 'adjacency = "zero-out"', "leave out sampling_rate"),
        ('unit = "record"', 'unit = "person"', "unit: Input should be"),
        ("[[releases]]", "[[releases", "cannot be read"),
    ],
)
def test_incomplete_descriptions_are_refused(tmp_path, old, new, message):
    answer, out = imported(tmp_path, OPACUS.replace(old, new, 1))
    assert answer.exit_code == 2
    assert message in " ".join(answer.output.split())
    assert "Traceback" not in answer.output
    assert not out.exists()


def test_a_page_is_written_from_an_imported_claim(tmp_path):
    _, out = imported(tmp_path, OPACUS)
    answer = run("report", out, "--claim-page")
    assert answer.exit_code == 0, answer.output
    page = out.with_suffix(".html").read_text("utf-8")
    assert "whether the data of one record were used" in page
    out.write_text(out.read_text().replace("1.1", "1.2"))
    answer = run("report", out, "--claim-page")
    assert answer.exit_code == 5
    assert "no page is written for an invalid claim" in " ".join(answer.output.split())
