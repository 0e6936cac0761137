"""Byzantine clients of a simulation: their selection, and the messages that replace honest ones.

An attack sees only what its threat model states (`attacks.types.View`). The Byzantine clients are a
fraction of the population, drawn once or in each round by public random numbers, independently of
client data. Their number in a cohort depends on the sampler.

Byzantine clients may also misreport their number of examples and the norm of their row.

*Threat model.* Attackers replace every number that they send in a training round, in every
exchange. They are limited only by what other parties can check. A server that sees rows bounds
them, and caps the weights that it admits (`aggregation.most_examples`). Under a secure sum, other
parties check only that numbers are in the range of the encoding. For adaptive clipping a client
reports one bit, and either value contributes equally to the norm of its row.
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
from privfed.core.streams import Streams, bernoulli
from privfed.core.vector import Indices
from privfed.data.federation import Examples, Federation
from privfed.privacy.mechanism import BoundedRows


@dataclass(frozen=True)
class FalseClaims:
    """False statements by attackers. By default their weights and reports of norms are true.

    Attributes:
      everything: whether the attack also replaces the rows of gradient exchanges, and parts of the
        training message other than the model update ("delta").
      weight: factor by which attackers overstate their number of examples.
      most: largest number of examples that the server admits as a weight.
      within: the answer that attackers report for adaptive clipping (True: the norm of their row
        is within the clip); None for the true answer.
    """

    everything: bool = True
    weight: float = 1.0
    most: float = math.inf
    within: bool | None = None

    def claimed(self, weights: Tensor, byzantine: Tensor) -> Tensor:
        """Returns `weights` `[c]`; w in the mask `byzantine` becomes min(`weight` * w, `most`)."""
        claimed = (weights * self.weight).clamp(max=self.most)
        return torch.where(byzantine, claimed, weights)


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Attackers:
    """The attackers of a simulation.

    Attributes:
      attack: the attack that they carry out.
      fraction: fraction of the clients that are attackers.
      afresh: whether new attackers are drawn in each round.
      unbounded: whether attackers ignore the norm bound and send rows at full length.
      identities: number that keys each client's random streams, shape [N].
      streams: random streams of the run.
      declared: declared number of clients, if a client's identity is its index; None if clients
        have names.
      false_claims: false statements that they send with their rows.
      period: first and last round of the attack, inclusive.
      learned: result of `Attack.study` on all attackers' examples; empty before `instructed()`.
    """

    attack: Attack
    fraction: float
    afresh: bool
    unbounded: bool
    identities: Indices
    streams: Streams
    declared: int | None = None
    false_claims: FalseClaims = field(default_factory=FalseClaims)
    period: tuple[float, float] = (0, math.inf)
    learned: State = field(default_factory=dict)
    _chosen: dict[int, Mask] = field(default_factory=dict, repr=False, compare=False)

    def byzantine(self, round: int) -> Mask:
        """Returns a mask `[N]` of clients that attack in `round`; none do outside of `period`."""
        chosen = self.chosen(round)
        return chosen if self.attacking(round) else np.zeros_like(chosen)

    def attacking(self, round: int) -> bool:
        """Whether `round` is in `period`."""
        first, last = self.period
        return first <= round <= last

    def chosen(self, round: int) -> Mask:
        """Returns a mask `[N]` of the clients that are Byzantine in `round`, also outside `period`.

        If the number of clients is `declared`, `fraction` of that number are selected, rounded to
        an integer. Otherwise each client is an independent Bernoulli(`fraction`) draw, which does
        not depend on the other clients.
        """
        drawn = round if self.afresh else 0
        if drawn not in self._chosen:
            all_clients = self.identities if self.declared is None else np.arange(self.declared)
            words = self.streams.at("attack/who", drawn, all_clients).per_client(1)[:, 0]
            if self.declared is None:
                chosen = bernoulli(words, self.fraction)
            else:
                chosen = np.zeros(self.declared, dtype=bool)
                count = math.floor(self.fraction * self.declared + 0.5)
                chosen[np.argsort(words, kind="stable")[:count]] = True
                chosen = chosen[self.identities]
            self._chosen.clear()
            self._chosen[drawn] = chosen
        return self._chosen[drawn]

    def to_json(self) -> dict[str, Any]:
        """Returns the attackers as a JSON object; "clients" has their indices, None if `afresh`."""
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
        """Whether the attack corrupts rows of `task`: "train" or, with `everything`, "gradient"."""
        if not self.attack.corrupts:
            return False
        return task == "train" or (task == "gradient" and self.false_claims.everything)

    def corrupt(
        self,
        round: int,
        ids: Indices,
        rows: Tensor,
        state: State,
        rule: Callable[[Tensor], Tensor],
        task: str = "train",
    ) -> tuple[Tensor, State]:
        """Replaces the rows of Byzantine clients by those of the attack.

        Args:
          round: current round.
          ids: indices of the clients of all rows, shape [n].
          rows: client messages, shape [n, m]; not modified.
          state: memory of the attackers, separate for each task, since updates and gradients are
            different vectors.
          rule: function that aggregates rows [n, m], the Byzantine ones first, to [m].
          task: the task of the exchange.

        Returns:
          The rows [n, m] and the attackers' new memory; `rows` and `state` if none is replaced.
        """
        byzantine = self.byzantine(round)[ids]
        if not byzantine.any() or not self.replace_rows(task):
            return rows, state
        bad = torch.from_numpy(byzantine).to(rows.device)
        knows = self.attack.knows
        view = View(
            round,
            rows[bad],
            rows[~bad] if Knowledge.ALL_HONEST in knows else None,
            rule if Knowledge.RULE in knows else None,
            self.identities[ids[~byzantine]] if Knowledge.ALL_HONEST in knows else None,
        )
        others, remembered = _parted(state, task)
        sent, remembered = self.attack.corrupt(view, remembered, self._generator(round, task))
        rows = rows.clone()
        rows[bad] = sent
        start = _memory_of(task)
        return rows, {**others, **{start + name: value for name, value in remembered.items()}}

    def lengthened(
        self, byzantine: Mask, bounded: BoundedRows, free: Tensor, bare: bool
    ) -> BoundedRows:
        """Returns `bounded`; if `unbounded`, rows of `byzantine` clients are not shortened.

        The mechanism shortens rows to its bound, and may also rotate or extend them. A Byzantine
        client skips only the shortening: its bounded row is scaled up to its row's norm in `free`.

        Args:
          byzantine: mask of the Byzantine clients, shape [c].
          bounded: bounded rows of all clients.
          free: their rows before the bound, shape [c, m].
          bare: whether Byzantine clients send their rows of `free` unchanged, without the noise
            that clients add.
        """
        if not self.unbounded or not byzantine.any():
            return bounded
        bad = torch.from_numpy(byzantine).to(bounded.rows.device)
        if bare:
            rows = torch.where(bad[:, None], free, bounded.rows)
            return replace(bounded, rows=rows, byzantine=byzantine)
        wanted = torch.linalg.vector_norm(free[bad], dim=1, keepdim=True, dtype=torch.float64)
        norm = torch.linalg.vector_norm(bounded.rows[bad], dim=1, keepdim=True, dtype=torch.float64)
        longer = torch.where(norm > 0, (wanted / norm).clamp(min=1.0), 1.0)
        rows = bounded.rows.clone()
        rows[bad] *= longer.to(rows.dtype)
        return replace(bounded, rows=rows, byzantine=byzantine)

    def instructed(self, federation: Federation) -> Attackers:
        """Returns these attackers, with `learned` from `Attack.study` on their examples.

        They are returned unchanged if their attack does not study all attackers' examples
        (`Knowledge.ATTACKERS_DATA`).

        Raises:
          Refused: if the attack does not apply to the examples (`refuse_unfit`), or the attackers
            have no examples, or none that it targets.
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
            "attack.name is set, but the attackers have none of the examples that the attack "
            "targets; raise attack.fraction, or target more examples by the attack's keys"
        )

    def _ever(self, federation: Federation) -> list[int]:
        """Returns the clients that may be Byzantine in some round.

        These are all if `afresh`, or if `federation` is a subset (`Federation.stands_for`).
        """
        if self.afresh or federation.stands_for:
            return list(range(federation.clients))
        return [int(client) for client in np.flatnonzero(self.chosen(0))]

    def watching(self, params: Tensor, state: State) -> State:
        """Returns memory after the broadcast of `params` `[d]`; `state` if it is not read."""
        looks = Knowledge.BROADCASTS in self.attack.knows
        return self.attack.watch(params, state) if looks else state

    def steering(self, state: State) -> Callable[[Tensor, Tensor, float], Tensor] | None:
        """Returns the function with which attackers steer local steps; None if they do not steer.

        See `privfed.client.trainer.Steering`.
        """
        if not self.attack.steers:
            return None
        return lambda direction, away, lr: self.attack.steer(direction, away, lr, state)

    def poisoned(self, federation: Federation) -> Federation:
        """Returns `federation`, with the examples of clients that may ever be Byzantine poisoned.

        It is returned unchanged if the attack does not poison examples.

        Raises:
          Refused: if the attack does not apply to the examples.
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
    """Returns the prefix of names in the attackers' memory for exchanges with this `task`."""
    return "" if task == "train" else f"{task}/"


def _parted(state: State, task: str) -> tuple[State, State]:
    """Splits memory into entries of other tasks, and those of `task` with the prefix removed."""
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
    """Raises `Refused` unless `attack` applies to the examples' labels, shape, type and classes."""
    if examples.y.dtype != torch.int64 or examples.y.dim() != 1:
        raise Refused(
            "attack.name is set to an attack on examples with one class each, but these examples "
            "have other labels; use an attack on updates"
        )
    why = attack.unfit_reason(tuple(examples.x.shape[1:]), examples.x.dtype.is_floating_point)
    if why:
        raise Refused(
            f"attack.name is set, but the attack does not apply to these examples: {why}; use "
            "another attack"
        )
    for label in attack.labels():
        if label >= examples.classes:
            raise Refused(
                f"attack.source or attack.target is {label}, but classes are 0 to "
                f"{examples.classes - 1}; set both to such classes"
            )


def targeted(attackers: Attackers, test: Examples) -> Examples | None:
    """Returns the test examples that the attack targets, altered, with their target labels.

    Returns None if the attack poisons no examples or has no target label.

    Raises:
      Refused: if the attack does not apply to the examples, or targets none of them.
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
        raise Refused(
            "attack.name is set, but the attack targets none of the test examples; choose other "
            "classes (attack.source, attack.target)"
        )
    return replace(test, x=x, y=y, owners=None)
