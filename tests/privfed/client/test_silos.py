"""Example-level privacy inside silos: steps, ledgers, what is refused, and planted faults."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import assert_normal, population, set_fields, trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case
from small import same_run, small, trained

from accounting.accountants import epsilon
from accounting.events import ADD_REMOVE, Event
from accounting.ledger import Ledger
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled, Repeated
from privfed.auditing.run_audit import audit
from privfed.client import dp_sgd
from privfed.client.dp_sgd import DpSgd
from privfed.client.silos import PerExample, PrivateSilos, SiloLedgers
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Keys, Streams
from privfed.core.vector import Shapes
from privfed.plan.plan import plan
from privfed.privacy.mechanism import BoundedRows
from privfed.run.check import check
from privfed.run.train import resume
from privfed.store.round_logs import Releases

SILOS = (
    *("data.setting=cross_silo", "cohort.sampler=full", "cohort.size=0"),
    *("privacy.mechanism=none", "client.privacy.mechanism=dp_sgd"),
    *("client.privacy.sampling_rate=0.3", "client.privacy.noise_multiplier=1.5"),
)
STREAMS = Streams(2, simulated=True)
DP = DpSgd(clip=0.5, noise_multiplier=1.5, sampling_rate=0.25)


def step(gradients, examples, number=0, dp=DP, width=3000):
    """One released gradient; `gradients` `[examples, width]` are everybody's."""
    keys = STREAMS.at("noise/silo", 1, np.array([4]))
    (own,) = keys.each()
    w = torch.zeros(width)
    return dp.gradient(
        w, examples, 8, lambda _, drawn: gradients[drawn], own.derived(b"%d" % number)
    )


def noise_has_the_charged_scale():
    noise = torch.cat([step(torch.zeros(6, 3000), 6, n) for n in range(30)])
    assert_normal(8 * noise.numpy(), DP.event(1).release.of.of.noise_multiplier * DP.clip)


def one_example_moves_a_step_by_at_most_the_clip():
    examples = torch.randn(40, 3000)
    for extra in (
        torch.full((1, 3000), 1e4),
        torch.full((1, 3000), torch.nan),
        torch.zeros(1, 3000),
    ):
        for number in range(12):
            more = step(torch.cat([examples, extra]), 41, number)
            moved = float((8 * (more - step(examples, 40, number)).double()).norm())
            assert moved <= DP.clip * (1 + 1e-4)


def each_example_enters_by_its_own_coin():
    often = np.zeros(50)
    keys = STREAMS.at("noise/silo", 1, np.array([4]))
    (own,) = keys.each()

    def gradients(_, drawn):
        often[drawn] += 1
        return torch.zeros(len(drawn), 2)

    for number in range(2000):
        DP.gradient(torch.zeros(2), 50, 8, gradients, own.derived(b"%d" % number))
    rate = DP.event(1).release.of.rate
    spread = ((often - 2000 * rate) ** 2 / (2000 * rate * (1 - rate))).sum()
    assert 15 < spread < 110  # chi-square of 50: far out on both sides at 1e-6


def the_divisor_is_a_constant():
    same = torch.full((1, 3000), 1e-4)
    still = DpSgd(clip=0.5, noise_multiplier=0.0, sampling_rate=1.0)
    for examples in (1, 5, 20):
        stepped = step(same.repeat(examples, 1), examples, dp=still)
        torch.testing.assert_close(stepped, examples * same[0] / 8)


CHECKS = [
    noise_has_the_charged_scale,
    one_example_moves_a_step_by_at_most_the_clip,
    each_example_enters_by_its_own_coin,
    the_divisor_is_a_constant,
]


@every_case("one", CHECKS)
def test_a_step_is_what_its_event_says(one):
    one()


def halved(monkeypatch):
    real = dp_sgd.gaussian_on_grid
    monkeypatch.setattr(dp_sgd, "gaussian_on_grid", lambda *args: 0.5 * real(*args))


def unclipped(monkeypatch):
    monkeypatch.setattr(dp_sgd, "clip_rows", lambda rows, clip, *_: BoundedRows(rows, clip))


def fixed_batches(monkeypatch):
    def bernoulli(self, rate, count):
        return np.arange(count) < rate * count

    monkeypatch.setattr(Keys, "bernoulli", bernoulli)


def realised_divisor(monkeypatch):
    real = DpSgd.gradient

    def gradient(self, w, examples, batch_size, gradients, keys):
        return real(self, w, examples, max(examples, 1), gradients, keys)

    monkeypatch.setattr(DpSgd, "gradient", gradient)


@every_case(
    "fault, one",
    list(zip([halved, unclipped, fixed_batches, realised_divisor], CHECKS, strict=True)),
)
def test_a_planted_fault_is_caught(fault, one, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        one()


def test_gradients_of_single_examples_are_autograds():
    local = trainer(population((6,)))
    net = local.network
    x, y = local.federation.gather(torch.arange(6))
    w = net.initial_params + 0.1
    gradients = PerExample(net).gradients(w, x, y)
    for place in range(6):
        leaf = w.clone().requires_grad_()
        loss = net.losses(leaf, x[place : place + 1], y[place : place + 1]).sum()
        torch.testing.assert_close(gradients[place], torch.autograd.grad(loss, leaf)[0])


def test_an_epoch_is_a_constant_number_of_steps():
    assert DpSgd(sampling_rate=0.3).steps(2) == 8
    assert DpSgd(sampling_rate=1.0).steps(1) == 1
    event = DpSgd(sampling_rate=0.3, noise_multiplier=1.5).event(2)
    assert event == Event(
        Repeated(8, PoissonSampled(0.3, Gaussian(1.5))), "poisson", ADD_REMOVE, "example"
    )


def test_every_silo_is_charged_to_its_own_ledger(tmp_path):
    trained(tmp_path / "run", *SILOS)
    paths = sorted((tmp_path / "run/private/silos").glob("*.jsonl"))
    assert len(paths) == 12
    assert (tmp_path / "run/private").stat().st_mode & 0o077 == 0
    for silo, path in enumerate(paths):
        ledger = Ledger.load(path)
        assert ledger.terms["silo"] == silo
        assert ledger.terms["unit"] == "example"
        assert [charge.round for charge in ledger.charges] == [*range(1, 8)]
    audited = audit(tmp_path / "run")
    once = Event(PoissonSampled(0.3, Gaussian(1.5)), "poisson", ADD_REMOVE, "example")
    assert audited.examples.epsilon == epsilon({once: 7 * 8}, 1e-5, "pld")
    clients, examples = audited.to_json()["guarantees"]
    assert clients["unit"] == "client"
    assert clients["epsilon"] == float("inf")
    assert examples["unit"] == "example"
    assert examples["epsilon"] == audited.examples.epsilon
    printed = json.loads((tmp_path / "run/report/summary.json").read_text())["guarantees"]
    assert printed[1]["epsilon"] == audited.examples.epsilon
    planned = check(small(*SILOS)).to_json()["guarantees"]
    assert planned[1]["epsilon"] == audited.examples.epsilon


def test_ledgers_that_are_gone_or_foreign_lower_nothing(tmp_path):
    words = [word for word in SILOS if not word.startswith("cohort")]
    words += ["cohort.sampler=poisson", "cohort.size=4"]
    trained(tmp_path / "run", *words)
    trained(tmp_path / "other", *words, "client.privacy.noise_multiplier=20.0")
    exact = audit(tmp_path / "run").examples.epsilon
    folder = tmp_path / "run/private/silos"
    shutil.copytree(folder, tmp_path / "kept")
    for path in folder.glob("*.jsonl"):
        if len(Ledger.load(path).charges) > 2:
            path.unlink()
    audited = audit(tmp_path / "run")
    assert audited.examples.epsilon > exact
    assert audited.examples.rounds == 7  # as if one had been in every round
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "other/private/silos", folder)
    audited = audit(tmp_path / "run")
    assert audited.examples.epsilon > exact
    assert "not the ledger of a silo of this run" in audited.problems[0]
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    summary = tmp_path / "run/report/summary.json"
    printed = json.loads(summary.read_text())
    printed["guarantees"][1]["epsilon"] = 0.1
    summary.write_text(json.dumps(printed))
    assert "claims epsilon = 0.1" in audit(tmp_path / "run").problems[0]


def interrupted(path, monkeypatch, *words, after=4):
    real = Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        if charge.round == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(Releases, "write", write)
    with pytest.raises(KeyboardInterrupt):
        trained(path, *words)
    monkeypatch.undo()


def test_a_secret_run_goes_on_with_its_ledgers_and_never_without(tmp_path, monkeypatch):
    interrupted(tmp_path / "run", monkeypatch, *SILOS)
    shutil.copytree(tmp_path / "run", tmp_path / "lost")
    torn = tmp_path / "run/private/silos/000003.jsonl"
    torn.write_bytes(torn.read_bytes()[:-20])  # a crash while it was charged
    resume(tmp_path / "run", lambda stored: stored)
    assert [charge.round for charge in Ledger.load(torn).charges] == [*range(1, 8)]
    assert not audit(tmp_path / "run").problems
    (tmp_path / "lost/private/silos/000003.jsonl").unlink()
    with pytest.raises(Broken, match="is missing or empty"):
        resume(tmp_path / "lost", lambda stored: stored)


def test_a_first_line_torn_before_any_charge_is_begun_again(tmp_path):
    path = tmp_path / "private/silos"
    path.parent.mkdir()
    path.mkdir()
    (path / "000001.jsonl").write_bytes(b'{"format":1,"ha')
    terms = {"id": "me"}
    ledgers = SiloLedgers(path, terms, 2, fresh=True, reexecutes=False)
    assert ledgers.of(1).terms["silo"] == 1
    with pytest.raises(Broken, match="another run"):
        SiloLedgers(path, {"id": "you"}, 2, fresh=True, reexecutes=False)


class Tied(torch.nn.Module):
    """A layer's weight is used once more, where no hook sees it."""

    def __init__(self, features):
        super().__init__()
        self.a = torch.nn.Linear(features, features)
        self.b = torch.nn.Linear(features, 3)

    def forward(self, x):
        return self.b(torch.nn.functional.linear(torch.relu(self.a(x)), self.a.weight.t()))


class Unused(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.a, self.b = torch.nn.Linear(features, 3), torch.nn.Linear(features, 3)

    def forward(self, x):
        return self.a(x)


class Sideways(torch.nn.Module):
    """Another axis first: rows would be of positions, each of which mixes all examples."""

    def __init__(self, features):
        super().__init__()
        self.a = torch.nn.Linear(1, 3)

    def forward(self, x):
        return self.a(x.t()[..., None]).mean(0)


def of_module(module):
    local = trainer(population((4,)))
    net = replace(local.network, module=module, shapes=Shapes.of(module))
    flat = net.shapes.flatten(dict(module.named_parameters()))
    return replace(net, initial_params=flat), local.federation.examples.synthetic(3)


@pytest.mark.parametrize("kind", [Tied, Sideways])
def test_a_model_whose_examples_hooks_cannot_tell_apart_is_refused(kind):
    features = trainer(population((4,))).federation.examples.x.shape[1]
    net, synthetic = of_module(kind(features))
    with pytest.raises(Refused, match=r"mixes examples|it mixes"):
        PerExample(net).verify(*synthetic)


def test_a_trained_layer_with_a_buffer_is_refused():
    """Opacus has no gradients for it."""
    module = torch.nn.Sequential(torch.nn.Linear(5, 3))
    module[0].register_buffer("scale", torch.ones(()))
    net, _ = of_module(module)
    with pytest.raises(Refused, match=r"cannot be computed for these layers.*buffers"):
        PerExample(net)


def test_an_unused_parameter_has_a_gradient_of_zero():
    features = trainer(population((4,))).federation.examples.x.shape[1]
    net, synthetic = of_module(Unused(features))
    one = PerExample(net)
    one.verify(*synthetic)
    rows = one.gradients(net.initial_params, *synthetic)
    assert (net.shapes.views(rows)["b.weight"] == 0).all()


def test_without_noise_and_clip_it_is_full_batch_gradient_descent(tmp_path):
    local = trainer(population((6, 3)))
    dp = DpSgd(clip=1e6, noise_multiplier=0.0, sampling_rate=1.0)
    ledgers = SiloLedgers(tmp_path / "silos", {"id": "x"}, 2, fresh=True, reexecutes=False)
    ids, params = np.arange(2), local.network.initial_params
    keys = STREAMS.at("noise/silo", 1, ids)
    draws = STREAMS.at("shuffle", 1, ids)
    rows, _ = PrivateSilos(dp, local, ledgers).train(
        local, ids, {"params": params}, None, 1, keys, draws, np.array([3, 3]), None
    )
    for silo in range(2):
        w = params.clone()
        first, last = local.federation.offsets[silo : silo + 2]
        x, y = local.federation.gather(torch.arange(first, last))
        for _ in range(3):
            leaf = w.clone().requires_grad_()
            total = local.network.losses(leaf, x, y).sum() / local.batch_size
            w = w - local.lr * torch.autograd.grad(total, leaf)[0]
        torch.testing.assert_close(rows[silo], w - params, rtol=1e-4, atol=1e-5)


def test_the_sizes_of_batches_vary_as_coins_do():
    sizes = []
    keys = STREAMS.at("noise/silo", 1, np.array([4]))
    (own,) = keys.each()

    def gradients(_, drawn):
        sizes.append(len(drawn))
        return torch.zeros(len(drawn), 2)

    for number in range(3000):
        DP.gradient(torch.zeros(2), 40, 8, gradients, own.derived(b"%d" % number))
    assert np.var(sizes) == pytest.approx(40 * 0.25 * 0.75, rel=0.12)


def test_a_silo_pays_for_the_rounds_that_it_was_in(tmp_path):
    words = [word for word in SILOS if not word.startswith("cohort")]
    words += ["cohort.sampler=poisson", "cohort.size=4", "run.randomness=seeded"]
    trained(tmp_path / "run", *words)
    ledgers = [Ledger.load(path) for path in (tmp_path / "run/private/silos").glob("*.jsonl")]
    most = max(len(ledger.charges) for ledger in ledgers)
    assert 0 < most < 7
    assert audit(tmp_path / "run").examples.rounds == most


def test_both_guarantees_are_stated_where_users_are_protected_too(tmp_path):
    words = [word for word in SILOS if word != "privacy.mechanism=none"]
    words += ["privacy.noise_multiplier=2.0"]
    trained(tmp_path / "run", *words, "cohort.sampler=poisson", "cohort.size=4")
    audited = audit(tmp_path / "run")
    assert audited.guarantee.unit == "client"
    assert audited.guarantee.epsilon < 20
    # Who took part is secret there: as if one silo had been in every round. So is their number.
    assert "silos" not in Ledger.load(tmp_path / "run/ledger.jsonl").terms["examples"]
    assert audited.examples.rounds == 7


@pytest.mark.slow
def test_a_seeded_resume_ends_bit_for_bit_as_if_uninterrupted(tmp_path, monkeypatch):
    from privfed.store.round_logs import Releases

    words = (*SILOS, "run.randomness=seeded", "client.objective=fedprox", "client.mu=0.1")
    trained(tmp_path / "whole", *words)
    real = Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        if charge.round == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Releases, "write", write)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", *words)
    monkeypatch.undo()
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "cut")
    for path in sorted((tmp_path / "whole/private/silos").glob("*.jsonl")):
        other = Ledger.load(tmp_path / "cut/private/silos" / path.name)
        assert [c.round for c in other.charges] == [c.round for c in Ledger.load(path).charges]


@every_case(
    "overrides, reason",
    [
        (["data.setting=cross_device"], "cross_silo"),
        (["client.objective=mime"], "outside of the local steps"),
        (["client.objective=feddane"], "outside of the local steps"),
        (["client.objective=fedprox_adaptive"], "outside of the local steps"),
        (["client.objective=fedcurv"], "outside of the local steps"),
        (["client.steps=3"], "determines the number of charged steps"),
        (["aggregation.weights=examples"], "silo_weights"),
        (["cohort.sampler=by_size", "cohort.size=3"], "a silo's number of examples"),
        (["aggregation.silo_weights=[1.0, 2.0]"], "one number for each"),
        (["aggregation.silo_weights=[0,0,0,0,0,0,0,0,0,0,0,0]"], "one number for each"),
        (
            ["aggregation.rule=median", f"aggregation.silo_weights={[1.0] * 12}"],
            "all rows equal weight",
        ),
        (
            ["privacy.mechanism=gaussian", f"aggregation.silo_weights={[1.0] * 12}"],
            "every client has weight 1",
        ),
    ],
)
def test_what_would_leave_unprotected_is_refused(overrides, reason):
    with pytest.raises(Refused, match=reason):
        plan(small(*SILOS, *overrides))


def test_declared_weights_are_the_aggregations(tmp_path):
    weights = [0.0] * 11 + [3.0]
    quiet = [*SILOS, "client.privacy.mechanism=none", "run.rounds=1", "server.optimizer=fedavg"]
    quiet += ["server.lr=1.0", "run.randomness=seeded"]
    one = trained(tmp_path / "a", *quiet, f"aggregation.silo_weights={weights}")
    all_alike = trained(tmp_path / "b", *quiet, f"aggregation.silo_weights={[2.0] * 12}")
    uniform = trained(tmp_path / "c", *quiet, "aggregation.weights=uniform")
    assert all_alike.measures["loss"] == pytest.approx(uniform.measures["loss"], rel=1e-6)
    assert one.measures["loss"] != pytest.approx(uniform.measures["loss"], rel=1e-3)


def test_a_model_that_mixes_examples_is_refused():
    local = trainer(population((4,)))
    mixing = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    set_fields(local.network, module=mixing, shapes=Shapes.of(mixing))
    with pytest.raises(Refused, match="per-example gradients cannot"):
        PerExample(local.network)


@given(
    st.integers(1, 30),
    st.sampled_from([1.0, 1e-3, 1e4, float("nan"), float("inf")]),
    st.integers(0, 10**6),
)
@settings(max_examples=40)
def test_no_example_whatever_it_is_moves_a_step_further(others, size, seed):
    """Neighbouring silos by search: through Opacus, the clip, the grid and the sum."""
    local = trainer(population((4,)))
    net, generator = local.network, torch.Generator().manual_seed(seed)
    features = local.federation.examples.x.shape[1:]
    x = torch.randn((others + 1, *features), generator=generator)
    x[-1] *= size
    y = torch.randint(0, 3, (others + 1,), generator=generator)
    one = PerExample(net)
    dp = DpSgd(clip=0.2, noise_multiplier=1.0, sampling_rate=1.0)
    keys = STREAMS.at("noise/silo", seed, np.array([1]))

    def released(examples):
        (own,) = keys.each()
        taken = lambda w, drawn: one.gradients(w, x[drawn], y[drawn])  # noqa: E731
        return dp.gradient(net.initial_params, examples, 1, taken, own).double()

    moved = float((released(others + 1) - released(others)).norm())
    assert moved <= dp.clip * (1 + 1e-5)


@pytest.mark.parametrize(
    "words",
    [
        ("client.objective=scaffold",),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ("client.objective=feddyn",),
                ("client.objective=worker_momentum",),
                ("client.objective=fedfor",),
                ("client.epochs=3", "client.stragglers=0.5", "client.drop_stragglers=true"),
                (f"aggregation.silo_weights={[1.0, 2.0] * 3}",),
                ("model.name=mlp", "model.hidden=[5]"),
            )
        ),
        ("client.epochs=3", "client.stragglers=0.5"),
        ("cohort.availability=groups", "cohort.groups=2"),
    ],
    ids=lambda words: words[0],
)
def test_it_composes_and_its_resume_is_exact(tmp_path, monkeypatch, words):
    words = (*SILOS, "run.randomness=seeded", "data.clients=6", *words)
    trained(tmp_path / "whole", *words)
    interrupted(tmp_path / "cut", monkeypatch, *words)
    resume(tmp_path / "cut", lambda stored: stored)
    same_run(tmp_path / "whole", tmp_path / "cut")
    audited = audit(tmp_path / "cut")
    assert not audited.problems
    steps = DpSgd(sampling_rate=0.3).steps(3 if "client.epochs=3" in words else 2)
    once = Event(PoissonSampled(0.3, Gaussian(1.5)), "poisson", ADD_REMOVE, "example")
    most = max(
        len(Ledger.load(path).charges) for path in (tmp_path / "cut/private/silos").glob("*.jsonl")
    )
    assert audited.examples.epsilon == epsilon({once: most * steps}, 1e-5, "pld")
