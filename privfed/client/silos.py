"""Trains silos with DP-SGD, one after the other; each is charged to its own ledger."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from accounting.durable import make_folder
from accounting.ledger import Ledger
from privfed.client.batches import Course
from privfed.client.dp_sgd import ExamplePrivacy
from privfed.client.exchange import Broadcast
from privfed.client.objective import Work
from privfed.client.trainer import DROPOUT, LocalTrainer, preserved_generators
from privfed.core.errors import Broken, Refused
from privfed.core.streams import Keys, seed_draws
from privfed.core.vector import Indices
from privfed.models.calling import scoring
from privfed.models.network import Network

_MIXED = (
    'client.privacy.mechanism is "dp_sgd", but Opacus does not compute this model\'s per-example '
    "gradients correctly, since the model mixes examples or uses parameters outside of its layers; "
    "use another model, or user-level privacy (privacy.mechanism)"
)


class PerExample:
    """Computes the gradients of `network`'s loss at single examples, by Opacus.

    The constructor raises `Refused` if Opacus is not installed or does not support a layer.
    """

    def __init__(self, network: Network) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from opacus import GradSampleModule
                from opacus.validators import ModuleValidator
        except ImportError as error:
            raise Refused(
                'client.privacy.mechanism is "dp_sgd", but opacus is not installed; run: '
                "pip install 'privfed[opacus]'"
            ) from error
        self._network = network
        copied = copy.deepcopy(network.module).to(network.initial_params.device)
        for name, parameter in copied.named_parameters():
            parameter.requires_grad_(name in network.shapes.names)
        problems = ModuleValidator.validate(copied, strict=False)
        problems += GradSampleModule.validate(copied)
        if problems:
            layers = [
                f"{name!r} ({type(layer).__name__}{', with buffers' * bool([*layer.buffers()])})"
                for name, layer in copied.named_modules()
                if not [*layer.children()]
                and ModuleValidator.validate(layer, strict=False) + GradSampleModule.validate(layer)
            ]
            listed = "; ".join(" ".join(str(problem).split()) for problem in problems)
            raise Refused(
                'client.privacy.mechanism is "dp_sgd", but per-example gradients cannot be computed'
                f" for these layers: {', '.join(layers) or listed}; use other layers, or "
                "user-level privacy (privacy.mechanism)"
            )
        self._module = GradSampleModule(copied, loss_reduction="sum")
        self._parameters: dict[str, Any] = dict(copied.named_parameters())

    def verify(self, x: Tensor, y: Tensor) -> None:
        """Compares gradients with those of autograd on the three synthetic examples x, y `[3, *]`.

        Opacus computes gradients by hooks, which may miss computations of a module.

        Raises:
          Refused: if gradients differ, or cannot be computed.
        """
        network, generator = self._network, torch.Generator().manual_seed(0)
        noise = torch.randn(network.shapes.length, generator=generator).to(network.initial_params)
        w = network.initial_params + 0.1 * noise
        try:
            with scoring(network.module), _without_dropout(self._module):
                for count in (2, 3):
                    rows = self.gradients(w, x[:count], y[:count])
                    for place in range(count):
                        single = slice(place, place + 1)
                        true = _gradient(network, w, x[single], y[single])
                        scale = float(true.norm()) + 1e-6
                        if not float((rows[place] - true).norm()) <= 1e-3 * scale:
                            raise Refused(_MIXED)
        except Refused:
            raise
        except Exception as error:  # a user's module may raise any exception
            reason = " ".join(str(error).split())
            raise Refused(f"{_MIXED} ({type(error).__name__}: {reason})") from error

    def _rows(self, name: str, count: int) -> Tensor:
        """Returns the gradients of the parameter `name` at `count` examples, flattened.

        They are zero if the module does not use the parameter.
        """
        parameter = self._parameters[name]
        if getattr(parameter, "grad_sample", None) is None:
            return torch.zeros(count, parameter.numel(), device=parameter.device)
        rows: Tensor = parameter.grad_sample.flatten(1)
        return rows

    def gradients(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the per-example gradients `[B, d]` of the loss at the model w `[d]`.

        Raises `Refused` if the model yields more or fewer gradients than examples.
        """
        network = self._network
        with torch.no_grad():
            for name, view in network.shapes.views(w).items():
                self._parameters[name].copy_(view)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hooks on inputs without gradients
            self._module.zero_grad(set_to_none=True)
            network.loss.losses(self._module(x), y).sum().backward()  # type: ignore[no-untyped-call]
        parts = [self._rows(name, len(x)) for name in network.shapes.names]
        rows: Tensor = torch.cat(parts, dim=1).detach()
        if len(rows) != len(x):
            raise Refused(
                f'client.privacy.mechanism is "dp_sgd", but {len(x)} examples gave {len(rows)} '
                "gradients, since the model mixes examples; use layers that treat examples "
                "separately, or user-level privacy (privacy.mechanism)"
            )
        return rows


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Returns a context without dropout; other layers stay in training mode, as hooks require."""
    drawing = [part for part in module.modules() if isinstance(part, _DropoutNd)]
    for part in drawing:
        part.eval()
    try:
        yield
    finally:
        for part in drawing:
            part.train()


def _gradient(network: Network, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = w.detach().requires_grad_()
        loss = network.losses(leaf, x, y).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


class SiloLedgers:
    """One ledger per silo, under private/silos.

    A ledger states the rounds in which its silo participated, so it is never published.
    """

    def __init__(
        self, folder: Path, terms: Mapping[str, Any], silos: int, fresh: bool, reexecutes: bool
    ) -> None:
        """Opens the ledgers of all silos; creates them if no round was charged yet.

        Args:
          folder: folder of the ledgers.
          terms: declarations of the run, which the first line of each ledger states.
          silos: number of silos.
          fresh: whether no round was charged yet.
          reexecutes: whether a charged round may be executed again without a new charge (in seeded
            simulations: `Ledger.charge`).

        Raises:
          Broken: if a ledger is missing or empty after a charge, or is of another run.
        """
        for part in (folder.parent, folder):
            if fresh:
                make_folder(part, 0o700)
        self._ledgers = [
            _opened(folder / f"{silo:06d}.jsonl", {**terms, "silo": silo}, fresh)
            for silo in range(silos)
        ]
        for ledger in self._ledgers:
            ledger.reexecutes = reexecutes

    def of(self, silo: int) -> Ledger:
        return self._ledgers[silo]


def _opened(path: Path, terms: Mapping[str, Any], fresh: bool) -> Ledger:
    ledger = Ledger.recover(path) if path.exists() else None
    if ledger is None or not ledger.opened:
        if not fresh:
            raise Broken(
                f"{path}, which states the privacy spent on this silo's examples, is missing or "
                "empty; restore the file, or start a new run"
            )
        path.unlink(missing_ok=True)  # left by an interrupted creation
        return Ledger.create(path, terms)
    if ledger.terms.get("id") != terms["id"]:
        raise Broken(
            f"{path} is the ledger of a silo of another run; restore the ledger of this run's silo"
        )
    return ledger


class PrivateSilos:
    """Trains silos with example-level privacy, and charges each to its own ledger."""

    def __init__(self, dp: ExamplePrivacy, trainer: LocalTrainer, ledgers: SiloLedgers) -> None:
        self._dp, self._ledgers = dp, ledgers
        self._per_example = PerExample(trainer.network)

    def train(
        self,
        trainer: LocalTrainer,
        ids: Indices,
        broadcast: Broadcast,
        states: Tensor | None,
        round: int,
        keys: Keys,
        draws: Keys,
        epochs: Indices,
        returning: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Trains silos as `LocalTrainer.train` does; all are charged before the first one trains.

        The charge is for `trainer.epochs`, also for a silo that trains fewer epochs.

        Args:
          trainer: the local trainer of the round.
          ids: silo indices, shape [c].
          broadcast: released values by name.
          states: client states, shape [c, k], or None.
          round: current round.
          keys: private random streams, one per silo.
          draws: random streams of the model itself (dropout).
          epochs: local epochs of each silo, shape [c].
          returning: mask [c] of silos that have a state from an earlier round; None without state.

        Returns:
          The silos' messages [c, m] and new states [c, k]; the states are None if silos keep none.
        """
        for silo in ids.tolist():
            self._ledgers.of(silo).charge(round, self._dp.event(trainer.epochs))
        course = Course.begin(trainer.objective, len(ids), broadcast, states)
        steps = [self._dp.steps(int(count)) for count in epochs]
        device, taken = course.w.device, torch.tensor(steps).to(course.w)
        seeds = draws.per_client(1, salt=DROPOUT)[:, 0] >> np.uint64(1)
        with preserved_generators(device):
            for place, (silo, each) in enumerate(zip(ids.tolist(), keys.each(), strict=True)):
                seed_draws(int(seeds[place]), device)
                now = course.of(slice(place, place + 1))
                for step in range(steps[place]):
                    fresh = each.derived(b"step %d" % step)
                    grad = self._gradient(trainer, silo, now.w[0], fresh)[None]
                    epoch = torch.tensor([step // self._dp.steps(1)], device=device)
                    total = taken[place : place + 1]
                    along = now.step(grad, None, step, epoch, total, trainer.lr)
                    trainer.go(now, along, broadcast)
        work = Work(taken, trainer.lr, None, returning, course.carried, draws)
        return trainer.objective.message(course.w, broadcast, states, work)

    def _gradient(self, trainer: LocalTrainer, silo: int, w: Tensor, keys: Keys) -> Tensor:
        federation = trainer.federation
        first, size = int(federation.offsets[silo]), int(federation.sizes(np.array([silo]))[0])

        def gradients(model: Tensor, drawn: np.ndarray) -> Tensor:
            x, y = federation.gather(torch.from_numpy(first + drawn).to(model.device))
            return self._per_example.gradients(model, x, y)

        return self._dp.gradient(w, size, trainer.batch_size, gradients, keys)
