"""Contradictions between a run's files and its ledger, and claims below its spending."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accounting.guarantee import Guarantee, guarantee
from accounting.ledger import Ledger
from privfed.core.errors import public_text
from privfed.store.run_record import RunRecord

_ROUNDING = 1 - 1e-9
"""Factor by which a claim may be below the spending because of rounding."""
_TERMS = frozenset({"unit", "relation", "sampler", "delta", "accountant", "config"})
"""Terms that the first line of every ledger states."""


def file_contradictions(record: RunRecord) -> list[str]:
    """Returns a text for each contradiction between the ledger and the run's other files."""
    ledger, head = record.ledger, record.checkpoint_head
    if not ledger.opened:
        return [f"{ledger.path} is empty: it states no guarantee"]
    problems = []
    if missing := _TERMS - ledger.terms.keys():
        problems.append(f"{ledger.path} does not state {', '.join(sorted(missing))}")
    if head is None and ledger.charges:
        problems.append("the ledger has charges, but the checkpoint is missing")
    if head is not None and not ledger.holds(head):
        problems.append(
            f"{ledger.path} ends before the checkpoint's last charge: charges were removed"
        )
    charges = {charge.round: charge.hash for charge in ledger.charges}
    strays = [r for r, cited in record.releases.items() if charges.get(r) != cited]
    if strays:
        problems.append(
            f"the release of round {strays[0]} has no charge in the ledger"
            + (f" (and {len(strays) - 1} more)" if strays[1:] else "")
        )
    if ledger.terms.get("files", {}) != record.companions:
        problems.append(
            "the frozen part of the model, or the list of public clients, does not match the ledger"
        )
    if record.digest != ledger.terms.get("config"):
        problems.append("config.toml does not match the ledger")
    return problems


def lower_claims(record: RunRecord) -> Iterator[str]:
    """Yields a text for each claimed epsilon that is below that of the ledger's charges.

    The claims are those of the summary and of the last metrics line; the charges are those up to
    the same round. Also yields a text for a claim that cannot be read, or that states other terms
    than the ledger.
    """
    for path, claim in record.claims:
        try:
            bound = _spending_at_claim(claim, record.ledger)
            claimed = float(claim["epsilon"])
            same = all(claim.get(key, value) == value for key, value in _meaning(bound).items())
        except (KeyError, TypeError, ValueError) as error:
            yield f"{path} cannot be read: {public_text(error)}"
            continue
        if not (same and claimed >= bound.epsilon * _ROUNDING):
            yield _lower(path, claim["epsilon"], bound)


def lower_example_claims(record: RunRecord, examples: Guarantee | None) -> Iterator[str]:
    """Yields a text for each claimed epsilon for single examples that is below that of `examples`.

    The claims are those of the summary and of the last metrics line.
    """
    for path, claim in record.claims:
        yield from _lower_guarantees(path, claim, "unit", examples)


def lower_other_claims(
    record: RunRecord, other_after: Callable[[int], Guarantee | None]
) -> Iterator[str]:
    """Yields a text for each claimed epsilon against the other party that is below the ledger's.

    The other party is the one for which the budget is not enforced. The claims are those of the
    summary and of the last metrics line.

    Args:
      record: the run.
      other_after: returns the guarantee against that party after the number of charges that a claim
        states ("charges", else 0); None without such a party.
    """
    for path, claim in record.claims:
        other = other_after(int(claim.get("charges", 0)))
        bound = None if other is None or other.missing else other
        yield from _lower_guarantees(path, claim, "against", bound)


def _lower_guarantees(
    path: Path, claim: Mapping[str, Any], key: str, bound: Guarantee | None
) -> Iterator[str]:
    """Yields a text for each guarantee in `claim` whose epsilon is below that of `bound`.

    Guarantees whose field `key` ("unit" or "against") differs from that of `bound` are skipped. If
    `bound` is None, nothing is yielded.
    """
    for stated in claim.get("guarantees", []):
        if bound is None or stated.get(key) != getattr(bound, key):
            continue
        if not float(stated.get("epsilon", 0)) >= bound.epsilon * _ROUNDING:
            yield _lower(path, stated.get("epsilon"), bound)


def _spending_at_claim(claim: Mapping[str, Any], ledger: Ledger) -> Guarantee:
    """Returns the guarantee of the charges that `claim` covers, and of the earlier runs'.

    The claim covers this run's first charges, as many as its "charges" states; without that key,
    those up to its "round", inclusive.
    """
    if "charges" in claim:
        rounds = [charge.round for charge in ledger.charges][: int(claim["charges"])]
        last = max(rounds, default=0)
    else:
        last = int(claim["round"])
    return guarantee(ledger.spending_until(last), ledger.terms["delta"], ledger.terms["accountant"])


def _meaning(bound: Guarantee) -> dict[str, Any]:
    """Returns the terms of `bound` by key; a claim that states one of these must state the same."""
    return {
        "delta": bound.delta,
        "accountant": bound.accountant,
        "unit": bound.unit,
        "relation": bound.relation,
    }


def _lower(path: Path, claimed: object, bound: Guarantee) -> str:
    return (
        f"{path} claims epsilon = {claimed}, but the ledger spent {bound.epsilon:g} at delta = "
        f"{bound.delta:g}, by {bound.accountant}, for one {bound.unit} under {bound.relation}"
    )
