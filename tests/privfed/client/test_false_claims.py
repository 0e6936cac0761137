"""Attackers who lie in every number that they send: exchanges, parts of a row, weights, counts."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import D, Rounds, attackers, set_fields
from lanes import every_case
from small import model, same_run, small, trained

from accounting.ledger import Ledger
from attacks.types import Knowledge, UpdateAttack
from attacks.updates.simple import FreeRider, Scaling, SignFlip
from privfed.client.byzantine import FalseClaims
from privfed.client.exchange import Exchange
from privfed.client.objective import Sgd
from privfed.client.objectives.adaalter import AdaAlter
from privfed.client.objectives.afl import Afl
from privfed.client.objectives.fedcurv import FedCurv
from privfed.client.objectives.feddane import FedDane
from privfed.client.objectives.feddyn import FedDyn
from privfed.client.objectives.fedfor import FedFor
from privfed.client.objectives.fedlin import FedLin
from privfed.client.objectives.fednova import FedNova
from privfed.client.objectives.fedprox import AdaptiveFedProx, FedProx
from privfed.client.objectives.mime import Mime, MimeLite
from privfed.client.objectives.qfedavg import QFedAvg
from privfed.client.objectives.scaffold import Scaffold
from privfed.core.errors import Refused
from privfed.core.streams import Keys
from privfed.plan.plan import plan
from privfed.privacy.clipping import clip_rows_and_report, count_turned
from privfed.privacy.mechanism import BoundedRows, BoundedSum
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.run.prepare import prepare
from privfed.run.train import resume, train
from privfed.sampling.samplers import Full
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)
OPEN = ("privacy.mechanism=none",)
EXTRA = {
    "scaffold": (Scaffold(), "control"),
    "mimelite": (MimeLite(), "gradient"),
    "adaalter": (AdaAlter(), "squares"),
    "qfedavg": (QFedAvg(loss_cap=2.0), "divisor"),
    "afl": (Afl(groups=3, loss_cap=100.0), "losses"),
    "fednova": (FedNova(), "steps"),
    "fedcurv": (FedCurv(), "fisher"),
    "fedprox_adaptive": (AdaptiveFedProx(), "loss"),
}
"""Objectives whose rows have more than an update, and one part of it."""
FIRST = {"feddane": FedDane(), "mime": Mime(), "fedlin": FedLin()}
"""Objectives that ask for gradients first."""
ALONE = {"sgd": Sgd(), "fedprox": FedProx(), "feddyn": FedDyn(), "fedfor": FedFor()}
"""Objectives whose clients send an update, and nothing more."""
PROVEN = {
    "scaffold": Scaffold(),
    "mimelite": MimeLite(),
    "feddane": FedDane(),
    "mime": Mime(),
    "feddyn": FedDyn(),
    "qfedavg": QFedAvg(),
    "afl": Afl(groups=3),
}


def world(folder, attack, false_claims=None, *, unbounded=False, **changes):
    """Rounds of eight clients who all take part, two of them hostile; `attack` None: nobody."""
    changes = {"mechanism": NoPrivacy(), "sampler": Full().of(8)} | changes
    rounds = Rounds(folder, SIZES, **changes)
    if attack is None:
        return rounds
    return rounds.attacked_by(
        attackers(attack, unbounded=unbounded, false_claims=false_claims or FalseClaims())
    )


def released(folder, attack, false_claims=None, **changes):
    """What round 1 released, by exchange."""
    rounds = world(folder, attack, false_claims, **changes)
    rounds.run(1)
    return rounds.store.releases[1]


UPDATES = FalseClaims(everything=False)


@every_case("name", EXTRA)
def test_attackers_replace_every_part_of_a_row(name, tmp_path):
    objective, part = EXTRA[name]
    layout, push = objective.layout(D), Scaling(strength=50.0)
    keys = {"objective": objective}
    (honest,) = released(tmp_path / "a", None, **keys)
    (alone,) = released(tmp_path / "b", push, UPDATES, **keys)
    (whole,) = released(tmp_path / "c", push, **keys)
    assert torch.equal(layout.view(alone, part), layout.view(honest, part))
    assert torch.equal(layout.view(alone, "delta"), layout.view(whole, "delta"))
    away = (layout.view(whole, part) - layout.view(honest, part)).norm()
    assert away > 5 * layout.view(honest, part).norm()


@every_case("name", FIRST)
def test_attackers_replace_gradients_that_are_asked_first(name, tmp_path):
    keys = {"objective": FIRST[name]}
    honest = released(tmp_path / "a", None, **keys)
    alone = released(tmp_path / "b", Scaling(strength=50.0), UPDATES, **keys)
    whole = released(tmp_path / "c", Scaling(strength=50.0), **keys)
    assert torch.equal(alone[0], honest[0])
    assert not torch.equal(alone[1], honest[1])
    assert (whole[0] - honest[0]).norm() > 5 * honest[0].norm()


@every_case("name", ALONE)
def test_where_an_update_is_all_there_is_both_are_the_same(name, tmp_path):
    (whole,) = released(tmp_path / "a", SignFlip(), objective=ALONE[name])
    (alone,) = released(tmp_path / "b", SignFlip(), UPDATES, objective=ALONE[name])
    assert torch.equal(whole, alone)


@every_case("name", PROVEN)
@every_case("unbounded", [False, True])
def test_what_they_send_is_clipped_jointly_in_every_exchange(name, unbounded, tmp_path):
    """Two clients move no sum by more than two clips each, unless nothing bounds them."""
    clip = 0.05
    keys = {
        "objective": PROVEN[name],
        "mechanism": CentralGaussian(clip=clip, noise_multiplier=0.0),
    }
    honest = released(tmp_path / "a", None, **keys)[0]
    lying = released(tmp_path / "b", SignFlip(strength=1e4), unbounded=unbounded, **keys)[0]
    moved = 8 * float((lying - honest).norm())
    assert (moved > 2 * 2 * clip * (1 + 1e-4)) == unbounded
    assert moved > clip


def test_nonsense_that_anybody_can_see_is_cut_off(tmp_path):
    """Negative steps, and a negative part of a client that holds examples."""
    layout = FedNova().layout(D)
    turned, keys = SignFlip(strength=30.0), {"objective": FedNova()}
    (seen,) = released(tmp_path / "a", turned, **keys)
    assert 0 <= float(layout.view(seen, "holds")) <= 1
    assert float(layout.view(seen, "steps")) >= 0
    (hidden,) = released(tmp_path / "b", turned, unbounded=True, **keys)
    assert float(layout.view(hidden, "holds")) < 0, "under a secure sum nobody can"
    rows = torch.tensor([[1.0, 3.0, 1.0], [2.0, 0.0, 0.0], [5.0, -4.0, 7.0]])
    assert FedNova().admitted(rows).tolist() == [[1.0, 3.0, 1.0], [2.0, 0.0, 0.0], [5.0, 0.0, 1.0]]
    assert AdaptiveFedProx().admitted(rows)[:, 1].tolist() == [3.0, 0.0, -4.0]


class Nudge(UpdateAttack):
    """Adds one to each number beyond the update."""

    def corrupt(self, view, state, rng):
        sent = view.byzantine.clone()
        sent[:, D:] += 1
        return sent, state


def test_a_lie_about_a_control_variate_adds_up(tmp_path):
    """The server's sum of control variates keeps the lies of all rounds."""

    def drift(count):
        folder, keys = tmp_path / str(count), {"objective": Scaffold()}
        lying = world(folder / "a", Nudge(), **keys).run(count)
        honest = world(folder / "b", None, **keys).run(count)
        return float((lying.objective["control"] - honest.objective["control"]).norm())

    once = drift(1)
    assert once == pytest.approx(2 / 8 / Scaffold().control_scale * D**0.5, rel=1e-4)
    assert drift(8) == pytest.approx(8 * once, rel=0.1)


seen: list = []


class Spy(UpdateAttack):
    """Remembers its view, and how often it was asked."""

    knows = frozenset({Knowledge.OWN_UPDATES, Knowledge.ALL_HONEST, Knowledge.RULE})

    def corrupt(self, view, state, rng):
        seen.append((view, dict(state), rng.integers(2**62)))
        return -3 * view.byzantine, {"asked": state.get("asked", torch.tensor(0)) + 1}


@every_case("false_claims", [FalseClaims(), FalseClaims(weight=6.0)], ids=["true", "claims"])
@every_case("name", [*EXTRA, *FIRST])
def test_views_are_of_whole_messages_and_foresee_what_is_released(name, false_claims, tmp_path):
    """But for the weights of honest clients, which are alike here."""
    seen.clear()
    objective = FIRST.get(name) or EXTRA[name][0]
    rounds = world(tmp_path, Spy(), false_claims, objective=objective)
    set_fields(rounds.world.executor, by_examples=False)
    rounds.run(1)
    outputs = rounds.store.releases[1]
    assert len(seen) == objective.exchanges == len(outputs)
    for (view, _, _), output in zip(seen, outputs, strict=True):
        assert view.byzantine.shape == (2, objective.layout(D).length)
        assert view.honest.shape == (6, objective.layout(D).length)
        foreseen = view.rule(torch.cat([-3 * view.byzantine, view.honest]))
        torch.testing.assert_close(output, foreseen, atol=1e-6, rtol=1e-4)


def test_updates_alone_are_shown_alone(tmp_path):
    seen.clear()
    rounds = world(tmp_path, Spy(), UPDATES, objective=MimeLite())
    set_fields(rounds.world.executor, by_examples=False)
    rounds.run(1)
    ((view, _, _),) = seen
    assert view.byzantine.shape == (2, D)
    foreseen = view.rule(torch.cat([-3 * view.byzantine, view.honest]))
    torch.testing.assert_close(rounds.store.releases[1][0][:D], foreseen, atol=1e-6, rtol=1e-4)


def test_each_exchange_has_a_memory_and_randomness_of_its_own(tmp_path):
    seen.clear()
    state = world(tmp_path, Spy(), objective=FedDane()).run(3)
    assert {name: int(value) for name, value in state.attack.items()} == {
        "gradient/asked": 3,
        "asked": 3,
    }
    assert [int(before.get("asked", 0)) for _, before, _ in seen] == [0, 0, 1, 1, 2, 2]
    assert all(set(before) <= {"asked"} for _, before, _ in seen)
    assert len({drawn for _, _, drawn in seen}) == 6


def test_a_resumed_run_with_two_exchanges_attacks_identically(tmp_path):
    keys = ("attack.name=mimic", "attack.warmup=2", "attack.fraction=0.3", *OPEN)
    keys += ("client.objective=mime", "run.randomness=seeded")
    whole, parts, again = tmp_path / "whole", tmp_path / "parts", tmp_path / "again"
    trained(whole, *keys)
    trained(parts, *keys, "run.rounds=4")
    resume(parts, lambda stored: stored.with_run(rounds=7))
    before, after = model(whole), model(parts)
    assert {"attack/direction", "attack/gradient/direction"} <= before.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    trained(again, *keys)
    same_run(whole, again)


@every_case("claim", [0.0, 1.0, 10.0, 1e9])
def test_a_claimed_weight_counts_as_claimed(claim, tmp_path):
    """Two of eight hold h of all e examples: their part is w h / (w h + e - h)."""
    sizes, bad = np.array(SIZES), world(tmp_path / "x", SignFlip()).world.attackers.byzantine(1)
    false_claims, push = FalseClaims(weight=claim), FreeRider()
    rounds = world(tmp_path / "a", push, false_claims)
    honest = world(tmp_path / "b", push, FalseClaims(weight=0.0))
    rounds.run(1)
    honest.run(1)
    byzantine = claim * sizes[bad].sum()
    part = 1 - byzantine / (byzantine + sizes[~bad].sum())
    torch.testing.assert_close(
        rounds.store.releases[1][0], part * honest.store.releases[1][0], atol=1e-6, rtol=1e-4
    )


def test_no_more_is_admitted_than_can_be_checked():
    weights, byzantine = torch.tensor([3.0, 9.0, 4.0]), torch.tensor([False, True, True])
    assert FalseClaims(weight=5.0, most=30.0).claimed(weights, byzantine).tolist() == [
        3.0,
        30.0,
        20.0,
    ]
    assert FalseClaims(weight=5.0).claimed(weights, byzantine).tolist() == [3.0, 45.0, 20.0]
    keys = ("attack.fraction=0.25", "attack.weight=100", "aggregation.most_examples=7", *OPEN)

    def most(*more):
        return prepare(small(*keys, *more)).attackers.false_claims.most

    assert most() == 7
    assert most("attack.stage=after_bound") == math.inf
    assert most("secure.protocol=masks") == math.inf, "inside a secure sum nobody sees a weight"


def test_honest_weights_keep_to_the_bound(tmp_path):
    rounds = world(tmp_path, None)
    set_fields(rounds.world.executor, most_examples=5)
    ids = np.arange(8)
    assert rounds.world.executor._weights(ids).tolist() == [min(size, 5) for size in SIZES]


def test_a_weight_inside_a_secure_sum_is_what_fits_its_range(tmp_path):
    """Everybody weighs one, and two claim a billion: the sum holds no more than its range."""
    limits = Limits(8, 0, True, 4.0, 8)
    rounds = world(
        tmp_path,
        FreeRider(),
        FalseClaims(weight=1e9),
        unbounded=True,
        summation=MaskedSums(bits=40).over(limits),
    )
    set_fields(rounds.world.executor, by_examples=False)
    honest = world(tmp_path / "h", FreeRider(), FalseClaims(weight=0.0))
    set_fields(honest.world.executor, by_examples=False)
    rounds.run(1)
    honest.run(1)
    small_part = float(rounds.store.releases[1][0].norm() / honest.store.releases[1][0].norm())
    assert 0 < small_part < 6 / 8, "they outweigh what two honest clients could"
    assert small_part > 1e-6, "and no billion arrived"


def refute_longer(turned, before):
    """Fails where rows are longer than they were, or than their bound."""
    norms = torch.linalg.vector_norm(turned.rows, dim=1, dtype=torch.float64)
    assert torch.equal(norms, torch.linalg.vector_norm(before.rows, dim=1, dtype=torch.float64))
    assert (norms <= turned.bound).all()
    assert turned.bound == before.bound


def test_a_count_that_lies_is_as_long_as_an_honest_one():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 9, generator=generator) * torch.logspace(-3, 3, 200)[:, None]
    told = clip_rows_and_report(rows, 0.7, 0.9)
    who = torch.arange(200) % 3 == 0
    for within in (True, False):
        turned = count_turned(told, who, within)
        refute_longer(turned, told)
        assert torch.equal(turned.rows[~who], told.rows[~who])
        assert torch.equal(turned.rows[:, :-1], told.rows[:, :-1])
        assert bool(((turned.rows[who, -1] > 0) == within).all())
    doubled = told.rows.clone()
    doubled[who, -1] *= 2
    with pytest.raises(AssertionError):
        refute_longer(BoundedRows(doubled, told.bound), told)


def settled(fraction, within, quantile=0.5, start=1.0, rounds=200):
    """The quantile of honest norms, uniform on [0, 2], at which the clip comes to rest."""
    mechanism = CentralGaussian(
        clip=start,
        noise_multiplier=1.0,
        adaptive_clip=True,
        count_noise=10.0,
        clip_quantile=quantile,
    )
    state, rng, clips = mechanism.init(), np.random.default_rng(5), []
    who = torch.arange(200) < int(fraction * 200)
    for _ in range(rounds):
        rows = torch.from_numpy(rng.uniform(0, 2, (200, 1)))
        bounded = count_turned(mechanism.bound(rows, None, None, state), who, within)
        total = BoundedSum(bounded.rows.sum(0), bounded.bound, 200)
        _, state = mechanism.release(total, 200.0, Keys(None), state)
        clips.append(float(state["clip"]))
    return float(np.mean(clips[-60:])) / 2


@every_case("fraction", [0.0, 0.1, 0.2, 0.3])
@every_case("within", [True, False], ids=["within", "beyond"])
def test_how_far_a_fraction_of_liars_moves_the_quantile(fraction, within):
    """It rests where (1 - f) F(C) + f b = q, b what liars tell: F(C) = (q - f b) / (1 - f)."""
    expected = (0.5 - fraction * within) / (1 - fraction)
    assert settled(fraction, within) == pytest.approx(expected, abs=0.04)


def test_a_fraction_as_large_as_the_quantile_moves_it_without_end():
    assert settled(0.35, True, quantile=0.3, rounds=400) < 0.01, "the clip vanishes"
    assert settled(0.35, False, quantile=0.7, rounds=400) > 2, "beyond any norm, and so the noise"
    assert 0 < settled(0.25, True, quantile=0.3, rounds=400) < 0.15, "below it, it comes to rest"


@pytest.mark.parametrize("told, falls", [("within", True), ("beyond", False)])
def test_in_a_run_liars_drive_the_clip(told, falls, tmp_path):
    keys = ("privacy.adaptive_clip=true", "privacy.count_noise=9", "run.randomness=seeded")
    keys += ("cohort.sampler=full", "cohort.size=0", "run.rounds=12", "privacy.clip_rate=1.0")
    trained(tmp_path / "honest", *keys)
    trained(tmp_path / "byzantine", *keys, "attack.fraction=0.5", f"attack.clip_count={told}")
    honest, lying = (
        float(model(tmp_path / name)["mechanism/clip"]) for name in ("honest", "byzantine")
    )
    assert (lying < honest) == falls


@every_case("within", [None, True, False])
def test_one_client_more_moves_a_release_by_the_joint_bound_whoever_lies(within, tmp_path):
    """Liars that read nobody's rows are as many rows more: the sensitivity is that of one row."""
    clip = 0.1
    mechanism = CentralGaussian(
        clip=clip, noise_multiplier=1.0, adaptive_clip=True, count_noise=2.0
    )
    rounds = world(
        tmp_path,
        SignFlip(strength=1e6),
        FalseClaims(within=within),
        objective=Scaffold(),
        mechanism=mechanism,
    )
    params = rounds.state.params
    exchange = Exchange("train", rounds_broadcast(rounds, params), Scaffold().layout(len(params)))
    bad = rounds.world.attackers.byzantine(1)
    drawn = rounds.algorithm.draw(1, rounds.world.population, rounds.world.streams)
    everybody = rounds.summed(exchange, replace(drawn, clients=np.arange(8)))
    for left_out in np.flatnonzero(~bad)[:3]:
        clients = np.array([client for client in range(8) if client != left_out])
        fewer = rounds.summed(exchange, replace(drawn, clients=clients))
        moved = float((everybody.total - fewer.total).norm())
        assert clip < moved <= everybody.bound * (1 + 1e-9)


def rounds_broadcast(rounds, params):
    """What SCAFFOLD broadcasts in round 1."""
    control = rounds.state.objective["control"]
    center = params.new_zeros(2 * len(params))
    return {"params": params, "control": control, "center": center}


def test_a_run_says_what_attackers_claim(tmp_path):
    outcome = train(
        small(*OPEN, "attack.fraction=0.25", "attack.weight=40", "run.rounds=2"), tmp_path
    )
    assert outcome.updates == 2
    terms = Ledger.load(tmp_path / "ledger.jsonl").terms
    assert terms["attack"]["weight"] == 40
    assert terms["attack"]["replaces"] == "messages"
    assert "25% of the clients attack (by false reports)" in terms["note"]
    assert json.loads((tmp_path / "report/attackers.json").read_text())["fraction"] == 0.25


@every_case("name", ["scaffold", "mimelite", "feddane", "mime", "fednova"])
def test_every_attack_runs_on_every_objective(name, tmp_path):
    keys = OPEN if name == "fednova" else ()
    keys += ("data.setting=cross_silo",) if name == "scaffold" else ()
    keys += ("cohort.sampler=full", "cohort.size=0", f"client.objective={name}", "run.rounds=2")
    for attack in ("alie", "min_max", "adaptive", "mimic"):
        keys_of_attack = (f"attack.name={attack}", "attack.fraction=0.25")
        assert trained(tmp_path / attack, *keys, *keys_of_attack).updates == 2


@every_case(
    "keys, said",
    [
        (("attack.weight=3",), "no client reports a weight"),
        (
            ("attack.weight=3", *OPEN, "aggregation.weights=uniform"),
            "no client reports a weight",
        ),
        (("attack.weight=3", *OPEN, "aggregation.rule=median"), "no client reports a weight"),
        (("attack.weight=3", *OPEN, "client.objective=scaffold"), "no client reports a weight"),
        (("attack.clip_count=within",), "only if privacy.adaptive_clip is true"),
        (("attack.clip_count=beyond", *OPEN), "only if privacy.adaptive_clip is true"),
        (
            (
                *("attack.clip_count=beyond", "secure.protocol=masks", "aggregation.rule=mean"),
                *("privacy.mechanism=discrete_gaussian", "privacy.adaptive_clip=true"),
            ),
            "not simulated for distributed noise",
        ),
    ],
)
def test_lies_that_nobody_asks_for_are_refused(keys, said):
    with pytest.raises(Refused, match=said):
        plan(small(*keys, "attack.fraction=0.25"))


@every_case(
    "keys, said",
    [
        (
            ("attack.weight=3", *OPEN),
            r"attack\.weight 3 and attack\.fraction is 0; expected .* set attack\.fraction",
        ),
        (("attack.clip_count=beyond",), r"attack\.clip_count 'beyond' and attack\.fraction is 0"),
        (("attack.replaces=updates",), "but there is no attack"),
        (("aggregation.most_examples=5",), "no client's weight depends on its number of examples"),
        (
            (*OPEN, "aggregation.most_examples=5", "aggregation.rule=median"),
            "no client's weight depends",
        ),
    ],
)
def test_keys_that_say_nothing_are_refused(keys, said):
    with pytest.raises(Refused, match=said):
        plan(small(*keys))


def test_attackers_of_training_leave_rounds_that_evaluate_alone(tmp_path):
    keys = ("evaluation.by=clients", "evaluation.every=3", "evaluation.holdout=0.5")
    keys += ("attack.fraction=0.25", "attack.selection=round", "run.rounds=6")
    config = small(*keys, "attack.name=sign_flip", "attack.replaces=updates")
    assert plan(config).evaluation.config.attackers.fraction == 0.0
    assert train(config, tmp_path).updates == 4


def test_a_weight_can_be_claimed_inside_a_secure_sum():
    keys = (*OPEN, "attack.fraction=0.25", "attack.weight=3", "secure.protocol=masks")
    planned = plan(small(*keys, "aggregation.weights=uniform"))
    assert "25% of the clients attack (by false reports)" in planned.simulation
