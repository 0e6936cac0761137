"""The page about a claim: for those who sign it, on one side of A4."""

import json

import pytest
from commands import run
from html_page import Document

from privfed.claims.document import parsed
from privfed.claims.page import _hundredths, claim_page
from privfed.report.page.write import render

SMALL = ("--set", "run.rounds=2", "--set", "run.evaluate_every=2")


def page_of(tmp_path, *keys):
    out = tmp_path / "a run"
    sets = [word for key in keys for word in ("--set", key)]
    assert run("train", "--out", out, *SMALL, *sets).exit_code == 0
    answer = run("report", out, "--claim-page", "--json")
    assert answer.exit_code == 0, answer.output
    path = json.loads(answer.stdout)["page"]
    assert path == str(out / "report" / "claim.html")
    document = Document((out / "report" / "claim.html").read_text("utf-8"))
    answer = run("report", out, "--claim", tmp_path / "claim.json")
    return document.texts("body")[0], json.loads((tmp_path / "claim.json").read_text())


def test_the_page_says_what_the_claim_states(tmp_path):
    text, claim = page_of(tmp_path)
    words = " ".join(text.split())
    right = _hundredths(claim["guarantee"]["membership"]["correct_guess"])
    assert f"no attacker is right more than {right} times in 100" in words
    assert claim["guarantee"]["quotations"][0] in words
    assert f"--head {claim['subject']['ledger_head']} --digest {claim['digest']}" in words
    for limit in claim["not_covered"]:
        assert limit in words
    assert "No guarantee" not in words
    assert "For a consent form" not in words, "clients are synthetic"
    path = tmp_path / "claim.json"
    assert claim["sampling"]["simulated"] is True
    claim["sampling"]["simulated"] = False
    people = parsed(claim, path)
    words = " ".join(
        Document(render(claim_page(people, "0", "claim.json"))).texts("body")[0].split()
    )
    assert f"is right in at most {right} of 100 cases for whoever sees everything" in words
    assert "The server sees more than this" in words


@pytest.mark.parametrize(
    ("keys", "question"),
    [
        ((), "whether the data of one client were used"),
        (("cohort.sampler=fixed_size",), "which of two versions of the data of one client"),
        (("cohort.sampler=full", "data.clients=60"), "one client"),
    ],
)
def test_the_question_follows_from_the_adjacency(tmp_path, keys, question):
    text, claim = page_of(tmp_path, *keys)
    assert question in " ".join(text.split()), claim["guarantee"]["adjacency"]


def test_a_simulation_is_no_guarantee(tmp_path):
    text, _ = page_of(tmp_path, "run.randomness=seeded")
    words = " ".join(text.split())
    assert "This run guarantees nothing" in words
    assert "(nominal)" in words
    assert "For a consent form" not in words


def test_no_guarantee_has_no_picture(tmp_path):
    text, claim = page_of(tmp_path, "privacy.mechanism=none")
    assert "No bound on what an attacker learns is proved: no noise is added" in " ".join(
        text.split()
    )
    assert claim["guarantee"]["profile"].keys() == {"unknown"}


@pytest.mark.parametrize(
    ("probability", "shown"),
    [(0.5, "50"), (0.501, "51"), (0.66, "66"), (0.995, "99.5"), (0.99999999, "100"), (1.0, "100")],
)
def test_probabilities_are_rounded_up(probability, shown):
    assert _hundredths(probability) == shown
