"""What a run really spent: re-computed from its ledger alone, by accountants of one's choice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.documents import from_json
from accounting.errors import AccountingError, LedgerBroken
from accounting.events import CHANGE, Event, Spending, apart
from accounting.guarantee import CHOICES, Guarantee, guarantee, sentence, spent, stated
from accounting.ledger import BudgetChange, Ledger
from accounting.releases import (
    Gaussian,
    PoissonSampled,
    Separated,
    TruncatedPoisson,
    WithoutReplacement,
    noise_of,
)
from accounting.slack import with_slack
from privfed.auditing.canaries.log import CanaryLog
from privfed.errors import MISPLACED, Broken, Refused, public_text, unreadable
from privfed.plan.prior_spending import (
    Priors,
    charged_under,
    examples_guarantee,
    other_guarantee,
)
from privfed.store.kept_heads import HeadsCheck, charges_since, check_heads
from privfed.store.run_directory import RunDirectory

if TYPE_CHECKING:
    from privfed.auditing.canaries.evidence import Evidence

_ROUNDING = 1 - 1e-9
_GRID, _GRID_ABSOLUTE = 1.02, 0.02
"""What PLD's grid may add."""
CROSS_CHECKS = ("opacus_rdp", "opacus_prv")
SHOWN = (
    "epsilon_estimate_all_iterates",
    "epsilon_estimate_final",
    "epsilon_lower_bound",
    "confidence",
)
"""What an audit says of canaries in its first level."""
ALL = "all"
"""Every accountant that applies, cross-checks included."""


@dataclass(frozen=True)
class RunAudit:
    """What a run directory proves.

    `guarantee` covers earlier runs over the same population, which the ledger states; `alone` this
    run's `charges` only. Where the ledger is broken or contradicted, `guarantee` is None and
    epsilon infinite. Where only a summary or a metric claims less than the ledger spent, `problems`
    says so beside the truth.
    """

    path: Path
    guarantee: Guarantee | None
    alone: Guarantee | None
    charges: int
    accountants: dict[str, float | None]
    terms: dict[str, Any]
    noise_multiplier: float | None
    sampling_rate: float | None
    problems: tuple[str, ...]
    examples: Guarantee | None = None
    other: Guarantee | None = None
    canaries: Evidence | None = None
    budgets: tuple[BudgetChange, ...] = ()
    ledger_head: str | None = None
    since: int | None = None
    """How many charges came after the head that was asked for."""
    heads: HeadsCheck | None = None

    @property
    def refuted(self) -> bool:
        """Whether canaries refute what is claimed."""
        return self.canaries is not None and self.canaries.refuted

    def to_json(self) -> dict[str, Any]:
        """The object that `privfed audit --json` prints."""
        bound = self.guarantee
        return {
            "epsilon": bound.epsilon if bound else math.inf,
            "delta": self.terms.get("delta"),
            "unit": self.terms.get("unit"),
            "partition": self.terms.get("partition"),
            "relation": self.terms.get("relation"),
            "sampler": self.terms.get("sampler"),
            "epsilon_alone": self.alone.epsilon if self.alone else math.inf,
            "prior": [run.get("run") for run in self.terms.get("prior", [])],
            "disjoint": [run.get("run") for run in self.terms.get("disjoint", [])],
            "uncovered": (bound.uncovered or None) if bound else None,
            "budgets": [asdict(change) for change in self.budgets],
            "guarantees": stated(
                bound, self.examples, self.other, void=self.terms.get("guarantee")
            ),
            "meaning": (self.terms.get("guarantee") or sentence(bound)) if bound else None,
            "rounds": self.charges,
            "accountant": bound.accountant if bound else None,
            "accountants": self.accountants,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "randomness": self.terms.get("randomness"),
            "arithmetic": self.terms.get("arithmetic"),
            "start": self.terms.get("start"),
            "public_clients": self.terms.get("public_clients", 0),
            "against": self.terms.get("against"),
            "note": self.terms.get("note"),
            "guarantee": self.terms.get("guarantee"),
            **{name: getattr(self.canaries, name, None) for name in SHOWN},
            "canaries": self.canaries.to_json() if self.canaries else None,
            "ledger_head": self.ledger_head,
            "charges_since_head": self.since,
            "heads": {"file": self.heads.path, "agrees": self.heads.agrees} if self.heads else None,
            "ledger_ok": not self.problems,
            "problems": list(self.problems),
            "run": str(self.path),
        }


def audit(path: Path, accountant: str | None = None, head: str | None = None) -> RunAudit:
    """Audit the run at `path`, changing nothing.

    `head` is one that its ledger had, which proves that nothing before it was cut off or changed;
    where the run keeps its heads elsewhere (`run.heads`), the ledger is held against that file.
    `accountant` (default: the run's own) is one of rdp, pld, tightest, or an independent
    cross-check, opacus_rdp or opacus_prv ("all": both): these are shown beside the others and never
    become the headline. Raises `Refused` for a path that is no run, and for an accountant that is
    not known.
    """
    if accountant is not None and accountant not in (*CHOICES, *CROSS_CHECKS, ALL):
        names = ", ".join((*CHOICES, *CROSS_CHECKS, ALL))
        raise Refused(f"accountant is {accountant!r}; expected one of {names}")
    # The ledger last: of a run that goes on, it then holds all that the other files cite.
    try:
        directory = RunDirectory.open(path)
        evidence = _evidence(directory)
        ledger = Ledger.load(directory.ledger)
    except (Broken, LedgerBroken) as error:
        return _broken(path, {}, str(error))
    except MISPLACED as error:
        return _broken(path, {}, f"the run is not whole: {public_text(error)}")
    problems = _contradictions(directory, ledger, evidence)
    if problems:
        return _broken(path, dict(ledger.terms), *problems)
    since = None if head is None else charges_since(ledger, head)
    if head is not None and since is None:
        said = f"this ledger was never at the head {head}: lines were cut off or changed"
        return _broken(path, dict(ledger.terms), said)
    heads = check_heads(ledger, directory.heads())
    if heads and heads.problems:
        return _broken(path, dict(ledger.terms), *heads.problems)
    delta, own = ledger.terms["delta"], ledger.terms["accountant"]
    headline = accountant if accountant in CHOICES else own
    try:
        before = Priors.stated(ledger.terms)
        party, uncovered = ledger.terms.get("against", ""), before.uncovered
        bound = replace(spent(ledger, delta, headline), against=party, uncovered=uncovered)
        claims = (*_lower_claims(evidence, ledger), *_uncounted(ledger.terms), *_crossed(bound))
        examples, foreign = _examples(directory, ledger, before)
        claims = (*claims, *foreign, *_lower_examples(evidence, examples))
        claims = (*claims, *_lower_others(evidence, ledger, before))
        alone = guarantee(ledger.own, delta, headline) if ledger.prior else bound
        canaries = _canaries(directory, ledger, alone)
    except (AccountingError, AttributeError, KeyError, TypeError, ValueError) as error:
        return _broken(path, dict(ledger.terms), f"{directory.ledger}: {public_text(error)}")
    except Broken as error:
        return _broken(path, dict(ledger.terms), str(error))
    accountants = dict(bound.by_accountant)
    for name in CROSS_CHECKS:
        if accountant in (name, ALL):
            accountants[name] = opacus_epsilon(ledger.spending, delta, name)
    noise, rate = _mechanism(ledger.own)
    charges = len(ledger.charges)
    return RunAudit(
        path,
        bound,
        alone,
        charges,
        accountants,
        dict(ledger.terms),
        noise,
        rate,
        claims,
        examples,
        _other(ledger, before, charges),
        canaries,
        ledger.budgets,
        ledger.head().hex(),
        since,
        heads,
    )


def _canaries(directory: RunDirectory, ledger: Ledger, alone: Guarantee) -> Evidence | None:
    """What the run's canaries say of its own charges.

    None without any, without private/, before the run has ended, or for too few of them.
    """
    count = ledger.terms.get("canaries", 0)
    seen = CanaryLog(directory.canaries, count).read() if count else None
    if seen is None or not seen.ended or not ledger.own:
        return None
    from privfed.auditing.canaries.evidence import evidence  # few runs have canaries
    from privfed.auditing.canaries.scores import Scale

    config = directory.read_config()
    (event, *_) = ledger.own
    smaller = [alone.delta * part for part in (1.0, 1e-3, 1e-6, 1e-9)]
    claims = [(guarantee(ledger.own, delta).epsilon, delta) for delta in smaller]
    return evidence(seen, event, Scale.of(config), claims, config.audit.confidence)


def _crossed(bound: Guarantee) -> Iterator[str]:
    """PLD is the exact composition on a grid: above RDP's bound, one of the two is wrong."""
    rdp, pld = bound.by_accountant["rdp"], bound.by_accountant["pld"]
    if rdp is not None and pld is not None and pld > rdp * _GRID + _GRID_ABSOLUTE:
        yield (
            f"the accountants contradict each other: pld {pld:g} is above rdp {rdp:g}; report this "
            "as a bug of privfed, with the ledger"
        )


def _other(ledger: Ledger, before: Priors, charges: int) -> Guarantee | None:
    """What distributed noise guaranteed beside after so many `charges`, earlier runs included.

    Against that party the budget does not gate.
    """
    stated = ledger.terms.get("other")
    if stated is None:
        return None
    own, against = {Event.from_json(stated["event"]): charges}, str(stated["against"])
    return other_guarantee(own, against, before.runs, ledger.terms["delta"], before.uncovered)


def _examples(
    directory: RunDirectory, ledger: Ledger, earlier: Priors
) -> tuple[Guarantee | None, list[str]]:
    """The guarantee for one example of the silo that spent most, and what is wrong with ledgers.

    None without DP-SGD in silos. By the silos' own ledgers, where all are at hand and who took part
    is no secret: else as if one had taken part in every round. Earlier runs are included.
    """
    stated = ledger.terms.get("examples")
    if stated is None:
        return None, []
    event, delta = Event.from_json(stated["event"]), float(stated["delta"])
    whole = _of_examples(charged_under(ledger, "examples"), earlier, delta)
    opened = (Ledger.load(path) for path in sorted(directory.silos.glob("*.jsonl")))
    # Before the first round, one may be torn as it was begun: nothing was charged to it.
    silos = [silo for silo in opened if silo.opened or ledger.charges]
    rounds = {charge.round for charge in ledger.charges}
    problems = [
        f"{silo.path} is not the ledger of a silo of this run"
        for silo in silos
        if silo.terms.get("id") != ledger.terms["id"]
        or silo.terms.get("delta") != delta
        or any(charge.event != event or charge.round not in rounds for charge in silo.charges)
    ]
    secret = ledger.terms.get("trust") != "nobody"
    if secret or problems or len(silos) != stated.get("silos"):
        return whole, problems
    bounds = [_of_examples(silo.own, earlier, delta) for silo in silos]
    return max(bounds, key=lambda bound: bound.epsilon), problems


def _of_examples(own: Spending, earlier: Priors, delta: float) -> Guarantee:
    return examples_guarantee(own, earlier.runs, delta, earlier.uncovered)


def opacus_epsilon(spending: Spending, delta: float, accountant: str) -> float | None:
    """An independent opinion: opacus' RDP or PRV on the same Gaussians and Poisson draws.

    None where opacus has no accountant for an event. Its GDP accountant is never asked: it
    under-counts. Raises `Refused` where opacus is not installed.
    """
    history = []
    for event, count in apart(spending).items():
        match event.release:
            case PoissonSampled(rate=q, of=Gaussian(noise_multiplier=z)) if z > 0:
                history.append((z, q, count))
            case Gaussian(noise_multiplier=z) if z > 0:
                history.append((z, 1.0, count))
            case PoissonSampled() | Gaussian():
                return math.inf
            case _:
                return None
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError as error:
        raise Refused(
            f"{accountant} needs opacus, which is not installed: pip install 'privfed[opacus]'"
        ) from error
    judge = RDPAccountant() if accountant == "opacus_rdp" else PRVAccountant()
    judge.history = history
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on orders that could be wider: it is a cross-check
            slack = sum(event.slack * count for event, count in spending.items())
            found = with_slack(lambda left: float(judge.get_epsilon(delta=left)), delta, slack)
            return found if history else 0.0
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        raise Refused(f"{accountant} cannot account for this run: {error}") from error


@dataclass(frozen=True)
class _Evidence:
    """What the files beside the ledger cite and claim."""

    config: str
    companions: dict[str, str]
    head: bytes | None
    releases: dict[int, str]
    claims: list[tuple[Path, dict[str, Any]]]


def _evidence(directory: RunDirectory) -> _Evidence:
    cited = {round: directory.released_for(round) for round in directory.stored_rounds()}
    claims = []
    try:
        if directory.summary.exists():
            text = directory.summary.read_text(encoding="utf-8")
            claims.append((directory.summary, _table(text)))
        if directory.metrics.exists():
            # What follows the last newline was torn by a crash, and will be written again.
            *whole, _ = directory.metrics.read_text(encoding="utf-8").split("\n")
            claims += [(directory.metrics, _table(line)) for line in whole[-1:]]
    except (OSError, ValueError, TypeError) as error:
        raise unreadable("the summary or the metrics", error) from None
    return _Evidence(
        config=directory.config_digest(),
        companions=directory.companions(),
        head=directory.head() if directory.has_checkpoint() else None,
        releases={round: charge for round, charge in cited.items() if charge},
        claims=claims,
    )


def _table(text: str) -> dict[str, Any]:
    found = from_json(text)
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return found


def _contradictions(directory: RunDirectory, ledger: Ledger, evidence: _Evidence) -> list[str]:
    """Where the directory's other files contradict its ledger."""
    if not ledger.opened:
        return [f"{directory.ledger} is empty: it does not say what it guarantees"]
    problems = []
    missing = {"unit", "relation", "sampler", "delta", "accountant", "config"} - ledger.terms.keys()
    if missing:
        problems.append(f"{directory.ledger} does not state {', '.join(sorted(missing))}")
    if evidence.head is None and ledger.charges:
        problems.append("the ledger has charges, but the checkpoint is missing")
    if evidence.head is not None and not ledger.holds(evidence.head):
        problems.append(
            f"{directory.ledger} ends before what the checkpoint saw: charges were removed"
        )
    charges = {charge.round: charge.hash for charge in ledger.charges}
    strays = [r for r, cited in evidence.releases.items() if charges.get(r) != cited]
    if strays:
        problems.append(
            f"the release of round {strays[0]} has no charge in the ledger"
            + (f" (and {len(strays) - 1} more)" if strays[1:] else "")
        )
    if ledger.terms.get("files", {}) != evidence.companions:
        problems.append(
            "the frozen part of the model, or the list of public clients, is not what the ledger "
            "was opened for"
        )
    if evidence.config != ledger.terms.get("config"):
        problems.append("config.toml is not the configuration that the ledger was opened for")
    return problems


def _lower_claims(evidence: _Evidence, ledger: Ledger) -> tuple[str, ...]:
    """Problems where the summary, or the last line of the metrics, claims less than was spent."""
    problems = []
    for path, claim in evidence.claims:
        try:
            own = _spent_when(claim, ledger)
            claimed = float(claim["epsilon"])
            same = all(claim.get(key, value) == value for key, value in _meaning(own).items())
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"{path} cannot be read: {public_text(error)}")
            continue
        if not (same and claimed >= own.epsilon * _ROUNDING):
            problems.append(_lower(path, claim["epsilon"], own))
    return tuple(problems)


def _lower_examples(evidence: _Evidence, found: Guarantee | None) -> Iterator[str]:
    """Where the summary claims less for single examples than their ledgers spent."""
    for path, claim in evidence.claims:
        for told in claim.get("guarantees", []):
            if found is None or told.get("unit") != found.unit:
                continue
            if not float(told.get("epsilon", 0)) >= found.epsilon * _ROUNDING:
                yield _lower(path, told.get("epsilon"), found)


def _lower_others(evidence: _Evidence, ledger: Ledger, before: Priors) -> Iterator[str]:
    """Where the summary claims less against the party that the budget does not gate."""
    for path, claim in evidence.claims:
        found = _other(ledger, before, int(claim.get("charges", 0)))
        for told in claim.get("guarantees", []):
            if found is None or found.missing or told.get("against") != found.against:
                continue
            if not float(told.get("epsilon", 0)) >= found.epsilon * _ROUNDING:
                yield _lower(path, told.get("epsilon"), found)


def went_on(run: Mapping[str, Any]) -> bool:
    """Whether a run that a ledger states as earlier is at hand, with charges beyond those stated.

    `run` holds its path ("run"), its "id" and the "head" that its ledger had.
    """
    try:
        ledger = Ledger.load(Path(str(run["run"])) / "ledger.jsonl")
    except (OSError, AccountingError):
        return False
    return bool(ledger.terms.get("id") == run["id"] and ledger.head().hex() != run["head"])


def _uncounted(terms: Mapping[str, Any]) -> Iterator[str]:
    for run in terms.get("prior", []):
        if went_on(run):
            yield (
                f"{run['run']} was charged more after this run had counted it; what it spent since "
                "is not in this epsilon"
            )


def _spent_when(claim: Mapping[str, Any], ledger: Ledger) -> Guarantee:
    """What was spent by the round, or after the number of charges, that `claim` speaks of."""
    if "charges" in claim:
        rounds = [charge.round for charge in ledger.charges][: int(claim["charges"])]
        last = max(rounds, default=0)
    else:
        last = int(claim["round"])
    return guarantee(ledger.spending_until(last), ledger.terms["delta"], ledger.terms["accountant"])


def _meaning(own: Guarantee) -> dict[str, Any]:
    return {
        "delta": own.delta,
        "accountant": own.accountant,
        "unit": own.unit,
        "relation": own.relation,
    }


def _lower(path: Path, claimed: object, own: Guarantee) -> str:
    return (
        f"{path} claims epsilon = {claimed}, but the ledger spent {own.epsilon:g} at delta = "
        f"{own.delta:g}, by {own.accountant}, for one {own.unit} under {own.relation}"
    )


def _mechanism(spending: Spending) -> tuple[float | None, float | None]:
    """Noise over the clip, and the sampling rate, where all rounds share one event."""
    if len(spending) != 1:
        return None, None
    (event,) = spending
    noise = noise_of(event.release)
    z = None if noise is None else noise.noise_multiplier * CHANGE[event.relation]
    match event.release:
        case PoissonSampled(rate=q) | TruncatedPoisson(rate=q):
            return z, q
        case WithoutReplacement(cohort=m, clients=n):
            return z, m / n
        case Separated(separation=b):
            return z, 1 / b
    return z, None


def _broken(path: Path, terms: dict[str, Any], *problems: str) -> RunAudit:
    return RunAudit(path, None, None, 0, {}, terms, None, None, problems)
