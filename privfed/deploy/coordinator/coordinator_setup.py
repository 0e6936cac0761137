"""A run as its coordinator sets it up, who has no client's data: a public test set, and sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfed.config.config import Config
from privfed.data.federation import Federation
from privfed.errors import Refused
from privfed.streams import Streams


@dataclass(frozen=True)
class NobodyHere:
    """A loader of nobody's data: in the place of all clients stands one public example."""

    def __call__(self, config: Config, streams: Streams) -> Federation:
        """The public test set. Raises `Refused` where there is none, or nothing asks sites."""
        if not config.by_sites or config.row_hiding is None:
            raise Refused(
                "a federation of sites on machines of their own sums what they send; declare "
                'data.sites, and set secure.protocol = "masks"'
            )
        test = config.source.load_test(max(round(config.data.holdout_fraction), 1), streams)
        if test is None:
            raise Refused(
                "a coordinator has no client's data to score a model on; name a public test set "
                "(data.test_path of a table)"
            )
        first = test.take(np.zeros(1, dtype=np.int64))
        return Federation(
            first,
            np.array([0, 1]),
            test,
            typical=float(len(test)) / max(config.data.clients, 1),
            stands_for=config.data.clients,
        ).with_root_set(config.aggregation.root)
