"""Tests of runs one round at a time: the same bytes as `train`, early ends, and private values."""

import numpy as np
import pytest
import torch

import privfed
from privfed.core.errors import Refused

KEYS = {
    "data": {"clients": 60},
    "cohort": {"size": 20},
    "privacy": {"clip": 0.5},
    "run": {"randomness": "seeded", "seed": 3, "evaluate_every": 2},
    "epsilon": 4,
    "rounds": 4,
}


def _bytes(run, name):
    return (run.path / name).read_bytes()


def test_rounds_of_a_loop_are_those_of_train_byte_for_byte(tmp_path):
    trained = privfed.train(out=tmp_path / "trained", **KEYS)
    with privfed.start(out=tmp_path / "started", **KEYS) as run:
        assert run.ledger == []  # nothing is charged before the first round
        rounds = [round.number for round in run]
    assert rounds == [1, 2, 3, 4]
    for name in ("ledger.jsonl", "metrics.jsonl", "config.toml"):
        assert _bytes(run, name) == _bytes(trained, name)
    for one, other in zip(run.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert {**run.summary, "run": ""} == {**trained.summary, "run": ""}


def test_a_round_shows_public_values_and_charges_come_first(tmp_path):
    with privfed.start(out=tmp_path / "run", **KEYS) as run:
        for round in run:
            assert len(run.ledger) == round.number
            assert round.epsilon == round.metrics["nominal_epsilon"] <= run.guarantee.epsilon
            assert "epsilon" not in round.metrics  # a seeded run is a simulation
            assert repr(round).endswith(" (nominal)>")
            assert 0 <= round.metrics["accuracy"] <= 1
            assert round.evaluated == (round.number % 2 == 0)
            assert round.aborted == ""
            for name in ("cohort", "updates", "simulation"):
                with pytest.raises(Refused, match=rf"round\.{name} is private.*simulation=True"):
                    getattr(round, name)
    assert run.summary["rounds"] == 4


def test_a_break_ends_the_run_with_what_its_rounds_spent(tmp_path):
    complete = privfed.train(out=tmp_path / "complete", **KEYS)
    with privfed.start(out=tmp_path / "run", **KEYS) as run:
        for round in run:
            if round.number == 2:
                break
    assert len(run.ledger) == 2
    assert run.summary["rounds"] == 2
    assert run.summary["epsilon"] == round.epsilon < complete.summary["epsilon"]
    assert run.summary["planned"]["epsilon"] == complete.summary["epsilon"]
    assert run.guarantee.epsilon == complete.guarantee.epsilon  # the odometer has no proof
    assert "all planned rounds are counted" in run.guarantee.sentence
    assert "all planned rounds" not in complete.guarantee.sentence
    with run.start() as further:
        assert [round.number for round in further] == [3, 4]
    for one, other in zip(further.model.parameters(), complete.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_exception_leaves_the_run_to_be_resumed(tmp_path):
    class Mine(Exception):
        pass

    def interrupted(run):
        with run:
            for round in run:
                if round.number == 3:
                    raise Mine

    run = privfed.start(out=tmp_path / "run", **KEYS)
    with pytest.raises(Mine):
        interrupted(run)
    assert len(run.ledger) == 3
    with pytest.raises(Refused, match="has not ended"):
        _ = run.summary
    complete = privfed.train(out=tmp_path / "complete", **KEYS)
    resumed = privfed.load(run.path).resume()
    assert _bytes(resumed, "ledger.jsonl") == _bytes(complete, "ledger.jsonl")


def test_the_model_of_a_run_in_progress_is_that_of_its_last_round(tmp_path):
    with privfed.start(out=tmp_path / "run", **KEYS) as run:
        models = [run.model for _ in run]
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert not torch.equal(weights[0], weights[1])
    final = torch.cat([p.flatten() for p in run.model.parameters()])
    assert torch.equal(weights[-1], final)


def test_all_results_in_a_loop_are_those_of_its_last_round(tmp_path):
    rng = np.random.default_rng(0)
    held = {n: (rng.uniform(size=(5, 3)), rng.integers(2, size=5)) for n in range(60)}
    declared = {"shape": [3], "bounds": (0, 1), "classes": 3, "clients": 60}
    public = (rng.uniform(size=(8, 3)), rng.integers(2, size=8))
    people = privfed.Arrays(held, test=public, **declared)
    keys = {**KEYS, "rounds": 5, "data": {}, "run": {**KEYS["run"], "checkpoint_every": 9}}
    results = [
        lambda run: dict(run.evaluate()),
        lambda run: run.predict(held[0][0]).to_pydict(),
        lambda run: run.report().read_text("utf-8"),
    ]
    with privfed.start(people, out=tmp_path / "run", **keys) as run:
        for round, result in zip(run, results, strict=False):
            first = result(run)
            assert run.model is not None  # saves the round
            assert first == result(run), round.number
            assert run.evaluate().round == round.number


def test_an_entered_run_is_not_entered_or_resumed_again(tmp_path):
    with privfed.start(out=tmp_path / "run", **{**KEYS, "rounds": 2}) as run:
        for round in run:
            for ask in (
                run.resume,
                run.start,
                run.evaluate_by_clients,
                lambda: run.export("m.pt2"),
            ):
                with pytest.raises(Refused, match="this run is in progress; leave its `with`"):
                    ask()
            if round.number == 1:
                break
    for ended in (run, run.resume()):
        with pytest.raises(Refused, match=r"not started, or it was entered before; use `with run"):
            ended.__enter__()


@pytest.mark.parametrize("name", ["on_round", "on_evaluation", "on_end"])
def test_a_callback_that_is_no_function_is_refused_before_a_charge(name, tmp_path):
    with pytest.raises(Refused, match=f"{name} is 3; expected a function"):
        privfed.train(out=tmp_path / "run", **{name: 3}, **KEYS)
    assert not (tmp_path / "run").exists()


def test_callbacks_of_resume_see_each_round(tmp_path):
    with privfed.start(out=tmp_path / "run", **KEYS) as run:
        next(iter(run))
    seen, evaluated = [], []
    ended = []
    calls = {"on_round": seen.append, "on_evaluation": evaluated.append, "on_end": ended.append}
    privfed.resume(run.path, **calls)
    assert [each.number for each in seen] == [2, 3, 4]
    assert [each.number for each in evaluated] == [2, 4]
    run.resume(rounds=5, epsilon=9, **calls)
    assert seen[-1].number == 5
    assert [each.path for each in ended] == [run.path, run.path]


def test_an_empty_cohort_has_updates_of_the_model_s_length(tmp_path):
    keys = {"data": {"clients": 60}, "cohort": {"size": 1}, "run": {"randomness": "seeded"}}
    privacy = {"privacy": {"noise_multiplier": 1.0, "clip": 0.5}, "rounds": 8}
    with privfed.start(out=tmp_path / "run", simulation=True, **keys, **privacy) as run:
        shapes = [tuple(round.updates.shape) for round in run]
    assert {count for count, _ in shapes} >= {0, 1}
    assert len({width for _, width in shapes}) == 1


def test_a_simulation_shows_raw_updates_and_says_that_it_is_one(tmp_path):
    with privfed.start(out=tmp_path / "run", simulation=True, **KEYS) as run:
        rounds = list(run)
    for round in rounds:
        assert len(round.cohort) == len(round.updates) > 0
        assert len(np.unique(round.cohort)) == len(round.cohort)
        assert round.updates.isfinite().all()
    assert any((round.updates.norm(dim=1) > 0.5).any() for round in rounds)  # not clipped
    assert rounds[1].simulation["cohort"] == len(rounds[1].cohort)
    assert run.summary["simulation"]
    for reason in ("follow from the seed 3", "measures that epsilon does not cover were written"):
        assert reason in run.guarantee.note
    assert "(nominal)" in run.guarantee.rows["ε"]


def test_a_round_of_a_run_without_a_guarantee_states_no_finite_epsilon(tmp_path):
    attack = {"name": "alie", "fraction": 0.2}
    with privfed.start(out=tmp_path / "run", attack=attack, **KEYS) as run:
        rounds = list(run)
    assert run.guarantee.epsilon == float("inf")
    for round in rounds:
        assert round.epsilon == float("inf")
        assert "ε inf" in repr(round)
        assert "epsilon" not in round.metrics
        assert round.metrics["nominal_epsilon"] < 5


def test_a_run_outside_of_its_context_is_refused(tmp_path):
    started = privfed.start(out=tmp_path / "run", **KEYS)
    with pytest.raises(Refused, match=r"not open; iterate within: with privfed\.start"):
        next(iter(started))
    assert not (tmp_path / "run").exists()
    run = privfed.load(privfed.train(out=tmp_path / "run", **KEYS))
    with pytest.raises(Refused, match=r"not started, or it .* use `with run\.start\(\)"):
        run.__enter__()


def test_callbacks_of_train_see_each_round(tmp_path):
    seen, scored = [], []
    run = privfed.train(
        out=tmp_path / "run",
        on_round=lambda each: seen.append((each.number, each.epsilon)),
        on_evaluation=lambda each: scored.append(each.metrics["accuracy"]),
        on_end=lambda run: scored.append(run.summary["accuracy"]),
        **KEYS,
    )
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert seen[-1][1] == run.summary["epsilon"]
    assert "epsilon" not in run.metrics[-1]  # a seeded run is a simulation
    assert run.metrics[-1]["nominal_epsilon"] == run.summary["epsilon"]
    assert "(nominal), 4 rounds" in repr(run)
    assert scored == [*(row["accuracy"] for row in run.metrics), run.summary["accuracy"]]


def test_clients_evaluate_a_run_without_privacy_without_a_budget(tmp_path):
    keys = {key: value for key, value in KEYS.items() if key not in ("epsilon", "privacy")}
    run = privfed.train(out=tmp_path / "run", privacy={"mechanism": "none"}, **keys)
    with pytest.raises(Refused, match=r"epsilon is 1, but this run is not private; leave out"):
        run.evaluate_by_clients(1)
    answer = run.evaluate_by_clients()
    assert answer.alone == answer.epsilon == np.inf
    assert answer.measures["accuracy"]["value"] > 0.5
    assert "no privacy mechanism" in str(answer)


def test_a_run_no_better_than_the_baseline_says_so(tmp_path):
    slow = {"client": {"lr": 1e-30}, "server": {"lr": 1e-30}}  # steps below float32's least
    keys = {**KEYS, "epsilon": None, "privacy": {"mechanism": "none"}, "rounds": 2, **slow}
    with pytest.warns(UserWarning, match="no better than the baseline") as warned:
        run = privfed.train(out=tmp_path / "run", **keys)
    assert warned[0].filename == __file__
    assert run.summary["accuracy"] <= run.summary["constant"]["accuracy"]
    assert "change client.lr or server.lr" in run.summary["not_learned"]
    assert repr(run).endswith("no better than the baseline>")
    assert "no better than the baseline" in run.report().read_text(encoding="utf-8")
    with pytest.warns(UserWarning, match="no better") as warned:  # noqa: SIM117
        with privfed.start(out=tmp_path / "started", **keys) as run:
            list(run)
    assert warned[0].filename == __file__


def test_a_run_that_learned_has_no_warning(tmp_path):
    run = privfed.train(out=tmp_path / "run", **KEYS)
    assert run.summary["accuracy"] > run.summary["constant"]["accuracy"]
    assert run.summary["not_learned"] is None
    assert "baseline" not in repr(run)
