"""Functions of somebody's own: right ones pass their claim, each fault is refuted."""

import json
import math

import numpy as np
import pytest
from commands import run
from lanes import every_case

import privfed
from experiments.audits_elsewhere import wrong_mechanisms
from privfed.auditing import function_audit
from privfed.auditing.function_audit import FunctionClaim, audit_function, claim_of, observe
from privfed.auditing.released_function import ReleasedFunction
from privfed.core.errors import Refused

DELTA = 1e-5
GAUSSIAN = FunctionClaim.of_gaussian(1.0, 1.0, 1, DELTA)
MODULE = "experiments.audits_elsewhere.wrong_mechanisms"


def audited(function, claim=GAUSSIAN, releases=2000):
    return audit_function(ReleasedFunction.of(function), claim, releases, seed=1)


def noised(std, sensitivity=1.0):
    return lambda member, rng: sensitivity * member + rng.normal(0.0, std, 3)


def laplace(scale):
    return lambda member, rng: member + rng.laplace(0.0, scale)


def geometric(epsilon):
    def release(member, rng):
        up, down = rng.geometric(1 - math.exp(-epsilon), 2)
        return [int(member) + int(up) - int(down)]

    return release


def sampled(rate):
    return lambda member, rng: (member and rng.random() < rate) + rng.normal()


def louder_for_members(member, rng):
    """Noise in proportion to the data."""
    return rng.normal(0.0, 1.0 + 3.0 * member, 3)


def aborts_for_members(member, rng):
    return [math.nan if member and rng.random() < 0.5 else rng.normal()]


def fixed_seed(member, rng):
    return member + np.random.default_rng(7).normal(size=3)


def by_numpys_own_state(member, rng):
    return [member + np.random.normal()]


RIGHT = {
    "Gaussian": (noised(math.sqrt(3.0)), GAUSSIAN),
    "Gaussian of its own state": (by_numpys_own_state, GAUSSIAN),
    "Laplace": (laplace(1.0), FunctionClaim.at(1.0, 0.0)),
    "integers": (geometric(1.0), FunctionClaim.at(1.0, 0.0)),
    "Poisson": (sampled(0.25), FunctionClaim.of_gaussian(1.0, 0.25, 1, DELTA)),
    "nothing of the data": (lambda member, rng: [0.0], FunctionClaim.at(0.0, 0.0)),
    "rounds": (
        wrong_mechanisms.gaussian_rounds,
        FunctionClaim.of_gaussian(1.0, 1.0, wrong_mechanisms.ROUNDS, DELTA),
    ),
    "clips each row": (wrong_mechanisms.clips_each_row, GAUSSIAN),
}
WRONG = {
    "half of the noise": (noised(math.sqrt(3.0) / 2), GAUSSIAN),
    "twice the sensitivity": (noised(math.sqrt(3.0), 2.0), GAUSSIAN),
    "Laplace of half the scale": (laplace(0.4), FunctionClaim.at(1.0, 0.0)),
    "integers of half the scale": (geometric(2.5), FunctionClaim.at(1.0, 0.0)),
    "a draw that is none": (sampled(1.0), FunctionClaim.of_gaussian(1.0, 0.1, 1, DELTA)),
    "noise of the data": (louder_for_members, GAUSSIAN),
    "an abort": (aborts_for_members, FunctionClaim.at(1.0, DELTA)),
    "a fixed seed": (fixed_seed, GAUSSIAN),
    "same noise each round": (wrong_mechanisms.same_noise_each_round, RIGHT["rounds"][1]),
    "noise of few seeds": (wrong_mechanisms.noise_of_few_seeds, GAUSSIAN),
    "clips the mean": (wrong_mechanisms.clips_the_mean, GAUSSIAN),
}


@every_case("name", RIGHT)
def test_what_keeps_its_claim_is_not_refuted(name):
    result = audited(*RIGHT[name])
    assert result.p_value > 1e-3
    assert not result.refuted


@pytest.mark.parametrize("name", WRONG)
def test_each_fault_is_refuted(name):
    assert audited(*WRONG[name]).refuted


def test_seeds_that_repeat_are_seen_by_repetition_alone():
    tested = audited(wrong_mechanisms.noise_of_few_seeds).tested
    assert [each.score for each in tested if each.verdict.p_value < 1e-6] == ["repetitions"]


def test_the_p_value_is_corrected_over_all_scores():
    result = audited(noised(math.sqrt(3.0) / 1.3), releases=2000)
    smallest = min(each.verdict.p_value for each in result.tested)
    assert 0 < result.p_value == 3 * smallest


def test_a_seed_repeats_an_audit_and_none_does_not():
    function = ReleasedFunction.of(noised(1.0))
    for seed, same in ((1, True), (None, False)):
        once, again = (observe(function, 20, seed) for _ in range(2))
        assert np.array_equal(once, again) is same


def test_no_two_releases_share_a_generator():
    without, with_member = observe(ReleasedFunction.of(lambda member, rng: rng.normal(size=2)), 50)
    assert len(np.unique(np.concatenate([without, with_member]))) == 200


def test_a_drift_from_call_to_call_is_not_taken_for_the_member():
    calls = iter(range(10**6))
    assert audited(lambda member, rng: [next(calls)], FunctionClaim.at(0.5, 0.0)).p_value > 1e-3


def test_as_many_releases_as_time_and_memory_allow(monkeypatch):
    monkeypatch.setattr(function_audit, "_SECONDS", 0.0)
    assert audit_function(ReleasedFunction.of(noised(3.0)), GAUSSIAN).releases == 400
    monkeypatch.setattr(function_audit, "_SECONDS", 1e6)
    monkeypatch.setattr(function_audit, "_MOST_NUMBERS", 3 * 500)
    result = audit_function(ReleasedFunction.of(noised(3.0)), GAUSSIAN)
    assert (result.releases, result.numbers) == (500, 3)


class Claiming:
    def __init__(self, claimed):
        self.claimed = claimed

    def __call__(self, member, rng):
        return [member + rng.normal()]

    def profile(self, delta):
        return self.claimed(delta)


def test_a_profile_of_its_own_is_its_claim():
    honest = ReleasedFunction.of(Claiming(lambda delta: 5.0))
    assert claim_of(honest, delta=DELTA).points == tuple((5.0, at) for _, at in GAUSSIAN.points)
    assert claim_of(honest, 1.0, DELTA) == FunctionClaim.at(1.0, DELTA)
    low = ReleasedFunction.of(Claiming(lambda delta: 0.1))
    assert audit_function(low, claim_of(low, delta=DELTA), 1000, seed=1).refuted


class Unreadable:
    def __array__(self, *_, **__):
        raise KeyError("not today")


class Failing:
    def profile(self, delta):
        raise KeyError("no profile today")

    def __call__(self, member, rng):
        raise ValueError("not today")


def grows():
    calls = iter(range(1, 100))
    return lambda member, rng: [0.0] * next(calls)


@every_case(
    ("function", "reason"),
    [
        (lambda member, rng: "many", "returned str, but a release consists of"),
        (lambda member, rng: None, "returned NoneType, but a release consists of"),
        (lambda member, rng: [], "returned list, but a release consists of"),
        (lambda member, rng: [[1.0], [1.0, 2.0]], "returned list, but a release consists of"),
        (lambda member, rng: 1j, "returned complex, but a release consists of"),
        (lambda member, rng: np.array([1j * member]), "returned ndarray of complex128, but"),
        (lambda member, rng: [10**400], "returned list, but a release consists of"),
        (lambda member, rng: [2**60 + member], "integers beyond 2"),
        (lambda member, rng: Unreadable(), "returned Unreadable, but a release consists of"),
        (lambda member, rng: np.broadcast_to(1.0, 2**40), "do not fit into memory"),
        (lambda member, rng: np.zeros(2**17), "2000 releases of 131,072 numbers each do not fit"),
        (lambda member: 1.0, "failed: TypeError"),
        (grows(), "returned 2 numbers, but 1 in the first"),
        (Failing(), "Failing failed: ValueError: not today"),
        (Failing, "is a class"),
        (3, "is no function"),
    ],
    ids=[
        "text",
        "None",
        "empty",
        "ragged",
        "complex",
        "array",
        "googol",
        "integers",
        "unreadable",
        "many",
        "releases",
        "argument",
        "grows",
        "fails",
        "class",
        "3",
    ],
)
def test_what_is_no_such_function_is_refused(function, reason):
    with pytest.raises(Refused, match=reason):
        audited(function, releases=2000)


@every_case(
    ("stated", "reason"),
    [
        ({}, "no claim is stated for .*; give delta with an epsilon"),
        ({"delta": DELTA}, "no claim is stated for .*; give delta with an epsilon"),
        ({"claimed_epsilon": 1.0}, "no claim is stated for .*; give delta$"),
        ({"claimed_epsilon": 1.0, "noise_multiplier": 1.0, "delta": DELTA}, "remove one"),
        ({"claimed_epsilon": 1.0, "rounds": 3, "delta": DELTA}, "without a noise multiplier"),
        ({"noise_multiplier": 1.0, "delta": 0.0}, "delta is 0"),
        ({"claimed_epsilon": -1.0, "delta": DELTA}, "expected a finite epsilon"),
        ({"claimed_epsilon": math.nan, "delta": DELTA}, "expected a finite epsilon"),
        ({"claimed_epsilon": math.inf, "delta": DELTA}, "expected a finite epsilon"),
        ({"claimed_epsilon": 1.0, "delta": math.nan}, "a delta of 0 or more and below 1"),
        ({"claimed_epsilon": 1.0, "delta": 1.0}, "a delta of 0 or more and below 1"),
        ({"noise_multiplier": 1e-9, "delta": DELTA}, "infinite at every delta"),
        ({"noise_multiplier": -1.0, "delta": DELTA}, "noise multiplier is -1.0"),
        ({"noise_multiplier": 1.0, "delta": DELTA, "sampling_rate": 0.0}, "sampling rate is 0"),
        ({"noise_multiplier": 1.0, "delta": DELTA, "sampling_rate": 1.5}, "sampling rate is 1.5"),
        ({"noise_multiplier": 1.0, "delta": DELTA, "rounds": 0}, "rounds is 0"),
        ({"noise_multiplier": 1.0, "delta": DELTA, "rounds": 2.5}, "expected an integer"),
    ],
    ids=str,
)
def test_half_a_claim_is_refused(stated, reason):
    with pytest.raises(Refused, match=reason):
        claim_of(ReleasedFunction.of(noised(1.0)), **stated)


@every_case(
    ("claimed", "reason"),
    [
        (lambda delta: math.inf, "infinite at every delta"),
        (lambda delta: -1.0, "returned no epsilon"),
        (lambda delta: math.nan, "returned no epsilon"),
        (lambda delta: "one", "returned no epsilon"),
    ],
    ids=["infinite", "negative", "nan", "text"],
)
def test_a_profile_that_claims_nothing_is_refused(claimed, reason):
    with pytest.raises(Refused, match=reason):
        claim_of(ReleasedFunction.of(Claiming(claimed)), delta=DELTA)


def asked(name, *words):
    given = ("--releases", 400, "--delta", DELTA, *words)
    return run("audit", "--function", f"{MODULE}:{name}", *given)


@pytest.mark.parametrize(("name", "code"), [("clips_each_row", 0), ("clips_the_mean", 4)])
def test_the_command_ends_as_the_verdict_is(name, code):
    answer = asked(name, "--noise-multiplier", 1)
    assert answer.exit_code == code
    assert ("REFUTED" in answer.output) is (code == 4)
    answer = json.loads(asked(name, "--noise-multiplier", 1, "--json").stdout)
    assert answer["refuted"] is (code == 4)
    assert answer["releases"] == 400
    assert [each["score"] for each in answer["scores"]] == ["means", "spreads", "repetitions"]


@every_case(
    ("words", "reason"),
    [
        (("--function", f"{MODULE}:nothing", "--delta", 0), "cannot be imported"),
        (("--function", "module", "--delta", 0), "expected module:name"),
        (("--function", f"{MODULE}:CLIENTS", "--delta", 0), "is no function"),
        (
            ("--function", f"{MODULE}:clips_the_mean", "--set", "a.b=1"),
            "tested without a run directory",
        ),
        (
            ("--function", f"{MODULE}:clips_the_mean", "--mechanism", "a.toml"),
            "tested without a run directory",
        ),
        (
            ("--claimed-epsilon", 1),
            "--claimed-epsilon is given, but has an effect only with --function",
        ),
        (
            ("--mechanism", "a.toml", "--rounds", 1),
            "--rounds is given, but has an effect only with --function",
        ),
    ],
    ids=["nothing", "module", "number", "set", "mechanism", "alone", "other"],
)
def test_the_command_refuses_what_does_not_go_together(words, reason):
    answer = run("audit", *words)
    assert answer.exit_code == 2
    assert reason in answer.output


def test_what_a_function_prints_is_no_part_of_the_answer(tmp_path, monkeypatch):
    (tmp_path / "talkative.py").write_text(
        "print('hello')\ndef release(member, rng):\n    print('again')\n    return [1.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--claimed-epsilon", 1, "--delta", DELTA, "--releases", 20, "--json")
    answer = run("audit", "--function", "talkative:release", *words)
    assert not json.loads(answer.stdout)["refuted"]
    assert "hello" in answer.stderr
    assert "again" in answer.stderr


@every_case("confidence", [0.0, 1.0, math.nan], ids=str)
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(Refused, match="confidence is"):
        audit_function(ReleasedFunction.of(noised(1.0)), GAUSSIAN, 20, confidence)


def test_from_python_it_is_the_command():
    answer = privfed.audit_function(
        wrong_mechanisms.clips_the_mean, delta=DELTA, noise_multiplier=1.0, releases=400
    )
    assert answer.refuted
    assert "REFUTED" in str(answer)
    with pytest.raises(Refused, match="at least 20"):
        privfed.audit_function(noised(1.0), delta=DELTA, epsilon=1.0, releases=10)
