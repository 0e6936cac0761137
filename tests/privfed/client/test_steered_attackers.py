"""Attackers in runs who train in their own way, put their examples together, or stop."""

import json
from dataclasses import replace
from functools import partial

import helpers
import numpy as np
import pytest
import torch
from helpers import Rounds, Seen, population
from lanes import every_case
from small import model, same_run, small, trained

from accounting.ledger import Ledger
from attacks.poisoning.backdoor import Backdoor
from attacks.poisoning.constrain_and_scale import ConstrainAndScale
from attacks.poisoning.distributed_backdoor import DistributedBackdoor
from attacks.poisoning.neurotoxin import Neurotoxin
from attacks.poisoning.pgd_replacement import PgdReplacement
from attacks.poisoning.tail import Tail
from attacks.types import Attack, Knowledge
from privfed.client.byzantine import targeted
from privfed.client.objectives.fedprox import FedProx
from privfed.core.errors import Refused
from privfed.plan.plan import plan
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.round.round import run_round
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.sampling.samplers import Full

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)
OPEN = ("privacy.mechanism=none", "run.randomness=seeded")
STEERED = [
    ConstrainAndScale(size=1, alpha=0.3),
    PgdReplacement(size=1, epsilon=0.1),
    Neurotoxin(size=1, top=0.5),
]


attackers = partial(helpers.attackers, fraction=0.5)


def rows_by_round(folder, attack, rounds=2, *, way="stacked", **changes):
    """Each round's raw rows `[8, d]`, who is hostile `[8]`, and the models `[d]` before them."""
    world = Rounds(folder, SIZES, mechanism=NoPrivacy(), sampler=Full().of(8), chunk=2, **changes)
    byzantine = attackers(attack)
    local = replace(world.local, way=way)
    executor = replace(
        world.world.executor,
        trainer=local,
        attackers=byzantine,
        poisoned=byzantine.poisoned(local.federation),
    )
    world.world = replace(world.world, attackers=byzantine, executor=executor, watch=Seen())
    rows, params = [], []
    for number in range(1, rounds + 1):
        params.append(world.state.params)
        world.state = run_round(number, world.algorithm, world.state, world.world)
        rows.append(torch.stack([world.world.watch.by_client[client] for client in range(8)]))
    return rows, torch.from_numpy(byzantine.byzantine(1)), params


@every_case("attack", STEERED, ids=lambda attack: type(attack).__name__)
@every_case("objective", [None, FedProx(mu=0.5)], ids=["sgd", "fedprox"])
def test_steered_attackers_train_alike_in_both_ways(attack, objective, tmp_path):
    changes = {"objective": objective} if objective else {}
    stacked, byzantine, _ = rows_by_round(tmp_path / "a", attack, **changes)
    looped, _, _ = rows_by_round(tmp_path / "b", attack, way="loop", **changes)
    plain, _, _ = rows_by_round(tmp_path / "c", Backdoor(size=1), **changes)
    for left, right in zip(stacked, looped, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)
    first = 1 if isinstance(attack, Neurotoxin) else 0  # which has seen nothing move before
    assert torch.equal(stacked[0][~byzantine], plain[0][~byzantine]), (
        "honest clients are not steered"
    )
    changed = (stacked[first] - plain[first])[byzantine].norm(dim=1)
    assert bool((changed > 1e-3).all())


def test_rows_of_pgd_lie_in_the_ball_and_are_then_boosted(tmp_path):
    loose, byzantine, _ = rows_by_round(tmp_path / "a", Backdoor(size=1))
    longest = loose[0][byzantine].norm(dim=1)
    tight, _, _ = rows_by_round(tmp_path / "b", PgdReplacement(size=1, epsilon=0.1))
    assert bool((longest > 0.11).all()), "or else nothing is projected"
    assert bool((tight[0][byzantine].norm(dim=1) <= 0.1 * (1 + 1e-5)).all())
    boosted, _, _ = rows_by_round(tmp_path / "c", PgdReplacement(size=1, epsilon=0.1, boost=3.0))
    torch.testing.assert_close(boosted[0][byzantine], 3.0 * tight[0][byzantine])


def test_constrained_rows_are_shorter(tmp_path):
    plain, byzantine, _ = rows_by_round(tmp_path / "a", Backdoor(size=1))
    tied, _, _ = rows_by_round(tmp_path / "b", ConstrainAndScale(size=1, alpha=0.3))
    lengths = [rows[0][byzantine].norm(dim=1) for rows in (plain, tied)]
    assert bool((lengths[1] < lengths[0]).all())


def test_neurotoxin_moves_nothing_of_what_the_last_round_moved_most(tmp_path):
    rows, byzantine, params = rows_by_round(tmp_path, Neurotoxin(size=1, top=0.5), rounds=4)
    assert bool((rows[0][byzantine] != 0).any(0).all()), "round 1 is free"
    for number in (1, 2, 3):
        moved = (params[number] - params[number - 1]).abs()
        top = moved.topk(len(moved) // 2).indices
        rest = np.setdiff1d(np.arange(len(moved)), top.numpy())
        assert bool((rows[number][byzantine][:, top] == 0).all())
        assert bool((rows[number][byzantine][:, rest] != 0).any(0).all())
        assert bool((rows[number][~byzantine][:, top] != 0).any(0).all())


def test_attackers_in_silos_with_privacy_are_steered_too(tmp_path):
    silos = ("data.setting=cross_silo", "client.privacy.mechanism=dp_sgd", "run.rounds=1")
    models = []
    for epsilon in (1e-6, 1e6):
        path = tmp_path / str(epsilon)
        keys = ("attack.name=pgd_replacement", f"attack.epsilon={epsilon}", "attack.fraction=0.25")
        trained(path, *OPEN, *silos, *keys, "cohort.sampler=full", "cohort.size=0")
        models.append(model(path))
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize("keys", [(), ("attack.selection=round",)], ids=["once", "round"])
def test_a_resumed_run_remembers_what_moved(keys, tmp_path):
    keys = (*keys, *OPEN, "attack.name=neurotoxin", "attack.top=0.5", "attack.fraction=0.3")
    trained(tmp_path / "unbroken", *keys)
    trained(tmp_path / "parts", *keys, "run.rounds=4")
    resume(tmp_path / "parts", lambda stored: stored.with_run(rounds=7))
    before, after = model(tmp_path / "unbroken"), model(tmp_path / "parts")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "attack/free" in before
    trained(tmp_path / "again", *keys)
    same_run(tmp_path / "unbroken", tmp_path / "again")


def test_attackers_begin_and_stop():
    byzantine = attackers(Backdoor(), period=(3, 5))
    active = [bool(byzantine.byzantine(number).any()) for number in range(1, 8)]
    assert active == [False, False, True, True, True, False, False]
    assert byzantine.chosen(1).sum() == 4
    assert np.array_equal(byzantine.byzantine(4), byzantine.chosen(1))


def test_a_run_whose_attackers_stop_is_honest_until_they_begin_and_after(tmp_path):
    keys = (*OPEN, "run.rounds=4", "run.simulation_metrics=true")
    keys += ("run.checkpoint_every=1", "run.evaluate_every=1")
    attack = ("attack.name=sign_flip", "attack.fraction=0.25", "attack.strength=5.0")

    def counts(name, *more):
        trained(tmp_path / name, *keys, *attack, *more)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["simulation_only"].get("byzantine", 0) for line in lines]

    always, some = counts("a"), counts("b", "attack.first_round=2", "attack.last_round=3")
    assert some == [0, *always[1:3], 0]
    trained(tmp_path / "c", *keys)
    assert counts("d", "attack.first_round=9") == [0, 0, 0, 0]
    honest, never = model(tmp_path / "c"), model(tmp_path / "d")
    assert all(torch.equal(honest[name], never[name]) for name in honest)
    terms = Ledger.load(tmp_path / "b/ledger.jsonl").terms["attack"]
    assert (terms["first_round"], terms["last_round"]) == (2, 3)


@pytest.mark.parametrize(
    "keys, why",
    [
        (
            ("attack.name=backdoor", "attack.first_round=4", "attack.last_round=3"),
            "attack.last_round is 3, but attack.first_round is 4",
        ),
        (("attack.last_round=3", "attack.fraction=0.0"), "but there is no attack"),
    ],
)
def test_rounds_of_an_attack_that_cannot_be_are_refused(keys, why):
    with pytest.raises(Refused, match=why):
        plan(small("attack.fraction=0.25", *keys))


def test_each_attacker_has_a_place_of_its_own():
    class Placed(Attack):
        poisons = True

        def poison(self, x, y, briefing, rng):
            return x, torch.full_like(y, briefing.place)

    federation = population(SIZES)
    byzantine = attackers(Placed())
    who = np.flatnonzero(byzantine.chosen(0))
    poisoned = byzantine.poisoned(federation).examples.y
    dealt = [poisoned[federation.offsets[client]].item() for client in who]
    assert dealt == [0, 1, 2, 3]


def test_parts_of_a_trigger_are_dealt_over_attackers():
    federation = population(SIZES)
    byzantine = attackers(DistributedBackdoor(size=2, parts=4, share=1.0, value=50.0))
    stamped = byzantine.poisoned(federation).examples.x == 50.0
    for place, client in enumerate(np.flatnonzero(byzantine.chosen(0))):
        rows = stamped[federation.offsets[client] : federation.offsets[client + 1]]
        assert bool((rows == (torch.arange(5) == 1 + place)).all())


class Pooling(Attack):
    """Labels all examples by how many the attackers hold together."""

    knows = frozenset({Knowledge.OWN_DATA, Knowledge.ATTACKERS_DATA})
    poisons = True

    def study(self, x, y, classes):
        return {"x": x, "y": y}

    def targeted(self, x, y, learned):
        return x[:1], torch.full_like(y[:1], len(learned["x"]) % 3)


def test_attackers_pool_their_examples_and_nobody_elses():
    federation = population(SIZES)
    byzantine = attackers(Pooling())
    pooling = byzantine.instructed(federation)
    owners = torch.from_numpy(np.repeat(byzantine.chosen(0), SIZES))
    assert torch.equal(pooling.learned["x"], federation.examples.x[owners])
    assert torch.equal(pooling.learned["y"], federation.examples.y[owners])
    assert targeted(pooling, federation.test).y.tolist() == [int(owners.sum()) % 3]
    alone = attackers(Backdoor()).instructed(federation)
    assert not alone.learned, "who does not declare it is not shown others' examples"


@every_case("name", ["tail", "semantic", "clean_label"])
def test_attackers_who_pool_their_examples_are_the_same_in_every_round(name):
    keys = (f"attack.name={name}", "attack.fraction=0.25")
    with pytest.raises(Refused, match=r"pools the .* use attack\.selection = \"once\""):
        plan(small(*keys, "attack.selection=round"))
    assert plan(small(*keys)).config.attackers.selection == "once"


def test_attackers_without_an_edge_case_are_refused():
    with pytest.raises(
        Refused, match=r"the attackers have none of the examples .* raise attack\.fraction"
    ):
        prepare(small("attack.name=tail", "attack.fraction=0.1", "attack.tail=0.01"))
    with pytest.raises(Refused, match=r"attack\.column is 400"):
        prepare(small("attack.name=semantic", "attack.fraction=0.25", "attack.column=400"))
    with pytest.raises(Refused, match=r"attack.target is 7, but classes are"):
        attackers(Tail(source=7)).instructed(population(SIZES))
    with pytest.raises(Refused, match="the attackers have none of the examples"):
        attackers(Tail(), fraction=0.0).instructed(population(SIZES))
