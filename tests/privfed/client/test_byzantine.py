"""Attackers in runs: who they are, what they see and send, and what the ledger says of it."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import Rounds, attackers, population, set_fields
from lanes import every_case
from small import model, same_run, small, trained

from accounting.ledger import Ledger
from attacks.poisoning.backdoor import Backdoor
from attacks.poisoning.label_flip import LabelFlip
from attacks.types import Knowledge, UpdateAttack
from attacks.updates.mimic import Mimic
from attacks.updates.simple import FreeRider, Scaling, SignFlip
from attacks.updates.statistics import InnerProduct
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.on_rows.median import Median
from privfed.cli.main import main
from privfed.client.byzantine import Attackers
from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.run.prepare import prepare
from privfed.run.train import resume, train
from privfed.sampling.samplers import Full
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums
from privfed.server.fedopt import FedAvg

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)
EVERYBODY = Full().of(8)
ATTACKS = [name for name in BUILT_IN["attack"] if name != "none"]
READERS = {"alie", "ipm", "min_max", "min_sum", "mimic", "fang", "adaptive"}
KEYS = {
    "backdoor": ("attack.target=1",),
    "edge_case": ("attack.target=1",),
    "tail": ("attack.tail=0.3",),
    "semantic": ("attack.brightest=0.3",),
}
"""What an attack needs where there are but a few examples, or three classes."""
OPEN = ("privacy.mechanism=none",)


def attacked(name, *overrides):
    return small(f"attack.name={name}", "attack.fraction=0.25", *overrides)


def world_of(folder, attack, *, unbounded=False, fraction=0.25, **changes):
    """Rounds with attackers among eight clients who all take part."""
    changes = {"mechanism": NoPrivacy(), "sampler": EVERYBODY} | changes
    byzantine = attackers(attack, fraction, unbounded=unbounded)
    return Rounds(folder, SIZES, **changes).attacked_by(byzantine)


@every_case("name", ATTACKS)
def test_every_attack_runs_and_the_ledger_says_what_it_was(name, tmp_path):
    keys = KEYS.get(name, ())
    outcome = train(attacked(name, "run.rounds=2", *keys), tmp_path / "run")
    assert outcome.updates == 2
    terms = Ledger.load(tmp_path / "run/ledger.jsonl").terms
    knows = {what.value for what in find("attack", name, "").knows}
    assert set(terms["attack"]["knows"]) == knows
    assert terms["attack"]["fraction"] == 0.25
    assert "25% of the clients attack" in terms["note"], "its epsilon is nominal"
    reads = Knowledge.ALL_HONEST.value in knows
    assert reads == (name in READERS)
    void = "void (the attacker read raw updates)" if reads else None
    assert terms.get("guarantee") == void
    assert outcome.to_json()["guarantee"] == void


def test_who_attacks_is_a_fixed_part_of_all_once_or_afresh():
    once = attackers(SignFlip(), 0.3, clients=1000)
    assert once.byzantine(1).sum() == 300
    assert np.array_equal(once.byzantine(1), once.byzantine(7))
    afresh = attackers(SignFlip(), 0.3, clients=1000, afresh=True)
    assert afresh.byzantine(1).sum() == 300
    both = (afresh.byzantine(1) & afresh.byzantine(2)).sum()
    assert 50 < both < 130, "another 300 each round"
    assert attackers(SignFlip(), 0.24).byzantine(1).sum() == 2


def test_who_attacks_is_written_down(tmp_path):
    train(attacked("sign_flip", "run.rounds=1"), tmp_path / "run")
    printed = json.loads((tmp_path / "run/report/attackers.json").read_text())
    setup = prepare(attacked("sign_flip"))
    assert printed["clients"] == np.flatnonzero(setup.attackers.byzantine(5)).tolist()
    assert (printed["selection"], printed["fraction"], len(printed["clients"])) == ("once", 0.25, 3)
    train(attacked("sign_flip", "attack.selection=round", "run.rounds=1"), tmp_path / "b")
    assert json.loads((tmp_path / "b/report/attackers.json").read_text())["clients"] is None
    trained(tmp_path / "c", "run.rounds=1")
    assert not (tmp_path / "c/report/attackers.json").exists()


def test_an_audit_says_that_nothing_is_guaranteed(tmp_path):
    train(attacked("alie", "run.rounds=1"), tmp_path / "run")
    result = CliRunner().invoke(main, ["audit", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "void (the attacker read raw updates)" in result.output
    assert "(nominal)" in result.output
    assert "changes the probability" not in result.output, "it has no meaning"
    printed = json.loads(
        CliRunner().invoke(main, ["audit", str(tmp_path / "run"), "--json"]).output
    )
    assert printed["guarantee"] == "void (the attacker read raw updates)"


def test_noise_that_hostile_clients_leave_out_is_not_counted():
    keys = ("privacy.mechanism=skellam", "secure.protocol=masks", "cohort.sampler=full")
    keys += ("cohort.size=0", "data.clients=40", "secure.colluders=0.0")

    def guaranteed(*more):
        return plan(small(*keys, *more), length=50).event.release.noise_multiplier

    everybody = guaranteed()
    some = guaranteed("aggregation.byzantine=8")
    assert some == pytest.approx(everybody * (1 - 8 / 32) ** 0.5, rel=1e-6), "of at least 32"
    simulated = guaranteed("attack.name=sign_flip", "attack.fraction=0.2")
    assert simulated == some
    for protocol in ("masks", "bfv"):
        keys = (*keys, f"secure.protocol={protocol}", "secure.simulate=arithmetic")
        with pytest.raises(Refused, match="40 clients of a cohort may be Byzantine"):
            guaranteed("aggregation.byzantine=40")
    alone = ("privacy.sizing=layers", "privacy.tolerance=0.95", "aggregation.byzantine=1")
    with pytest.raises(Refused, match=r"as few as 1 client may .*, but 1 client of a cohort may"):
        guaranteed("secure.protocol=masks", "data.clients=12", *alone)


def test_data_poisoning_leaves_honest_clients_examples_alone():
    federation = population(SIZES)
    before = federation.examples.x.clone(), federation.examples.y.clone()
    byzantine = attackers(Backdoor(target=1, share=1.0))
    poisoned = byzantine.poisoned(federation).examples
    assert torch.equal(federation.examples.x, before[0])
    assert torch.equal(federation.examples.y, before[1])
    owners = torch.from_numpy(np.repeat(byzantine.byzantine(0), SIZES))
    assert torch.equal(poisoned.x[~owners], before[0][~owners])
    assert torch.equal(poisoned.y[~owners], before[1][~owners])
    assert bool((poisoned.y[owners] == 1).all())
    afresh = attackers(Backdoor(target=1, share=1.0), afresh=True).poisoned(federation)
    assert bool((afresh.examples.y == 1).all()), "anybody may be next"


seen: list = []


class Spy(UpdateAttack):
    """Remembers its view."""

    knows = frozenset({Knowledge.OWN_UPDATES, Knowledge.RULE})

    def corrupt(self, view, state, rng):
        seen.append(view)
        return view.byzantine, state


class ReadingSpy(Spy):
    knows = Spy.knows | {Knowledge.ALL_HONEST}


def test_an_attack_is_shown_what_it_declares_and_no_more(tmp_path):
    seen.clear()
    world_of(tmp_path, Spy(), rule=Median()).run(2)
    first = seen[0]
    assert first.byzantine.shape == (2, 18)
    assert first.honest is None
    assert first.identities is None
    rows = torch.randn(8, 18)
    torch.testing.assert_close(first.rule(rows), Median()(rows, 0))
    seen.clear()
    world_of(tmp_path, ReadingSpy(), rule=Median()).run(1)
    assert seen[0].honest.shape == (6, 18)
    assert seen[0].identities.tolist() == np.flatnonzero(~attackers(Spy()).byzantine(1)).tolist()


def test_an_honest_row_has_the_same_identity_in_every_cohort():
    """Whoever takes part, and whatever place the client has among those who do."""
    seen.clear()
    dataset, streams = np.array([40, 7, 99, 12]), Streams(0, simulated=True)
    byzantine = Attackers(ReadingSpy(), 0.5, False, False, dataset, streams)
    bad = np.flatnonzero(byzantine.byzantine(1))[0]
    for others in ([0, 1, 2, 3], [3, 1]):
        ids = np.unique([*others, bad])
        rows = torch.from_numpy(dataset[ids]).float()[:, None]
        byzantine.corrupt(1, ids, rows, {}, lambda rows: rows.mean(0))
    for view in seen:
        assert view.identities.tolist() == view.honest[:, 0].tolist()
    assert len(seen) == 2


@every_case("unbounded", [False, True])
@every_case("rule", [Mean(), NormBound(), CenteredClipping(), GeometricMedian()])
def test_what_attackers_foresee_is_what_the_run_does(tmp_path, rule, unbounded):
    """On the rows that are then sent, at the same center, but for the noise, which is none here."""
    seen.clear()
    clip = 0.05
    rounds = world_of(
        tmp_path,
        ReadingSpy(),
        unbounded=unbounded,
        mechanism=CentralGaussian(clip=clip, noise_multiplier=0.0),
        rule=rule.within(clip),
        server=FedAvg(),
    )
    start = rounds.state.params
    after = rounds.run(1)
    view = seen[0]
    predicted_aggregate = view.rule(torch.cat([view.byzantine, view.honest]))
    torch.testing.assert_close(after.params - start, predicted_aggregate, atol=1e-6, rtol=1e-4)


@every_case("chunk", [1, 3, 8])
@every_case("rule", ["sums", "rows"])
def test_hostile_rows_are_replaced_whatever_the_chunk(tmp_path, chunk, rule):
    made = {"rows": Median(), "sums": GeometricMedian(passes=3, smoothing=0.2)}[rule]
    plain = world_of(tmp_path / "a", InnerProduct(strength=2.0), rule=made, chunk=8).run(2)
    other = world_of(tmp_path / "b", InnerProduct(strength=2.0), rule=made, chunk=chunk).run(2)
    torch.testing.assert_close(plain.params, other.params)


def test_what_is_sent_is_what_the_formula_says(tmp_path):
    """Two of eight send -2 mu: the mean is (6 mu - 4 mu) / 8."""
    weighs = {"rule": Mean()}
    honest = world_of(tmp_path / "a", FreeRider(), **weighs)
    turned = world_of(tmp_path / "b", InnerProduct(strength=2.0), **weighs)
    for rounds in (honest, turned):
        set_fields(rounds.world.executor, by_examples=False)
        rounds.run(1)
    zeros, sent = honest.store.releases[1][0], turned.store.releases[1][0]
    torch.testing.assert_close(sent, zeros / 3, atol=1e-6, rtol=1e-4)


@every_case("summation", ["plain", "masks", "arithmetic"])
def test_the_stage_says_whether_attackers_keep_to_the_bound(tmp_path, summation):
    """Scaled a thousandfold: within the clip before the bound, far beyond it after."""
    sums = {}
    if summation != "plain":
        limits = Limits(8, 0, summation == "arithmetic", 1.0, 8)
        sums = {"summation": MaskedSums(bits=40).over(limits)}

    def moved(unbounded):
        rounds = world_of(
            tmp_path / str(unbounded),
            Scaling(strength=1e3),
            unbounded=unbounded,
            mechanism=CentralGaussian(clip=0.05, noise_multiplier=0.0),
            **sums,
        )
        rounds.run(1)
        return 8 * float(rounds.store.releases[1][0].norm())

    assert moved(False) <= 8 * 0.05 * (1 + 1e-3)
    assert moved(True) > 10.0


@every_case("protocol", ["masks", "bfv", "ckks"])
@every_case("mechanism", ["gaussian", "local_gaussian", "skellam"])
def test_attackers_ignore_the_bound_under_every_mechanism_and_protocol(
    protocol, mechanism, tmp_path
):
    """A million times too long: cut to what a sum can hold, and never a crash."""
    if protocol == "ckks" and mechanism != "gaussian":
        return
    keys = (f"privacy.mechanism={mechanism}", "cohort.sampler=full", "cohort.size=0")
    keys += (f"secure.protocol={protocol}", "run.rounds=1", "run.randomness=seeded")
    keys += () if mechanism == "skellam" else ("privacy.noise_multiplier=0.01",)
    keys += ("secure.bits=28",) if protocol == "ckks" else ()
    moved = {}
    for strength in (1e-6, 1e6):
        path = tmp_path / f"{strength}"
        config = attacked("sign_flip", *keys, f"attack.strength={strength}", "attack.fraction=0.17")
        train(config, path)
        assert Ledger.load(path / "ledger.jsonl").terms["attack"]["unbounded"] is True
        moved[strength] = model(path)
    names = [name for name in moved[1e6] if name.startswith("model/")]
    change = torch.cat([(moved[1e6][name] - moved[1e-6][name]).flatten() for name in names])
    assert float(change.norm()) > 1.5 * 2 * 0.4 / 12, "more than two within the clip could do"


def test_two_attackers_at_full_length_do_not_cancel_each_other(tmp_path):
    """Modulo 2^bits, twice the largest number would be almost nothing."""
    limits = Limits(8, 0, True, 1.0, 8)

    def moved(fraction):
        rounds = world_of(
            tmp_path / str(fraction),
            Scaling(strength=1e6),
            unbounded=True,
            fraction=fraction,
            mechanism=CentralGaussian(clip=0.05, noise_multiplier=0.0),
            summation=MaskedSums(bits=28).over(limits),
        )
        rounds.run(1)
        return float(rounds.store.releases[1][0].norm())

    assert moved(0.25) > 0.3 * moved(0.125)


def test_who_attacks_does_not_depend_on_who_else_there_is():
    named = np.random.default_rng(0).integers(0, 2**62, size=400)
    streams = Streams(0, simulated=True)
    everybody = Attackers(SignFlip(), 0.3, False, False, named, streams).byzantine(1)
    fewer = Attackers(SignFlip(), 0.3, False, False, named[1:], streams).byzantine(1)
    assert np.array_equal(everybody[1:], fewer)
    assert 80 < everybody.sum() < 160


def plan_with_prior(path):
    return train(small(f'privacy.prior=["{path}"]', "run.randomness=seeded"), path.parent / "b")


def test_a_void_run_counts_for_nothing_as_a_prior(tmp_path):
    train(attacked("alie", "run.rounds=1", "run.randomness=seeded"), tmp_path / "void")
    with pytest.raises(Refused, match="no guarantee that could be composed"):
        train(
            small(f'privacy.prior=["{tmp_path / "void"}"]', "run.randomness=seeded"), tmp_path / "b"
        )
    result = CliRunner().invoke(main, ["audit", str(tmp_path / "void"), str(tmp_path / "void")])
    assert result.exit_code == 2
    assert "no guarantee that could be composed" in result.output


@every_case(
    "keys",
    [
        ("attack.name=mimic", "attack.selection=round"),
        ("attack.name=mimic", "attack.warmup=2"),
        ("attack.name=gaussian", "attack.selection=round"),
        ("attack.name=fang", "aggregation.rule=trimmed_mean"),
        ("attack.name=backdoor", "attack.target=1"),
    ],
)
def test_a_resumed_run_attacks_identically(keys, tmp_path):
    keys = (*keys, "attack.fraction=0.3", *OPEN, "run.randomness=seeded")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(whole, *keys)
    trained(parts, *keys, "run.rounds=4")
    resume(parts, lambda stored: stored.with_run(rounds=7))
    before, after = model(whole), model(parts)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = tmp_path / "again"
    trained(again, *keys)
    same_run(whole, again)
    if "attack.name=mimic" in keys:
        assert "attack/direction" in before


def test_measures_of_an_attack(tmp_path):
    keys = ("run.simulation_metrics=true", "run.checkpoint_every=2", "aggregation.weights=uniform")
    trained(
        tmp_path / "run",
        *OPEN,
        *keys,
        "attack.name=ipm",
        "attack.fraction=0.25",
        "attack.strength=3.0",
        "cohort.sampler=full",
        "cohort.size=0",
        "run.rounds=4",
    )
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    counts = [json.loads(line)["simulation_only"] for line in lines]
    for line in counts:
        assert line["byzantine"] == 3
        assert line["byzantine_weight"] == pytest.approx(0.25, abs=1e-4), "of a plain mean"
        assert line["aggregate_distance"] == pytest.approx(1.0, abs=1e-3), "a quarter of 4 mu"
    trained(tmp_path / "plain", *OPEN, *keys, "run.rounds=2")
    plain = json.loads((tmp_path / "plain/metrics.jsonl").read_text().splitlines()[0])
    assert "byzantine" not in plain["simulation_only"]


def test_success_is_scored_on_what_the_attack_aims_at(tmp_path):
    outcome = train(
        attacked("label_flip", *OPEN, "attack.flip=one", "attack.source=0", "attack.target=2"),
        tmp_path / "run",
    )
    assert 0.0 <= outcome.measures["attack_success"] <= 1.0
    setup = prepare(attacked("label_flip", "attack.flip=one", "attack.source=0", "attack.target=2"))
    aimed = setup.targeted
    assert len(aimed) == int((setup.federation.test.y == 0).sum())
    assert bool((aimed.y == 2).all())
    assert "attack_success" not in train(attacked("sign_flip", *OPEN), tmp_path / "b").measures


def test_a_backdoor_works_undefended_and_accuracy_is_kept(tmp_path):
    from privfed.config.reading import load

    def run(*keys):
        base = ("data.clients=100", "cohort.size=30", "run.rounds=40", "run.randomness=seeded")
        outcome = train(load(None, [*base, *OPEN, *keys]), tmp_path / str(len(keys)))
        return outcome.measures

    keys = ("attack.name=backdoor", "attack.fraction=0.2")
    attacked_run, honest = run(*keys), run()
    assert attacked_run["attack_success"] > 0.9
    assert attacked_run["accuracy"] > honest["accuracy"] - 0.03


def test_a_robust_rule_withstands_what_breaks_a_mean(tmp_path):
    from privfed.config.reading import load

    def accuracy(*keys):
        base = ("data.clients=100", "cohort.size=40", "run.rounds=25", "run.randomness=seeded")
        base += ("attack.name=ipm", "attack.strength=4.0", "attack.fraction=0.3")
        return train(load(None, [*base, *OPEN, *keys]), tmp_path / keys[0]).accuracy

    assert accuracy("aggregation.rule=mean") < 0.5
    robust = ("aggregation.rule=trimmed_mean", "aggregation.byzantine=18")
    assert accuracy(*robust) > 0.8


@every_case(
    "keys, said",
    [
        (
            ("attack.name=alie",),
            r"'alie' and attack\.fraction is 0; expected both an attack and the fraction",
        ),
        (("attack.fraction=0.2",), "expected both an attack and the fraction of clients"),
        (("attack.selection=round",), "but there is no attack"),
        (("attack.name=alie", "attack.fraction=0.01"), "rounds to none of"),
        (
            ("attack.name=label_flip", "attack.fraction=0.2", "attack.flip=one", "attack.target=1"),
            "are both 1, .* set them to two classes",
        ),
        (("attack.name=sgin_flip", "attack.fraction=0.2"), "did you mean 'sign_flip'"),
        (
            ("attack.name=label_flip", "attack.fraction=0.2", "data.shift=concept"),
            "both change labels",
        ),
        (("attack.strength=2.0",), "belongs to attack.name"),
    ],
)
def test_attacks_that_cannot_be_are_refused(keys, said):
    with pytest.raises(Refused, match=said):
        plan(small(*keys))


def test_attacks_that_do_not_fit_the_examples_are_refused():
    with pytest.raises(Refused, match="is 9, but classes are 0 to 2"):
        prepare(attacked("backdoor", "attack.target=9"))
    assert LabelFlip().knows == {Knowledge.OWN_DATA}
    assert Mimic().corrupts
