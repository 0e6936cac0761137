"""A site's work for a sum: samples its own clients, trains them, and adds up their rows.

The run's sampler, executor, mechanism and codec are used as in a simulation, but over the site's
own clients only.

A site flushes denormal numbers to zero, because processors take about a hundred times as long for
them. Otherwise a malicious coordinator could choose a model that makes training slow for certain
clients (rules of proof, section 9.1, S1).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from defenses.types import SumRule
from privfed.client.exchange import Chunk, Exchange
from privfed.client.executor import LocalExecutor
from privfed.core.errors import Refused
from privfed.core.ranks import SINGLE_PROCESS
from privfed.core.vector import Indices
from privfed.deploy.messages.questions import Question, QuestionForm, rehearsed_questions
from privfed.deploy.site.late_rows import LateWork
from privfed.privacy.integers import Integers, Share
from privfed.privacy.mechanism import Encoding
from privfed.privacy.noise.shares import Layers
from privfed.round.algorithm import Algorithm, TrainingState
from privfed.round.by_sums import BySums
from privfed.round.updates import ClientUpdates
from privfed.run.setup import Setup
from privfed.run.world import HeldElsewhere, shared_world
from privfed.sampling.cohort import Cohort
from privfed.sampling.site_delays import SiteDelays, arrival
from privfed.secure.encoded_accumulator import EncodedAccumulator
from privfed.secure.encoded_sum import EncodedSummation
from privfed.secure.frames import BadMessage
from privfed.secure.limits import Leaves
from privfed.secure.masked.layered_noise import ClientNoise
from privfed.secure.site_sums import SiteSums, StoredRow
from privfed.secure.summation import Aborted, Accumulator, Session

_log = logging.getLogger(__name__)
"""A site's own log, which only its owner reads."""


@dataclass(frozen=True)
class IsolatedTraining:
    """An executor that confines each failure to one client (rules of proof, section 9.1, S1).

    Clients are trained in chunks. If a chunk fails, its clients are trained individually; a client
    whose training fails again contributes a row of zeros. Only the site's log records failures.
    """

    executor: LocalExecutor

    def answering(self, cohort: Cohort) -> Cohort:
        """Returns `cohort` with only the clients that answer, by `executor.answering`."""
        return self.executor.answering(cohort)

    def root(self, exchange: Exchange, round: int) -> Tensor:
        """Returns the row `[m]` that `executor` computes on the server's own examples."""
        return self.executor.root(exchange, round)

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        """Yields the rows of `cohort` in chunks, clients with most local steps first."""
        ids, size = self.executor.by_work(cohort.clients), self.executor.chunk
        for start in range(0, len(ids), size):
            yield from self._answers(exchange, cohort, ids[start : start + size])

    def _answers(self, exchange: Exchange, cohort: Cohort, ids: Indices) -> list[Chunk]:
        try:
            return list(self.executor.chunks(exchange, replace(cohort, clients=np.sort(ids))))
        except Exception:  # whatever it is, it affects these clients only
            _log.warning("training failed", exc_info=True)
        if len(ids) > 1:
            each = (self._answers(exchange, cohort, ids[k : k + 1]) for k in range(len(ids)))
            return [chunk for answers in each for chunk in answers]
        params = exchange.broadcast["params"]
        nothing = torch.zeros((1, exchange.layout.length), dtype=params.dtype, device=params.device)
        return [Chunk(ids, nothing, nothing.new_zeros(1))]


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flushes denormals to zero in this thread, and in threads that it starts, within the block.

    The previous mode is restored afterwards.
    """
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushes_denormals() -> bool:
    """Whether this thread flushes denormals to zero."""
    return sys.float_info.min / 2 == 0.0


def questions_of_each_kind(setup: Setup) -> list[Question]:
    """Returns the questions of one training round and, if the run has any, one evaluation round.

    The questions contain the run's initial model.
    """
    rounds, state = setup.plan.config.evaluation_rounds, setup.initial_state()
    return [
        question
        for algorithm in setup.algorithms
        for question in rehearsed_questions(
            algorithm, state, rounds.every if algorithm.evaluates else 1
        )
    ]


@dataclass
class SiteWork:
    """The work of one site for the sums of a run.

    It samples once per round, since all exchanges of a round share one cohort. Sampling and noise
    use the site's own random streams. A site with a delay trains in its own thread, and has rows in
    some rounds only (`privfed.sampling.site_delays`); rows that were lost with the process are left
    out.

    Attributes:
      site: number of the site.
      setup: the run over the site's own clients.
      all_clients: whether every client is in the cohort, as in a rehearsal.
      run: the hash of the run.
      late: the late sums of the site's agent.
    """

    site: int
    setup: Setup
    all_clients: bool = False
    run: bytes = b""
    late: LateWork = field(default_factory=LateWork)
    _updates: ClientUpdates | None = field(default=None, init=False, repr=False)

    @property
    def encoded_summation(self) -> EncodedSummation:
        """The summation of rows that are encoded as integers.

        Raises:
          Refused: if the run's sums are not encoded.
        """
        summation = self.setup.algorithm.summation
        if not isinstance(summation, EncodedSummation):
            raise Refused(
                'secure.protocol is "none", but sites send sums of integers; set '
                'secure.protocol = "masks"'
            )
        return summation

    @property
    def session_summation(self) -> EncodedSummation:
        """The summation of the session in which the site is a party: of all sites, or a region."""
        return self.encoded_summation.of_sites

    @cached_property
    def forms(self) -> Mapping[bool, tuple[QuestionForm, ...]]:
        """The forms of the exchanges of an evaluation round (True) and a training round (False)."""
        forms: dict[bool, tuple[QuestionForm, ...]] = {False: (), True: ()}
        for question in questions_of_each_kind(self.setup):
            forms[self._algorithm(question).evaluates] += (question.form,)
        return forms

    def refuse_other_form(self, question: Question) -> None:
        """Raises `BadMessage` if the run has no such exchange, or one of another form."""
        forms = self.forms[self._algorithm(question).evaluates]
        if not 0 <= question.number < len(forms):
            raise BadMessage("wrong exchange", "the exchange is not part of a round of this run")
        if question.form != forms[question.number]:
            raise BadMessage("wrong form", "the question's form differs from this run's")

    def width(self, question: Question) -> int:
        """Returns the number of entries of a client's bounded row that answers `question`."""
        return question.width(self._algorithm(question))

    def _algorithm(self, question: Question) -> Algorithm:
        return self.setup.algorithm_in(question.round)

    def encoding(self, question: Question) -> Encoding:
        """Returns the encoding of the sum that answers `question`."""
        return self._algorithm(question).mechanism.encoding(question.state)

    def row(self, question: Question) -> Integers:
        """Returns the site's sum of encoded rows `[m]` for `question`, before masking.

        It includes the site's share of noise, except noise in layers (`layers`), which the party
        adds.
        """
        noise = self.encoding(question).noise
        share = None if isinstance(noise, Layers) else noise
        if not self.delay:
            return self._sum(question, share, self._drawn(question))
        late, later = self.late.due(self.run, question.round), arrival(question.round, self.delay)
        if later is not None:
            its, seconds = replace(question, round=later), self.setup.plan.config.secure.deadline
            compute = functools.partial(self._late_sum, its)
            self.late.begin(self.run, later, self.delay * seconds, compute)
        return self._sum(question, share, None, late)

    def _late_sum(self, question: Question) -> Integers:
        """Samples and trains for a later round; returns the sum of encoded rows without noise."""
        return self._sum(question, None, self._sampled(question))

    def _sum(
        self,
        question: Question,
        share: Share | None,
        updates: ClientUpdates | None,
        late: Integers | None = None,
    ) -> Integers:
        """Returns the sum `[m]` of the encoded rows of `updates`, the sum `late`, and a share."""
        session = self._session(question, np.array([self.site]), np.empty(0, dtype=np.int64))
        encoding, sent = self.encoding(question), StoredRow()
        codec = self.encoded_summation.codec(encoding, self.width(question))
        sums = SiteSums(session, codec, sent, share)
        if late is not None:
            sums.add(self.site, late)
        if updates is not None:
            accumulator = EncodedAccumulator(session, codec, encoding.bound, None, sums)
            self._add_rows(question, updates, accumulator)
        sums.total()
        return sent.row

    def layers(self, question: Question) -> ClientNoise | None:
        """Returns the noise in layers that the site's party adds to its row.

        None if the noise of the run has no layers.
        """
        noise = self.encoding(question).noise
        if not isinstance(noise, Layers):
            return None
        session = Session(
            question.round, question.number, question.model_hash, streams=self.setup.streams
        )
        return ClientNoise(noise, session.layer_keys(self.site))

    def rehearse(self, question: Question) -> None:
        """Computes the site's sum with all of its noise, and discards it; used to measure time."""
        if not self.setup.plan.config.secured:
            self.plain_sum(question)
            return
        row = self.row(question)
        if (noise := self.layers(question)) is not None:
            sites = self.setup.plan.config.data.sites
            noise.add(row, sites, noise.seeds(sites))

    def plain_sum(self, question: Question) -> Tensor:
        """Returns the site's sum `[m]` for the coordinator, including the site's noise, if any."""
        sites = np.arange(self.setup.plan.config.data.sites)
        leaves = np.where(sites == self.site, Leaves.NEVER, Leaves.BEFORE_SHARING)
        session = self._session(question, sites, leaves)
        algorithm, encoding = self._algorithm(question), self.encoding(question)
        accumulator = algorithm.summation.open(session, self.width(question), encoding)
        self._add_rows(question, self._drawn(question), accumulator)
        return accumulator.close().total

    def _session(self, question: Question, sites: Indices, leaves: Indices) -> Session:
        """Returns the context of the sum for `question` over the parties `sites`.

        `leaves` has the stage at which each of them drops out; if it is empty, none does.
        """
        return Session(
            question.round,
            question.number,
            question.model_hash,
            sites,
            leaves,
            self.setup.streams,
            sites=np.full(self.setup.federation.clients, self.site),
            identities=self.setup.federation.population().identities,
        )

    @property
    def delay(self) -> int:
        """The delay of this site in training rounds; 0 in a rehearsal."""
        delays = self.setup.plan.config.data.site_delays
        return delays[self.site] if delays and not self.all_clients else 0

    def _add_rows(
        self, question: Question, updates: ClientUpdates, accumulator: Accumulator
    ) -> None:
        """Trains the sampled clients, and adds their bounded rows to `accumulator`."""
        algorithm = self._algorithm(question)
        if not isinstance(algorithm.rule, SumRule):
            raise Refused(
                "aggregation.rule needs single rows, but sites send only sums; use a rule on sums, "
                'for example "mean"'
            )
        aggregation = BySums(algorithm.rule, updates)
        aggregation.state = question.state
        with flushed_denormals():
            cohort = updates.cohort
            for ids, rows in aggregation.bounded(question.exchange, question.number, cohort):
                accumulator.add(ids, rows)

    def _drawn(self, question: Question) -> ClientUpdates:
        """Returns the updates of the round's cohort, sampled at the round's first question.

        Raises `Aborted` for a later question if the cohort is not known, because this process
        started after the first question.
        """
        if self._updates is None or self._updates.cohort.round != question.round:
            if question.number > 0:
                raise Aborted(
                    "the round's clients were sampled before a restart, and are not stored"
                )
            self._updates = self._sampled(question)
        return self._updates

    def _sampled(self, question: Question) -> ClientUpdates:
        """Samples the cohort of the question's round; returns its updates."""
        bare = shared_world(self.setup, HeldElsewhere(), HeldElsewhere(), SINGLE_PROCESS)
        world = replace(bare, executor=IsolatedTraining(self.setup.executor))
        drawn = self._all_clients(question) if self.all_clients else self._cohort(question)
        state = TrainingState(question.exchange.broadcast["params"], {}, question.state)
        answering = world.executor.answering(drawn)
        return ClientUpdates(self._algorithm(question), world, state, answering)

    def _cohort(self, question: Question) -> Cohort:
        """Returns the cohort that the site samples for the round by its own random streams."""
        population = self.setup.federation.population().with_equal_sizes()
        algorithm = replace(self._algorithm(question), site_delays=SiteDelays())
        return algorithm.draw(question.round, population, self.setup.streams)

    def _all_clients(self, question: Question) -> Cohort:
        algorithm, all_clients = self._algorithm(question), np.arange(self.setup.federation.clients)
        divisor, witness = float(algorithm.sampler.size), algorithm.witness(question.round)
        return Cohort(question.round, all_clients, divisor, witness)
