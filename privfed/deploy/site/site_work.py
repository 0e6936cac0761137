"""What one site does for a sum: it draws its own clients, trains them, and adds up their rows.

The same parts as in a simulation do it: the run's sampler, executor, mechanism and codec, over the
site's own clients alone. What leaves is a sum of whole numbers with the site's share of noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from defenses.types import SumRule
from privfed.deploy.messages.questions import Question, QuestionForm, rehearsed_questions
from privfed.deploy.site.isolated_training import IsolatedTraining
from privfed.errors import Refused
from privfed.privacy.integers import Integers
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers
from privfed.ranks import ALONE
from privfed.round.algorithm import TrainingState
from privfed.round.by_sums import BySums
from privfed.round.updates import ClientUpdates
from privfed.run.setup import Setup
from privfed.run.world import HeldElsewhere, shared_world
from privfed.sampling.cohort import Cohort
from privfed.secure.encoded_accumulator import EncodedAccumulator
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.frames import BadMessage
from privfed.secure.site_sums import SiteSums
from privfed.secure.summation import Aborted, Session
from privfed.streams import Streams


@dataclass
class SiteWork:
    """The work of site number `site`: `setup` has its own clients alone.

    It draws once in a round, whatever exchanges the round has (exchanges over one cohort are one
    event), from streams of its own: no coin and no noise comes from elsewhere. In a rehearsal,
    `everybody` is drawn.
    """

    site: int
    setup: Setup
    everybody: bool = False
    _updates: ClientUpdates | None = field(default=None, init=False, repr=False)

    @property
    def summation(self) -> EncodedSummation:
        """How rows become whole numbers, as all sites and the server know. Raises `Refused`."""
        summation = self.setup.algorithm.summation
        if not isinstance(summation, EncodedSummation):
            raise Refused("a site sends sums of whole numbers; set secure.protocol")
        return summation

    @cached_property
    def forms(self) -> tuple[QuestionForm, ...]:
        """What each exchange of a round looks like."""
        parameters = self.setup.network.shapes.length
        return tuple(each.form for each in rehearsed_questions(self.setup.algorithm, parameters))

    def refuse_other_form(self, question: Question) -> None:
        """Raises `BadMessage` for a question that this run does not ask."""
        if not 0 <= question.number < len(self.forms):
            raise BadMessage("wrong exchange", "an exchange that no round of this run has")
        if question.form != self.forms[question.number]:
            raise BadMessage("wrong form", "a question of another form than this run's")

    def encoding(self, question: Question) -> Encoding:
        """What the sum that answers is opened for."""
        return self.setup.algorithm.mechanism.encoding(question.state)

    def row(self, question: Question) -> Integers:
        """The site's sum `[m]` for an exchange, with its share of noise, but no layers of it."""
        algorithm, updates = self.setup.algorithm, self._drawn(question)
        if not isinstance(algorithm.rule, SumRule):
            raise Refused("sites send sums alone; use a rule that sums suffice for")
        session = Session(
            question.round,
            question.number,
            question.model_hash,
            np.array([self.site]),
            streams=self.setup.streams,
            sites=np.full(self.setup.federation.clients, self.site),
            identities=self.setup.federation.people().identities,
        )
        encoding, sent = self.encoding(question), _Kept()
        codec = self.summation.codec(encoding, question.width(algorithm))
        share = None if isinstance(encoding.noise, Layers) else encoding.noise
        sums = SiteSums(session, codec, sent, share)
        accumulator = EncodedAccumulator(session, codec, encoding.bound, None, sums)
        aggregation = BySums(algorithm.rule, updates)
        aggregation.state = question.state
        for ids, rows in aggregation.bounded(question.exchange, question.number, updates.cohort):
            accumulator.add(ids, rows)
        sums.total()
        return sent.row

    def _drawn(self, question: Question) -> ClientUpdates:
        """The clients of the question's round, drawn when it is asked about first."""
        if self._updates is None or self._updates.cohort.round != question.round:
            if question.number > 0:
                raise Aborted("the round's clients were drawn before a restart, and are forgotten")
            algorithm = self.setup.algorithm
            bare = shared_world(self.setup, HeldElsewhere(), HeldElsewhere(), ALONE)
            world = replace(bare, executor=IsolatedTraining(self.setup.executor))
            drawn = self._cohort(question.round, world.streams)
            state = TrainingState(question.exchange.broadcast["params"], {}, question.state)
            self._updates = ClientUpdates(algorithm, world, state, world.executor.answering(drawn))
        return self._updates

    def _cohort(self, round: int, streams: Streams) -> Cohort:
        """Those of the site's clients who are drawn in `round`, by coins of their own."""
        algorithm, people = self.setup.algorithm, self.setup.federation.people()
        equal = people.with_equal_sizes()
        drawn = algorithm.sampler.sample(round, algorithm.clients, equal, streams)
        return replace(drawn, clients=np.arange(len(people))) if self.everybody else drawn


class _Kept:
    """A channel that keeps the one row that a site sends."""

    largest = float("inf")

    def __init__(self) -> None:
        self.row: Integers = np.empty(0, dtype=np.int64)

    def send(self, client: int, row: Integers) -> None:
        self.row = row

    def total(self) -> tuple[Integers, int]:
        return self.row, 1
