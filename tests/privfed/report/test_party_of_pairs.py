"""Whoever reads of an epsilon of noise that pairs share reads whom it is against, everywhere."""

import functools

import pytest
from commands import run
from html_page import Document
from small import SMALL, trained

from privfed.report.page.write import write_run_page

PAIRS = (
    *("cohort.sampler=full", "cohort.size=0", "privacy.mechanism=pairwise_gaussian"),
    *("privacy.colluders=2", "aggregation.byzantine=1", "aggregation.rule=caf"),
    *("data.population=people", "run.rounds=2"),
)
PARTY = "the server and up to 3 colluding clients"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    trained(folder / "first", *PAIRS)
    trained(folder / "second", *PAIRS, "client.lr=0.2")
    return folder


@functools.cache
def text_of(path):
    (page,) = Document(write_run_page(path, None, False).path.read_text("utf-8")).all("main")
    return " ".join(page.text.split())


def printed(*words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_audits_alone_and_together_state_the_party(runs):
    first, second = runs / "first", runs / "second"
    for words in ((first,), (first, second)):
        assert PARTY in printed("audit", *words)
    assert "the joint view of the server and colluding clients" in printed("audit", first, second)


def test_train_and_check_state_the_party(tmp_path):
    keys = [word for key in (*SMALL, *PAIRS) for word in ("--set", key)]
    assert PARTY in printed("check", *keys)
    assert (
        PARTY in printed("train", *keys, "--out", tmp_path / "run").partition("privfed report")[2]
    )


def test_calibrate_states_the_party():
    words = ("calibrate", "--sampler", "full", "--rounds", 3, "--noise-multiplier", 3)
    words += ("--delta", "1e-4", "--mechanism")
    pairs = (*words, "pairwise_gaussian", "--population", 40, "--byzantine", 2)
    assert PARTY in printed(*pairs)
    assert '"colluders": 3' in printed(*pairs, "--json")
    assert "against" not in printed(*words, "local_gaussian")


def test_the_page_trusts_other_clients_and_says_what_is_left_out(runs):
    page = text_of(runs / "first")
    assert "no party is trusted" not in page
    assert (
        "all other clients except 3 are trusted to add their noise; the server is not trusted"
        in page
    )
    assert "more than 3 clients collude with the server" in page
    assert "computational assumption" in page
    assert PARTY in page


def test_a_page_of_local_noise_says_none_of_that(tmp_path):
    trained(tmp_path / "run", "privacy.mechanism=local_gaussian", "run.rounds=2")
    page = text_of(tmp_path / "run")
    assert "no party is trusted" in page
    assert "computational assumption" not in page
    assert "trusted to add their noise" not in page
