"""Soft labels by hand, distillation on the server, and clients with models of their own."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import assert_normal, population, trainer
from lanes import every_case
from small import same_run, small, stop_after, trained

from accounting.ledger import Ledger
from privfed.auditing.run_audit import audit
from privfed.client.compression.compression import Sending, Space
from privfed.client.compression.soft_labels import LABELS, SoftLabels, nearest_distributions
from privfed.client.student import NetworkStudent
from privfed.core.errors import Refused
from privfed.core.vector import Shapes
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows
from privfed.privacy.mechanisms.central_gaussian import CentralGaussian
from privfed.run.check import check
from privfed.run.prepare import prepare
from privfed.run.train import resume
from privfed.secure.summation import Session

LABELLED = (
    "compression.name=soft_labels",
    "compression.examples=5",
    "compression.classes=3",
    "compression.distil_steps=8",
    "compression.distil_batch=4",
    "server.optimizer=fedavg",
    "server.lr=1.0",
    "data.holdout_fraction=0.5",
)
OWN = (*LABELLED, 'compression.models=["mlp", "logistic"]')
STAYING = (*OWN, "compression.keep_models=true", "data.setting=cross_silo")
OPEN = "privacy.mechanism=none"


def part(**keys):
    return SoftLabels(examples=5, classes=3, **keys)


class Table:
    """A model that is its outputs for two examples of two classes."""

    def outputs(self, models):
        return models.view(-1, 2, 2)

    def distilled(self, models, targets, batches, lr):
        self.wanted = targets
        return models + 1.0


def exchanged(sends, params, update, released=None):
    """The row of one client, and what the server then does with `released`."""
    compression = SoftLabels(examples=2, classes=2, sends=sends)
    table = Table()
    space = Space(Shapes(("outputs",), ((2, 2),)), 0, table)
    sending = Sending(space, 1, {"params": torch.tensor(params)})
    with pytest.raises(StopIteration) as end:
        next(compression.exchanges_before(sending, {}))
    sending = replace(sending, broadcast={**sending.broadcast, **end.value.value})
    row = compression.encode(torch.tensor([update]), None, sending)[0][0]
    delta, _ = compression.decode(row if released is None else released, sending, {})
    return row, table.wanted, delta


HALF = math.log(3.0)  # of two logits 0 and this, the second has probability 3/4


@every_case(
    "sends, row, wanted",
    [
        ("probabilities", [0.0, 0.0, -0.25, 0.25], [[0.5, 0.5], [0.25, 0.75]]),
        ("votes", [0.5, -0.5, -0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]),
        ("logits", [0.0, 0.0, -HALF / 2, HALF / 2], [[0.5, 0.5], [0.25, 0.75]]),
    ],
)
def test_a_row_is_what_the_client_predicts_less_what_the_server_does(sends, row, wanted):
    sent, target, delta = exchanged(sends, [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, HALF])
    torch.testing.assert_close(sent, torch.tensor(row))
    torch.testing.assert_close(target, torch.tensor(wanted))
    torch.testing.assert_close(delta, torch.ones(4))


def test_a_noised_release_is_projected_on_distributions():
    released = torch.tensor([3.0, -1.0, 0.1, 0.3])
    _, target, _ = exchanged("probabilities", [0.0] * 4, [0.0] * 4, released)
    torch.testing.assert_close(target, torch.tensor([[1.0, 0.0], [0.4, 0.6]]))


def test_no_other_distribution_is_nearer():
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    near = nearest_distributions(rows)
    assert (near >= 0).all()
    torch.testing.assert_close(near.sum(1), torch.ones(50).double())
    others = torch.distributions.Dirichlet(torch.ones(4).double()).sample((50, 2000))
    least = (others - rows[:, None]).norm(dim=2).min(1).values
    assert ((near - rows).norm(dim=1) <= least + 1e-12).all()


@every_case("sends", ["probabilities", "votes"])
def test_no_row_is_longer_than_its_bound_and_some_are_as_long(sends):
    labels = part(sends=sends)
    generator = torch.Generator().manual_seed(1)
    server = (40 * torch.randn(200, 5, 3, generator=generator)).softmax(-1)
    outputs = 40 * torch.randn(200, 5, 3, generator=generator)
    lengths = [
        float(labels.rows(client[None], {LABELS: before.flatten()}).norm())
        for client, before in zip(outputs, server, strict=True)
    ]
    assert max(lengths) <= labels.norm_bound * (1 + 1e-6)
    opposite = torch.eye(3)[[0] * 5].flatten()
    farthest = labels.rows(90.0 * torch.eye(3)[[1] * 5][None], {LABELS: opposite})
    assert float(farthest.norm()) == pytest.approx(labels.norm_bound)


def student():
    federation = population((6, 8))
    network = trainer(federation).network
    classes = network.loss.width(federation.examples)
    return NetworkStudent.of(network, federation.examples, 5, classes)


def test_outputs_are_those_of_each_model_by_itself():
    pupil = student()
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(3, pupil.network.shapes.length, generator=generator)
    together = pupil.outputs(models)
    for place, flat in enumerate(models):
        torch.testing.assert_close(together[place], pupil.network.outputs(flat, pupil.x))


def test_distillation_reaches_its_targets_and_leaves_the_model_it_began_from():
    pupil = student()
    start = pupil.network.initial_params.expand(2, -1).clone()
    targets = torch.eye(3)[[0, 1, 2, 1, 0]] * 0.7 + 0.1
    batches = torch.arange(300 * 5).remainder(5).view(300, 5)
    end = pupil.distilled(start, targets, batches, lr=0.05)
    before = (pupil.outputs(start[:1])[0].softmax(-1) - targets).abs().max()
    after = (pupil.outputs(end[:1])[0].softmax(-1) - targets).abs().max()
    assert after < 0.05 < before
    torch.testing.assert_close(end[0], end[1])
    assert torch.equal(start[0], pupil.network.initial_params)


@every_case("keys", [LABELLED, (*LABELLED, OPEN), OWN, STAYING])
def test_runs_end_and_resume_to_the_same_bits(keys, tmp_path):
    seeded = ("run.randomness=seeded", *keys)
    trained(tmp_path / "whole", *seeded, "run.rounds=4")
    trained(tmp_path / "part", *seeded, "run.rounds=2")
    resume(tmp_path / "part", lambda stored: stored.with_run(rounds=4))
    same_run(tmp_path / "whole", tmp_path / "part")


@every_case("keys", [LABELLED, STAYING])
def test_an_interrupted_secret_run_goes_on_from_its_stored_releases(keys, tmp_path):
    with pytest.MonkeyPatch.context() as interrupted:
        stop_after(5, interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "run", *keys)
    resume(tmp_path / "run", lambda stored: stored)
    charges = Ledger.load(tmp_path / "run/ledger.jsonl").charges
    assert [charge.round for charge in charges] == [1, 2, 3, 4, 5, 6, 7]


@every_case("keys", [LABELLED, OWN, STAYING])
def test_a_round_costs_what_one_of_whole_updates_costs(keys, tmp_path):
    trained(tmp_path / "run", *keys, "run.rounds=2")
    charges = Ledger.load(tmp_path / "run/ledger.jsonl").charges
    assert [charge.event for charge in charges] == [plan(small()).event] * 2


class ClippedBefore(CentralGaussian):
    """A broken one: rows are taken to be within the clip, as the simplex is bounded."""

    def bound(self, rows, layout, keys, state):
        return BoundedRows(rows, self.clip)


class HalfTheNoise(CentralGaussian):
    """A broken one: it adds half of the noise that it charges."""

    def release(self, total, divisor, keys, state):
        half = CentralGaussian(clip=self.clip, noise_multiplier=self.noise_multiplier / 2)
        return half.release(total, divisor, keys, state)


def noises(mechanism=None, rounds=400):
    """The noise in releases of rounds in which nobody is: releases times the divisor."""
    setup = prepare(small(*LABELLED, "run.rounds=1", "cohort.size=4"))
    algorithm = setup.algorithm
    if mechanism:
        plain = algorithm.mechanism
        broken = mechanism(clip=plain.clip, noise_multiplier=plain.noise_multiplier)
        algorithm = replace(algorithm, mechanism=broken)
    length = algorithm.objective.layout(setup.network.shapes.length).length
    encoding = algorithm.mechanism.encoding({})
    sums = []
    for round in range(rounds):
        total = algorithm.summation.open(Session(round, 0, b""), length, encoding).close()
        keys = setup.streams.at("noise/0", round)
        sums.append(4.0 * algorithm.mechanism.release(total, 4.0, keys, {})[0])
    return torch.cat(sums).double().numpy(), algorithm.mechanism.clip * 2.0


def test_noise_has_the_scale_of_the_clip_and_half_of_it_is_noticed():
    sample, std = noises()
    assert_normal(sample, std)
    with pytest.raises(AssertionError):
        assert_normal(noises(HalfTheNoise)[0], std)


@pytest.mark.parametrize("broken", [False, True])
def test_a_client_moves_the_sum_by_the_clip_and_no_more(broken, tmp_path):
    setup = prepare(small(*LABELLED, "privacy.clip=0.05", "client.lr=50.0"))
    mechanism = setup.algorithm.mechanism
    if broken:
        mechanism = ClippedBefore(clip=0.05, noise_multiplier=2.0)
    trainer, params = setup.executor.trainer, setup.network.initial_params
    with pytest.raises(StopIteration) as end:
        next(setup.algorithm.objective.prelude(params, setup.initial_state().objective))
    ids = np.arange(5)
    keys = setup.streams.at("shuffle", 1, ids)
    rows, _ = trainer.train(ids, {"params": params, **end.value.value}, None, keys)
    layout = setup.algorithm.objective.layout(len(params))
    noise = setup.streams.at("noise/client/0", 1, ids)
    lengths = mechanism.bound(rows, layout, noise, mechanism.init()).rows.norm(dim=1)
    assert (float(lengths.max()) <= 0.05) != broken


def test_clients_have_the_architecture_of_their_number_and_keep_their_model(tmp_path):
    setup = prepare(small(*STAYING))
    lengths = [each.network.shapes.length for each in setup.executor.own_trainers]
    assert lengths[0] > lengths[1] == setup.network.shapes.length
    assert setup.state_length == lengths[0]
    asked = {}
    for each, (having, ids) in enumerate(
        setup.executor._by_architecture(setup.executor.trainer, np.arange(7))
    ):
        asked[each] = ids.tolist()
        assert having.network.shapes.length == lengths[each]
    assert asked == {0: [0, 2, 4, 6], 1: [1, 3, 5]}


def test_a_row_of_an_own_model_is_its_predictions_after_distillation_and_training():
    setup = prepare(small(*OWN, "client.lr=0.0"))
    own, params = setup.executor.own_trainers[0], setup.network.initial_params
    with pytest.raises(StopIteration) as end:
        next(setup.algorithm.objective.prelude(params, setup.initial_state().objective))
    broadcast = {"params": params, **end.value.value}
    ids = np.array([0, 2])
    rows, state = own.train(ids, broadcast, None, setup.streams.at("shuffle", 1, ids))
    assert state is None
    pupil, labels = own.objective.student, own.objective.compression
    start = own.network.initial_params[None]
    distilled = labels.distilled(pupil, start, broadcast[LABELS].view(5, 3).softmax(-1))
    logits = pupil.outputs(distilled)
    expected = (logits - logits.mean(-1, keepdim=True)).flatten() - broadcast[LABELS]
    torch.testing.assert_close(rows, expected.expand(2, -1), rtol=1e-4, atol=1e-6)
    assert not torch.equal(distilled, start)


def test_own_models_are_stored_under_private(tmp_path):
    trained(tmp_path / "run", *STAYING, "run.rounds=2")
    width = prepare(small(*STAYING)).state_length
    stored = np.fromfile(tmp_path / "run/private/settled.f32", dtype=np.float32)
    assert len(stored) == 12 * (width + 1)  # each client's model, and whether it took part


def test_bytes_are_those_of_predictions_and_check_says_so():
    updates, labels, models = (check(small(*keys)) for keys in ((), LABELLED, OWN))
    d = updates.forecast.parameters
    assert labels.forecast.message == 15
    assert labels.forecast.up == 4 * 15 * 4.0
    assert labels.forecast.down == 4 * (d + 15) * 4.0
    assert models.forecast.down == 4 * 15 * 4.0


def test_public_examples_are_no_longer_scored():
    here, without = (prepare(small(*keys)).federation for keys in (LABELLED, LABELLED[-1:]))
    assert len(here.root) == 5
    assert len(here.test) == len(without.test) - 5


REFUSED = {
    "classes that the model does not have": (("compression.classes=4",), "compression.classes = 3"),
    "too few public examples": (("compression.examples=1000",), "compression.examples is 1000"),
    "examples of clients": (("data.holdout=examples",), "needs public examples"),
    "a clip that only adds noise": (
        ("privacy.clip=4.0", "compression.sends=votes"),
        "a norm of at most 3.162",
    ),
    "two root sets": (
        ("aggregation.root=4", "aggregation.rule=fltrust", OPEN),
        "set aggregation.root to compression.examples",
    ),
    "a local part": (("model.local=['1.bias']", "data.setting=cross_silo"), "remove model.local"),
    "labels that are not classes": (
        ("model.loss=squared_error",),
        "compression.name = 'soft_labels' needs the logits",
    ),
    "an objective that compares models": (
        ("compression.keep_models=true", "data.setting=cross_silo", "client.objective=fedprox"),
        "which clients do not receive",
    ),
    "models of clients that do not return": (
        ("compression.keep_models=true",),
        "compression.keep_models = true",
    ),
    "an unknown architecture": (('compression.models=["mpl"]',), "compression.models"),
    "an attack that steers": (
        ("attack.name=pgd_replacement", "attack.fraction=0.2", "compression.keep_models=true",
         "data.setting=cross_silo"),
        "steers",
    ),
}  # fmt: skip


@every_case("case", REFUSED)
def test_what_has_no_proof_or_no_use_is_refused_by_name(case):
    words, reason = REFUSED[case]
    with pytest.raises(Refused, match=reason):
        prepare(small(*LABELLED, *words))


WIDE = (*LABELLED, "compression.examples=200", "compression.classes=10")
SKETCHED = ("compression.name=count_sketch", "compression.fraction=1.0", "data.features=200")


@every_case("keys", [WIDE, SKETCHED])
def test_canaries_send_compressed_rows(keys, tmp_path):
    """Each canary's products with the releases are logged, and those of the model are not."""
    many = ("data.clients=400", "audit.canaries=100", "cohort.sampler=full", "cohort.size=0")
    quiet = ("privacy.noise_multiplier=0.05", "run.rounds=2", "data.classes=10")
    trained(tmp_path / "run", *keys, *many, *quiet)
    audited = audit(tmp_path / "run").canaries
    assert audited.epsilon_lower_bound > 0.0
