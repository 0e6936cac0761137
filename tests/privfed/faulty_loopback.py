"""Rounds over the agents of hospitals in this process, with faults in messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from hospitals import SEALING, Hospitals, opened_for

from accounting.ledger import Ledger
from privfed.core.ranks import SINGLE_PROCESS
from privfed.deploy.carriers.carrier import Carrier, Loopback, Site
from privfed.deploy.coordinator.coordinator import Coordinator
from privfed.deploy.coordinator.sum_session import SumSession, start_session
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.envelope import Envelope, Kind
from privfed.deploy.messages.questions import Question
from privfed.round.round import run_round
from privfed.run.prepare import prepare
from privfed.run.world import shared_world

SUM = (Kind.QUESTION, Kind.STEP)
"""The kinds of messages that make up a sum."""
_NUMBERS = count()


class Books:
    """A release store that stores nothing."""

    def write(self, charge: Any, released: Any, state: Any) -> None:
        pass


class DescriptionRequest:
    """A run over sites that a carrier reaches, round by round, with its own ledger."""

    def __init__(
        self, made: Hospitals, carrier: Carrier, *keys: str, key: Any = None, **facts: Any
    ) -> None:
        self.setup = setup = prepare(made.config(*keys, table="all"))
        path = made.root / f"asking{next(_NUMBERS)}.jsonl"
        self.ledger = Ledger.create(path, opened_for(setup))
        self.declaration = Declaration(
            path.read_bytes().split(b"\n")[0],
            setup.plan.config.toml(),
            ExampleForm.of(setup.federation.examples),
            setup.constants,
            SEALING.public,
        )

        def session_of(question: Question) -> SumSession:
            facts = made.federation.directory(), question, self.declaration.run, SEALING
            return start_session(setup.algorithm_in(question.round), *facts)

        self.coordinator = Coordinator(
            session_of,
            made.federation.directory(),
            carrier,
            (key or made.key).identity,
            bytes.fromhex(made.federation.digest()),
            self.declaration,
            self.ledger,
            names=made.names,
            **{"least": setup.plan.cost.limits.minimum, "seconds": 20.0, **facts},
        )
        world = shared_world(setup, self.ledger, Books(), SINGLE_PROCESS)
        self.world = replace(world, sites=self.coordinator)
        self.state, self.round = setup.initial_state(), 0

    def play(self, rounds: int = 1) -> None:
        """Runs `rounds` more rounds, and raises the errors of a round."""
        for _ in range(rounds):
            self.round += 1
            self.state = run_round(
                self.round, self.setup.algorithm_in(self.round), self.state, self.world
            )


class Watched(Loopback):
    """Sites that answer by `ask` (site, message number of its sums, bytes); None: no answer."""

    def __init__(
        self, sites: Sequence[Site], ask: Callable[[int, int, bytes], bytes | None]
    ) -> None:
        super().__init__(dict(enumerate(sites)))
        self.ask, self.sent = ask, [-1] * len(sites)

    def send(self, site: int, data: bytes, deadline: float) -> None:
        if Envelope.decode(data).kind not in SUM:
            super().send(site, data, deadline)
            return
        self.sent[site] += 1
        answer = self.ask(site, self.sent[site], data)
        if answer is not None:
            self._arrived.append((site, answer))
