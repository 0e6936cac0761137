"""People who took no part in a run, of the kind that did: groups of its public test examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privfed.config.config import Config
from privfed.data.federation import Examples, Federation
from privfed.errors import Refused
from privfed.streams import Streams
from privfed.vector import Indices


def outsiders(
    config: Config, people: Federation, level: str, seed: int, path: Path
) -> tuple[Examples, Indices]:
    """The test examples, and the offsets `[users + 1]` of the users that they make up.

    They are dealt by chance in the sizes of the run's clients, where those were dealt by chance;
    else as the source says whose they are. For single examples the offsets mean nothing. Raises
    `Refused` where neither is known: members would then differ from non-members by more than having
    taken part.
    """
    test, rest = people.test, f"attack {path / 'config.toml'} instead, which leaves clients out"
    partition = config.partition
    if config.shift.moves_features:
        raise Refused(
            f"data.shift is {config.names['shift']!r}: a client's examples were moved together, "
            f"each of the public test set by itself, and that would tell them apart; {rest}"
        )
    if level == "example":
        return test, np.array([0, len(test)])
    if people.shared:
        raise Refused(
            'the test set is of clients who trained (as data.holdout = "examples" has it), so that '
            f"nobody took no part; use --level example, or {rest}"
        )
    if partition.by_chance:
        return _dealt(people, seed)
    if partition.natural and test.owners is not None:
        order = np.argsort(test.owners, kind="stable")
        starts = np.unique(test.owners[order], return_index=True)[1]
        return test.take(order), np.append(starts, len(test)).astype(np.int64)
    raise Refused(
        f"data.partition is {config.names['partition']!r}, and whose the public test examples are "
        f"is not known: no non-member is like a client of this run; {rest}"
    )


def _dealt(people: Federation, seed: int) -> tuple[Examples, Indices]:
    """Shuffled test examples, cut in the sizes of clients drawn by chance; the rest is left out."""
    rng = Streams(seed).at("membership/outsiders").generator()
    sizes = np.diff(people.client_offsets)
    ends = np.cumsum(rng.permutation(sizes[sizes > 0]))
    ends = ends[ends <= len(people.test)]
    if not len(ends):
        raise Refused(
            f"the {len(people.test)} public test examples do not make up one client of this run; "
            "raise data.holdout_fraction, or use --level example"
        )
    chosen = rng.permutation(len(people.test))[: ends[-1]]
    return people.test.take(chosen), np.concatenate([[0], ends]).astype(np.int64)
