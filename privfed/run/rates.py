"""Chooses the learning rate and the clipping norm of a network before the first charge.

A key that is "auto" is set to a value with which short simulated runs end at a low loss. These
simulated runs read no private data: they train on up to 1,000 public test examples or, if there are
fewer than 20, on synthetic examples with labels from a randomly perturbed model. Each has a few
simulated clients and plain local SGD. The model, server optimizer, batch size and epochs are the
run's. All randomness is seeded, so a seeded run chooses the same values again. The other processes
of a run read the values from rank 0.

*Learning rate.* Each of `RATES` is tried without clipping and noise. The choice is the smallest
rate whose gain over a constant prediction is nearly that of the best rate.

*Clipping norm.* With a clip C below most updates' norms, the model moves by at most T C in T
rounds, and the noise adds up to a standard deviation of sqrt(T) z C. A simulated run of R < T
rounds imitates both effects with the clip C T / R and the noise multiplier z sqrt(R / T). Clips
around the median norm of updates are tried, each with the same standard normal numbers as noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privfed.client.autotune import training
from privfed.config.assembly import assembled
from privfed.config.config import Config, Raw
from privfed.config.overrides import assign
from privfed.core.errors import Refused
from privfed.data.federation import Examples, Federation, Meaning
from privfed.models.network import Network
from privfed.plan.plan import Plan
from privfed.privacy.mechanism import Mechanism
from privfed.run.evaluation.divergence import constant_loss
from privfed.run.rehearsal import rehearse
from privfed.run.setup import Setup

RATES = (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
CLIPS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125)
"""Clips, as multiples of the median norm of updates in the first simulated round."""
_MOST_EXAMPLES, _LEAST_EXAMPLES, _SYNTHETIC = 1000, 20, 400
_MOST_PER_CLIENT = 50
_LONG, _SHORT = (30, 8), (15, 4)
"""Rounds and clients per round of a simulated run, and of a shorter one (see `_SHARE`).

In fewer rounds, noise hides what recurrent networks and transformers learn.
"""
_SHARE = 0.25
"""The largest fraction of the run's own local training that `_LONG` simulated runs may take.

The limit does not apply if examples, counted at each use, times parameters are at most `_LITTLE`.
"""
_LITTLE = 5e9
_NEARLY = 0.05
"""The fraction of the best gain that a smaller learning rate may lack."""
_PERTURBATION = 0.1
"""Standard deviation of the random perturbation of each parameter of the initial model."""

Prepare = Callable[[Config, Federation], Setup]
Trying = Callable[[str, int, int], object]
"""A function of a key, the number (from 1) of the value tried for it, and the number of values."""


@dataclass(frozen=True)
class _Trials:
    """Short simulated runs on `population`; `setup` prepares them without noise.

    `clipped` prepares them with clipping and noise; None unless "privacy.clip" is "auto".
    """

    population: Federation
    setup: Setup
    clipped: Setup | None

    def loss(self, rate: float, mechanism: Mechanism | None = None) -> float:
        """The loss of a simulated run's final model at the rate `rate`; infinite if it diverges.

        The run has no noise, or the `mechanism` if it is given and `clipped` is not None.
        """
        setup = self.setup
        if mechanism is not None and self.clipped is not None:
            setup = self.clipped
            setup = replace(setup, algorithm=replace(setup.algorithm, mechanism=mechanism))
        try:
            params = rehearse(_at(setup, rate), self.population, 0).params
        except Refused:  # the update was not finite
            return math.inf
        return self.loss_of(params)

    def loss_of(self, params: Tensor) -> float:
        """The mean loss of the model `params` `[d]`; infinite if it is not finite."""
        network = self.setup.network
        scored = network.scored(params, self.population.test)
        loss = float(torch.cat([network.loss.losses(*each).double() for each in scored]).mean())
        return loss if math.isfinite(loss) else math.inf

    @property
    def constant(self) -> float:
        """The mean loss of the best constant prediction."""
        return constant_loss(self.setup.network.loss, self.population.test)

    def norm(self, rate: float) -> float:
        """The median norm of the first updates of the clients in one chunk, at the rate `rate`."""
        trainer, clients = _at(self.setup, rate).executor.trainer, self.setup.executor.chunk
        first = replace(self.population, offsets=self.population.offsets[: clients + 1])
        norms = training(trainer, trainer.way, first, trainer.epochs)().norm(dim=1)
        return float(norms.median())


def with_rates(
    plan: Plan, federation: Federation, network: Network, prepare: Prepare, trying: Trying
) -> Config:
    """Returns the configuration of `plan` with values for the keys that are "auto".

    Args:
      plan: the plan, in which these keys have the values that the loss recommends.
      federation: the population; only its public test set is read.
      network: the model.
      prepare: returns the setup of a configuration over a population.
      trying: called before each simulated run.

    Raises:
      Refused: if a simulated run cannot be prepared, or diverges at every learning rate.
    """
    config = plan.config
    public, origin = _public(federation)
    population = _population(public, federation, config)
    rounds, cohort = _size(config, population, network.without_adapters)
    trials = _prepared(config, population, rounds, cohort, prepare, synthetic=not origin)
    values: dict[str, float] = {}
    rate = config.client.lr
    if "client.lr" in config.open:
        start = trials.loss_of(trials.setup.network.initial_params)
        losses = {each: trials.loss(each) for each in _each("client.lr", RATES, trying)}
        rate = _rate(losses, start, trials.constant, rate)
        values["client.lr"] = rate
    if "privacy.clip" in config.open and trials.clipped is not None:
        values["privacy.clip"] = _clip(plan, trials, rate, cohort, trying)
    raw = config.raw()
    for target, value in values.items():
        assign(raw, target, value)
    chosen = " and ".join(f"{key} = {value:g}" for key, value in values.items())
    auto = f"{chosen}: chosen from {origin or 'synthetic examples'}"
    return assembled(raw, replace(config.resolved, auto=auto))


def _each(key: str, values: Sequence[float], trying: Trying) -> Iterator[float]:
    """Yields each of the `values` of `key`, and announces it."""
    for number, value in enumerate(values, start=1):
        trying(key, number, len(values))
        yield value


def _clip(plan: Plan, trials: _Trials, rate: float, cohort: int, trying: Trying) -> float:
    """Returns the clip with the lowest loss, scaled to the run's rounds, to two significant digits.

    Without a finite loss, or a finite and positive norm of updates, it is the mechanism's clip.
    """
    config, clipped = plan.config, trials.clipped
    assert clipped is not None
    share = clipped.plan.config.run.rounds / config.run.rounds
    on_average = plan.mechanism.noise_on_update(config.sampler.size) / config.sampler.size
    noise = on_average * cohort * math.sqrt(share)
    norm = trials.norm(rate)
    if not 0 < norm < math.inf:
        return config.mechanism.clip
    mechanism = clipped.algorithm.mechanism
    losses = {}
    for multiple in _each("privacy.clip", CLIPS, trying):
        tried = mechanism.with_clip(multiple * norm).at(noise)
        losses[multiple * norm * share] = trials.loss(rate, tried)
    return float(f"{_best(losses, config.mechanism.clip):.2g}")


def _rate(losses: Mapping[float, float], start: float, constant: float, otherwise: float) -> float:
    """Returns the smallest rate with all but `_NEARLY` of the best gain over a constant prediction.

    Reducing the loss does not suffice: for rare labels, learning the bias alone reduces it nearly
    as much. If no rate is better than a constant, the simulated runs are too short to compare
    rates. Then, of the rates that reduce the loss by nearly as much as the best, the largest one up
    to `otherwise` is chosen; if all are above `otherwise`, the smallest one. Raises `Refused` if no
    loss is finite.

    Args:
      losses: the final loss at each learning rate, in descending order of the rates.
      start: the loss of the initial model.
      constant: the loss of the best constant prediction.
      otherwise: the rate to choose if no rate reduces the loss.
    """
    least = min(losses.values())
    if not math.isfinite(least):
        raise Refused(
            'client.lr is "auto", but training on public or synthetic examples diverges at every '
            f"learning rate from {min(losses):g} to {max(losses):g}; scale the inputs, or set "
            "client.lr",
            key="client.lr",
        )
    learned = least < constant
    enough = least + _NEARLY * ((min(start, constant) if learned else start) - least)
    good = [rate for rate, loss in losses.items() if loss <= enough < start]
    if not learned:
        good = [rate for rate in good if rate <= otherwise][:1] or good
    return min(good, default=otherwise)


def _best(losses: Mapping[float, float], otherwise: float) -> float:
    """The value with the lowest loss; `otherwise` if no loss is finite."""
    best = min(losses, key=losses.__getitem__)
    return best if math.isfinite(losses[best]) else otherwise


def _public(federation: Federation) -> tuple[Examples, str]:
    """Returns up to `_MOST_EXAMPLES` public test examples, and a text with their number.

    Returns synthetic examples and "" if there are fewer than `_LEAST_EXAMPLES`, if the test set is
    incomplete, or if it belongs to clients that also train.
    """
    test = federation.test
    private = federation.shared or federation.test_is_few
    if len(test) < _LEAST_EXAMPLES or private:
        x, y = federation.examples.synthetic(_SYNTHETIC)
        return replace(federation.examples, x=x, y=y, owners=None, sites=None), ""
    order = np.random.default_rng(0).permutation(len(test))[:_MOST_EXAMPLES]
    shown = replace(test, owners=None, sites=None).take(order)
    return shown, f"{len(order):,} public test examples"


def _population(public: Examples, federation: Federation, config: Config) -> Federation:
    """Divides the `public` examples among simulated clients; all of them are also the test set.

    Each client has the estimated number of examples per client (by default two batches), at most
    `_MOST_PER_CLIENT`, and few enough for the clients of one round of `_SHORT`.
    """
    typical = round(federation.typical or 2 * config.client.batch_size)
    each = max(min(typical, _MOST_PER_CLIENT, len(public) // _SHORT[1]), 1)
    clients = len(public) // each
    shown = public.take(np.arange(clients * each))
    # A `test_scale` above 1 permits labels of one class, of which some measures are not defined.
    return Federation(shown, np.arange(clients + 1) * each, public, typical=each, test_scale=2.0)


def _size(config: Config, population: Federation, length: int) -> tuple[int, int]:
    """Returns the numbers of rounds and of clients per round of a simulated run.

    `length` is the number of the model's parameters, frozen or not.
    """
    rounds, cohort = _LONG
    updates = (len(RATES) + len(CLIPS)) * rounds * cohort
    examples = population.offsets[1] * config.client.epochs
    little = updates * examples * length <= _LITTLE
    if not little and updates > _SHARE * config.run.rounds * config.sampler.size:
        rounds, cohort = _SHORT
    return min(rounds, config.run.rounds), min(cohort, population.clients)


def _prepared(
    config: Config,
    population: Federation,
    rounds: int,
    cohort: int,
    prepare: Prepare,
    synthetic: bool,
) -> _Trials:
    """Returns simulated runs of `rounds` rounds with `cohort` clients each, not yet executed.

    If the examples are `synthetic`, a perturbed copy of the initial model labels them.
    """
    raw = config.raw()
    keys: Raw = {
        "run": {"rounds": rounds, "chunk": cohort, "randomness": "seeded"},
        "data": {"clients": population.clients, "setting": config.data.setting},
        "client": {key: raw["client"][key] for key in ("lr", "epochs", "steps", "batch_size")},
        "cohort": {"size": cohort},
        "privacy": {"mechanism": "none"},
        **{name: raw[name] for name in ("model", "server")},
    }
    keys["run"] |= {key: raw["run"][key] for key in ("seed", "device", "threads")}
    keys["client"]["lr"] = config.client.lr
    setup = _first_accepted(keys, population, prepare)
    if synthetic:
        population = _labelled(population, setup.network)
    clipped = None
    if "privacy.clip" in config.open:
        keys["privacy"] = {"mechanism": "gaussian", "noise_multiplier": 1.0, "accountant": "rdp"}
        keys["privacy"]["clip"] = config.mechanism.clip
        clipped = _first_accepted(keys, population, prepare)
    return _Trials(population, setup, clipped)


def _first_accepted(keys: Raw, population: Federation, prepare: Prepare) -> Setup:
    """Returns the setup for `keys` with the first sampler and training mode not refused."""
    refusals = []
    for sampler, way in itertools.product(("fixed_size", "poisson"), ("stacked", "loop")):
        keys["cohort"]["sampler"], keys["run"]["trainer"] = sampler, way
        try:
            return prepare(assembled(keys), population)
        except Refused as refused:
            refusals.append(refused)
    raise refusals[-1]


def _labelled(population: Federation, network: Network) -> Federation:
    """Returns `population` with labels predicted by a perturbed model, in about equal numbers."""
    generator = np.random.default_rng(0)
    start = network.initial_params
    moved = start + start.new_tensor(
        generator.normal(0, _PERTURBATION, len(start)).astype(np.float32)
    )
    examples = population.test
    assert isinstance(examples.x, Tensor)  # synthetic examples are in memory
    outputs = network.outputs(moved, examples.x).detach()
    each = outputs.flatten(0, -2)
    outputs = (outputs - each.mean(0)) / each.std(0).clamp_min(1e-6)
    predicted = network.loss.predict(outputs, Meaning())
    y = predicted["prediction"].to(examples.y.dtype).reshape(examples.y.shape)
    test = replace(examples, y=y)
    shown = replace(population.examples, y=y[: len(population.examples)])
    return replace(population, examples=shown, test=test)


def _at(setup: Setup, rate: float) -> Setup:
    trainer = replace(setup.executor.trainer, lr=rate)
    return replace(setup, executor=replace(setup.executor, trainer=trainer))
