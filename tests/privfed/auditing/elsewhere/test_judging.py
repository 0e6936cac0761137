"""A judge of other people's pipelines: honest ones pass, broken ones are refuted."""

import itertools
import json
from itertools import pairwise

import numpy as np
import pytest
from commands import run
from lanes import every_case, mostly_slow

from accounting.empirical.one_run_tests import one_run_tests
from accounting.events import Event
from accounting.guarantee import guarantee
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from experiments.audits_elsewhere.bare_loop import Pipeline, train
from privfed.auditing.judged_canaries import (
    PipelineClaim,
    gaussian_points,
    judge_releases,
    judgement_rows,
    refutable,
)
from privfed.auditing.judged_models import cosines
from privfed.canary.drawing import CanaryRequest
from privfed.core.errors import Refused

SMALL = Pipeline(rounds=3, clients=40, features=400, noise_multiplier=12.2)
"""It is (0.5, 1e-5)-private about a client."""
CLAIM = [(0.5, 1e-5)]
RELATIONS = ["add/remove", "zero-out", "replace-one"]


def drawn(path, relation="add/remove", count=100, dimension=4010, seed=1):
    return CanaryRequest(count, dimension, 1.0, relation, seed).write(path)


def played(tmp_path, relation="add/remove", without="nothing", noise=12.2):
    folder = drawn(tmp_path / "canaries", relation)
    train(folder.path, tmp_path / "models", Pipeline(3, 40, 400, noise, without))
    return folder


@pytest.mark.parametrize(
    ("relation", "without"),
    mostly_slow(
        itertools.product(RELATIONS, ["nothing", "noise", "clip"]),
        *itertools.product(["add/remove"], ["nothing", "noise", "clip"]),
        ("replace-one", "nothing"),
    ),
)
def test_broken_pipelines_are_refuted_and_honest_ones_are_not(tmp_path, relation, without):
    # Two rows that replace each other are two clips apart.
    noise = SMALL.noise_multiplier * (2 if relation == "replace-one" else 1)
    folder = played(tmp_path, relation, without, noise)
    judged = judge_releases(folder, tmp_path / "models", PipelineClaim.of_gaussian(*CLAIM), 0.95)
    assert judged.refuted == (without != "nothing")
    assert (judged.epsilon_lower_bound_final > 0.5) == (without != "nothing")
    assert judged.epsilon_lower_bound_final <= judged.epsilon_lower_bound_most
    assert judged.epsilon_refutable > 1


def test_replaced_rows_are_told_apart_better_than_removed_ones():
    """Under the same noise their products are twice as far apart, and bounds are larger."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=2000)
    inclusion = rng.random(2000) < 0.5
    bounds = [
        one_run_tests({"final": noise + shift}, inclusion, CLAIM, 0.95).bounds["final"].if_gaussian
        for shift in (np.where(inclusion, 1.0, 0.0), np.where(inclusion, 1.0, -1.0))
    ]
    assert bounds[1] > bounds[0] + 1


@pytest.mark.slow
def test_honest_pipelines_exceed_their_claim_in_few_runs(tmp_path):
    exceeded = 0
    for seed in range(100):
        folder = drawn(tmp_path / f"canaries{seed}", seed=seed)
        train(folder.path, tmp_path / f"models{seed}", Pipeline(3, 40, 400, 12.2, seed=seed))
        judged = judge_releases(
            folder, tmp_path / f"models{seed}", PipelineClaim.of_gaussian(*CLAIM), 0.95
        )
        assert not judged.refuted
        bounds = (judged.epsilon_lower_bound_gaussian, judged.epsilon_lower_bound_gaussian_final)
        exceeded += max(bounds) > 0.5
    assert exceeded <= 12


def test_without_a_family_no_run_refutes_a_claim_at_so_large_a_delta(tmp_path):
    """With probability delta, a pipeline as claimed may show everything."""
    folder = played(tmp_path, without="noise")
    judged = judge_releases(folder, tmp_path / "models", PipelineClaim.at(CLAIM), 0.95)
    assert judged.epsilon_lower_bound_final > 0.5
    assert not judged.refuted
    assert judged.epsilon_refutable is None
    assert judged.doubted
    assert judgement_rows(judged)["verdict"].startswith("DOUBTFUL")
    further = judge_releases(
        folder, tmp_path / "models", PipelineClaim.at([*CLAIM, (1.0, 1e-9)]), 0.95
    )
    assert further.refuted


def test_what_could_be_refuted_grows_with_canaries_and_with_what_is_known():
    plain, gaussian = (
        [refutable(count, 2, 1e-8, known) for count in (15, 50, 200)] for known in (False, True)
    )
    assert plain[0] is gaussian[0] is None
    assert plain[1] < plain[2] < gaussian[2]
    assert plain[1] < gaussian[1]


def test_the_initial_model_and_the_last_one_are_enough(tmp_path):
    folder = played(tmp_path, without="noise")
    for number in (1, 2):
        (tmp_path / f"models/{number}.npz").unlink()
    judged = judge_releases(folder, tmp_path / "models", PipelineClaim.of_gaussian(*CLAIM), 0.95)
    assert judged.refuted
    assert judged.releases == 1
    assert judged.epsilon_lower_bound is None


def test_cosines_are_those_of_single_releases_and_of_the_whole_way():
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(30, 200)).astype(np.float32)
    models = [rng.normal(size=200) * 1e3 for _ in range(5)]
    with_a_repeat = [*models[:3], models[2], *models[3:]]  # of which one changed nothing
    measured = cosines(directions, iter(with_a_repeat))
    expected = [directions @ (b - a) / np.linalg.norm(b - a) for a, b in pairwise(models)]
    np.testing.assert_allclose(measured.by_release, expected, rtol=1e-4, atol=1e-5)
    way = models[-1] - models[0]
    np.testing.assert_allclose(measured.final, directions @ way / np.linalg.norm(way), atol=1e-5)
    assert measured.statistics().keys() == {"iterates", "final"}


@pytest.mark.parametrize("models", [[0, 0], [0, 1, 0]], ids=["still", "back where it was"])
def test_models_that_went_nowhere_are_refused(models):
    with pytest.raises(Refused, match="the test needs models that change"):
        cosines(np.ones((3, 4), dtype=np.float32), (np.full(4, float(value)) for value in models))


def judged(tmp_path, *more):
    return run("canary", "judge", tmp_path / "canaries", "--releases", tmp_path / "models", *more)


GAUSSIAN = ("--claimed-epsilon", 0.5, "--delta", 1e-5, "--gaussian")


def test_the_commands_from_first_to_last(tmp_path):
    made = run(
        "canary", "new", tmp_path / "canaries", "--count", 100, "--dimension", 4010, "--seed", 1
    )
    assert made.exit_code == 0
    assert "48 take part, 52 are excluded" in made.output
    train(tmp_path / "canaries", tmp_path / "models", Pipeline(3, 40, 400, 12.2, "noise"))
    table = judged(tmp_path, *GAUSSIAN)
    assert table.exit_code == 4
    assert "REFUTED" in table.output
    assert "follow from a seed" in table.output
    facts = json.loads(judged(tmp_path, *GAUSSIAN, "--json").output)
    assert facts["exit"] == 4
    assert facts["refuted"]
    assert facts["canaries"] == 100
    by_rounds = judged(tmp_path, "--noise-multiplier", 72, "--rounds", 10, "--delta", 1e-5)
    assert by_rounds.exit_code == 4
    assert "by Gaussian noise of multiplier 72 in 10 rounds" in by_rounds.output
    plain = judged(tmp_path, "--claimed-epsilon", 0.5, "--delta", 1e-5)
    assert plain.exit_code == 0
    assert "--gaussian" in plain.output


WRONG = {
    "no pair": (
        ("--claimed-epsilon", 1, "--claimed-epsilon", 2, "--delta", 1e-5),
        "each ε of a claim needs its δ",
    ),
    "no delta": (
        ("--claimed-epsilon", 1, "--delta", 0),
        "expected a number from 1e-300 to below 1",
    ),
    "infinite": (("--claimed-epsilon", "inf", "--delta", 1e-5), "from 0 to 50"),
    "nan": (("--claimed-epsilon", "nan", "--delta", 1e-5), "from 0 to 50"),
    "confidence": ((*GAUSSIAN, "--confidence", 1), "--confidence is 1.0"),
    "noise beside epsilon": ((*GAUSSIAN, "--noise-multiplier", 1), "needs exactly one --delta"),
    "a rate alone": (("--sampling-rate", 0.1, "--delta", 1e-5), "only with --noise-multiplier"),
    "no claim": (("--delta", 1e-5), "each ε of a claim needs its δ"),
    "no noise to speak of": (("--noise-multiplier", 1e-9, "--delta", 1e-5), "nothing to test"),
    "noise that is no number": (
        ("--noise-multiplier", "nan", "--delta", 1e-5),
        "the claim of Gaussian noise",
    ),
    "a rate that is no number": (
        ("--noise-multiplier", 1, "--sampling-rate", "nan", "--delta", 1e-5),
        "the claim of Gaussian noise",
    ),
    "two curves": ((*GAUSSIAN, "--claimed-epsilon", 1, "--delta", 1e-6), "give one"),
    "no folder": (GAUSSIAN, "is no directory"),
}


@every_case(("words", "problem"), WRONG.values(), ids=WRONG)
def test_wrong_words_are_refused(tmp_path, words, problem):
    drawn(tmp_path / "canaries")
    refused = judged(tmp_path, *words)
    assert refused.exit_code == 2
    assert problem in refused.output


def test_canaries_that_were_changed_after_the_run_are_broken(tmp_path):
    folder = played(tmp_path)
    np.save(folder.inclusion_path, ~folder.inclusion())
    broken = judged(tmp_path, *GAUSSIAN)
    assert broken.exit_code == 5
    assert "manifest's commitment" in broken.output


def test_a_folder_that_is_none_is_broken(tmp_path):
    assert judged(tmp_path, *GAUSSIAN).exit_code == 5


def test_new_overwrites_nothing(tmp_path):
    words = ("canary", "new", tmp_path / "canaries", "--dimension", 10)
    assert run(*words).exit_code == 0
    again = run(*words)
    assert again.exit_code == 2
    assert "nothing was changed" in again.output


def test_a_claim_on_sampled_cohorts_is_what_accountants_know_of_it():
    claim = PipelineClaim.of_rounds(1.0, 0.1, 20, 1e-5)
    event = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson")
    assert claim.points[0] == (guarantee({event: 20}, 1e-5).epsilon, 1e-5)
    everybody = PipelineClaim.of_rounds(1.0, 1.0, 20, 1e-5)
    assert dict(map(reversed, everybody.points))[1e-5] > 2 * claim.points[0][0]
    assert min(delta for _, delta in claim.points) < 1e-12
    assert "cohorts of rate 0.1" in claim.by


@every_case("delta", [1e-5, 1e-17, 1e-300])
@every_case("epsilon", [0.0, 1.0])
def test_a_gaussian_claim_has_further_points_at_however_small_a_delta(epsilon, delta):
    first, *further = gaussian_points((epsilon, delta))
    assert first == (epsilon, delta)
    beyond = [other for other, at in further if at >= delta]
    assert beyond == sorted(beyond, reverse=True)
    assert beyond[0] <= epsilon + 1e-6
