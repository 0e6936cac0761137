"""Claims: derived from what ran, verified from the claim alone and against the run."""

import copy
import json
import math
import random
import re
import shutil
from pathlib import Path

import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st

import privfed
from accounting import chain
from accounting.curves import delta_at, gaussian_mu
from accounting.errors import LedgerBroken
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from privfed.claims import verified
from privfed.claims.compact import compact, compacted, rebuilt
from privfed.claims.derived import derived_claim
from privfed.claims.document import digest_of, document_of, parsed, schema_text
from privfed.claims.schema import ClaimEvidence
from privfed.claims.verified import verify
from privfed.core.errors import Refused

SMALL = ("--set", "run.rounds=4", "--set", "run.evaluate_every=4")
KINDS = {
    "central": (),
    "masks": (
        "secure.protocol=masks",
        "privacy.mechanism=discrete_gaussian",
        "data.clients=60",
        "cohort.size=30",
        "privacy.epsilon=20.0",
    ),
    "canaries": ("audit.canaries=40",),
    "evaluated": ("evaluation.by=clients", "evaluation.every=2"),
    "simulated": ("run.randomness=seeded",),
    "local": ("privacy.mechanism=local_gaussian", "privacy.epsilon=50.0"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small run of every kind, and its claim."""
    folder = tmp_path_factory.mktemp("claims")
    for name, keys in KINDS.items():
        sets = [word for key in keys for word in ("--set", key)]
        answer = run("train", "--out", folder / name, *SMALL, *sets)
        assert answer.exit_code == 0, answer.output
        answer = run("report", folder / name, "--claim", folder / f"{name}.json")
        assert answer.exit_code == 0, answer.output
    return folder


def claim_of(runs, name):
    return json.loads((runs / f"{name}.json").read_text())


@pytest.mark.parametrize("name", KINDS)
def test_a_claim_is_verified_alone_and_against_its_run(runs, name):
    path = runs / f"{name}.json"
    assert not verify(path).differences
    assert not verify(path, runs / name).differences
    assert run("verify", path, runs / name).exit_code == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_claim_states_what_the_audit_states(runs, name):
    claim, audit = claim_of(runs, name), json.loads(run("audit", runs / name, "--json").stdout)
    reported = claim["guarantee"]["reported"]
    assert reported["epsilon"] == audit["epsilon"]
    assert reported["delta"] == audit["delta"]
    assert claim["subject"]["ledger_head"] == audit["ledger_head"]
    assert claim["subject"]["releases"] == audit["rounds"] == 4
    assert claim["guarantee"]["holds"] == (audit["note"] is None)
    assert sum(each["count"] for each in claim["releases"]) == 4


def test_what_a_claim_says_of_parts(runs):
    masks, canaries = claim_of(runs, "masks"), claim_of(runs, "canaries")
    assert masks["secure_sums"]["keys"]["threshold"] == 0.6
    assert masks["trust"]["relies_on"] == ["the server to follow the protocol"]
    assert "nothing is proved" in masks["trust"]["malicious_server"]
    assert "each client adds" in claim_of(runs, "local")["trust"]["malicious_server"]
    assert masks["guarantee"]["further"][0]["against"] == "readers"
    assert canaries["audits"][0]["result"]["canaries"] == 40
    assert canaries["audits"][0]["power"]["canaries"] == 40
    purposes = {each["purpose"] for each in claim_of(runs, "evaluated")["releases"]}
    assert purposes == {"training", "evaluation"}
    simulated = claim_of(runs, "simulated")["guarantee"]
    assert not simulated["holds"]
    assert "seed" in simulated["reason"]


def test_the_profile_holds_and_bounds_membership(runs):
    claim = claim_of(runs, "central")
    spending = Ledger.load(runs / "central" / "ledger.jsonl").spending
    for point in claim["guarantee"]["profile"]:
        assert guarantee(spending, point["delta"]).epsilon <= point["epsilon"]
        tighter = guarantee(spending, point["delta"] * (1 - 1e-6)).epsilon
        assert tighter >= point["epsilon"] * (1 - 1e-9) or point["delta"] == pytest.approx(1e-9)
    membership = claim["guarantee"]["membership"]
    assert membership["correct_guess"] == (1 + claim["guarantee"]["profile"][0]["delta"]) / 2
    reported = claim["guarantee"]["reported"]
    for rates in membership["rates"]:
        false = rates["false_positive_rate"]
        assert rates["true_positive_rate"] <= (
            math.exp(reported["epsilon"]) * false + reported["delta"] + 1e-12
        )
        assert rates["true_positive_rate"] > false


def test_a_gaussian_composition_has_a_mu():
    spending = {Event(Gaussian(2.0), "full"): 4}
    assert gaussian_mu(spending) == 1.0
    # delta(0) of mu-GDP is 2 Phi(mu / 2) - 1.
    assert delta_at(spending, 0.0) == pytest.approx(math.erf(0.5 / math.sqrt(2)), rel=1e-6)
    assert gaussian_mu({Event(PoissonSampled(0.1, Gaussian(2.0)), "poisson"): 4}) is None
    assert gaussian_mu({Event(Gaussian(2.0), "full", slack=1e-9): 4}) is None


@given(gaps=st.lists(st.integers(1, 3), max_size=12), kinds=st.lists(st.booleans(), min_size=12))
@settings(max_examples=25, deadline=None)
def test_a_compact_ledger_is_rebuilt_line_by_line(tmp_path_factory, gaps, kinds):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger.create(path, {"delta": 1e-6, "budget": math.inf})
    round = 0
    for gap, kind in zip(gaps, kinds, strict=False):
        round += gap
        ledger.charge(round, Event(Gaussian(2.0 if kind else 3.0), "full"))
    if gaps:
        ledger.change_budget(1.0, 2.0, Event(Gaussian(2.0), "full"))
        ledger.charge(round + 1, Event(Gaussian(2.0), "full"))
    again = rebuilt(json.loads(json.dumps(compact(path))), "a claim")
    assert again.head() == ledger.head()
    assert again.charges == ledger.charges
    assert again.budgets == ledger.budgets


def test_a_ledger_of_endless_rounds_is_refused():
    terms = {"delta": 1e-6}
    lines = [
        {"event": Event(Gaussian(1.0), "full").to_json()},
        {"charged": 0, "rounds": [1, 10**15]},
    ]
    with pytest.raises(LedgerBroken, match="more than 200,000"):
        rebuilt({"terms": terms, "lines": lines, "head": "0"}, "a claim")


def places(value, place=()):
    """Yields the place of every leaf of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list) and item:
            yield from places(item, (*place, key))
        else:
            yield (*place, key)


def edited(document, place, rng):
    """Returns the document with another value of the same type at `place`."""
    document = copy.deepcopy(document)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    value = holder[place[-1]]
    match value:
        case bool():
            value = not value
        case int():
            value += rng.choice([-1, 1, 7])
        case float():
            value *= rng.choice([0.5, 0.99, 1.01, 2.0])
            value = value or 0.1
        case str():
            value = value[:-1] if value and rng.random() < 0.5 else f"{value}x"
        case None:
            value = rng.choice([0, 1.5, "x"])
        case _:
            value = ["x"]
    holder[place[-1]] = value
    return document


def refused(document, path, against=None):
    """Whether the command refuses the document, with exit code 4 and a difference."""
    path.write_text(json.dumps(document))
    answer = run("verify", path, *([against] if against else []), "--json")
    facts = json.loads(answer.stdout)
    return answer.exit_code == 4 and not facts["verified"] and bool(facts["differences"])


EDITS = [pytest.param(30, id="some"), pytest.param(1000, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", EDITS)
def test_every_single_edit_is_refused(runs, tmp_path, count):
    rng = random.Random(0)
    for _ in range(count):
        document = claim_of(runs, rng.choice([*KINDS]))
        place = rng.choice([*places(document)])
        assert refused(edited(document, place, rng), tmp_path / "edited.json"), place


@pytest.mark.parametrize("count", EDITS)
def test_edits_with_a_new_digest_are_refused_unless_only_the_issuer_vouches(runs, tmp_path, count):
    rng = random.Random(1)
    path = tmp_path / "edited.json"
    for _ in range(count):
        name = rng.choice([*KINDS])
        document = claim_of(runs, name)
        place = rng.choice([each for each in places(document) if each[0] != "digest"])
        document = edited(document, place, rng)
        document["digest"] = digest_of(document)
        if place[0] == "written_by":
            continue
        if place[0] in ("form", "version"):
            path.write_text(json.dumps(document))
            assert run("verify", path).exit_code == 2
            continue
        try:
            parsed(document, path)
        except Refused:
            path.write_text(json.dumps(document))
            assert run("verify", path).exit_code == 2, place
            continue
        against = runs / name if place[:2] == ("evidence", "stated") else None
        assert refused(document, path, against), place


@pytest.mark.parametrize(
    "fault",
    [
        lambda claim: claim["evidence"]["ledger"]["lines"][1].update(rounds=[1, 2]),
        lambda claim: claim["guarantee"]["reported"].update(epsilon=0.5),
        lambda claim: claim["guarantee"]["membership"].update(correct_guess=0.55),
        lambda claim: claim["evidence"]["configuration"]["privacy"].update(clip=0.1),
        lambda claim: claim.update(not_covered=[]),
        lambda claim: claim["trust"].update(trusts=[]),
    ],
)
def test_forgeries_are_refused(runs, tmp_path, fault):
    """A forger understates a claim, and computes its digest again."""
    claim = claim_of(runs, "central")
    fault(claim)
    claim["digest"] = digest_of(claim)
    assert refused(claim, tmp_path / "forged.json")


def test_a_claim_is_not_about_another_run_head_or_digest(runs):
    path = runs / "central.json"
    assert run("verify", path, runs / "masks").exit_code == 4
    heads = [head.hash for head in Ledger.load(runs / "central" / "ledger.jsonl").trail()]
    for head in (*heads, heads[-1].upper()):  # those recorded during the run as well
        assert run("verify", path, "--head", head).exit_code == 0
    assert run("verify", path, "--head", "0" * 64).exit_code == 4
    assert run("verify", path, "--head", "xyz").exit_code == 2
    assert run("verify", path, "--digest", claim_of(runs, "central")["digest"]).exit_code == 0
    assert run("verify", path, "--digest", "0" * 64).exit_code == 4


def test_a_claim_about_a_run_that_went_on_is_refused(runs, tmp_path):
    out, path = tmp_path / "run", tmp_path / "claim.json"
    assert run("train", "--out", out, *SMALL).exit_code == 0
    assert run("report", out, "--claim", path).exit_code == 0
    assert run("train", "--resume", out, "--set", "run.rounds=5").exit_code == 3
    assert run("verify", path).exit_code == 0
    answer = run("verify", path, out)
    assert answer.exit_code == 4


def test_verification_imports_nothing_that_a_claim_names(runs, tmp_path, monkeypatch):
    """A claim is untrusted input, and so is a run that is not the claimed one."""
    claim = claim_of(runs, "central")
    claim["evidence"]["configuration"]["model"]["name"] = "evil_module:Model"
    claim["digest"] = digest_of(claim)
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = verified._against_evidence(parsed(claim, tmp_path))
    assert [each.place for each in found] == [("evidence.configuration",)]
    other = shutil.copytree(runs / "central", tmp_path / "other")
    text = (other / "config.toml").read_text().replace('"logistic"', '"evil_module:Model"')
    (other / "config.toml").write_text(text)
    answer = run("verify", runs / "central.json", other)
    assert answer.exit_code == 4
    assert "configuration" in answer.output


def forged(claim, **changes):
    """The claim with other evidence, and all that follows from it: an issuer who lies."""
    evidence = {**claim["evidence"], **changes}
    return document_of(derived_claim(ClaimEvidence.model_validate(evidence)))


def test_keys_with_dots_hide_nothing(runs, tmp_path):
    claim = claim_of(runs, "central")
    release = claim["releases"][0]["event"]["release"]
    claim["releases"][0]["event"] |= {"release.rate": release["rate"]}
    release["rate"] = 0.001
    claim["digest"] = digest_of(claim)
    assert refused(claim, tmp_path / "dots.json")
    claim = claim_of(runs, "central")
    stated = claim["evidence"]["stated"]
    stated["model.sha256"], stated["model"]["sha256"] = stated["model"]["sha256"], "0" * 64
    claim = forged(claim, stated=stated)
    assert refused(claim, tmp_path / "dots.json", runs / "central")


def test_planned_rounds_are_those_of_the_ledger(runs, tmp_path):
    """A run that stops early reports the epsilon of all planned rounds."""
    claim = claim_of(runs, "central")
    configuration = copy.deepcopy(claim["evidence"]["configuration"])
    configuration["run"]["rounds"] = 2
    with pytest.raises(LedgerBroken, match="4 were planned"):
        forged(claim, configuration=configuration)
    with pytest.raises(LedgerBroken, match="is not the configuration"):
        forged(claim, configuration={})


def test_a_run_that_stopped_early_claims_all_planned_rounds(tmp_path):
    class Interrupt(Exception):
        pass

    def stop(round):
        if round.number == 2:
            raise Interrupt

    out = tmp_path / "run"
    with pytest.raises(Interrupt):
        privfed.train(rounds=8, out=out, on_round=stop, progress=False)
    answer = run("report", out, "--claim", tmp_path / "claim.json")
    assert answer.exit_code == 0, answer.output
    claim = json.loads((tmp_path / "claim.json").read_text())["guarantee"]
    assert claim["reported"]["epsilon"] > claim["charged"]["epsilon"]
    assert "all planned rounds are counted" in claim["reported"]["caveat"]
    shown = f"ε = {claim['reported']['epsilon']:.3f}"[:-1]
    assert shown in claim["quotations"][0]
    points = {point["epsilon"]: point["delta"] for point in claim["profile"]}
    assert points[0.0] < 1
    assert verify(tmp_path / "claim.json", out).differences == ()


def test_terms_that_contradict_events_are_refused(runs):
    claim = claim_of(runs, "central")
    ledger = claim["evidence"]["ledger"]
    for key, value in (("relation", "zero-out"), ("unit", "record")):
        terms = {**ledger["terms"], key: value}
        with pytest.raises(LedgerBroken, match="head"):
            forged(claim, ledger={**ledger, "terms": terms})
        lines = [{"type": "open", "format": 1, "terms": terms}]
        links = [chain.sealed(chain.START, lines[0])[1]]
        for link in chain.read(runs / "central" / "ledger.jsonl").links[1:]:
            body = {name: each for name, each in link.items() if name != "hash"}
            links.append(chain.sealed(links[-1]["hash"], body)[1])
        with pytest.raises(LedgerBroken, match=rf"terms\.{key}"):
            forged(claim, ledger=compacted(links))


def test_canaries_that_refute_a_claim_leave_no_guarantee(runs, tmp_path):
    claim = claim_of(runs, "canaries")
    stated = copy.deepcopy(claim["evidence"]["stated"])
    stated["canaries"]["refuted"] = True
    claim = forged(claim, stated=stated)
    assert not claim["guarantee"]["holds"]
    assert "canaries refute" in claim["guarantee"]["reason"]
    assert claim["guarantee"]["quotations"] == []
    path = tmp_path / "claim.json"
    path.write_text(json.dumps(claim))
    assert run("report", path, "--claim-page").exit_code == 4
    assert "No guarantee" in path.with_suffix(".html").read_text("utf-8")


def test_an_infinite_budget_and_text_are_kept(tmp_path):
    out, path = tmp_path / "run", tmp_path / "claim.json"
    keys = ("--set", "privacy.epsilon=inf", "--set", "privacy.noise_multiplier=1.0")
    answer = run("train", "--out", out, *SMALL, *keys, "--set", 'data.population="inf"')
    assert answer.exit_code == 0, answer.output
    assert run("report", out, "--claim", path).exit_code == 0
    assert verify(path, out).differences == ()


def test_a_run_without_releases_claims_nothing(runs, tmp_path):
    out = shutil.copytree(runs / "central", tmp_path / "run")
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger.jsonl").write_bytes(lines[0])
    for name in ("checkpoint.safetensors", "metrics.jsonl", "report/summary.json"):
        (out / name).unlink()
    answer = run("report", out, "--claim", tmp_path / "claim.json")
    assert answer.exit_code == 2
    assert "has released nothing yet" in " ".join(answer.output.split())


@pytest.mark.parametrize(
    "text",
    [
        '{"digest": "a", "form": "privfed claim", "version": 1, "x": NaN}',
        '{"digest": "a", "form": "privfed claim", "version": 1, "x": 1e999}',
        '{"digest": "a", "digest": "a", "form": "privfed claim", "version": 1}',
    ],
)
def test_numbers_and_keys_that_json_does_not_have_are_refused(tmp_path, text):
    path = tmp_path / "claim.json"
    path.write_text(text)
    answer = run("verify", path)
    assert answer.exit_code == 2
    assert "a bug" not in answer.output


def test_a_claim_never_enters_a_run_directory(runs):
    for name in ("statistics.json", "new.json"):
        answer = run("report", runs / "central", "--claim", runs / "central" / name)
        assert answer.exit_code == 2
        assert not (runs / "central" / name).exists()
    inside = runs / "central" / "report" / "claim.json"
    assert run("report", runs / "central", "--claim", inside).exit_code == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", "nan", '{"digest": 3}', "[" * 5000, '{"a":'])
def test_other_files_are_no_claims(tmp_path, text):
    path = tmp_path / "claim.json"
    path.write_text(text)
    answer = run("verify", path)
    assert answer.exit_code == 2
    assert "Traceback" not in answer.output


def test_a_claim_never_replaces_another_file(runs, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text('{"mine": 1}')
    answer = run("report", runs / "central", "--claim", path)
    assert answer.exit_code == 2
    assert "is not a claim; nothing was changed" in answer.output
    assert path.read_text() == '{"mine": 1}'
    assert run("report", runs / "central", "--claim", runs / "central.json").exit_code == 0
    answer = run("report", runs / "central", "--claim", tmp_path / "missing" / "claim.json")
    assert "its folder does not exist" in answer.output


def test_options_for_several_files_are_refused(runs, tmp_path):
    words = ("report", runs / "central", "--claim", tmp_path / "claim.json")
    for more in (("--out", tmp_path / "x.html"), ("--simulation",), ("--claim-page",)):
        answer = run(*words, *more)
        assert answer.exit_code == 2
        assert more[0] in answer.output


def test_the_tables_of_the_page_name_facts_that_claims_state(runs):
    page = (Path(__file__).parents[3] / "docs/explanation/claims.md").read_text("utf-8")
    claim = claim_of(runs, "central")
    named = set(re.findall(r"`(\w+(?:\.\w+)*)`", page)) - {"privfed"}
    assert len(named) > 30
    for name in named:
        value = claim
        for key in name.split("."):
            assert key in value, name
            value = value[key]


def test_the_schema_is_the_published_one():
    published = Path(__file__).parents[3] / "docs/reference/claim_schema.json"
    assert published.read_text(encoding="utf-8") == schema_text()
