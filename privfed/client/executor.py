"""Trains a cohort in this process, in chunks, so that memory does not grow with the cohort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from privfed.client.batches import as_read, read_ahead, steps
from privfed.client.byzantine import Attackers
from privfed.client.client_measures import ClientMeasures
from privfed.client.exchange import Broadcast, Chunk, ClientState, Exchange
from privfed.client.silos import PrivateSilos
from privfed.client.trainer import LocalTrainer
from privfed.core.errors import ran_out_of_memory
from privfed.core.ranks import Ranks, SingleProcess, refuse_miscounted
from privfed.core.schedules import CONSTANT, Schedule
from privfed.core.streams import Keys, Streams, bernoulli, uniforms
from privfed.core.vector import Indices
from privfed.data.federation import Federation
from privfed.data.pieces import Mapped
from privfed.sampling.availability import Always, Availability
from privfed.sampling.cohort import Cohort

FEWEST_EPOCHS = 2
"""Smallest number of local epochs with which examples are read ahead."""


@dataclass(frozen=True)
class LocalExecutor:
    """Executes exchanges in this process; clients with the most local steps come first.

    Attributes:
      trainer: the local trainer of the run.
      streams: random streams of the run.
      chunk: largest number of clients that are processed at once.
      by_examples: whether clients are weighted by their numbers of examples, if no `weights` are
        declared.
      schedule: factor of the learning rate, as a function of the round.
      stragglers: probability that a client trains fewer epochs in a round.
      drop_stragglers: whether such clients count as dropouts.
      states: client states between rounds; None if clients keep none.
      silos: training with DP-SGD; None without it.
      weights: declared weight of each client; empty if none are declared.
      attackers: simulated attackers; None without them.
    """

    trainer: LocalTrainer
    streams: Streams
    chunk: int
    by_examples: bool
    schedule: Schedule = CONSTANT
    stragglers: float = 0.0
    drop_stragglers: bool = False
    states: ClientState | None = None
    silos: PrivateSilos | None = None
    weights: tuple[float, ...] = ()
    most_examples: int = 0
    """Upper bound on a client's weight in examples; 0: no bound."""
    availability: Availability = field(default_factory=Always)
    attackers: Attackers | None = None
    poisoned: Federation | None = None
    """The population with poisoned examples of Byzantine clients; None if they poison none."""
    measures: ClientMeasures | None = None
    """Client-side evaluation; None in runs without it."""
    ranks: Ranks = field(default_factory=SingleProcess)
    own_trainers: tuple[LocalTrainer, ...] = ()
    """A trainer for each architecture of clients' own models; empty if all train the run's."""
    unordered: bool = False
    """Whether ranks may claim chunks in any order, because sums do not depend on the order."""

    def answering(self, cohort: Cohort) -> Cohort:
        """Returns `cohort` with only the clients that are available in the round (`availability`).

        If `drop_stragglers` is set, clients that train fewer than the configured epochs are left
        out, too.
        """
        who = self.trainer.federation.identify(cohort.clients)
        here = self.availability.present(cohort.round, who, self.streams)
        if self.drop_stragglers:
            here &= self._epochs(who, cohort.round) == self.trainer.epochs
        return replace(cohort, clients=cohort.clients[here])

    def chunks(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        times = torch.zeros(len(cohort.clients), dtype=torch.int64)

        def counted(chunk: Chunk) -> Chunk:
            times[torch.from_numpy(np.searchsorted(cohort.clients, chunk.ids))] += 1
            return chunk

        yield from map(counted, self._answers(exchange, cohort))
        refuse_miscounted(self.ranks, times)

    def _answers(self, exchange: Exchange, cohort: Cohort) -> Iterator[Chunk]:
        """Yields those of the cohort's answers that this rank (process) computes.

        Raises `ValueError` if this executor does not support the exchange's task.
        """
        if exchange.task == "measure" and self.measures:
            yield from self._measured(exchange, cohort, self.measures)
            return
        if exchange.task not in ("train", "project", "gradient"):
            raise ValueError(
                f"the exchange's task is {exchange.task!r}, but this executor knows only train, "
                "project, gradient and measure"
            )
        lr = self.trainer.lr * self.schedule.factor(cohort.round)
        federation = self.trainer.federation.at(cohort.round)
        trainer = replace(self.trainer, federation=federation, lr=lr)
        honest, byzantine = self._parted(cohort)
        yield from self._chunks(exchange, cohort, trainer, honest)
        if self.poisoned and len(byzantine):
            steering = self.attackers.steering(exchange.remembered) if self.attackers else None
            poisoned = replace(trainer, federation=self.poisoned, steering=steering)
            yield from self._chunks(exchange, cohort, poisoned, byzantine)

    def _measured(
        self, exchange: Exchange, cohort: Cohort, measures: ClientMeasures
    ) -> Iterator[Chunk]:
        """Yields this rank's rows of `measures` of the cohort; each has weight 1."""
        for ids in self._chunks_of(cohort.clients, f"{cohort.round}/{exchange.task}"):
            models = exchange.broadcast["params"]
            if measures.personal:
                models = self._personal(ids, exchange.broadcast)
            rows = measures.rows(ids, models, cohort.round)
            yield Chunk(ids, rows, rows.new_ones(len(rows)))

    def _personal(self, ids: Indices, broadcast: Broadcast) -> Tensor:
        """Returns the personal models `[c, d]` of clients `ids` `[c]`."""
        objective, states = self.trainer.objective, None
        if not objective.personalises:
            raise ValueError("the objective has no personal models to score")
        if self.states:
            states, _ = self.states.gather(ids, objective.initial_client_state(broadcast))
        return objective.personal(broadcast, states, None)

    def _parted(self, cohort: Cohort) -> tuple[Indices, Indices]:
        """Splits the cohort into clients with unchanged examples, and those with poisoned ones.

        Both are in the order of `by_work`.
        """
        ids = self.by_work(cohort.clients)
        if self.attackers is None or self.poisoned is None:
            return ids, ids[:0]
        bad = self.attackers.byzantine(cohort.round)[ids]
        return ids[~bad], ids[bad]

    def _chunks(
        self, exchange: Exchange, cohort: Cohort, trainer: LocalTrainer, ids: Indices
    ) -> Iterator[Chunk]:
        """Yields the answers of clients `ids` of the population of `trainer`, in chunks."""
        for number, (having, some) in enumerate(self._by_architecture(trainer, ids)):
            chunks = self._chunks_of(some, f"{cohort.round}/{exchange.task}/{number}")
            for chunk, (federation, mine) in self._with_examples(trainer.federation, chunks):
                holding = replace(having, federation=federation)
                yield from self._in_memory(exchange, holding, chunk, mine, cohort.round)

    def _by_architecture(
        self, trainer: LocalTrainer, ids: Indices
    ) -> Iterator[tuple[LocalTrainer, Indices]]:
        """Yields, for each architecture, a trainer like `trainer`, and its clients of `ids`."""
        if not self.own_trainers:
            yield trainer, ids
            return
        sites, count = trainer.federation.sites, len(self.own_trainers)
        which = (trainer.federation.identify(ids) if sites is None else sites[ids]) % count
        for number, its in enumerate(self.own_trainers):
            yield replace(its, lr=trainer.lr, steering=trainer.steering), ids[which == number]

    def _in_memory(
        self,
        exchange: Exchange,
        trainer: LocalTrainer,
        chunk: Indices,
        ids: Indices,
        round: int,
    ) -> Iterator[Chunk]:
        """Yields the answer of a chunk, or, if memory does not suffice, of each half of it.

        Halves are halved again if necessary. The round is already charged, so it should not fail.
        A row does not depend on the other clients of a chunk, and a failed attempt changes nothing.
        For a single client, and for silos, which are charged as they train, the error is raised.
        """
        answer = None
        try:
            answer = self._answer(exchange, trainer, chunk, ids, round)
        except RuntimeError as error:
            if len(ids) == 1 or self.silos or not ran_out_of_memory(error):
                raise
        if answer is not None:
            yield answer
            return
        halves = zip(np.array_split(chunk, 2), np.array_split(ids, 2), strict=True)
        for (
            half,
            places,
        ) in halves:  # outside of `except`, which would keep the failed attempt's memory
            yield from self._in_memory(exchange, trainer, half, places, round)

    def _answer(
        self,
        exchange: Exchange,
        trainer: LocalTrainer,
        chunk: Indices,
        ids: Indices,
        round: int,
    ) -> Chunk:
        """Returns the answer of clients `chunk` `[c]`, which are clients `ids` of `trainer`."""
        keys = self.streams.at("shuffle", round, trainer.federation.identify(ids))
        if exchange.task == "gradient":
            gradients = trainer.gradients(ids, exchange.broadcast["params"], keys)
            rows = exchange.scale * gradients
        else:
            rows = self._train(trainer, ids, chunk, exchange, keys, round)
        return Chunk(chunk, rows, self._weights(chunk).to(rows))

    def _with_examples(
        self, federation: Federation, chunks: Iterator[Indices]
    ) -> Iterator[tuple[Indices, tuple[Federation, Indices]]]:
        """Yields each of `chunks`, a population that contains it, and the clients' indices there.

        Examples in files are read ahead if clients train two epochs or more; with one epoch this is
        not faster. Nothing is read ahead for silos with DP-SGD: they sample after their charge.
        """
        again = self.trainer.epochs >= FEWEST_EPOCHS
        if self.silos or not again or not isinstance(federation.examples.x, Mapped):
            return ((chunk, (federation, chunk)) for chunk in chunks)
        return read_ahead(chunks, partial(as_read, federation))

    def _chunks_of(self, ids: Indices, task: str) -> Iterator[Indices]:
        """Yields the chunks of clients `ids` that this rank processes, in the order of `ids`.

        If `unordered` is set, ranks claim chunks from a common list, which `task` names. Otherwise
        this rank processes every n-th client, with n the number of ranks.
        """
        if not self.unordered:
            # `ids` are sorted by work, so ranks have similar loads
            ids = ids[self.ranks.rank :: self.ranks.count]
        chunks = [ids[start : start + self.chunk] for start in range(0, len(ids), self.chunk)]
        if not self.unordered:
            yield from chunks
            return
        for number in self.ranks.claimed(task, len(chunks)):
            yield chunks[number]

    def _train(
        self,
        trainer: LocalTrainer,
        ids: Indices,
        chunk: Indices,
        exchange: Exchange,
        keys: Keys,
        round: int,
    ) -> Tensor:
        """Trains clients `chunk` `[c]`, indexed in `trainer` by `ids`; returns rows `[c, m]`.

        Client states are read before training and stored after it, except for the task "project"
        and for clients with a non-finite row or state, who keep their earlier state.
        """
        broadcast, who = exchange.broadcast, trainer.federation.identify(ids)
        epochs = self._epochs(who, round)
        before, returning = None, None
        if self.states:
            before, returning = self.states.gather(
                chunk, trainer.objective.initial_client_state(broadcast)
            )
        if self.silos:
            noise = self.streams.at("noise/silo", round, who)
            rows, after = self.silos.train(
                trainer, ids, broadcast, before, round, noise, keys, epochs, returning
            )
        else:
            rows, after = trainer.train(ids, broadcast, before, keys, epochs, returning)
        if self.states is None or exchange.task == "project":
            return rows
        if after is None:
            raise ValueError("the objective keeps state, but its message returned none")
        # Clients whose training diverged keep their earlier state.
        finite = (rows.isfinite().all(1) & after.isfinite().all(1)).cpu()
        self.states.scatter(chunk[finite.numpy()], after[finite])
        return rows

    def root(self, exchange: Exchange, round: int) -> Tensor:
        federation = self.trainer.federation.at(round).server_population()
        lr = self.trainer.lr * self.schedule.factor(round)
        trainer = replace(self.trainer, federation=federation, lr=lr)
        keys = self.streams.at("root", round, np.zeros(1, dtype=np.int64))
        return trainer.train(np.zeros(1, dtype=np.int64), exchange.broadcast, None, keys)[0][0]

    def work(self, round: int, ids: Indices) -> tuple[Indices, Indices]:
        """Returns clients' numbers of local steps `[c]` and of processed examples `[c]` in `round`.

        A gradient over all examples, an exchange before training, and a measurement of one model
        count as one epoch each. The second gradient of a step (`anchored` is "batch") counts as
        another step.
        """
        trainer, objective = self.trainer, self.trainer.objective
        sizes = trainer.federation.sizes(ids)
        taken = trainer.steps(sizes, self._epochs(trainer.federation.identify(ids), round))
        epochs, rest = np.divmod(taken, np.maximum(steps(sizes, 1, trainer.batch_size), 1))
        twice = 2 if objective.anchored == "batch" else 1
        passes = (objective.anchored == "all") + (objective.exchanges - 1)
        passes = passes + (objective.measures != "") * trainer.models_measured
        examples = twice * (epochs * sizes + rest * trainer.batch_size) + passes * sizes
        return twice * taken + steps(sizes, passes, trainer.batch_size), examples

    def _epochs(self, who: Indices, round: int) -> Indices:
        """Returns the number of epochs `[c]` of clients with identities `who` `[c]` in `round`.

        Stragglers (Li et al. 2020, section 5.2) have fewer: a uniform number from 1 to E - 1 (1 if
        E is 1), with E the trainer's epochs. It is drawn by public random numbers,
        independently of the data.
        """
        most = np.full(len(who), self.trainer.epochs)
        if not self.stragglers:
            return most
        words = self.streams.at("stragglers", round, who).per_client(2)
        part = uniforms(words[:, 1]) * max(self.trainer.epochs - 1, 1)
        fewer = 1 + np.floor(part).astype(np.int64)
        return np.where(bernoulli(words[:, 0], self.stragglers), fewer, most)

    def by_work(self, ids: Indices) -> Indices:
        """Returns `ids`, sorted by clients' number of local steps, most first.

        For silos with DP-SGD, `ids` are returned unsorted.
        """
        if self.silos:  # their numbers of steps are equal, and their sizes private
            return ids
        work = self.trainer.steps(self.trainer.federation.sizes(ids), 1)
        return ids[np.argsort(-work, kind="stable")]

    def _weights(self, ids: Indices) -> Tensor:
        """Returns the aggregation weights `[c]` of clients.

        They are the declared `weights`, if there are any; otherwise, with `by_examples`, numbers of
        examples (at most `most_examples`, unless that is 0); otherwise 1.
        """
        if self.weights:
            return torch.tensor(self.weights, dtype=torch.float64)[ids]
        sizes = self.trainer.federation.sizes(ids)
        if not self.by_examples:
            return torch.from_numpy(np.ones_like(sizes))
        return torch.from_numpy(np.minimum(sizes, self.most_examples or sizes.max(initial=0)))
