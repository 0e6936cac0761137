"""Mimic: all attackers copy one honest client, so that this client is over-represented."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from attacks.types import Identities, ReadingAttack, State, View, usable_honest


class Mimic(ReadingAttack):
    """Copies the most atypical honest client, so every row sent is an honest row.

    All attackers send the honest row x_k with the largest <z, x_k>. z is the direction in which
    honest updates differ most. It starts at random and is learned over `warmup` rounds by z <- sum
    over k of <z, x_k - mu> (x_k - mu) + z, normalised to length one; mu is the honest mean.

    The client copied in the last of these rounds remains the victim, so that the same client is
    over-represented in every round. If it does not take part, if its row is not usable, or if
    identities are unknown, the choice is as in the warm-up.

    Knows all honest updates and the clients' identities. Source: Karimireddy, He & Jaggi 2022,
    section 3.2 and the attack's details in the appendix.

    >>> import torch, numpy
    >>> view = View(1, torch.zeros(1, 2), torch.tensor([[5.0, 0.0], [-4.0, 0.0], [0.0, 1.0]]))
    >>> Mimic().corrupt(view, {}, numpy.random.default_rng(1))[0]
    tensor([[5., 0.]])
    """

    warmup: int = Field(20, ge=1, le=10_000)
    """Number of rounds in which the direction is learned and the victim chosen."""

    def corrupt(self, view: View, state: State, rng: np.random.Generator) -> tuple[Tensor, State]:
        honest = usable_honest(view.honest)
        if honest is None:
            return view.byzantine, state
        identities = view.identities_of_usable()
        done = int(state.get("rounds", torch.tensor(0)))
        if done < self.warmup:
            state = {**state, "direction": _turned(state.get("direction"), honest, rng)}
        place = _present(state.get("victim"), identities) if done >= self.warmup else None
        if place is None:
            place = int((honest @ state["direction"]).argmax())
        if done < self.warmup and identities is not None:
            state = {**state, "victim": torch.tensor(int(identities[place]))}
        sent = honest[place].expand_as(view.byzantine).clone()
        return sent, {**state, "rounds": torch.tensor(done + 1)}


def _turned(z: Tensor | None, honest: Tensor, rng: np.random.Generator) -> Tensor:
    """Returns `z` `[m]` turned toward the direction in which rows `[h, m]` differ most, of norm
    one.

    If `z` is None, a random direction is turned.
    """
    if z is None:
        z = torch.from_numpy(rng.normal(size=honest.shape[1])).to(honest)
        z = z / z.norm()
    away = honest - honest.mean(0)
    z = away.T @ (away @ z) + z
    turned: Tensor = z / z.norm()
    return turned


def _present(victim: Tensor | None, identities: Identities | None) -> int | None:
    """Returns the index in `identities` `[h]` of the client with the identifier `victim`.

    None if it is not there, or if `victim` or `identities` is None.
    """
    if victim is None or identities is None:
        return None
    places = np.flatnonzero(identities == int(victim))
    return int(places[0]) if len(places) else None
