"""Earlier runs over the same population, whose spending counts before a new run starts.

The guarantee of the new run then covers a client over all of these runs together. That guarantee
needs three conditions. The runs must have the same clients. A client whose data an earlier run
published must not be claimed as covered now. A run that was counted must not have spent more since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accounting.errors import LedgerBroken
from accounting.ledger import Ledger
from privfed.auditing.audited_run import has_later_charges
from privfed.auditing.run_audit import audit
from privfed.config.config import Config
from privfed.config.population_identity import perhaps_same, same_name, same_unit
from privfed.core.errors import Broken, Refused
from privfed.data.federation import Federation
from privfed.data.source import CountsEarlier
from privfed.models.recipes import Weighted
from privfed.plan.assumed import Assumed
from privfed.plan.assumptions import Incomposable
from privfed.plan.composed_guarantees import if_stopped, planned_otherwise
from privfed.plan.prior_spending import Prior, Priors
from privfed.store.lineage import Lineage, Origin
from privfed.store.run_directory import RunDirectory


def priors(config: Config) -> Priors:
    """Returns the runs that `privacy.prior` names, and the runs that those count as earlier.

    The ledger of a training states its earlier runs. A release of statistics states them in its
    configuration, since its ledger concerns that release alone.

    Args:
      config: the configuration of the new run.

    Raises:
      Refused: if a path is not a run, or the run is still in progress, broken, without guarantee,
        a simulation (unless the new run is seeded), or over another population. Runs that cannot be
        composed are never left out silently.
    """
    named: dict[tuple[str, str], Prior] = {}
    before: dict[tuple[str, str], Prior] = {}
    public: set[str] = set()
    culprits: dict[str, int] = {}
    for name in dict.fromkeys(_with_earlier(config.privacy.prior)):
        directory, ledger = _ended_run(name)
        _refuse_incomposable(name, ledger.terms, config)
        rounds = directory.config.rounds()
        odometer = planned_otherwise(rounds, ledger)
        run = Prior.of(name, ledger, if_stopped(rounds, ledger), odometer)
        named[run.run, run.head] = run
        before |= {(prior.run, prior.head): prior for prior in Priors.from_terms(ledger.terms).runs}
        public |= set(directory.public_clients.of_all_runs())
        culprits[run.run] = len(directory.exclusions.culprits())
    runs = tuple((before | named).values())  # a run's own ledger states at least as much
    for prior in runs:
        _refuse_resumed_priors(prior)
    counted = Priors(
        tuple(_charged(prior, config, culprits.get(prior.run, 0)) for prior in runs),
        frozenset(public),
        Lineage.of_config(config),
        _disjoint(config, runs),
    ).traced(_folder(config))
    if _promises(config):
        for origin in counted.lineage.runs:
            _refuse_uncounted_start(config, counted, origin)
    return counted


def _with_earlier(names: Iterable[str]) -> Iterator[str]:
    """Yields the runs `names` (paths), each after the earlier runs that the run's source states."""
    for name in names:
        with contextlib.suppress(Broken, Refused, OSError):  # `_ended_run` says what is wrong
            source = RunDirectory.open(Path(name)).config.read().source
            if isinstance(source, CountsEarlier):
                yield from source.earlier
        yield name


def _ended_run(name: str) -> tuple[RunDirectory, Ledger]:
    """Returns the directory and the ledger of the run `name`, an entry of `privacy.prior`.

    Raises `Refused` if the run is still in progress, or its audit finds a problem.
    """
    directory = RunDirectory.open(Path(name))
    with contextlib.suppress(PermissionError), directory.locked():
        pass  # raises Refused for a run in progress
    problems = audit(directory.path).problems
    if problems:
        raise Refused(
            f"privacy.prior: {name} has no valid guarantee: {problems[0]}; restore that run "
            "directory"
        )
    return directory, Ledger.load(directory.ledger)


def _party(config: Config) -> str | None:
    """Returns the party against which epsilon holds; None: every party except a trusted server."""
    return config.against or None


def _promises(config: Config) -> bool:
    """Whether `privacy.mechanism` or `client.privacy.mechanism` of the run is private."""
    return bool(config.mechanism.private or config.client_mechanism.private)


def _charged(prior: Prior, config: Config, culprits: int) -> Prior:
    """Returns `prior` with its charges against the party of this run's budget.

    The charges hold under this run's assumptions, except that the proven Byzantine parties of
    `prior` (`culprits` of them) never count as honest.

    Raises:
      Refused: if no ledger states these charges, or they cannot be computed.
    """
    toward = prior.toward(_party(config))
    if toward is None:
        trusted = "all but a trusted server"
        raise Refused(
            f"privacy.prior: the epsilon of {prior.path} is against {prior.against or trusted}, "
            f"but this run's epsilon is against {_party(config) or trusted}, and no ledger states "
            "the earlier spending against that party; use the same mechanism and privacy.against"
        )
    now = Assumed.of(config)
    try:
        return toward.under(now.with_detected_byzantine(culprits) if culprits else now)
    except Incomposable as error:
        raise Refused(f"privacy.prior: {prior.path}: {error}") from None


def _refuse_incomposable(name: str, terms: Mapping[str, Any], config: Config) -> None:
    """Raises `Refused` if the run `name` cannot be composed with the run of `config`.

    It cannot if it guarantees nothing, is a simulation although `config` is not seeded, or trained
    on another population.
    """
    if terms.get("guarantee"):
        raise Refused(
            f"privacy.prior: {name} has no guarantee that could be composed "
            f"({terms['guarantee']}); use a starting model and runs with a guarantee only"
        )
    if terms.get("note") and config.run.randomness != "seeded":
        raise Refused(
            f"privacy.prior: {name} is a simulation with a nominal epsilon, which can be composed "
            'only with simulations; make this run a simulation (run.randomness = "seeded"), or '
            "name another run"
        )
    stated = terms.get("population")
    population = stated if isinstance(stated, dict) else {}
    if not same_unit(config, population):
        raise Refused(
            f"privacy.prior: the clients of {name} are not the clients of this run, so no epsilon "
            "covers a client over both; name only runs over the same population: with the same "
            "source and client column or, for simulated clients, the same [data] and run.seed"
        )
    if not same_name(config, population):
        raise Refused(
            f"privacy.prior: {name} has other [data] than this run, but ledgers are merged over "
            "one population only. If both runs are over the same population, set data.population = "
            f'"{population.get("name")}"'
        )


def _refuse_resumed_priors(prior: Prior) -> None:
    """Raises `Refused` if the counted run was charged further since, by the ledger at its path."""
    if has_later_charges(prior.to_json()):
        raise Refused(
            f"privacy.prior: {prior.path} was charged again after it had been counted, so no run "
            "counts the later charges; start again when it has ended. A run whose ledger counts "
            "only its earlier charges has no valid guarantee and cannot be named"
        )


def refuse_once_public(counted: Priors, federation: Federation) -> None:
    """Raises `Refused` if a client of `federation` was declared public by a `counted` run.

    A client whose data an earlier run published is not covered by any guarantee of this run.
    """
    covered = {*federation.examples.clients} if federation.identities is not None else set()
    both = sorted(covered & counted.public)
    if both:
        raise Refused(
            f"privacy.prior: {len(both)} clients were declared public by an earlier run, but this "
            "run's guarantee would cover them; set run.seed and data.holdout_fraction as in the "
            "earlier run",
            private=f"the first of them is {both[0]!r}",
        )


def _disjoint(config: Config, runs: Iterable[Prior]) -> dict[str, str]:
    """Returns the ids of the runs that `privacy.disjoint` names, by the stated path.

    Raises `Refused` for a path that is not a run, for a run that is also in `runs`, and for a run
    over this run's population.
    """
    declared = {}
    for name in config.privacy.disjoint:
        path = RunDirectory.open(Path(name)).ledger
        try:
            terms = Ledger.load(path).terms
            declared[name], population = str(terms["id"]), terms["population"]
        except (OSError, LedgerBroken, KeyError) as error:
            raise Refused(
                f"privacy.disjoint: {name} has no readable ledger with an id; name a run directory"
            ) from error
        counted = declared[name] in {prior.run for prior in runs}
        if counted or (same_unit(config, population) and same_name(config, population)):
            raise Refused(
                f"privacy.disjoint: {name} is counted in privacy.prior, or has this run's "
                f"population, so the populations are not disjoint; name {name} in privacy.prior "
                "only"
            )
    return declared


def _refuse_uncounted_start(config: Config, counted: Priors, origin: Origin) -> None:
    """Raises `Refused` if a run that trained the initial model, `origin`, is not in `counted`.

    A model trained on this population, or on one that may share clients with it, is a release
    about it. `privacy.prior` has to count its run, up to the head at which it was trained, unless
    `privacy.disjoint` names that run.
    """
    if origin.id in counted.disjoint.values() or not perhaps_same(config, origin.population):
        return
    known = [prior for prior in counted.runs if prior.run == origin.id]
    if any(origin.head in prior.heads for prior in known):
        return
    start, folder = f"{_start_key(config)}: {config.starts_from}", _folder(config)
    if known and any(prior.ledgers(folder) for prior in known):
        raise Refused(
            f"{start} was trained further than {known[0].path}, which privacy.prior counts, so "
            f"{start} comes from a resumed copy of that run; name the copy in privacy.prior instead"
        )
    if known:
        raise Refused(
            f"{start} comes from {known[0].path}, which privacy.prior counts, but not from the "
            "last checkpoint there, and the ledger that would show whether a copy was trained "
            "further is missing. Restore that ledger, or start from the last checkpoint"
        )
    folder = _folder_of_run(folder, origin)
    at = f'["{folder}"]' if folder else f"the directory of run {origin.id}"
    same = same_unit(config, origin.population)
    also = (
        "" if same else ", with its [data] and run.seed (else no epsilon covers a client of both)"
    )
    raise Refused(
        f"{start} was trained (by run {origin.id}) on this population, or on one that may share "
        "clients with it, so the privacy loss of that training counts as well; set "
        f"privacy.prior = {at}{also}. If no client's data are in both populations, set "
        f"privacy.disjoint = {at}; the guarantee then states that it does not cover the starting "
        "model"
    )


def _start_key(config: Config) -> str:
    return "model.init" if config.start.init else "model"


def _folder(config: Config) -> Path | None:
    """Returns the folder from which the initial model comes, perhaps a run's; None if not known."""
    init, model = config.start.init, config.model
    if init:
        return Path(init) if Path(init).is_dir() else Path(init).parent
    made_by = model.origins() if isinstance(model, Weighted) else ()
    return next((Path(origins["path"]) for origins in made_by if "path" in origins), None)


def _folder_of_run(folder: Path | None, origin: Origin) -> Path | None:
    """Returns `folder` if it holds a ledger with the id of the run `origin`, else None."""
    if folder is None:
        return None
    try:
        ledger = Ledger.load(folder / "ledger.jsonl")
    except (OSError, LedgerBroken):
        return None
    return folder if str(ledger.terms.get("id")) == origin.id else None
