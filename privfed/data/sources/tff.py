"""TensorFlow Federated's published data sets, as their HDF5 files hold them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from privfed.data.federation import Examples
from privfed.data.sources.declared_examples import DeclaredExamples
from privfed.data.sources.hdf5_clients import read_clients
from privfed.streams import Streams


class Tff(DeclaredExamples):
    """TensorFlow Federated's HDF5 files: EMNIST, CIFAR-100, Shakespeare, Stack Overflow.

    x and `label` name fields of a client: "pixels" and "label" (EMNIST), "image" and "label" or
    "coarse_label" (CIFAR-100, by Pachinko: Reddi et al. 2021, appendix F), "snippets"
    (Shakespeare), "tokens" (Stack Overflow). Everything is declared: the `shape` of an image as
    [channels, height, width], its `bounds`, `classes`; of texts a `vocabulary` of characters, or a
    public file of `words`. Numbers are scaled onto [-1, 1].

    The published test files of EMNIST, Shakespeare and Stack Overflow are of clients who train too,
    and those of CIFAR-100 of others under the same names: they are scored on without privacy, or
    with `data.holdout = "examples"`. Under privacy, `data.holdout = "clients"` declares some of the
    training clients public.
    """

    path: str
    """An HDF5 file, as fed_emnist_train.h5."""
    test_path: str = ""
    """One of test examples, as fed_emnist_test.h5."""
    share: float = Field(1.0, gt=0.0, le=1.0)
    """Which share of the clients is read: each by its name alone, whoever else there is."""

    def sources(self, seed: int) -> tuple[str, ...]:
        return ("tff: ",)

    def load(self, clients: int, streams: Streams) -> Examples:
        return self._load(self.path)

    def load_test(self, clients: int, streams: Streams) -> Examples | None:
        return self._load(self.test_path) if self.test_path else None

    def _load(self, path: str) -> Examples:
        stored = () if self.text else self.array_form.stored
        return self.of_declared_form(
            read_clients(Path(path), self.x, self.label, stored, self.share)
        )
