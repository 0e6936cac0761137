"""Canaries that train: they go the way of real clients, and what the final model learned tells."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from lanes import every_case, mostly_slow
from small import same_run, small, trained

from privfed.auditing.canaries import power
from privfed.auditing.canaries.inclusion import canary_identities, number_of_nothing
from privfed.auditing.canaries.input_space import space_of
from privfed.auditing.canaries.learned import (
    CanaryExamples,
    Learning,
    WithTraining,
    public_examples,
    with_trainees,
)
from privfed.auditing.canaries.log import CanaryLog
from privfed.auditing.run_audit import audit
from privfed.cli.main import main
from privfed.client.exchange import Exchange
from privfed.config.reading import load
from privfed.core.errors import Broken, Refused
from privfed.core.parts import find
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Federation
from privfed.data.preprocessing import Category, Numbers, Preprocessing
from privfed.plan.rule import rules_by_sums
from privfed.privacy.clipping import clip_rows
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms import central_gaussian as gaussian
from privfed.run import input_canaries
from privfed.run.check import check
from privfed.run.input_canaries import (
    CanaryUpdates,
    crafted,
    self_influence,
    training_executor,
)
from privfed.run.prepare import prepare
from privfed.run.train import resume, train
from privfed.sampling.cohort import Cohort, Population
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import unpack

INPUTS = (
    *("data.clients=24", "audit.canaries=20", "audit.kind=input", "audit.examples=3"),
    "audit.craft_steps=3",
)
SEEDED = ("run.randomness=seeded", *INPUTS)
ALL = ("cohort.sampler=full", "cohort.size=0")
WIDE = (
    *("data.features=60", "data.classes=10", "data.clients=200", "privacy.delta=1e-4"),
    *("audit.canaries=200", "audit.kind=input", *ALL, "run.rounds=2"),
    *("server.optimizer=fedavg", "run.randomness=seeded", "audit.craft_steps=5"),
)


def log_of(path, count=20):
    return CanaryLog(RunDirectory.open(path).canaries, count).read()


def told_apart(path, count=200):
    """The probability that a canary with heads has a higher score than one with tails."""
    record = log_of(path, count)
    heads, tails = record.final[record.inclusion], record.final[~record.inclusion]
    return float((heads[:, None] > tails[None]).mean())


def keys(count, seed=1):
    return Streams(seed, simulated=True).at("canaries/examples", clients=np.arange(count))


def without_noise(monkeypatch):
    monkeypatch.setattr(gaussian, "gaussian_on_grid", lambda keys, std, n: np.zeros(n))


def without_clip(monkeypatch):
    monkeypatch.setattr(
        gaussian, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, float(clip))
    )


def test_a_canarys_row_is_that_of_local_training():
    """One epoch of one batch: a step against the gradient of the examples' mean loss."""
    setup = prepare(small(*SEEDED, "client.epochs=1", "client.lr=0.3"))
    examples = crafted(setup, keys(20))
    heads = np.array([True, False, True])
    executor = training_executor(setup, examples, np.array([4, 7, 11]), heads)
    start, network = setup.network.initial_params, setup.network
    layout = setup.algorithm.objective.layout(len(start))
    cohort = Cohort(1, np.arange(3), 4.0, setup.plan.cost.witness)
    (chunk,) = executor.chunks(Exchange("train", {"params": start}, layout), cohort)
    rows = dict(zip(chunk.ids.tolist(), chunk.rows, strict=True))
    for place, number in ((0, 4), (2, 11)):
        step = -0.3 * network.gradient(start, examples.x[number], examples.y[number])
        assert torch.allclose(rows[place], step, atol=1e-6)
    assert not rows[1].any()  # whose coin is tails holds nothing, and sends zero
    assert torch.equal(chunk.weights, torch.ones(3, dtype=chunk.weights.dtype))


@every_case("name", rules_by_sums())
def test_tails_add_zero_by_every_rule_of_sums(name):
    """Also where a row of zeros adds its way from the center, or is counted."""
    setup = prepare(small(*SEEDED))
    heads = np.array([True, False, True, False])
    training = training_executor(setup, crafted(setup, keys(20)), np.arange(4), heads)
    start = setup.network.initial_params
    layout = setup.algorithm.objective.layout(len(start))
    rule = find("rule", name, "rule")().within(0.4)
    played = WithTraining(Nobody(), training, 24, ~heads, number_of_nothing(rule))
    cohort = Cohort(1, np.arange(24, 28), 4.0, setup.plan.cost.witness)
    (chunk,) = played.chunks(Exchange("train", {"params": start}, layout), cohort)
    center = torch.full_like(start, 0.1 * rule.remembers)
    sent = clip_rows(rule.terms(chunk.rows, center), 0.4).rows
    assert torch.equal(sent.any(1), torch.from_numpy(heads[chunk.ids - 24]))


class Nobody:
    """An executor without clients."""

    def chunks(self, exchange, cohort):
        assert not len(cohort.clients)
        return iter(())


def test_crafting_stays_within_the_box_and_raises_what_canaries_are_worth():
    few = ("data.clients=60", "cohort.size=20")
    setup = prepare(load(None, ["data.source=digits", *few, *INPUTS[1:3]]))
    influence = influence_in(setup)
    plain = replace(setup, plan=replace(setup.plan, config=without_steps(setup)))
    random, better = crafted(plain, keys(30)), crafted(setup, keys(30))
    for examples in (random, better):
        assert examples.x.shape == (30, 8, 64)
        assert float(examples.x.min()) >= -0.5
        assert float(examples.x.max()) <= 0.5
        assert (examples.y == examples.y[:, :1]).all()  # one secret class each
    assert torch.equal(random.y, better.y)
    assert len(better.y[:, 0].unique()) > 3
    gain = influence.of(better.x, better.y) - influence.of(random.x, random.y)
    assert float(gain.min()) > 0.1


def influence_in(setup):
    return self_influence(setup, setup.network.initial_params)


def without_steps(setup):
    config = setup.plan.config
    return replace(config, audit=config.audit.model_copy(update={"craft_steps": 0}))


def test_examples_depend_on_nobodys_data():
    """On the key, the start and public examples alone: clients' own may be any others."""
    setup = prepare(small(*SEEDED))
    real = setup.federation.examples
    others = replace(real, x=-2 * real.x.flip(0), y=real.y.flip(0))
    elsewhere = setup.over(replace(setup.federation, examples=others, _stages={}))
    ours, theirs = crafted(setup, keys(20)), crafted(elsewhere, keys(20))
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.y, theirs.y)
    assert not torch.equal(ours.x, crafted(setup, keys(20, seed=2)).x)


def test_real_clients_are_drawn_counted_and_charged_as_without(tmp_path):
    counted = ("run.simulation_metrics=true", "run.checkpoint_every=2", "run.randomness=seeded")
    with_them = trained(tmp_path / "a", *INPUTS, *counted)
    without = trained(tmp_path / "b", INPUTS[0], *counted)
    assert with_them.plan.event == without.plan.event
    assert with_them.guarantee.epsilon == without.guarantee.epsilon
    cohorts = [
        [json.loads(line)["simulation_only"]["cohort"] for line in lines]
        for lines in ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in "ab")
    ]
    assert cohorts[0] == cohorts[1]
    assert with_them.measures["loss"] != without.measures["loss"]  # they took part


def test_a_run_that_was_interrupted_keeps_its_canaries(tmp_path):
    trained(tmp_path / "whole", *SEEDED)
    trained(tmp_path / "parts", *SEEDED, "run.rounds=4")
    resume(tmp_path / "parts", lambda _: small(*SEEDED))
    same_run(tmp_path / "whole", tmp_path / "parts")
    at_once, parts = log_of(tmp_path / "whole"), log_of(tmp_path / "parts")
    assert np.array_equal(at_once.inclusion, parts.inclusion)
    np.testing.assert_array_equal(at_once.final, parts.final)


def test_in_secret_mode_coins_and_examples_follow_from_no_seed(tmp_path):
    for name in "ab":
        trained(tmp_path / name, *INPUTS, "run.rounds=1", "run.seed=3")
    ours, theirs = (unpack(tmp_path / name / "private/canaries.safetensors")[0] for name in "ab")
    assert not (ours["x"] == theirs["x"]).all(dim=(1, 2)).any()
    assert not np.array_equal(log_of(tmp_path / "a").inclusion, log_of(tmp_path / "b").inclusion)


def test_canaries_are_who_their_number_says_whoever_else_entered(tmp_path, monkeypatch):
    """Examples, number and site: turning one coin leaves another canary's as they are."""
    executors = []

    def training(*asked):
        executors.append(training_executor(*asked))
        return executors[-1]

    monkeypatch.setattr(input_canaries, "training_executor", training)
    trained(tmp_path / "run", *SEEDED, "run.rounds=1")
    held, _ = unpack(tmp_path / "run/private/canaries.safetensors")
    there = np.flatnonzero(log_of(tmp_path / "run").inclusion)
    population = executors[-1].trainer.federation
    assert population.identities.tolist() == canary_identities(there).tolist()
    assert torch.equal(population.examples.x, held["x"][there].flatten(0, 1))
    federation = with_trainees(Population(np.ones(2), np.arange(2), np.zeros(2, int)), there, 3)
    assert federation.identities[2:].tolist() == population.identities.tolist()
    assert federation.sites[2:].tolist() == (there % 3).tolist()


def test_in_secret_mode_a_resume_keeps_coins_and_examples_under_private(tmp_path):
    trained(tmp_path / "run", *INPUTS, "run.rounds=4")
    held = tmp_path / "run/private/canaries.safetensors"
    before, inclusion = held.read_bytes(), log_of(tmp_path / "run").inclusion
    resume(tmp_path / "run", lambda _: small(*INPUTS))
    assert held.read_bytes() == before
    assert np.array_equal(log_of(tmp_path / "run").inclusion, inclusion)
    assert held.stat().st_mode & 0o077 == 0
    assert held.parent.stat().st_mode & 0o077 == 0
    held.unlink()
    with pytest.raises(Broken, match="examples that canaries trained on"):
        resume(tmp_path / "run", lambda _: small(*INPUTS, "run.rounds=9"))


def test_a_score_is_linear_in_the_models_way_and_stays_with_its_canary():
    setup = prepare(small(*SEEDED))
    start = setup.network.initial_params
    made = crafted(setup, keys(20))
    learning = Learning(made, influence_in(setup))
    way = torch.randn(len(start), generator=torch.Generator().manual_seed(0))
    scores = learning.scores(start + way)
    np.testing.assert_allclose(learning.scores(start + 3 * way), 3 * scores, rtol=1e-3, atol=1e-4)
    turned = replace(learning, examples=CanaryExamples(made.x.flip(0), made.y.flip(0)))
    np.testing.assert_allclose(turned.scores(start + way)[::-1], scores, rtol=1e-3, atol=1e-4)
    assert not learning.scores(start).any()


def test_a_score_is_the_canarys_own_part_of_the_way():
    """A step against one canary's gradient is that canary's, and least of all the others'."""
    setup = prepare(small(*SEEDED))
    start = setup.network.initial_params
    made = crafted(setup, keys(20))
    step = setup.network.gradient(start, made.x[7], made.y[7])
    scores = Learning(made, influence_in(setup)).scores(start - step)
    assert int(scores.argmax()) == 7


@pytest.mark.parametrize("noise", [1.0, pytest.param(5.0, marks=pytest.mark.slow)])
def test_an_honest_run_is_not_refuted(noise, tmp_path):
    trained(tmp_path / "run", *WIDE, f"privacy.noise_multiplier={noise}")
    evidence = audit(tmp_path / "run").canaries
    assert evidence.p_value > 0.01
    assert evidence.epsilon_lower_bound_final <= evidence.epsilon_claimed
    assert evidence.epsilon_lower_bound is None  # of releases nothing is scored
    assert evidence.epsilon_estimate_all_iterates is None


@pytest.mark.parametrize(
    ("breaks", "clip"), [(without_noise, 0.4), (without_clip, 0.01)], ids=["noise", "clip"]
)
def test_a_run_without_its_noise_or_its_clip_is_refuted(breaks, clip, tmp_path, monkeypatch):
    breaks(monkeypatch)
    trained(tmp_path / "run", *WIDE, "privacy.noise_multiplier=20.0", f"privacy.clip={clip}")
    audited = audit(tmp_path / "run")
    assert audited.canaries.p_value < 1e-6
    assert audited.canaries.epsilon_lower_bound_final > audited.canaries.epsilon_claimed
    answer = CliRunner().invoke(main, ["audit", str(tmp_path / "run")])
    assert answer.exit_code == 4
    assert "from the final model (at most" in " ".join(answer.output.split())
    assert "from every release" not in " ".join(answer.output.split())


WITH = {
    "gradients": ("client.objective=feddane",),
    "places": ("cohort.sampler=fixed_size",),
    "slots": ("cohort.sampler=allocation", "cohort.slots=3", "cohort.size=0"),
    "own noise": ("privacy.mechanism=local_gaussian",),
    "secure sum": ("secure.protocol=masks", "secure.simulate=arithmetic", *ALL),
    "sites": ("data.sites=3", *ALL),
    "absent": ("cohort.availability=daily", "client.stragglers=0.5"),
    "loop": ("run.trainer=loop", "model.name=mlp"),
}


@pytest.mark.parametrize("name", mostly_slow(WITH, "gradients", "own noise", "secure sum", "loop"))
def test_canaries_that_train_go_with(name, tmp_path):
    trained(tmp_path / "run", *SEEDED, *WITH[name])
    audited = audit(tmp_path / "run")
    assert not audited.problems
    assert np.isfinite(audited.canaries.epsilon_estimate_final)
    assert audited.canaries.p_value > 1e-3


def test_check_measures_what_canaries_send_before_the_run(monkeypatch):
    """By the run's own training: without a step nothing, and with long ones the clip."""
    monkeypatch.setattr(power, "_SHARES", ())  # whatever faults they would notice
    still = check(small(*SEEDED, *ALL, "client.lr=0.0")).forecast.canaries
    assert still.norm == still.common == 0.0
    sent = check(small(*SEEDED, *ALL, "client.lr=2.0", "client.epochs=4")).forecast.canaries
    assert 0.9 * 0.4 < sent.norm <= 0.4
    assert 0 < sent.common < sent.norm
    assert sent.total(4.0) == pytest.approx(np.hypot(2 * sent.norm, 4 * sent.common))
    assert check(small("audit.canaries=20", "data.clients=24")).forecast.canaries is None


def test_the_time_that_a_run_takes_includes_crafting(monkeypatch):
    monkeypatch.setattr(power, "_SHARES", ())
    updates = CanaryUpdates(norm=1.0, common=0.0, seconds=1e6)
    monkeypatch.setattr("privfed.run.forecast.canary_updates", lambda setup: updates)
    assert check(small(*SEEDED, *ALL)).forecast.seconds > 20 * 1e6
    asked = [word for override in (*SEEDED, *ALL) for word in ("--set", override)]
    shown = CliRunner().invoke(main, ["check", *asked])
    assert "at the initial model, such updates have" in " ".join(shown.output.split())


@every_case(
    ("overrides", "why"),
    [
        (("client.objective=scaffold", "data.setting=cross_silo"), "keep state between rounds"),
        (("privacy.adaptive_clip=true", "privacy.count_noise=3.0"), "have large norms"),
        (("privacy.mechanism=none",), "no claim"),
        (("audit.canaries=19",), "so few canaries cannot refute a claim"),
        (("audit.examples=10000", "data.features=100000"), "numbers in memory"),
        (("audit.kind=update",), "hold no examples"),
    ],
    ids=["memory", "moving clip", "no claim", "few", "many numbers", "updates"],
)
def test_canaries_that_cannot_train_are_refused_with_a_reason(overrides, why, tmp_path):
    with pytest.raises(Refused, match=why):
        trained(tmp_path / "run", *INPUTS, *overrides)


def population(x, y, test, **facts):
    """A client with examples x and y, whose test set holds so many of them."""
    examples = Examples(x, y, classes=3, **facts)
    return Federation(examples, np.array([0, len(y)]), examples.take(np.arange(test)))


CLASSES = torch.tensor([0, 1, 2, 1])
TOKENS = torch.arange(20).reshape(4, 5)


@every_case(
    ("federation", "why"),
    [
        (population(torch.randn(4, 2), torch.randn(4, 3), 4), "numbers or columns"),
        (population(torch.randn(4, 2), torch.zeros(4, 2).long(), 4), "each of .* positions"),
        (population(torch.randn(4, 2), CLASSES, 0), "bounds of an input"),
        (population(TOKENS, CLASSES, 0), "number of tokens; declare `tokens` of the input"),
    ],
    ids=["numbers", "positions", "no bounds", "no vocabulary"],
)
def test_nothing_is_made_up_of_what_nothing_public_is_known(federation, why):
    with pytest.raises(Refused, match=why):
        space_of(federation)


def test_examples_that_clients_hold_back_are_not_public():
    """They are of clients who train: nothing is crafted on them, and no bound is theirs."""
    federation = population(torch.randn(4, 2), CLASSES, 2)
    assert public_examples(federation) is federation.test
    shared = replace(federation, shared=True)
    assert public_examples(shared) is None
    with pytest.raises(Refused, match="bounds of an input"):
        space_of(shared)


def test_what_an_input_may_be_is_declared_or_public():
    words = Category(column="sex", values=("f", "m"))
    bounds = Numbers(column="age", bounds=(0.0, 99.0))
    how = Preprocessing(numbers=(bounds,), categories=(words,), onto=(-1.0, 1.0), shape=(3,))
    declared = space_of(population(torch.randn(4, 3), CLASSES, 0, preprocessing=how))
    assert (declared.low.tolist(), declared.high.tolist()) == ([-1.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    public = space_of(population(torch.tensor([[1.0], [4.0], [9.0], [7.0]]), CLASSES, 2))
    assert (public.low.tolist(), public.high.tolist()) == ([1.0], [4.0])
    tokens = space_of(population(TOKENS, CLASSES, 4))
    x, y = tokens.drawn(next(keys(1).each()), 200)
    assert (int(x.min()), int(x.max())) == (0, 19)
    assert len(y.unique()) == 1


@pytest.mark.slow
def test_crafting_raises_the_power(tmp_path, monkeypatch):
    """On the same budget, without noise: the median over seeds, against random examples."""
    without_noise(monkeypatch)
    found = {}
    for steps in (0, 20):
        for seed in range(5):
            path = tmp_path / f"{steps}-{seed}"
            trained(path, *WIDE, f"audit.craft_steps={steps}", f"run.seed={seed}")
            found[steps, seed] = told_apart(path)
    random, better = (np.median([found[steps, seed] for seed in range(5)]) for steps in (0, 20))
    assert better > random + 0.03


SPEAKERS = ("data.source=text", "data.window=16", "data.population=plays", "data.clients=100")
SENTENCES = (
    *("data.vocabulary=abcdefghijklmnopqrstuvwxyz ", "audit.canaries=100", "audit.kind=input"),
    *("model.name=lstm", "model.embedding=4", "model.hidden=16", "model.layers=1"),
    *("run.randomness=seeded", "run.rounds=2", "cohort.size=90", "server.optimizer=fedavg"),
    *("privacy.noise_multiplier=300.0", "privacy.delta=1e-3", "audit.craft_steps=1"),
)


def plays(path, first):
    """A file of twelve speakers from number `first` on, who all say much the same."""
    words = ["the", "king", "is", "come", "my", "lord", "we", "shall", "go", "good", "night"]
    rng = np.random.default_rng(first)
    parts = [f"SPEAKER {n}:\n{' '.join(rng.choice(words, 9))}" for n in range(first, first + 12)]
    path.write_text("\n\n".join(parts))
    return path


def test_sentences_share_a_secret_end_and_are_told_apart(tmp_path, monkeypatch):
    files = (plays(tmp_path / "a.txt", 0), plays(tmp_path / "test.txt", 100))
    config = [*SPEAKERS, *SENTENCES, f"data.path={files[0]}", f"data.test_path={files[1]}"]
    without_noise(monkeypatch)
    train(load(None, config), tmp_path / "run")
    held, _ = unpack(tmp_path / "run/private/canaries.safetensors")
    assert held["x"].shape == held["y"].shape == (100, 8, 16)
    assert torch.equal(held["x"][:, :, 1:], held["y"][:, :, :-1])  # labels are the next tokens
    assert (held["y"][:, :, 8:] == held["y"][:, :1, 8:]).all()
    assert not torch.equal(held["y"][0, 0, 8:], held["y"][1, 0, 8:])
    assert told_apart(tmp_path / "run", 100) > 0.65
