"""The byzantine clients of a simulation: who they are, and what they send instead.

An attack sees what its threat model says and no more (`attacks.types.View`). Who is byzantine is a
fixed part of the population, drawn once or afresh each round, by public coins that read nobody's
data; a cohort has as many of them as the sampler happens to draw.

What byzantine clients claim beside their rows: how many examples they hold, how long a row is.

The threat model: attackers replace every number that they send in a round that trains, in every
exchange. What limits them is what others can check. A server that sees rows bounds them, and what
it admits of a weight (`aggregation.most_examples`); under a secure sum nobody checks anything but
that the numbers fit. The count of adaptive clipping is a bit: whatever it says, its column has the
same length.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.types import Attack, Briefing, Knowledge, State, Unarmed, View
from privfed.core.deferred import Tensor, torch
from privfed.core.errors import Refused
from privfed.core.streams import Streams, coins
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation
from privfed.privacy.mechanism import BoundedRows


@dataclass(frozen=True)
class Lies:
    """What attackers claim; the default claims nothing untrue.

    `everything`: their attack replaces all that they send in training, else model updates alone.
    `weight` is how many times their examples they claim to hold, of which others admit `most`.
    `within` is what they tell adaptive clipping of their norms, None the truth.
    """

    everything: bool = True
    weight: float = 1.0
    most: float = math.inf
    within: bool | None = None

    def claimed(self, weights: Tensor, hostile: Tensor) -> Tensor:
        """The `weights` `[c]`, those of `hostile` `[c]` as these claim them and others admit."""
        lied = (weights * self.weight).clamp(max=self.most)
        return torch.where(hostile, lied, weights)


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Attackers:
    """`fraction` of the clients with these `identities` `[N]`, who carry out `attack`.

    `afresh`: others each round. `unbounded`: they ignore the bound that honest clients keep, and
    send their rows at full length. `declared` is how many there are to be, where a client is but a
    place among these. `lies` are what they claim beside their rows. They attack in the rounds of
    `period`, first to last, and have `learned` what they know of each other's examples.
    """

    attack: Attack
    fraction: float
    afresh: bool
    unbounded: bool
    identities: Indices
    streams: Streams
    declared: int | None = None
    lies: Lies = field(default_factory=Lies)
    period: tuple[float, float] = (0, math.inf)
    learned: State = field(default_factory=dict)
    _chosen: dict[int, Mask] = field(default_factory=dict, repr=False, compare=False)

    def hostile(self, round: int) -> Mask:
        """Which clients are byzantine in `round`, `[N]`; outside of `period` nobody is."""
        chosen = self.chosen(round)
        return chosen if self.attacking(round) else np.zeros_like(chosen)

    def attacking(self, round: int) -> bool:
        """Whether `round` is one of `period`."""
        first, last = self.period
        return first <= round <= last

    def chosen(self, round: int) -> Mask:
        """Which clients are byzantine in `round`, `[N]`, if anybody is.

        Of clients who are a place among `declared` ones, the nearest whole number to `fraction` of
        these; else each by a coin of its own, so that it does not depend on who else there is.
        """
        drawn = round if self.afresh else 0
        if drawn not in self._chosen:
            everybody = self.identities if self.declared is None else np.arange(self.declared)
            words = self.streams.at("attack/who", drawn, everybody).per_client(1)[:, 0]
            if self.declared is None:
                chosen = coins(words, self.fraction)
            else:
                chosen = np.zeros(self.declared, dtype=bool)
                count = math.floor(self.fraction * self.declared + 0.5)
                chosen[np.argsort(words, kind="stable")[:count]] = True
                chosen = chosen[self.identities]
            self._chosen.clear()
            self._chosen[drawn] = chosen
        return self._chosen[drawn]

    def to_json(self) -> dict[str, Any]:
        """The attackers: by place, where they stay the same."""
        clients = None if self.afresh else np.flatnonzero(self.chosen(0)).tolist()
        selection = "round" if self.afresh else "once"
        return {
            "format": 1,
            "attack": type(self.attack).__name__,
            "fraction": self.fraction,
            "selection": selection,
            "clients": clients,
        }

    def replace_rows(self, task: str) -> bool:
        """Whether the attack replaces rows of an exchange that asks for `task`."""
        if not self.attack.corrupts:
            return False
        return task == "train" or (task == "gradient" and self.lies.everything)

    def corrupt(
        self,
        round: int,
        ids: Indices,
        rows: Tensor,
        state: State,
        rule: Callable[[Tensor], Tensor],
        task: str = "train",
    ) -> tuple[Tensor, State]:
        """Rows `[n, m]` of clients `ids` `[n]` with hostile ones replaced, and what attackers keep.

        `rule` aggregates rows of which the hostile ones are the first. What attackers remember of
        an exchange is of that `task`'s rows: updates and gradients are different vectors.
        """
        hostile = self.hostile(round)[ids]
        if not hostile.any() or not self.replace_rows(task):
            return rows, state
        bad = torch.from_numpy(hostile).to(rows.device)
        knows = self.attack.knows
        view = View(
            round,
            rows[bad],
            rows[~bad] if Knowledge.ALL_HONEST in knows else None,
            rule if Knowledge.RULE in knows else None,
            self.identities[ids[~hostile]] if Knowledge.ALL_HONEST in knows else None,
        )
        others, remembered = _parted(state, task)
        sent, remembered = self.attack.corrupt(view, remembered, self._generator(round, task))
        rows = rows.clone()
        rows[bad] = sent
        start = _memory_of(task)
        return rows, {**others, **{start + name: value for name, value in remembered.items()}}

    def lengthened(
        self, hostile: Mask, bounded: BoundedRows, free: Tensor, bare: bool
    ) -> BoundedRows:
        """Bounded rows, those of `hostile` as long as their `free` ones, which nothing bounds.

        A bound only shortens rows (and turns them, or appends to them), so this is what a client
        sends that does not apply it; `bare` where it adds noise too: then it is `free` itself.
        """
        if not self.unbounded or not hostile.any():
            return bounded
        bad = torch.from_numpy(hostile).to(bounded.rows.device)
        if bare:
            rows = torch.where(bad[:, None], free, bounded.rows)
            return replace(bounded, rows=rows, hostile=hostile)
        wanted = torch.linalg.vector_norm(free[bad], dim=1, keepdim=True, dtype=torch.float64)
        norm = torch.linalg.vector_norm(bounded.rows[bad], dim=1, keepdim=True, dtype=torch.float64)
        longer = torch.where(norm > 0, (wanted / norm).clamp(min=1.0), 1.0)
        rows = bounded.rows.clone()
        rows[bad] *= longer.to(rows.dtype)
        return replace(bounded, rows=rows, hostile=hostile)

    def instructed(self, federation: Federation) -> Attackers:
        """These attackers, who have learned from all their examples, where their attack does.

        Raises `Refused` where the attack does not fit the examples, or these are too few.
        """
        if Knowledge.ATTACKERS_DATA not in self.attack.knows:
            return self
        examples = federation.examples
        refuse_unfit(self.attack, examples)
        owners = np.repeat(np.arange(federation.clients), np.diff(federation.offsets))
        places = np.flatnonzero(np.isin(owners, self._ever(federation)))
        theirs = torch.from_numpy(places).to(examples.y.device)
        with contextlib.suppress(Unarmed):
            if len(places):
                x, y = examples.x[theirs], examples.y[theirs]
                return replace(self, learned=self.attack.study(x, y, examples.classes))
        raise Refused(
            "attack: the attackers hold no example of those that the attack is about; raise "
            "attack.fraction, or aim at more examples (its keys say at which)"
        )

    def _ever(self, federation: Federation) -> list[int]:
        """Which clients are byzantine in any round; of a few who stand for all, any may be."""
        if self.afresh or federation.stands_for:
            return list(range(federation.clients))
        return [int(client) for client in np.flatnonzero(self.chosen(0))]

    def watching(self, params: Tensor, state: State) -> State:
        """What attackers remember of the model `params` `[d]` that is broadcast, if they look."""
        looks = Knowledge.BROADCASTS in self.attack.knows
        return self.attack.watch(params, state) if looks else state

    def steering(self, state: State) -> Callable[[Tensor, Tensor, float], Tensor] | None:
        """How attackers who remember `state` go their way in local steps; None where they do not.

        See `privfed.client.trainer.Steering`.
        """
        if not self.attack.steers:
            return None
        return lambda direction, away, lr: self.attack.steer(direction, away, lr, state)

    def poisoned(self, federation: Federation) -> Federation:
        """The population as the byzantine train on it: their examples, and nobody else's, poisoned.

        Raises `Refused` where the attack does not fit the examples.
        """
        if not self.attack.poisons:
            return federation
        examples = federation.examples
        refuse_unfit(self.attack, examples)
        x, y = examples.x[torch.arange(len(examples), device=examples.y.device)], examples.y.clone()
        for place, client in enumerate(self._ever(federation)):
            theirs = slice(*federation.offsets[client : client + 2].tolist())
            if theirs.start == theirs.stop:
                continue
            keys = self.streams.at("attack/poison", 0, self.identities[[client]])
            generator = next(keys.each()).generator()
            briefing = Briefing(examples.classes, place, self.learned)
            x[theirs], y[theirs] = self.attack.poison(x[theirs], y[theirs], briefing, generator)
        return replace(federation, examples=replace(examples, x=x, y=y), _stages={})

    def _generator(self, round: int, task: str) -> np.random.Generator:
        stream = "attack/update" if task == "train" else f"attack/{task}"
        return self.streams.at(stream, round).generator()


def _memory_of(task: str) -> str:
    """What names of the memory of exchanges that ask for `task` begin with."""
    return "" if task == "train" else f"{task}/"


def _parted(state: State, task: str) -> tuple[State, State]:
    """What attackers remember of other exchanges, and of those that ask for `task`."""
    start = _memory_of(task)
    others: dict[str, Tensor] = {}
    remembered: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.startswith(start) if start else "/" not in name:
            remembered[name.removeprefix(start)] = value
        else:
            others[name] = value
    return others, remembered


def refuse_unfit(attack: Attack, examples: Examples) -> None:
    """Raises `Refused` where `attack` aims at other examples than these."""
    if examples.y.dtype != torch.int64 or examples.y.dim() != 1:
        raise Refused(
            "attack.name poisons examples with one class each, and these have other labels; use an "
            "attack on updates"
        )
    why = attack.unfit(tuple(examples.x.shape[1:]), examples.x.dtype.is_floating_point)
    if why:
        raise Refused(f"attack.name does not fit these examples: {why}")
    for label in attack.labels():
        if label >= examples.classes:
            raise Refused(
                f"the attack aims at class {label}, but there are classes 0 to "
                f"{examples.classes - 1} only; set attack.source and attack.target to these"
            )


def targeted(attackers: Attackers, test: Examples) -> Examples | None:
    """Test examples as their attack feeds them in, labelled as it wants them read; None if neither.

    Raises `Refused` where the attack does not fit, or there is none of them.
    """
    attack, every = attackers.attack, torch.arange(len(test), device=test.y.device)
    if not attack.poisons:
        return None
    refuse_unfit(attack, test)
    aim = attack.targeted(test.x[every], test.y, attackers.learned)
    if aim is None:
        return None
    x, y = aim
    if not len(y):
        raise Refused("attack: no test example is one that it wants misread; choose other classes")
    return replace(test, x=x, y=y, owners=None)
