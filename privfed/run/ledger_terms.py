"""Begins a run: the ledger's first line, the files that it cites, and the runs that it counts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accounting import regular
from accounting.ledger import terms_at
from privfed.auditing.audited_run import has_later_charges
from privfed.config.config import Config
from privfed.config.population_identity import population_identity
from privfed.core.errors import Refused
from privfed.core.user_code import sources_digest
from privfed.data.source import UserObjectSource
from privfed.models.pretrained import start_files
from privfed.models.recipes import Weighted
from privfed.plan.plan import Plan
from privfed.plan.prior_spending import Priors
from privfed.privacy.noise_on_model import SolvedForRun
from privfed.privacy.shared_noise import OTHER_PARTY
from privfed.run.setup import Setup
from privfed.store.run_directory import RunDirectory


def refuse_grown(before: Priors) -> None:
    """Raises `Refused` if a counted run's ledger has grown since; skips unreadable ledgers."""
    for prior in before.runs:
        if has_later_charges(prior.to_json()):
            raise Refused(
                f"{prior.path} was counted as an earlier run, but was charged again since, so this "
                "run's epsilon would omit the later charges; start a new run when that run has "
                "ended. A run that has begun cannot count the later charges"
            )


def write_companions(setup: Setup, before: Priors, directory: RunDirectory) -> None:
    """Writes the files that a new run stores in addition to its configuration and ledger.

    The files state the public clients, the frozen constants, the attackers and, if the population
    was passed in Python, the digest of its examples.
    """
    directory.public_clients.write(setup.federation.public, before.public)
    directory.constants.write(setup.network.constants, before.lineage)
    if isinstance(setup.plan.config.source, UserObjectSource):
        directory.population.write((setup.federation.examples, setup.federation.test))
    if setup.attackers:
        directory.write_attackers(setup.attackers.to_json())


def mark_counted(before: Priors, by: Path) -> None:
    """Marks the earlier runs that this run counts, before its ledger cites them.

    A marked run cannot be charged again. If another run is now at the path of a counted run, it is
    not marked; neither is a read-only directory, which cannot be charged. After a crash before the
    citation, runs are marked although no ledger cites them.

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
    """Returns the constants of correlated noise and their number of rounds; else empty."""
    mechanism = plan.mechanism
    return {"correlation": mechanism.solution()} if isinstance(mechanism, SolvedForRun) else {}


def _chosen(setup: Setup) -> dict[str, Any]:
    """Returns the event and the charge of private tuning that chose this run; otherwise empty."""
    plan = setup.plan
    if plan.config.chosen is None:
        return {}
    (event,) = plan.spent
    return {"chosen": {"event": event.to_json(), "charge": plan.config.chosen.charge}}


def _against(setup: Setup) -> dict[str, Any]:
    """Returns the terms of the two guarantees of distributed noise; empty for other noise.

    The terms state the adversary of the charged guarantee, and the other one with its event. If
    pairs of clients share noise, they state the tolerated number of colluders instead.
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
    """Returns the event that an evaluation round charges, and that of the other guarantee.

    Empty if clients do not evaluate, or if there is no other guarantee.
    """
    evaluation = plan.evaluation
    if evaluation is None or evaluation.other is None:
        return {}
    charged, event = evaluation.event.to_json(), evaluation.other.to_json()
    return {"evaluation": [{"charged": charged, "event": event}]}


def _sites(setup: Setup) -> dict[str, Any]:
    """Returns the declared number of sites and, if sites are parties, the numbers in the proof.

    Parties are fixed before the run, so these terms do not reveal whether a site has no clients.
    Empty without sites.
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
    """Returns the runs that `privacy.disjoint` declares to have no client of this run."""
    return [{"run": path, "id": run} for path, run in before.disjoint.items()]


def _attack(config: Config) -> dict[str, Any]:
    """The attack, its attackers' keys, and their knowledge; empty without attackers."""
    if not config.has_attackers:
        return {}
    knows = sorted(what.value for what in config.attack.knows)
    stated = {"name": config.names["attack"], **config.attackers.model_dump(), "knows": knows}
    return {"attack": {**stated, "unbounded": config.unbounded}}


def _secure(setup: Setup) -> dict[str, Any]:
    """Returns the name of the protocol that sums rows, and the text on what each party sees.

    Also states whether cryptography is executed and, for a secure sum, the ratio by which encoding
    may increase a row's norm.
    """
    config = setup.plan.config
    name, simulate = config.names["protocol"], config.secure.simulate
    ran = config.secured and simulate == "messages"
    stated = {"protocol": name, "cryptography": ran, "seen": config.protocol.seen}
    if not config.secured:
        return stated
    return {**stated, "encoded": setup.algorithm.encoding_factor(setup.network.shapes.length)}


def _examples(setup: Setup) -> dict[str, Any] | None:
    """The event of a round and the delta for one example of a silo; None without DP-SGD.

    If the mechanism does not protect clients, the number of silos is stated as well.
    """
    config = setup.plan.config
    dp = config.example_privacy
    if dp is None:
        return None
    stated = {"event": dp.event(config.client.epochs).to_json(), "delta": dp.delta}
    if setup.plan.mechanism.private:  # the number of silos is then protected, and never published
        return stated
    return {**stated, "silos": setup.federation.clients}


def _hash_of_start(config: Config) -> str | None:
    """SHA-256 of loaded initial weights, which this epsilon does not cover; None without any."""
    init, model = config.start.init, config.model
    files = [path for path in start_files(init) if path.is_file()] if init else []
    contents = [regular.read_bytes(path) for path in files]
    contents += [model.weights().encode()] if isinstance(model, Weighted) else []
    return hashlib.sha256(b"".join(contents)).hexdigest() if contents else None


def passed_code(config: Config) -> dict[str, str]:
    """Returns the SHA-256 of the sources of each part passed as a class, by kind.

    Parts without a user's own code are left out. On resume, a part that is named (`module:name`) is
    imported by its name. A class that was passed, for example from a notebook, is not stored; it is
    passed again, and its digest is compared.
    """
    return {
        kind: digest
        for kind, part in sorted(config.given.items())
        if (digest := sources_digest(_defining(part)))
    }


def refuse_other_code(config: Config, terms: Mapping[str, Any]) -> None:
    """Raises `Refused` if a passed part's code differs from that in the ledger's `terms`."""
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
