"""Builds the environment in which a run's rounds are executed, with its storage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from accounting.events import Event
from accounting.guarantee import TIGHTEST
from accounting.ledger import Charge, Ledger
from privfed.auditing.canaries.clients import Canaries, with_canaries
from privfed.auditing.canaries.log import FINAL, CanaryLog
from privfed.client.client_states import ClientStates
from privfed.client.silos import PrivateSilos, SiloLedgers
from privfed.core.ranks import SINGLE_PROCESS, Ranks
from privfed.core.streams import Streams
from privfed.plan.rule import numbers_per_history
from privfed.privacy.noise.correlated import Correlated
from privfed.round.world import Charges, ReleaseStore, RemoteSites, Watch, World
from privfed.run.input_canaries import RunCanaries, with_input_canaries
from privfed.run.population import Loader
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.run_directory import RunDirectory
from privfed.store.run_files import CanaryFile
from privfed.store.tensorfile import misfits_are_broken


def client_states(
    setup: Setup, directory: RunDirectory, ledger: Ledger, checkpoint: Checkpoint
) -> ClientStates | None:
    """Client states as of `checkpoint`; None if clients keep none."""
    if not keeps_states(setup):
        return None
    width = setup.state_length
    clients, run = setup.federation.clients, _run_of(setup, ledger)
    return ClientStates(directory.private, run, clients, width, checkpoint.round)


def rule_histories(
    setup: Setup, directory: RunDirectory, ledger: Ledger, checkpoint: Checkpoint
) -> ClientStates | None:
    """The rule's state for each client as of `checkpoint`; None for a rule without such a state.

    There is a state for each canary, too; canaries' indices follow the clients' indices.
    """
    width = numbers_per_history(setup.plan.config, setup.network.shapes.length)
    if not width:
        return None
    folder, run = directory.histories.parent, _run_of(setup, ledger)
    all_clients = setup.federation.clients + setup.plan.config.audit.canaries
    return ClientStates(folder, run, all_clients, width, checkpoint.round)


def _run_of(setup: Setup, ledger: Ledger) -> str:
    """Returns an identifier of the run and its clients' order, which stored states must match."""
    order = hashlib.sha256(setup.federation.population().identities.tobytes()).hexdigest()
    return f"{ledger.terms['id']} {order}"


def private_silos(setup: Setup, directory: RunDirectory, ledger: Ledger) -> PrivateSilos | None:
    """Returns the silos that train with DP-SGD, each with its ledger; None without DP-SGD."""
    dp = setup.plan.config.example_privacy
    if dp is None:
        return None
    event = dp.event(setup.plan.config.client.epochs)
    terms = {
        **{key: ledger.terms[key] for key in ("id", "randomness", "note")},
        "unit": event.unit,
        "relation": event.relation,
        "sampler": event.sampler,
        "delta": dp.delta,
        "accountant": TIGHTEST,
        "mechanism": setup.plan.config.names["client_mechanism"],
    }
    silos, fresh = setup.federation.clients, not ledger.charges
    ledgers = SiloLedgers(directory.silos, terms, silos, fresh, ledger.reexecutes)
    return PrivateSilos(dp, setup.executor.trainer, ledgers)


def with_kept_key(setup: Setup, directory: RunDirectory, ledger: Ledger) -> Streams:
    """Returns the random streams, with the run's stored key if `keeps_key(setup)`.

    Raises `Broken` if the key is missing from a run that was charged.
    """
    if not keeps_key(setup):
        return setup.streams
    key = directory.key.read_or_draw(str(ledger.terms["id"]), fresh=not ledger.charges)
    return replace(setup.streams, key=key)


def keeps_key(setup: Setup) -> bool:
    """Whether secret random numbers of several rounds derive from one stored key.

    They do, except in a seeded run, if the sampler or mechanism depends on earlier rounds, or if
    there are canaries.
    """
    parts = (setup.algorithm.sampler, setup.algorithm.mechanism)
    follows = any(part.remembers for part in parts) or setup.plan.config.audit.canaries > 0
    return follows and not setup.streams.simulated


def keeps_states(setup: Setup) -> bool:
    """Whether clients keep state between rounds."""
    return setup.state_length > 0


def correlated(setup: Setup, streams: Streams) -> Correlated | None:
    """Noise that is correlated over rounds; None if noise is independent or absent."""
    algorithm = setup.algorithm
    layout = algorithm.objective.layout(setup.network.shapes.length)
    return algorithm.mechanism.memory(streams, algorithm.mechanism.width(layout))


def build_world(
    setup: Setup,
    directory: RunDirectory,
    ledger: Ledger,
    begin: Checkpoint,
    ranks: Ranks = SINGLE_PROCESS,
    watch: Watch | None = None,
    store: ReleaseStore | None = None,
) -> World:
    """The environment of the rounds after `begin`.

    Args:
      setup: the prepared run.
      directory: its run directory.
      ledger: its ledger.
      begin: the checkpoint to continue from.
      ranks: the processes of the run.
      watch: observer of values that no epsilon covers.
      store: store of releases; by default the run directory.
    """
    states = client_states(setup, directory, ledger, begin)
    streams = with_kept_key(setup, directory, ledger)
    silos = private_silos(setup, directory, ledger)
    bare = shared_world(setup, ledger, store or directory.releases, ranks)
    return replace(
        bare,
        executor=replace(setup.executor, states=states, silos=silos, ranks=ranks),
        streams=streams,
        correlated=correlated(setup, streams),
        watch=watch,
        exclusions=directory.exclusions,
        attackers=setup.attackers,
        states=states,
        histories=rule_histories(setup, directory, ledger, begin),
    )


def shared_world(setup: Setup, ledger: Charges, store: ReleaseStore, ranks: Ranks) -> World:
    """Returns the environment of rounds that every rank has; its streams lack the stored key."""
    return World(
        executor=replace(setup.executor, ranks=ranks),
        population=setup.federation.population(),
        ledger=ledger,
        store=store,
        streams=setup.streams,
        layers=setup.network.shapes.sizes,
        ranks=ranks,
    )


class HeldElsewhere:
    """A ledger and release store that permit no call, since another process (rank 0, a server) has
    the run's own. Every call raises `RuntimeError`.
    """

    def charge(self, round: int, event: Event) -> Charge:
        raise RuntimeError("only the process that holds the ledger charges")

    def write(self, *_: object) -> None:
        raise RuntimeError("only the process that holds the releases writes")


@dataclass(frozen=True)
class UpdateCanaries:
    """Canaries that send fixed directions, with their log and the initial model `start` `[d]`.

    `start` is None if rows are compressed, so that directions are not those of a model.
    """

    canaries: Canaries
    start: Tensor | None
    log: CanaryLog

    def hear(self, round: int, released: list[Tensor]) -> None:
        """Logs the norm of the sum of `released`, and its inner products with the canaries.

        `released` are the stored releases of a replayed `round`; the last record of a round counts.
        """
        self.log.append(round, self.canaries.products_with(released))

    def end(self, params: Tensor) -> None:
        """Logs inner products of `params` - `start` with the canaries' directions; 0 without it."""
        unknown = self.canaries.directions.new_zeros(self.canaries.directions.shape[1])
        change = unknown if self.start is None else params - self.start
        self.log.append(FINAL, self.canaries.products_with([change]))


def with_run_canaries(
    world: World, setup: Setup, directory: RunDirectory
) -> tuple[World, RunCanaries | None]:
    """Adds the run's canaries to the population of `world`; returns the world and the canaries."""
    config, compresses = setup.plan.config, setup.plan.config.compression.compresses
    length = setup.network.shapes.length
    if compresses:
        length = setup.algorithm.objective.layout(length).length
    if not config.audit.canaries:
        return world, None
    if config.audit.by_inputs:
        return with_input_canaries(world, setup, directory)
    canaries = Canaries.drawn(
        config.audit.canaries,
        length,
        world.streams,
        setup.plan.event.relation,
        config.data.sites,
        config.data.sites_per_client,
    )
    log = CanaryLog(directory.canaries, config.audit.canaries)
    log.begin(canaries.inclusion, length)
    clients = setup.federation.clients
    cost = setup.plan.cost
    world = with_canaries(world, clients, config.mechanism, cost.rule, cost.witness, canaries, log)
    start = None if compresses else _start_of(setup, directory)
    return world, UpdateCanaries(canaries, start, log)


def _start_of(setup: Setup, directory: RunDirectory) -> Tensor:
    """The model `[d]` from which the run started; a resumed run reads it from a file."""
    file = CanaryFile(directory.canary_examples)
    if not file.exists():
        file.write({"start": setup.network.initial_params})
    with misfits_are_broken(file.path):
        return file.read(setup.network.initial_params.device)["start"]


@dataclass(frozen=True)
class Elsewhere:
    """The access to a run's clients if they are at sites on other machines, with no data here.

    `load` loads the public data; `reach` connects to the sites of a run whose ledger is open.
    """

    load: Loader
    reach: Callable[[Setup, Ledger], RemoteSites]
