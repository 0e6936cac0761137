"""What a resume takes up: the ledger, the checkpoint, and the releases that came after it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from accounting.guarantee import TIGHTEST
from accounting.ledger import Charge, Ledger
from privfed.auditing.canaries.clients import Canaries
from privfed.auditing.canaries.log import CanaryLog
from privfed.config.config import Config
from privfed.errors import Broken, Refused
from privfed.local.client_states import ClientStates
from privfed.local.silos import PrivateSilos, SiloLedgers
from privfed.privacy.noise.correlated import Correlated
from privfed.round.algorithm import TrainingState
from privfed.round.round import drive, play
from privfed.run.setup import Setup
from privfed.store.checkpoint import Checkpoint
from privfed.store.kept_heads import keep_heads
from privfed.store.run_directory import RunDirectory
from privfed.streams import Streams


def replay(
    charge: Charge, setup: Setup, state: TrainingState, directory: RunDirectory
) -> TrainingState | None:
    """The state after a charged round, from what it released; None where it did not release all.

    Raises `Broken` for a release that belongs to another charge.
    """
    stored = directory.releases.read(charge.round, state.params.device)
    if stored is None:
        return None
    if stored.charge != charge.hash:
        raise Broken(
            f"{directory.path}: the release of round {charge.round} does not belong to its charge; "
            "the directory was edited"
        )
    released = stored.released
    if len(released) < setup.algorithm.exchanges:
        return None
    plan = play(setup.algorithm, charge.round, state)
    after = drive(plan, lambda _, number: released[number])
    return replace(after, mechanism=stored.mechanism)


def restored(setup: Setup, directory: RunDirectory, ledger: Ledger) -> Checkpoint:
    """The last checkpoint. Raises `Broken` where the ledger lacks what it saw."""
    checkpoint = Checkpoint.load(directory, setup.network, setup.network.start.device)
    if not ledger.holds(checkpoint.head):
        raise Broken(
            f"{directory.ledger} ends before what the checkpoint saw; charges were removed, and "
            "the epsilon of this run can no longer be proved"
        )
    fresh = setup.start()
    for kind in ("server", "mechanism", "objective", "rule"):
        found, wanted = getattr(checkpoint.state, kind), getattr(fresh, kind)
        if _form(found) != _form(wanted):
            raise Broken(
                f"{directory.path}: the checkpoint's {kind} state is {_form(found)}; expected "
                f"{_form(wanted)}"
            )
    return checkpoint


def client_states(
    setup: Setup, directory: RunDirectory, ledger: Ledger, checkpoint: Checkpoint
) -> ClientStates | None:
    """What clients remember as of `checkpoint`; None where they remember nothing."""
    if not keeps_states(setup):
        return None
    width = setup.algorithm.objective.keeps * setup.network.shapes.length
    clients = setup.federation.clients
    people = hashlib.sha256(setup.federation.people().identities.tobytes()).hexdigest()
    run = f"{ledger.terms['id']} {people}"  # states are kept by place, so the order has to stay
    return ClientStates(directory.private, run, clients, width, checkpoint.round)


def private_silos(setup: Setup, directory: RunDirectory, ledger: Ledger) -> PrivateSilos | None:
    """Silos that train with DP-SGD, and their ledgers; None where they train without."""
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
        "mechanism": "dp_sgd",
    }
    silos, fresh = setup.federation.clients, not ledger.charges
    ledgers = SiloLedgers(directory.silos, terms, silos, fresh, ledger.reexecutes)
    return PrivateSilos(dp, setup.executor.trainer, ledgers)


def with_kept_key(setup: Setup, directory: RunDirectory, ledger: Ledger) -> Streams:
    """The streams, with the run's own key where slots or noise of different rounds hang together.

    Raises `Broken` where it is missing from a run that was charged.
    """
    if not keeps_key(setup):
        return setup.streams
    key = directory.key.read_or_draw(str(ledger.terms["id"]), fresh=not ledger.charges)
    return replace(setup.streams, kept=key)


def keeps_key(setup: Setup) -> bool:
    """Whether secret draws of different rounds follow from one key, which the run then keeps."""
    parts = (setup.algorithm.sampler, setup.algorithm.mechanism)
    follows = any(part.remembers for part in parts) or setup.plan.config.audit.canaries > 0
    return follows and not setup.streams.simulated


def keeps_states(setup: Setup) -> bool:
    """Whether clients remember anything between rounds."""
    return setup.algorithm.objective.keeps * setup.network.shapes.length > 0


def canaries(
    setup: Setup, directory: RunDirectory, streams: Streams
) -> tuple[Canaries, CanaryLog] | None:
    """The run's canaries, and what they saw so far; None where there are none."""
    count, length = setup.plan.config.audit.canaries, setup.network.shapes.length
    if not count:
        return None
    drawn = Canaries.drawn(count, length, streams)
    log = CanaryLog(directory.canaries, count)
    log.begin(drawn.coins, length)
    return drawn, log


def correlated(setup: Setup, streams: Streams) -> Correlated | None:
    """Noise that is correlated over rounds; None where it is not."""
    algorithm = setup.algorithm
    layout = algorithm.objective.layout(setup.network.shapes.length)
    return algorithm.mechanism.memory(streams, algorithm.mechanism.width(layout))


def _form(state: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in state.items()}


def reopen(directory: RunDirectory, setup: Setup, terms: Mapping[str, Any]) -> Ledger:
    """The ledger of an existing run, or a new one where a crash came before its first charge."""
    ledger = Ledger.recover(directory.ledger) if directory.ledger.exists() else None
    if ledger is None or not ledger.opened:
        if directory.began():
            raise Broken(f"{directory.ledger} is missing or empty, but the run had begun")
        directory.ledger.unlink(missing_ok=True)
        ledger = Ledger.create(directory.ledger, terms)
    if ledger.terms.get("config") != directory.config.digest():
        raise Broken(
            f"{directory.path}: config.toml is not the configuration that the ledger was opened "
            "for; it was edited. Restore it, or start a new run"
        )
    keep_heads(ledger, setup.plan.config.run.heads)
    if ledger.terms.get("files", {}) != directory.companions():
        raise Broken(
            f"{directory.path}: the frozen part of the model, or the list of public clients, is "
            "not what the ledger was opened for; it was edited or removed"
        )
    if not directory.checkpoint.exists():
        if ledger.terms.get("start") != terms["start"]:
            raise Broken(
                f"{directory.path}: model.init is not the file that the ledger was opened for"
            )
        if ledger.charges:
            raise Broken(f"{directory.path} has charges in its ledger, but no checkpoint")
        first = Checkpoint(0, 0, setup.start(), ledger.head())
        first.save(directory, setup.network)
    return ledger


def allowed_change(stored: Config, wanted: Config) -> Config:
    """`wanted` with what the run measured and calibrated. Raises `Refused`, naming each key."""
    for key, unset in (("trainer", "auto"), ("chunk", 0)):
        if getattr(wanted.run, key) == unset:
            wanted = wanted.with_run(**{key: getattr(stored.run, key)})
    wanted = replace(wanted, noise_multiplier=stored.noise_multiplier)
    if wanted.run.rounds < stored.run.rounds:
        raise Refused(
            f"--resume: run.rounds is {wanted.run.rounds}, but this run was started with "
            f"{stored.run.rounds}; rounds may only go up"
        )
    before, after = _flat(stored), _flat(wanted)
    changed = [
        f"{key} was {before.get(key)!r} and is now {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ("run.rounds", "privacy.epsilon")
    ]
    if changed:
        raise Refused(
            "--resume with a changed configuration: " + "; ".join(changed) + ". Only run.rounds "
            "(upward) and privacy.epsilon may change; start a new run for anything else"
        )
    return wanted


def _flat(config: Config) -> dict[str, Any]:
    values = config.values().items()
    return {f"{name}.{key}": value for name, keys in values for key, value in keys.items()}
