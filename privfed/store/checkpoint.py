"""The state of training, saved in a run directory and loaded from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privfed.core.errors import Broken
from privfed.models.network import Network
from privfed.round.algorithm import TrainingState
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import CPU, misfits_are_broken, under, unpack, write

_KINDS = ("server", "mechanism", "objective", "rule", "attack", "evaluation", "earlier")
"""The kinds of state other than the model, in the order of the fields of `TrainingState`."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of training after a round, and the ledger's head at that time.

    Attributes:
      round: the last round that `state` includes; 0 before the first.
      updates: number of rounds so far that changed the model.
      state: the model's parameters, and the states of the server, mechanism and other parts.
      head: hash of the ledger's last line when the checkpoint was made.
    """

    round: int
    updates: int
    state: TrainingState
    head: bytes

    @classmethod
    def first(cls, state: TrainingState, head: bytes) -> Checkpoint:
        """Returns the checkpoint before round 1, with this `state` and the ledger's `head`."""
        return cls(0, 0, state, head)

    def save(self, directory: RunDirectory, network: Network) -> None:
        """Stores the checkpoint durably, then deletes the stored releases that it includes.

        These are the files in `releases/` of rounds up to `round`.
        """
        tensors = {f"model/{k}": v for k, v in network.shapes.views(self.state.params).items()}
        for kind in _KINDS:
            named = getattr(self.state, kind).items()
            tensors |= {f"{kind}/{name}": tensor for name, tensor in named}
        about = {
            "round": self.round,
            "updates": self.updates,
            "ledger_head": self.head.hex(),
            "fingerprint": list(network.fingerprint),
            **({"form": network.form.model_dump(mode="json")} if network.form else {}),
        }
        if lineage := directory.checkpoint.lineage_at(self.head):
            about["lineage"] = lineage
        write(directory.checkpoint.path, tensors, about)
        directory.releases.drop(self.round)

    @classmethod
    def load(
        cls, directory: RunDirectory, network: Network, device: torch.device | str = CPU
    ) -> Checkpoint:
        """Loads the checkpoint of a run directory.

        Args:
          directory: the run directory.
          network: the model, built by the same code as when the checkpoint was saved.
          device: device of the loaded tensors.

        Raises:
          Broken: if the checkpoint is missing or damaged, or does not fit `network`.
        """
        path = directory.checkpoint.path
        tensors, about = unpack(path, device)
        with misfits_are_broken(path):
            if not network.same_code([float(number) for number in about["fingerprint"]]):
                raise Broken(
                    f"{directory.path}: the model's code computes other outputs than when this run "
                    "was trained (or draws its initial values from a generator other than "
                    "torch's); restore the code"
                )
            params = network.shapes.flatten_exactly(under(tensors, "model/"))
            if params.dtype != network.initial_params.dtype:
                raise ValueError("the parameters have another dtype than the model's")
            state = TrainingState(params, *(under(tensors, f"{kind}/") for kind in _KINDS))
            head = bytes.fromhex(str(about["ledger_head"]))
            return cls(int(about["round"]), int(about["updates"]), state, head)
