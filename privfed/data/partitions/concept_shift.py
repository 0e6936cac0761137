"""Concept shift: what a label means changes for everybody as rounds go by."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from privfed.data.federation import Federation
from privfed.deferred import torch
from privfed.errors import Refused
from privfed.parts import Part
from privfed.streams import Streams


class Concept(Part):
    """Concept shift: at random rounds two classes swap their labels, for everybody, for ever.

    `swaps` rounds are drawn from 2 to `within`, and for each two classes; from that round on, train
    and test examples of the one carry the label that the other had (the "concept shift" of Tian,
    Smith & Kira 2022, FedFOR), and no labelling ever comes back. What is swapped when follows from
    the run's seed.
    """

    changes_labels: ClassVar[bool] = True
    moves_features: ClassVar[bool] = False
    swaps: int = Field(3, ge=1)
    """How many swaps there are."""
    within: int = Field(100, ge=2, le=999_999)
    """The round until which they have happened."""

    def apply(self, federation: Federation, streams: Streams) -> Federation:
        y, classes = federation.examples.y, federation.examples.classes
        if y.dtype != torch.int64 or y.dim() != 1 or classes < 2:
            raise Refused(
                'data.shift is "concept", which swaps two classes, but these examples have no '
                'class each; use "none"'
            )
        if self.swaps > self.within - 1:
            raise Refused(
                f"data.swaps is {self.swaps}, but rounds 2 to data.within = {self.within} are only "
                f"{self.within - 1}; lower it or raise data.within"
            )
        rng = streams.at("shift").generator()
        rounds = np.sort(rng.choice(np.arange(2, self.within + 1), self.swaps, replace=False))
        labels, changes = np.arange(classes), []
        pairs = list(itertools.combinations(range(classes), 2))
        earlier = {tuple(labels)}
        for round in rounds.tolist():
            ahead = [labels.copy() for _ in pairs]
            for swapped, pair in zip(ahead, pairs, strict=True):
                swapped[list(pair)] = swapped[list(pair[::-1])]
            new = [swapped for swapped in ahead if tuple(swapped) not in earlier]
            if not new:
                raise Refused(
                    f"data.swaps is {self.swaps}, but with {classes} classes every further swap "
                    "brings an earlier labelling back; lower it"
                )
            labels = new[int(rng.integers(len(new)))]
            earlier.add(tuple(labels))
            changes.append((round, torch.from_numpy(labels)))
        return replace(federation, relabelled=tuple(changes))
