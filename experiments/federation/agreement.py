"""A line-by-line comparison of the coordinator's ledger and the sites' receipts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accounting.ledger import Ledger
from privfed.deploy.files.receipt import Receipt
from privfed.deploy.files.receipts import Receipts


@dataclass(frozen=True)
class Agreement:
    """The charged rounds of a run, the rounds that moved the model, and each site's answers.

    `answered` is the number of receipts for each round and site: 1 if the exchange of a round was
    answered once.
    """

    charged: tuple[int, ...]
    unopened: tuple[int, ...]
    answered: Mapping[str, Mapping[int, int]]
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """Returns a report for readers."""
        shown = [f"the ledger has rounds {_listed(self.charged)}"]
        if self.unopened:
            shown[0] += f", of which {_listed(self.unopened)} came to nothing: charged, not opened"
        for site, rounds in self.answered.items():
            shown.append(f"{site} has receipts of rounds {_listed(tuple(rounds))}")
        return [*shown, *(self.problems or ("no site answered what the ledger does not charge",))]


def compare(ledger_path: Path, sites: Mapping[str, Path], opened: set[int]) -> Agreement:
    """Compares the ledger with the receipts of the `sites`, whose folders are given.

    A round whose sum was `opened` needed every site. Every receipt must belong to a round that the
    ledger charges, with the same event, and no exchange may be answered twice.
    """
    ledger = Ledger.load(ledger_path)
    events = {charge.round: charge.event for charge in ledger.charges}
    answered, problems = {}, []
    for name, folder in sites.items():
        receipts = _receipts(folder / "receipts.jsonl")
        rounds: dict[int, int] = {}
        for receipt in receipts:
            rounds[receipt.round] = rounds.get(receipt.round, 0) + 1
            if receipt.round not in events:
                problems.append(f"{name} answered round {receipt.round}, which was never charged")
            elif events[receipt.round] != receipt.event:
                problems.append(f"{name} charges round {receipt.round} by another event")
        places = [receipt.place for receipt in receipts]
        if len({*places}) < len(places):
            problems.append(f"{name} answered an exchange twice")
        missing = opened - {*rounds}
        problems += [f"{name} has no receipt of round {round}" for round in sorted(missing)]
        answered[name] = rounds
    problems += [f"round {round} was never charged" for round in sorted(opened - {*events})]
    unopened = tuple(sorted({*events} - opened))
    return Agreement(tuple(events), unopened, answered, tuple(problems))


def _receipts(path: Path) -> list[Receipt]:
    """Returns the receipts in the file at `path`. Raises `LedgerBroken` if its hash chain is
    broken.
    """
    Receipts.load(path)
    links = [
        json.loads(line) for line in path.read_text().splitlines(keepends=True) if "\n" in line
    ]
    return [Receipt.from_json(link) for link in links if link["type"] == "answer"]


def _listed(rounds: tuple[int, ...]) -> str:
    return ", ".join(map(str, rounds)) or "none"
