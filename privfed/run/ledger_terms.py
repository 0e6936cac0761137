"""The start of a run: its ledger's first line, the files that it cites, the runs that it counts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.ledger import terms_at
from privfed.auditing.audited_run import went_on
from privfed.config.config import Config
from privfed.config.population_identity import population_identity
from privfed.core.errors import Refused
from privfed.core.own_code import sources_digest
from privfed.data.source import KeptByUser
from privfed.models.pretrained import start_files
from privfed.models.recipes import Weighted
from privfed.plan.plan import Plan
from privfed.plan.prior_spending import Priors
from privfed.privacy.noise_on_model import SolvedForRun
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.run.setup import Setup
from privfed.store.run_directory import RunDirectory


def refuse_grown(before: Priors) -> None:
    """Raises `Refused` if a counted run was charged again after it was counted."""
    for prior in before.runs:
        if went_on(prior.to_json()):
            raise Refused(
                f"{prior.path} was counted as an earlier run, but was charged again since, so this "
                "run's epsilon would omit the later charges; start a new run, and name both runs "
                "in privacy.prior"
            )


def write_companions(setup: Setup, before: Priors, directory: RunDirectory) -> None:
    """Writes the files that a run keeps from its start.

    The files state the public clients, frozen constants and attackers and, if no file holds the
    population, its identity.
    """
    directory.public_clients.write(setup.federation.public, before.public)
    directory.constants.write(setup.network.constants, before.lineage)
    if isinstance(setup.plan.config.source, KeptByUser):
        directory.population.write((setup.federation.examples, setup.federation.test))
    if setup.attackers:
        directory.write_attackers(setup.attackers.to_json())


def mark_counted(before: Priors, by: Path) -> None:
    """Marks the counted runs before the ledger cites them: they may then spend no more.

    A different run at the path of a counted run is left unchanged. A crash between the marks and
    the citation leaves marks without a citation.

    Args:
      before: the counted runs.
      by: the directory that counts them.

    Raises:
      Refused: if a counted run was charged since it was read.
    """
    for prior in before.runs:
        there = RunDirectory(Path(prior.path))
        if terms_at(there.ledger).get("id") == prior.run:
            there.mark_counted_by(by.resolve())
    refuse_grown(before)


def terms(setup: Setup, before: Priors, directory: RunDirectory) -> dict[str, Any]:
    """Returns the terms of the ledger's first line: all that is needed to interpret epsilon."""
    plan = setup.plan
    config, event = plan.config, plan.event
    seeded = config.run.randomness == "seeded"
    partition = config.names["partition"]
    return {
        "id": directory.config.digest()[:16] if seeded else os.urandom(8).hex(),
        "unit": event.unit,
        "relation": event.relation,
        "sampler": event.sampler,
        "mechanism": config.names["mechanism"],
        "trust": plan.mechanism.trust,
        "clients": config.data.clients,
        "delta": config.privacy.delta,
        "accountant": config.privacy.accountant,
        "randomness": "seeded" if seeded else "secret",
        "note": plan.simulation,
        **({"guarantee": plan.void} if plan.void else {}),
        **_chosen(setup),
        **_attack(config),
        **({"canaries": config.audit.canaries} if config.audit.canaries else {}),
        "arithmetic": plan.mechanism.arithmetic,
        **_correlation(plan),
        "secure": _secure(setup),
        **_against(setup),
        **_sites(setup),
        "assumes": plan.assumed.to_json(),
        "planned": {
            "events": [each.event.to_json() for each in (plan, plan.evaluation) if each],
            "evaluate_every": config.evaluation_rounds.every,
            "rounds": config.run.rounds,
        },
        "population": population_identity(config),
        "partition": f"{partition!r}, frozen before training",
        "public_clients": len(setup.federation.public),
        "config": directory.config.digest(),
        "files": directory.companions(),
        "budget": plan.budget,
        "start": _hash_of_start(config),
        "lineage": before.lineage.to_json(),
        "prior": [prior.to_json() for prior in before.runs],
        **({"disjoint": disjoint} if (disjoint := _disjoint(before)) else {}),
        **({"code": code} if (code := passed_code(config)) else {}),
        **({"examples": examples} if (examples := _examples(setup)) else {}),
    }


def _correlation(plan: Plan) -> dict[str, Any]:
    """Returns the optimised constants of correlated noise, and the number of rounds."""
    mechanism = plan.mechanism
    return {"correlation": mechanism.solution()} if isinstance(mechanism, SolvedForRun) else {}


def _chosen(setup: Setup) -> dict[str, Any]:
    """Returns the event and the charge of the choice if the run is one of several candidates."""
    plan = setup.plan
    if plan.config.chosen is None:
        return {}
    (event,) = plan.spent
    return {"chosen": {"event": event.to_json(), "charge": plan.config.chosen.charge}}


def _against(setup: Setup) -> dict[str, Any]:
    """Returns the terms of the two guarantees of distributed noise.

    The terms state the adversary of the charged guarantee, and either the event of the other one
    or the tolerated number of colluders.
    """
    plan = setup.plan
    against, colluding = plan.config.against, plan.config.colluding
    if colluding is not None:
        return {"against": against, "colluders": colluding}
    if plan.other is None:
        return {}
    return {
        "against": against,
        "other": {
            "against": OTHER_PARTY[against],
            "event": plan.other.to_json(),
            **_other_of_evaluation(plan),
        },
    }


def _other_of_evaluation(plan: Plan) -> dict[str, Any]:
    """Returns both events of an evaluation round: the charged one, and the other guarantee's."""
    evaluation = plan.evaluation
    if evaluation is None or evaluation.other is None:
        return {}
    charged, event = evaluation.event.to_json(), evaluation.other.to_json()
    return {"evaluation": [{"charged": charged, "event": event}]}


def _sites(setup: Setup) -> dict[str, Any]:
    """The declared number of sites, and the number that the proof assumes, if sites are parties.

    Parties are fixed before the run; nothing is revealed about sites without clients.
    """
    data, limits = setup.plan.config.data, setup.plan.cost.limits
    if not data.sites:
        return {}
    stated: dict[str, Any] = {"declared": data.sites, "per_client": data.sites_per_client}
    if not limits.sites:
        return {"sites": stated}
    stated |= {"parties": limits.sites, "minimum": limits.minimum}
    return {"sites": stated, "colluders": limits.colluders}


def _disjoint(before: Priors) -> list[dict[str, str]]:
    """Runs that share no client with this one, as `privacy.disjoint` declares."""
    return [{"run": path, "id": run} for path, run in before.disjoint.items()]


def _attack(config: Config) -> dict[str, Any]:
    """The attack, its attackers, and their knowledge."""
    if not config.attacked:
        return {}
    knows = sorted(what.value for what in config.attack.knows)
    stated = {"name": config.names["attack"], **config.attackers.model_dump(), "knows": knows}
    return {"attack": {**stated, "unbounded": config.unbounded}}


def _secure(setup: Setup) -> dict[str, Any]:
    """The protocol that summed rows, and whether its cryptography ran."""
    config = setup.plan.config
    name, simulate = config.names["protocol"], config.secure.simulate
    ran = config.secured and simulate == "messages"
    stated = {"protocol": name, "cryptography": ran, "seen": config.protocol.seen}
    if not config.secured:
        return stated
    return {**stated, "encoded": setup.algorithm.encoding_factor(setup.network.shapes.length)}


def _examples(setup: Setup) -> dict[str, Any] | None:
    """The event of a round for one example of a silo, by the silo's DP-SGD; None without DP-SGD."""
    config = setup.plan.config
    dp = config.example_privacy
    if dp is None:
        return None
    stated = {"event": dp.event(config.client.epochs).to_json(), "delta": dp.delta}
    if setup.plan.mechanism.private:  # the number of silos is then protected, and never published
        return stated
    return {**stated, "silos": setup.federation.clients}


def _hash_of_start(config: Config) -> str | None:
    """SHA-256 of the initial model, which this ledger's epsilon does not cover; None if random."""
    init, model = config.start.init, config.model
    files = [path for path in start_files(init) if path.is_file()] if init else []
    contents = [regular.read_bytes(path) for path in files]
    contents += [model.weights().encode()] if isinstance(model, Weighted) else []
    return hashlib.sha256(b"".join(contents)).hexdigest() if contents else None


def passed_code(config: Config) -> dict[str, str]:
    """Returns the SHA-256 of the sources of each part passed as a class, by kind.

    A part that is named (`module:name`) is found again by its name. A class that is passed, for
    example from a notebook, is not stored, so a resume compares its digest.
    """
    return {
        kind: digest
        for kind, part in sorted(config.given.items())
        if (digest := sources_digest(_defining(part)))
    }


def refuse_other_code(config: Config, terms: Mapping[str, Any]) -> None:
    """Raises `Refused` if the ledger's `terms` state other code of a part that was passed."""
    stated, passed = terms.get("code", {}), passed_code(config)
    for kind, digest in stated.items():
        if passed.get(kind, digest) != digest:
            raise Refused(
                f"the code of the {kind} that was passed differs from the code with which the run "
                f"began; pass the former {kind}, or start a new run that names this run in "
                "privacy.prior"
            )


def _defining(part: type) -> Iterator[object]:
    """Yields the classes that define a part; for a part made from a function, the function."""
    for base in part.__mro__:
        function = vars(base).get("function")
        yield function.__func__ if isinstance(function, staticmethod) else base
