"""Rounds in which clients evaluate: charged, bounded, noised, stored and replayed as any other."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from lanes import every_case
from scipy import stats
from small import SMALL, model, same_run, small, trained

from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from privfed.auditing.mechanism_audit import audit_mechanism, examine
from privfed.auditing.run_audit import audit
from privfed.auditing.scenarios import plan_of_mechanism, scenarios_of
from privfed.cli.main import main
from privfed.client.client_measures import ClientMeasures
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.ranks import SINGLE_PROCESS
from privfed.core.streams import Streams
from privfed.data.holdout import with_held_back
from privfed.plan.budget_shares import budget_shares
from privfed.plan.evaluation_cost import as_evaluation
from privfed.plan.plan import plan
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.round.round import run_round
from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients
from privfed.run.population import load_population
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.run.world import shared_world
from privfed.sampling.evaluation_rounds import EvaluationRounds
from privfed.store.round_logs import Releases

BY_CLIENTS = ("evaluation.by=clients", "evaluation.every=4", "run.rounds=8", "run.evaluate_every=4")
BUDGET = ("privacy.epsilon=8.0",)


PEOPLE = load_population(small(), Streams(0))


class Books:
    """A ledger and a release store in memory."""

    def __init__(self):
        self.charged = []

    def charge(self, round, event):
        self.charged.append((round, event))
        return (round, event)

    def write(self, charge, released, state):
        pass


def evaluated(setup, round, books=None):
    """What the evaluation of `round` releases of the first model."""
    books = books or Books()
    world = shared_world(setup, books, books, SINGLE_PROCESS)
    state = run_round(round, setup.algorithm_in(round), setup.initial_state(), world)
    return state.evaluation["released"].double().numpy()


@given(st.integers(0, 12), st.integers(1, 200))
def test_rounds_of_each_kind_are_counted_without_gaps(every, rounds):
    kinds = EvaluationRounds(every)
    evaluating = [round for round in range(1, rounds + 1) if round in kinds]
    training = [round for round in range(1, rounds + 1) if round not in kinds]
    assert kinds.among(rounds) == len(evaluating)
    for each in (evaluating, training):
        assert [kinds.turn(round) for round in each] == [*range(1, len(each) + 1)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.floats(0.01, 0.99))
def test_what_a_client_holds_back_hangs_on_its_own_number_of_examples(sizes, fraction):
    federation = PEOPLE
    rows = np.arange(sum(sizes)) % len(federation.examples)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    population = replace(federation, examples=federation.examples.take(rows), offsets=offsets)
    training, scored = with_held_back(population, fraction)
    for client, size in enumerate(sizes):
        held = int(np.diff(scored.offsets)[client])
        assert held == math.floor(size * fraction + 0.5)
        assert int(np.diff(training.offsets)[client]) == size - held
        alone = replace(
            population,
            examples=population.examples.take(np.arange(offsets[client], offsets[client + 1])),
            offsets=np.array([0, size]),
        )
        mine = with_held_back(alone, fraction)[1].examples.y
        start, end = scored.offsets[client : client + 2]
        assert torch.equal(scored.examples.y[start:end], mine)


def test_every_round_is_charged_as_its_kind_and_all_of_them_keep_the_budget(tmp_path):
    config = small(*BY_CLIENTS, *BUDGET)
    config = replace(config, privacy=config.privacy.model_copy(update={"noise_multiplier": None}))
    planned = plan(config)
    outcome = trained(tmp_path / "run", *BY_CLIENTS, *BUDGET)
    ledger = Ledger.load(tmp_path / "run/ledger.jsonl")
    events = [charge.event for charge in ledger.charges]
    assert events[3] == events[7] == planned.evaluation.event
    assert Counter(events) == Counter(dict(planned.spending(8)))
    assert Counter(events)[planned.event] == 6
    together = guarantee(ledger.spending, 1e-3)
    assert 8.0 * 0.999 < together.epsilon <= 8.0
    assert outcome.guarantee.epsilon == together.epsilon
    assert outcome.updates == 6
    assert outcome.evaluations == 2
    alone = budget_shares(planned)
    assert all(share.epsilon < 8.0 for share in alone)
    assert sum(share.rounds for share in alone) == 8
    assert not audit(tmp_path / "run").problems


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_share_is_that_of_the_variance_budget(share):
    config = small(*BY_CLIENTS, f"budget.evaluation={share}", "evaluation.size=12")
    planned = plan(config)
    q, q_evaluation = 4 / 12, 1.0
    training = 6 * q**2 / planned.noise_multiplier**2
    evaluation = 2 * q_evaluation**2 / planned.evaluation.noise_multiplier**2
    assert evaluation / (evaluation + training) == pytest.approx(share)


@pytest.mark.slow
def test_training_pays_for_evaluation():
    def noise(*keys):
        config = small(*BUDGET, *keys)
        privacy = config.privacy.model_copy(update={"noise_multiplier": None})
        return plan(replace(config, privacy=privacy)).noise_multiplier

    without, little, much = (
        noise("run.rounds=8", "evaluation.by=test"),
        noise(*BY_CLIENTS, "budget.evaluation=0.05"),
        noise(*BY_CLIENTS, "budget.evaluation=0.6"),
    )
    assert little < much  # two of eight rounds do not train, so that little may cost less
    assert little == pytest.approx(without, rel=0.2)


def test_an_evaluation_leaves_the_model_as_it_is(tmp_path):
    trained(tmp_path / "run", *BY_CLIENTS, "run.checkpoint_every=1", "run.rounds=4")
    three = model(tmp_path / "run")
    lines = [json.loads(t) for t in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [4]
    assert 0 <= lines[0]["clients_accuracy_low"] <= lines[0]["clients_accuracy"]
    assert lines[0]["clients_accuracy"] <= lines[0]["clients_accuracy_high"] <= 1
    setup = prepare(small(*BY_CLIENTS))
    state = setup.initial_state()
    world = shared_world(setup, Books(), Books(), SINGLE_PROCESS)
    after = run_round(4, setup.algorithm_in(4), state, world)
    assert torch.equal(after.params, state.params)
    assert after.server is state.server
    assert "model/" in " ".join(three)


def test_without_noise_it_is_the_mean_of_clients_own_accuracies():
    setup = prepare(
        small(*BY_CLIENTS, "privacy.noise_multiplier=0.0", "cohort.sampler=full", "cohort.size=0")
    )
    scored, network = setup.executor.measures.federation, setup.network
    clients = np.flatnonzero(np.diff(scored.offsets))
    accuracies = []
    for client in clients:
        rows = np.arange(scored.offsets[client], scored.offsets[client + 1])
        own = scored.examples.take(rows)
        accuracies.append(network.evaluate(network.initial_params, own)["accuracy"])
    total = torch.from_numpy(evaluated(setup, 4)) * 12
    row = setup.executor.measures.row
    estimate = row.estimates(total, 0.0, 1.0)[""]["accuracy"]
    assert estimate.value == pytest.approx(np.mean(accuracies), abs=1e-5)


def test_the_divisor_is_declared_and_not_how_many_were_drawn():
    """Else an average would reveal who is there: one client more would change everybody's part."""
    keys = ("privacy.noise_multiplier=0.0", "run.randomness=seeded")
    setup, drawn = prepare(small(*BY_CLIENTS, *keys)), set()
    world = shared_world(setup, Books(), Books(), SINGLE_PROCESS)
    for round in range(4, 44, 4):
        ids = setup.evaluation.draw(round, world.population, world.streams).clients
        drawn.add(len(ids))
        rows = setup.executor.measures.rows(ids, setup.network.initial_params, round)
        released = evaluated(setup, round) * setup.evaluation.sampler.size
        np.testing.assert_allclose(released, rows.double().sum(0), atol=1e-5)
    assert len(drawn) > 1


def test_cohort_and_noise_of_an_evaluation_are_those_of_no_other_round():
    """Charges compose rounds that are drawn and noised independently of each other."""
    setup = prepare(small(*BY_CLIENTS, "evaluation.size=4", "run.randomness=seeded"))
    world = shared_world(setup, Books(), Books(), SINGLE_PROCESS)

    def made(round):
        algorithm = setup.algorithm_in(round)
        ids = algorithm.draw(round, world.population, world.streams).clients
        return tuple(ids), tuple(world.noise(algorithm, round, 0).normal(3))

    rounds = range(1, 41)
    cohorts, noises = zip(*map(made, rounds), strict=True)
    assert len({*noises}) == len(rounds)
    for other in (-1, 1):
        same = [cohorts[round - 1] == cohorts[round - 1 + other] for round in range(4, 40, 4)]
        assert sum(same) <= 2


def test_one_client_moves_the_sum_by_at_most_one_row():
    keys = (*BY_CLIENTS, "privacy.noise_multiplier=0.0", "cohort.sampler=full", "cohort.size=0")
    setup = prepare(small(*keys, 'evaluation.measures=["accuracy", "loss", "calibration"]'))
    everybody = evaluated(setup, 4) * 12
    measures = setup.executor.measures
    scored = measures.federation
    for client in range(12):
        keep = np.ones(len(scored.examples), dtype=bool)
        keep[scored.offsets[client] : scored.offsets[client + 1]] = False
        counts = np.diff(scored.offsets) * (np.arange(12) != client)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        without = replace(
            scored, examples=scored.examples.take(np.flatnonzero(keep)), offsets=offsets
        )
        fewer = replace(setup, executor=replace(
            setup.executor, measures=replace(measures, federation=without)))  # fmt: skip
        assert np.linalg.norm(evaluated(fewer, 4) * 12 - everybody) <= 1 + 1e-5


def measured_noise(setup, repetitions=300):
    """The deviation of what is released of clients without examples, over the one charged."""
    measures = setup.executor.measures
    nobody = replace(measures.federation, offsets=np.zeros(13, dtype=np.int64))
    empty = replace(setup.executor, measures=replace(measures, federation=nobody))
    setup = replace(setup, executor=empty)
    rows = np.array([evaluated(setup, 4) for _ in range(repetitions)]).ravel()
    z = setup.plan.evaluation.event.release.of.noise_multiplier
    size = setup.evaluation.sampler.size
    return rows * size / z


def test_noise_has_the_charged_scale_and_another_is_seen(monkeypatch):
    setup = prepare(small(*BY_CLIENTS))
    assert stats.kstest(measured_noise(setup), "norm").pvalue > 1e-6
    real = CentralGaussian.release

    def halved(self, total, divisor, keys, state):
        return real(self.at(self.noise_multiplier / 2), total, divisor, keys, state)

    monkeypatch.setattr(CentralGaussian, "release", halved)
    assert stats.kstest(measured_noise(setup), "norm").pvalue < 1e-6


FULL = ("privacy.noise_multiplier=0.0", "cohort.sampler=full", "cohort.size=0")


def largest_change(setup):
    """By how much the sum moves where the client with the most examples is away."""
    ids = np.arange(12)
    params = setup.network.initial_params
    rows = setup.executor.measures.rows(ids, params, 4)
    return float(rows.norm(dim=1).max())


def test_a_client_that_is_counted_by_its_examples_is_seen(monkeypatch):
    setup = prepare(small(*BY_CLIENTS, *FULL))
    assert largest_change(setup) <= 1 + 1e-6
    real = ClientMeasures.rows

    def by_examples(self, ids, params, round):
        sizes = torch.from_numpy(self.federation.sizes(ids))[:, None]
        return real(self, ids, params, round) * sizes

    monkeypatch.setattr(ClientMeasures, "rows", by_examples)
    assert largest_change(setup) > 1.5


def audited(config, releases):
    """The mechanism audit's first scenario, of rounds that evaluate."""
    algorithm, scenarios = scenarios_of(plan_of_mechanism(config).evaluation)
    return examine(algorithm, scenarios[:1], releases, 1e-3, 0.95, seed=1)


def test_the_mechanism_audit_tests_evaluations_and_sees_a_planted_fault(monkeypatch):
    config = small(*BY_CLIENTS, "privacy.noise_multiplier=1.0", "data.clients=40")
    honest = audited(config, 100)
    assert not honest.refuted
    assert honest.event == plan(config).evaluation.event
    assert audit_mechanism(config, 20).evaluation.event == honest.event
    real = CentralGaussian.release

    def halved(self, total, divisor, keys, state):
        return real(self.at(self.noise_multiplier / 2), total, divisor, keys, state)

    monkeypatch.setattr(CentralGaussian, "release", halved)
    assert audited(config, 100).refuted


class Crash(BaseException):
    """The machine is gone: nothing after this point runs."""


@pytest.mark.parametrize("when", ["charged", "released"])
def test_a_crash_in_an_evaluation_costs_it_and_nothing_is_drawn_again(tmp_path, monkeypatch, when):
    real, released = Releases.write, []

    def write(self, charge, vectors, state):
        if charge.round == 4 and when == "charged":
            raise Crash
        real(self, charge, vectors, state)
        if charge.round == 4:
            released.append(vectors[0].clone())
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Releases, "write", write)
        with pytest.raises(Crash):
            trained(tmp_path / "run", *BY_CLIENTS)
    outcome = resume(tmp_path / "run", lambda config: config)
    assert outcome.charges == 8
    assert outcome.evaluations == (2 if when == "released" else 1)
    lines = [json.loads(t) for t in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert ("clients_accuracy" in lines[0]) == (when == "released")
    if when == "released":
        row = prepare(small(*BY_CLIENTS)).executor.measures.row
        sums = released[0].double() * 4
        again = row.estimates(sums, outcome_noise(outcome), 4 / 12)[""]["accuracy"]
        assert lines[0]["clients_accuracy"] == pytest.approx(again.value)


def outcome_noise(outcome):
    return outcome.plan.evaluation.noise_multiplier


def test_a_seeded_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    seeded = (*BY_CLIENTS, "run.randomness=seeded", "run.checkpoint_every=4")
    trained(tmp_path / "whole", *seeded)
    trained(tmp_path / "parts", *seeded, "run.rounds=4")
    resume(tmp_path / "parts", lambda config: config.with_run(rounds=8))
    same_run(tmp_path / "whole", tmp_path / "parts")


CYCLIC = ("cohort.sampler=cyclic", "cohort.separation=3", "cohort.size=0", "data.clients=12")


def test_who_trains_once_in_three_rounds_does_so_among_rounds_that_train():
    setup = prepare(
        small(
            *CYCLIC,
            "evaluation.by=clients",
            "evaluation.every=3",
            "run.rounds=12",
            "run.randomness=seeded",
        )
    )
    population = setup.federation.population()
    trained_in = {client: [] for client in range(12)}
    for round in range(1, 13):
        algorithm = setup.algorithm_in(round)
        drawn = algorithm.draw(round, population, setup.streams)
        assert drawn.round == round
        if algorithm.evaluates:
            assert len(drawn.clients) == 12
            continue
        for client in drawn.clients:
            trained_in[int(client)].append(setup.algorithm.evaluation_rounds.turn(round))
    for turns in trained_in.values():
        assert 1 <= len(turns) <= math.ceil(8 / 3)
        assert (np.diff(turns) == 3).all()


@every_case(
    ("keys", "reason"),
    [
        (("evaluation.every=3",), "a multiple of evaluation.every"),
        (("evaluation.every=1",), "set evaluation.every to 2 or more"),
        (("evaluation.size=6", "cohort.sampler=full", "cohort.size=0"), "all clients evaluate"),
        (("evaluation.size=60",), "data.clients is 12"),
        (('evaluation.measures=["auc"]',), "needs one of two classes"),
        (('evaluation.measures=["accurate"]',), "accuracy"),
        (("evaluation.group=sex",), "evaluation.group is 'sex'"),
        (("audit.canaries=20", "data.clients=24"), "only inserted into training rounds"),
        (("stop.patience=2", "stop.by=auc"), "expected one of accuracy"),
        (
            (
                *("data.setting=cross_silo", "privacy.mechanism=none", "cohort.sampler=full"),
                *("client.privacy.mechanism=dp_sgd", "client.privacy.noise_multiplier=3.0"),
                *("client.privacy.sampling_rate=1.0", "data.clients=3", "cohort.size=0"),
            ),
            "single examples",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_what_has_no_proof_or_no_sense_is_refused(keys, reason):
    keys = [key for key in (*SMALL, *BY_CLIENTS, *keys) if not key.startswith("privacy.noise")]
    if "privacy.mechanism=none" in keys:
        keys = [key for key in keys if key != "privacy.clip=0.4"]
    with pytest.raises(Refused, match=reason):
        prepare(load(None, keys))


def test_a_test_set_of_clients_that_train_stops_nothing_uncharged():
    keys = ("stop.patience=1", "data.holdout=examples")
    with pytest.raises(Refused, match="these clients without a charge"):
        plan(small(*keys))
    plan(small(*keys, *BY_CLIENTS))


@pytest.mark.slow
def test_groups_are_measured_apart(tmp_path):
    keys = ("evaluation.group=label", "privacy.noise_multiplier=0.01")
    outcome = trained(tmp_path / "run", *BY_CLIENTS, *keys, "evaluation.size=12")
    assert {"accuracy", "accuracy[0]", "accuracy[1]", "accuracy[2]"} == {*outcome.charged_measures}


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_one_more_evaluation_is_charged_to_the_run(tmp_path):
    path = tmp_path / "run"
    before = trained(path, *BUDGET_RUN)
    result = run("evaluate", path, "--federated", "--epsilon", 0.5, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert 0.5 * 0.999 < answer["alone"] <= 0.5
    assert answer["round"] == 8
    assert answer["epsilon"] > before.guarantee.epsilon
    ledger = Ledger.load(path / "ledger.jsonl")
    assert guarantee(ledger.spending, 1e-3).epsilon == answer["epsilon"]
    assert not audit(path).problems
    after = resume(path, lambda config: config.with_run(rounds=10))
    assert after.updates == 9  # rounds 1 to 7, 9 and 10
    assert not audit(path).problems
    assert answer["on_trained"]


def test_a_crash_in_it_is_spent_and_the_run_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "run"
    trained(path)
    with monkeypatch.context() as patch:
        patch.setattr(Releases, "write", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            evaluate_by_clients(path, 0.5, {})
    assert len(Ledger.load(path / "ledger.jsonl").charges) == 8
    assert not audit(path).problems
    assert evaluate_by_clients(path, 0.5, {}).round == 9
    after = resume(path, lambda config: config.with_run(rounds=10))
    assert (after.updates, after.charges, after.evaluations) == (8, 10, 1)
    assert not audit(path).problems


BUDGET_RUN = ("run.randomness=secret",)


@pytest.mark.parametrize(
    ("holdout", "words"), [(0.5, "held-out examples"), (0.0, "on which they also trained")]
)
def test_it_is_said_whether_clients_score_on_what_they_trained_on(tmp_path, holdout, words):
    keys = (*BY_CLIENTS, f"evaluation.holdout={holdout}")
    flags = [word for key in (*SMALL, *keys) for word in ("--set", key)]
    shown = run("train", *flags, "--out", tmp_path / "run")
    assert words in " ".join(shown.output.split())
    assert evaluate_by_clients(tmp_path / "run", 0.5, {}).on_trained == (holdout == 0)


def test_it_raises_the_budget_and_says_so(tmp_path):
    path = tmp_path / "run"
    keys = [key for key in SMALL if not key.startswith("privacy.noise")]
    flags = [word for key in (*keys, *BUDGET) for word in ("--set", key)]
    assert run("train", *flags, "--out", path).exit_code == 0
    answer = json.loads(run("evaluate", path, "--federated", "--epsilon", 1, "--json").stdout)
    (change,) = Ledger.load(path / "ledger.jsonl").budgets
    assert change.before == 8.0
    assert change.epsilon == pytest.approx(answer["epsilon"])
    assert not audit(path).problems


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--federated",), "epsilon is None, but this run is private; pass"),
        (("--epsilon", 1), "add --federated"),
        (("--federated", "--epsilon", 1, "--data", "x.csv"), "of other clients, but only one"),
        (("--federated", "--epsilon", -1), "epsilon"),
        (("--federated", "--epsilon", 1, "--set", "run.rounds=3"), "leave the keys of [run] out"),
        (("--federated", "--epsilon", 1, "--set", "evaluation.measures=[]"), "measures"),
        (("--federated", "--epsilon", 1, "--set", "evaluation.nothing=1"), "nothing"),
    ],
    ids=["no-epsilon", "alone", "data", "negative", "section", "measures", "key"],
)
def test_wrong_questions_are_refused_and_charge_nothing(tmp_path_factory, arguments, reason):
    path = tmp_path_factory.mktemp("asked") / "run"
    trained(path)
    before = (path / "ledger.jsonl").read_bytes()
    result = run("evaluate", path, *arguments)
    assert result.exit_code == 2, result.output
    assert reason in result.output
    assert "Traceback" not in result.output
    assert (path / "ledger.jsonl").read_bytes() == before


def population(folder, name, first):
    """A table of forty people from number `first` on."""
    lines = ["who,a,b,y"]
    lines += [f"p{first + n // 3},{n % 7},{n % 5},{int(n % 7 > 3)}" for n in range(120)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder / f"{name}.csv"


def test_further_clients_have_a_ledger_of_their_own(tmp_path):
    keys = (
        *("data.source=table", f"data.path={population(tmp_path, 'first', 0)}", "data.client=who"),
        *("data.clients=40", "data.label=y", "data.classes=2", "data.features={a=[0,6],b=[0,4]}"),
        *("data.population=first", "data.holdout=none", "cohort.size=20", "run.rounds=4"),
        *("privacy.delta=1e-3", "privacy.noise_multiplier=1.0"),
    )
    flags = [word for key in keys for word in ("--set", key)]
    assert run("train", *flags, "--out", tmp_path / "run").exit_code == 0
    before = (tmp_path / "run/ledger.jsonl").read_bytes()
    others = ("--data", population(tmp_path, "second", 900), "--set", "data.population=second")
    asked = ("evaluate", tmp_path / "run", "--federated", "--epsilon", 1, *others)
    result = run(*asked, "--out", tmp_path / "further", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["round"], answer["on_trained"]) == (1, False)
    assert answer["epsilon"] == answer["alone"] <= 1
    assert (tmp_path / "run/ledger.jsonl").read_bytes() == before
    ledger = Ledger.load(tmp_path / "further/ledger.jsonl")
    assert ledger.terms["population"]["name"] == "second"
    assert [each["run"] for each in ledger.terms["disjoint"]] == [str(tmp_path / "run")]
    assert not audit(tmp_path / "further").problems
    trained_model, scored = (
        model(tmp_path / name)["model/1.weight"] for name in ("run", "further")
    )
    assert torch.equal(trained_model, scored)
    same = run(*asked[:-2], "--out", tmp_path / "same")
    assert same.exit_code == 2
    assert "privacy.disjoint" in same.output
    assert run(*asked).exit_code == 2  # nowhere to write it
    assert not (tmp_path / "same").exists()


def test_an_evaluation_of_a_counted_run_is_refused(tmp_path):
    trained(tmp_path / "first")
    trained(tmp_path / "second", f'privacy.prior=["{tmp_path / "first"}"]')
    result = run("evaluate", tmp_path / "first", "--federated", "--epsilon", 1)
    assert result.exit_code == 2
    assert "counted" in result.output


def test_rows_of_measures_have_a_clip_of_their_own():
    adaptive = ("privacy.clip=7.0", "privacy.adaptive_clip=true")
    evaluating = as_evaluation(small(*BY_CLIENTS, *adaptive), 3)
    assert (evaluating.mechanism.clip, evaluating.mechanism.adaptive) == (1.0, False)


@pytest.mark.slow
def test_without_anything_public_clients_alone_tell(tmp_path):
    path = tmp_path / "run"
    outcome = trained(path, *BY_CLIENTS, "data.holdout=none")
    assert outcome.test_examples == 0
    assert outcome.measures == {"accuracy": outcome.charged_measures["accuracy"].value}
    lines = [json.loads(t) for t in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [4, 8]
    assert lines[1]["accuracy"] == lines[1]["clients_accuracy"] == outcome.measures["accuracy"]
    assert run("report", path).exit_code == 0
    assert "--federated" in run("evaluate", path).output
    assert resume(path, lambda config: config.with_run(rounds=12)).evaluations == 3
    with pytest.raises(Refused, match="no metric is measured"):
        plan(small("data.holdout=none", "stop.patience=2"))


def test_without_anything_public_a_run_may_be_evaluated_when_it_has_ended(tmp_path):
    path = tmp_path / "run"
    outcome = trained(path, "data.holdout=none")
    assert (outcome.measures, outcome.updates) == ({}, 7)
    result = run("evaluate", path, "--federated", "--epsilon", 1, "--json")
    assert 0 <= json.loads(result.stdout)["measures"]["accuracy"]["value"] <= 1
    assert run("report", path).exit_code == 0
    assert not audit(path).problems


def test_it_stops_where_clients_measure_nothing_better(tmp_path):
    keys = ("evaluation.every=2", "run.rounds=40", "stop.patience=2", "client.lr=0.0")
    outcome = trained(tmp_path / "run", *BY_CLIENTS, *keys)
    assert outcome.stopped_early
    assert outcome.charges < 40
    again = resume(tmp_path / "run", lambda config: config)
    assert again.charges == outcome.charges
