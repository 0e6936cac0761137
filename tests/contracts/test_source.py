"""What every source keeps: examples that follow from what it declares, or a refusal by its key."""

from typing import ClassVar

import numpy as np
import torch
from contracts.registered import contract_tests

from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.core.streams import Streams
from privfed.data.federation import Examples, Mapped
from privfed.data.sources.synthetic import Synthetic

CLIENTS = 6


def loaded(source, folder, seed=1):
    """What it loads; None where it reads files, and says of an empty folder that there are none."""
    streams = Streams(seed, simulated=True)
    if "path" not in type(source).model_fields:
        return source.load(CLIENTS, streams), source.load_test(CLIENTS, streams)
    places = [folder, folder / "nothing"]
    for path in map(str, places):
        try:
            source.model_copy(update={"path": path}).load(CLIENTS, streams)
        except Refused as refused:
            refused_for(str(refused), path)
        else:
            raise AssertionError("it loads examples from no file")
    return None


def refused_for(words, path):
    """Names the key or its section, and the place."""
    assert words.startswith("data")
    assert path in words, words


def loads_examples_of_its_form(source, folder):
    pair = loaded(source, folder)
    for examples in pair or ():
        if examples is None:
            continue
        x = examples.x[torch.arange(len(examples))] if not isinstance(examples.x, Mapped) else None
        assert examples.classes >= 1
        if x is not None:
            assert len(x) == len(examples.y) > 0
            assert x.isfinite().all()
            bound = source.squared_norm
            assert bound is None or float(x.flatten(1).square().sum(1).max()) <= bound * (1 + 1e-6)
        if examples.y.dtype == torch.int64:
            assert 0 <= int(examples.y.min()) <= int(examples.y.max()) < examples.classes
        if examples.owners is not None:
            assert len(examples.owners) == len(examples)
            assert examples.owners.min() >= 0


def loads_the_same_again(source, folder):
    first, second = (loaded(source, folder) for _ in range(2))
    if first is None:
        return
    assert torch.equal(first[0].y, second[0].y)
    assert torch.equal(first[0].x, second[0].x)
    assert np.array_equal(first[0].owners, second[0].owners) or first[0].owners is None


def names_its_origins(source):
    """By its configuration, not by the partition; clients are of one source alone."""
    origins = source.sources(1)
    assert origins
    assert all(isinstance(origin, str) and origin for origin in origins)
    assert source.sources(1) == origins
    assert isinstance(source.natural_partition, bool)
    assert isinstance(source.holds_real_clients, bool)
    assert source.squared_norm is None or source.squared_norm > 0
    assert type(source).storage_keys <= {*type(source).model_fields}


class Unbounded(Synthetic):
    """Its features are longer than it declares."""

    @property
    def squared_norm(self):
        return 1e-9


class Afresh(Synthetic):
    """Other examples each time."""

    def load(self, clients, streams):
        return super().load(clients, Streams(int(torch.randint(10**9, ())), simulated=True))


class Silent(Part):
    """A file that it takes for an empty one where it is missing, of no origin."""

    path: str = "."
    natural_partition: ClassVar[bool] = False
    holds_real_clients: ClassVar[bool] = True
    squared_norm: ClassVar[None] = None

    def sources(self, seed):
        return ()

    def load(self, clients, streams):
        return Examples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 2)

    def load_test(self, clients, streams):
        return None


test_every_source_keeps, test_a_wrong_source_is_rejected_by = contract_tests(
    "source",
    {
        loads_examples_of_its_form: [Unbounded(), Silent()],
        loads_the_same_again: [Afresh()],
        names_its_origins: [Silent()],
    },
)
