"""Rules in runs: rows or sums, passes over one cohort, what they keep, and what is refused."""

import math
import re
from dataclasses import replace

import pytest
import torch
from helpers import Rounds, Seen, population
from lanes import every_case
from small import model, small, trained
from torch import nn

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, CHANGE, Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled
from defenses.before.nnm import NearestNeighbourMixing
from defenses.by_sums.centered_clipping import CenteredClipping
from defenses.by_sums.geometric_median import GeometricMedian
from defenses.by_sums.mean import Mean
from defenses.by_sums.norm_bound import NormBound
from defenses.on_rows.median import Median
from defenses.types import RowRule
from defenses.weighing import Composed
from privfed.client.trainer import LocalTrainer
from privfed.config.reading import load
from privfed.core.errors import Refused
from privfed.core.registry import BUILT_IN
from privfed.plan.plan import plan
from privfed.plan.rule import rule_of, rule_text, rules_by_sums
from privfed.privacy.mechanisms.none import NoPrivacy
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.sampling.samplers import Full, Poisson
from privfed.secure.limits import Limits
from privfed.secure.masked.protocol import MaskedSums
from privfed.trained.evaluate import evaluate

SIZES = (3, 9, 4, 1, 6, 12, 5, 2)
OPEN = ("privacy.mechanism=none",)
MASKED = ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0", "data.clients=8")
BUCKETS = ('aggregation.before=["bucketing"]',)
EVERYBODY = Full().of(8)
EVERY_TIME = ("cohort.sampler=full", "cohort.size=0")
CLIPPING = (*OPEN, "aggregation.rule=centered_clipping", "aggregation.radius=0.5")
KEYS = {
    "norm_bound": ("aggregation.radius=0.5",),
    "centered_clipping": ("aggregation.radius=0.5",),
    "fltrust": ("aggregation.root=2",),
    "monna": ("aggregation.root=2",),
}


def chosen(rule, *overrides):
    keys = KEYS.get(rule, ()) if "privacy.mechanism=none" in overrides else ()
    return small(f"aggregation.rule={rule}", *keys, *overrides)


# what runs


def test_the_form_follows_from_what_the_server_may_see():
    asked = "geometric_median"
    assert isinstance(rule_of(chosen(asked, *OPEN)), Composed), "rows: one upload"
    assert isinstance(rule_of(chosen(asked, "privacy.mechanism=local_gaussian")), Composed)
    for keys in (MASKED + OPEN, (), MASKED):
        assert isinstance(rule_of(chosen(asked, *keys)), GeometricMedian)
    assert isinstance(rule_of(small()), Mean)
    mixed = rule_of(
        small(*OPEN, 'aggregation.before=["nnm", "bucketing"]', "aggregation.bucket_size=3")
    )
    assert isinstance(mixed, Composed)
    assert mixed.before[1].bucket_size == 3
    assert rules_by_sums() == (
        "mean",
        "norm_bound",
        "centered_clipping",
        "geometric_median",
        "sign_majority",
    )


def test_under_privacy_terms_are_bounded_by_the_clip():
    for rule in rules_by_sums()[1:]:
        rule_run = rule_of(chosen(rule, "privacy.clip=0.7"))
        assert rule_run.sensitivity(CHANGE[ADD_REMOVE]) == pytest.approx(0.7)


@pytest.mark.parametrize("rule", BUILT_IN["rule"])
def test_every_rule_trains(rule, tmp_path):
    outcome = train_small(tmp_path / "run", rule, *OPEN)
    assert outcome.updates == 2


def train_small(path, rule, *overrides):
    keys = KEYS.get(rule, ()) if "privacy.mechanism=none" in overrides else ()
    return trained(path, f"aggregation.rule={rule}", "run.rounds=2", *keys, *overrides)


@pytest.mark.parametrize(
    "rule",
    ["krum", "geometric_median", "centered_clipping", "sign_majority", "caf", "monna", "lasa"],
)
def test_every_rule_trains_on_mixtures(rule, tmp_path):
    before = 'aggregation.before=["bucketing", "nnm"]'
    assert train_small(tmp_path / "run", rule, *OPEN, before, "cohort.size=12").updates == 2


@pytest.mark.parametrize(
    "before, radius",
    [('["clipping", "nnm"]', ("aggregation.clipping_radius=0.3",)), ('["arc", "nnm"]', ())],
)
def test_rows_are_cut_before_they_are_mixed(before, radius, tmp_path):
    keys = (*OPEN, f"aggregation.before={before}", *radius, "aggregation.byzantine=2")
    rule = rule_of(small(*keys, "aggregation.rule=trimmed_mean"))
    assert [type(part) for part in rule.before[1:]] == [NearestNeighbourMixing]
    assert not radius or rule.before[0].clipping_radius == 0.3
    assert train_small(tmp_path / "run", "trimmed_mean", *keys, "cohort.size=8").updates == 2


class ByLayer(RowRule):
    """The first row; it tells where layers are."""

    def needs(self):
        return frozenset({"layers"})

    def __call__(self, rows, byzantine, *, layers):
        asked.append(layers.tolist())
        assert layers.sum() == rows.shape[1]
        return rows[0] if len(rows) else rows.new_zeros(rows.shape[1])


asked: list[list[int]] = []


def test_a_rule_is_told_where_the_parameters_of_the_model_begin_and_end(tmp_path):
    asked.clear()
    rounds = Rounds(tmp_path, SIZES, mechanism=NoPrivacy(), sampler=EVERYBODY, rule=ByLayer())
    rounds.run(1)
    shapes = rounds.local.network.shapes.shapes
    assert asked == [[math.prod(shape) for shape in shapes]]
    assert len(shapes) > 1


# robust, secure and private at once


@pytest.mark.parametrize("rule", rules_by_sums()[1:])
@pytest.mark.parametrize(
    "keys",
    [
        (),
        ("privacy.mechanism=skellam", "privacy.noise_multiplier=3.0"),
        ("privacy.mechanism=local_gaussian",),
    ],
    ids=["gaussian", "skellam", "local"],
)
def test_robust_secure_and_private(rule, keys, tmp_path):
    """One run: a robust rule, masks that are real, and user-level privacy; audited."""
    outcome = train_small(tmp_path / "run", rule, *MASKED, *keys)
    passes = 2 if rule == "geometric_median" else 1
    assert outcome.charges == 2, "one charge for a round, whatever its passes"
    assert 0 < outcome.guarantee.epsilon < math.inf
    assert outcome.plan.event == outcome.plan.mechanism.event(
        outcome.plan.config.sampler.witness(0, 8), passes
    )
    stored = model(tmp_path / "run")
    assert all(bool(tensor.isfinite().all()) for tensor in stored.values())


@pytest.mark.parametrize("rule", ["geometric_median", "centered_clipping"])
def test_masked_passes_give_what_plain_ones_do(rule, tmp_path):
    one = train_small(tmp_path / "plain", rule, *MASKED[1:], "run.randomness=seeded")
    two = train_small(tmp_path / "masked", rule, *MASKED, "run.randomness=seeded")
    plain, masked = model(tmp_path / "plain"), model(tmp_path / "masked")
    assert one.guarantee.epsilon == two.guarantee.epsilon
    for name, tensor in plain.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(masked[name], tensor, atol=1e-3, rtol=1e-3)


def test_passes_over_one_cohort_are_one_event():
    """T = 5, q = 0.1, z = 1, 100 rounds, delta = 1e-5: 40.8, and not the 16.6 of 500 draws."""
    keys = ("data.clients=1000", "cohort.size=100", "privacy.noise_multiplier=1.0")
    keys += ("run.rounds=100", "privacy.delta=1e-5", "aggregation.passes=5")
    planned = plan(load(None, ["aggregation.rule=geometric_median", *keys]))
    assert planned.event.release == PoissonSampled(0.1, Gaussian(1 / math.sqrt(5)))
    assert planned.guarantee.by_accountant["pld"] == pytest.approx(40.8, abs=0.7)
    wrong = Event(PoissonSampled(0.1, Gaussian(1.0)), "poisson", planned.event.relation)
    assert epsilon({wrong: 500}, 1e-5, "pld") == pytest.approx(16.6, abs=0.5)


def test_clients_train_once_and_later_passes_ask_about_the_same_rows(tmp_path, monkeypatch):
    calls, real = [], LocalTrainer.train
    monkeypatch.setattr(
        LocalTrainer,
        "train",
        lambda self, ids, *rest: calls.append(len(ids)) or real(self, ids, *rest),
    )
    rule = GeometricMedian(passes=6, smoothing=0.2)
    rounds = Rounds(tmp_path, SIZES, mechanism=NoPrivacy(), sampler=EVERYBODY, rule=rule)
    rounds.run(1)
    assert sum(calls) == 8
    releases = rounds.store.releases[1]
    assert len(releases) == 6
    # The same passes over the rows that a plain round shows.
    shown, seen = (
        Rounds(tmp_path / "shown", SIZES, mechanism=NoPrivacy(), sampler=EVERYBODY),
        Seen(),
    )
    shown.world = replace(shown.world, watch=seen)
    shown.run(1)
    rows = torch.stack([seen.by_client[client] for client in range(8)])
    center = torch.zeros(rows.shape[1])
    for released in releases:
        expected = rule.terms(rows, center).mean(0)
        torch.testing.assert_close(released, expected, atol=1e-6, rtol=1e-5)
        center = rule.step(center, released)


def test_rows_and_sums_give_one_median(tmp_path):
    def moved(rule):
        rounds = Rounds(tmp_path, SIZES, mechanism=NoPrivacy(), sampler=EVERYBODY, rule=rule)
        return rounds.run(1).params

    by_sums = moved(GeometricMedian(passes=300, smoothing=0.2))
    by_rows = moved(Composed(before=(), rule=GeometricMedian(smoothing=0.2)))
    torch.testing.assert_close(by_rows, by_sums, atol=1e-5, rtol=1e-4)


def test_who_leaves_the_first_pass_leaves_all(tmp_path):
    rule = GeometricMedian(passes=3, smoothing=0.2)
    summation = MaskedSums(threshold=0.5).over(Limits(8, 0, True, 1.0, 8))
    rounds = Rounds(
        tmp_path,
        SIZES,
        mechanism=NoPrivacy(),
        sampler=EVERYBODY,
        rule=rule,
        dropout=0.3,
        summation=summation,
        seed=5,
    )
    rounds.run(1)
    first, *later = rounds.store.releases[1]
    assert len(later) == 2, "no pass failed for want of a row"
    assert all(bool(released.isfinite().all()) for released in (first, *later))


# what rules keep


def test_the_center_of_clipping_is_the_aggregate_of_the_round_before(tmp_path):
    rule = CenteredClipping(radius=0.05)
    rounds = Rounds(tmp_path, SIZES, mechanism=NoPrivacy(), sampler=EVERYBODY, rule=rule)
    state = rounds.run(3)
    total = sum(rounds.store.releases[t][0] for t in (1, 2, 3))
    torch.testing.assert_close(state.rule["center"], total)
    mean = Rounds(tmp_path, SIZES, mechanism=NoPrivacy(), sampler=EVERYBODY)
    assert mean.run(1).rule == {}


@pytest.mark.parametrize(
    "keys",
    [
        ("aggregation.rule=centered_clipping",),
        ("aggregation.rule=geometric_median",),
        *(
            pytest.param(keys, marks=pytest.mark.slow)
            for keys in (
                (
                    *(*OPEN, "aggregation.rule=centered_clipping", "aggregation.radius=0.5"),
                    'aggregation.before=["nnm"]',
                ),
                (*OPEN, "aggregation.rule=fltrust", "aggregation.root=2"),
                (*OPEN, "aggregation.rule=foolsgold"),
            )
        ),
        (*OPEN, *BUCKETS, "aggregation.rule=krum"),
        (*OPEN, *EVERY_TIME, "aggregation.rule=fldetector", "aggregation.window=1"),
        ("privacy.mechanism=local_gaussian", "aggregation.rule=foolsgold"),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_end(keys, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(whole, *keys, "run.randomness=seeded")
    trained(parts, *keys, "run.randomness=seeded", "run.rounds=4")
    resume(parts, lambda stored: stored.with_run(rounds=7))
    before, after = model(whole), model(parts)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert ("rule/center" in before) == any("centered_clipping" in key for key in keys)


def test_a_root_set_is_public_and_never_scored(tmp_path):
    keys = ("aggregation.rule=fltrust", "aggregation.root=2", *OPEN)
    setup = prepare(small(*keys))
    plain = prepare(small(*OPEN))
    root, test = setup.federation.root, setup.federation.test
    assert (len(root), len(test)) == (2, len(plain.federation.test) - 2)
    every = torch.cat([root.x, test.x]).sort(dim=0).values
    assert torch.equal(every, plain.federation.test.x.sort(dim=0).values)
    outcome = trained(tmp_path / "run", *keys)
    assert outcome.test_examples == len(test)
    assert evaluate(tmp_path / "run").examples == len(test)
    with pytest.raises(Refused, match="at least one must remain"):
        prepare(small(*keys, "aggregation.root=100000"))


def test_hostile_rows_are_counted_by_the_cohort_that_came(tmp_path):
    """Three hostile of an expected eight; of two who came, none can be told."""

    class Counts(Median):
        def __call__(self, rows, byzantine):
            counted.append((len(rows), byzantine))
            return super().__call__(rows, byzantine)

    counted = []
    rounds = Rounds(
        tmp_path,
        SIZES,
        mechanism=NoPrivacy(),
        sampler=Poisson(size=4),
        rule=Counts(),
        byzantine=3,
    )
    rounds.run(12)
    assert all(byzantine == min(3, max(0, (n - 1) // 2)) for n, byzantine in counted)
    assert len({byzantine for _, byzantine in counted}) > 1


def test_a_client_that_diverges_does_not_reach_a_robust_rule(tmp_path):
    federation = population(SIZES)
    federation.examples.x[:3] = torch.nan
    for rule in (Median(), GeometricMedian(smoothing=0.2), NormBound(radius=1.0)):
        rounds = Rounds(
            tmp_path,
            SIZES,
            federation=federation,
            mechanism=NoPrivacy(),
            sampler=EVERYBODY,
            rule=rule,
        )
        assert bool(rounds.run(1).params.isfinite().all())


# what is refused


@every_case(
    "keys, said",
    [
        (("aggregation.rule=krum",), 'needs every client.*"geometric_median"'),
        (('aggregation.before=["nnm"]',), "'mean' after aggregation.before = .'nnm'. needs every"),
        (("aggregation.rule=krum", *MASKED, *OPEN), "secure sum never reveals"),
        (('aggregation.before=["nnm"]', *MASKED, *OPEN), "no aggregation.before"),
        (("aggregation.rule=norm_bound", *OPEN), "aggregation.radius is missing"),
        (("aggregation.rule=norm_bound", "aggregation.radius=1.0"), "it is privacy.clip; remove"),
        (("aggregation.rule=geometric_median", "aggregation.smoothing=1.0"), "follows from"),
        (("aggregation.rule=geometric_median", "privacy.adaptive_clip=true"), "adaptive_clip"),
        (("aggregation.rule=krum", "aggregation.byzantine=1", *OPEN), "at most 0 .* cohort of 4"),
        (("aggregation.rule=median", "aggregation.byzantine=2", *OPEN), "at most 1"),
        (("aggregation.rule=fltrust", *OPEN), "needs a root set"),
        (("aggregation.root=5",), "uses no root set"),
        (
            ("aggregation.rule=fltrust", "aggregation.root=2", "data.holdout=examples", *OPEN),
            "of clients that train",
        ),
        (("aggregation.bucket_size=3",), r'bucket_size is 3, .*before = \[\] .*add "bucketing" to'),
        (
            (*OPEN, 'aggregation.before=["nnm"]', "aggregation.clipping_radius=1.5"),
            r"clipping_radius is 1\.5, .*before = \['nnm'\] has that key; add \"clipping\" to",
        ),
        (
            (*OPEN, 'aggregation.before=["clipping"]'),
            "aggregation.clipping_radius is missing, and 'clipping' in aggregation.before needs it",
        ),
        (
            (*OPEN, 'aggregation.before=["clipping"]', "aggregation.clipping_radius=0.0"),
            "clipping_radius is 0.0; expected a number above 0",
        ),
        (
            (*MASKED, *CLIPPING, "aggregation.radius=2000.0"),
            r"secure\.range is 1000, but the terms .* norms up to 2000",
        ),
        (
            (
                *OPEN,
                "aggregation.rule=krum",
                'aggregation.before=["bucketing"]',
                "aggregation.byzantine=1",
            ),
            r"'krum' after aggregation\.before = \['bucketing'\] tolerates",
        ),
        (
            (
                "aggregation.rule=norm_bound",
                "aggregation.weights=examples",
                "aggregation.radius=1.0",
                *OPEN,
            ),
            "may report a false weight",
        ),
        (
            ("aggregation.rule=centered_clipping", "client.objective=mime"),
            "gradients and then updates|sum more",
        ),
        (
            (
                "aggregation.rule=centered_clipping",
                "client.objective=scaffold",
                "data.setting=cross_silo",
            ),
            "sends more than an update",
        ),
        (
            (
                "aggregation.rule=geometric_median",
                "privacy.mechanism=banded",
                "cohort.sampler=cyclic",
                "privacy.bands=2",
                "cohort.separation=2",
                "cohort.size=0",
            ),
            "no proof for rounds of 2 exchanges",
        ),
        (('aggregation.before=["nmm"]',), "did you mean 'nnm'"),
        (("aggregation.rule=foolsgold",), "needs every client"),
        (("aggregation.rule=foolsgold", *MASKED, *OPEN), "secure sum never reveals"),
        (
            (*OPEN, "aggregation.rule=foolsgold", 'aggregation.before=["nnm"]'),
            "mixtures of rows, which belong to no client; .* or aggregation.history = false",
        ),
        (
            (*OPEN, "aggregation.rule=fldetector", 'aggregation.before=["nnm"]'),
            "mixtures of rows, which belong to no client; remove aggregation.before$",
        ),
        (
            (*OPEN, "aggregation.rule=foolsgold", "client.objective=mime"),
            "gradients and then updates",
        ),
        (("aggregation.passes=3",), "belongs to aggregation.rule = 'centered_clipping'"),
    ],
)
def test_what_has_no_proof_or_meaning_is_refused_with_what_would_work(keys, said):
    with pytest.raises(Refused, match=said):
        plan(small(*keys))


def test_a_rule_from_outside_has_to_be_one():
    with pytest.raises(Refused, match="is no rule; expected a subclass"):
        plan(small("aggregation.rule=privfed.server.fedopt:FedAvg"))


@every_case(
    "keys, said",
    [
        (("aggregation.rule=median",), "on every client's row; .* tolerated: 1 of 4"),
        (("aggregation.rule=norm_bound", "aggregation.radius=1.0"), "by one sum; .* its radius"),
        (
            ("aggregation.rule=fltrust", "aggregation.root=2"),
            "as far as the root set distinguishes",
        ),
        ((*BUCKETS, "aggregation.rule=median"), "^bucketing, then median.* tolerated: 0 of 4"),
        (("aggregation.rule=geometric_median", *MASKED), "by 2 sums .* tolerated: 3 of 8"),
        (("aggregation.rule=mean",), "tolerated: none"),
    ],
)
def test_a_plan_says_what_a_rule_sees_and_withstands(keys, said):
    assert re.search(said, rule_text(small(*OPEN, *keys)))


def test_matched_averaging_is_told_the_model_and_refuses_one_without_layers(tmp_path):
    """Of a perceptron in a run; without biases nobody knows which numbers are a unit's."""
    keys = ("aggregation.rule=fedma", *OPEN, "run.rounds=2")
    assert trained(tmp_path, *keys, "model.name=mlp", "model.hidden=[4]").updates == 2
    with pytest.raises(
        Refused, match="does not suit this model, because its parameters are not a chain"
    ):
        prepare(small(*keys, f"model.name={__name__}:unbiased"))


def unbiased(features, width):
    """A model whose layers have no biases."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(features), width, bias=False))


@every_case(
    "keys, why",
    [
        ((), "needs every client's row, but a function of rows has no proven sensitivity"),
        ((*OPEN, "secure.protocol=masks", *EVERY_TIME), "needs rows, which a secure sum never"),
        ((*OPEN, "client.objective=fedlin"), "gradients and then updates"),
        ((*OPEN, "client.objective=adaalter"), "sends more than an update"),
    ],
    ids=["central noise", "secure sums", "two exchanges", "two vectors"],
)
def test_matched_averaging_is_refused_without_rows_of_updates(keys, why):
    with pytest.raises(Refused, match=why):
        plan(small("aggregation.rule=fedma", *keys))
