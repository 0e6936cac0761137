"""Every part by kind: its name, its one line, and what it declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from accounting.over_rounds import RandomAllocation
from accounting.releases import PoissonSampled, TruncatedPoisson, WithoutReplacement
from attacks.types import Knowledge
from defenses.types import RowRule, SumRule
from pages.markdown import code, join, prose, sentence, table, within
from privfed.config.catalog import catalog, key_of
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN, CONTRACTS
from privfed.plan.rule import tolerates

Columns = Mapping[str, Callable[[Any], str]]
CLIENTS, ROWS = 500, 100
"""Sizes of the population and of the aggregation for which parts declare their values."""
NOISE = {
    "server": "the party that opens the sum: the server, or a key holder",
    "sum": "all clients together, within a secure sum",
    "client": "each client, before anything leaves it",
    "nobody": "no party",
}


NOTES = {
    "rule": "The number of Byzantine clients for which a rule is defined is no guarantee against "
    "every attack: [its description](api/defenses.md) states what is proved, and [a "
    "study](../studies/attack_defense.md) measures many rules.",
    "before": "The rule that follows has to tolerate the Byzantine rows among the mixtures.",
    "attack": "A run with attackers is a simulation, and its ε is nominal.",
}
"""Notes under the headings of tables, by kind."""


def by_kind() -> str:
    """A table for each kind."""
    blocks = []
    for kind, lines in catalog().items():
        blocks += [f"({kind})=", f"## {key_of(kind)}", _contract(kind)]
        blocks += [NOTES.get(kind, ""), _table(kind, lines)]
    return join(blocks)


def _contract(kind: str) -> str:
    """Names the class that defines the contract of this kind of part."""
    if kind not in CONTRACTS:
        return ""
    where = CONTRACTS[kind].replace(":", ".")
    return f"Your own part implements the contract `{where}`."


def _table(kind: str, lines: Mapping[str, str]) -> str:
    columns = COLUMNS.get(kind, {})
    rows = []
    for name in BUILT_IN[kind]:
        part = find(kind, name, kind)
        declared = [tell(part) for tell in columns.values()]
        line = prose(sentence(lines[name].partition(" (sends ")[0]))
        rows.append([_linked(name, part), line, *declared])
    return within("wide", table(["name", "description", *columns], rows))


def _linked(name: str, part: type[Any]) -> str:
    return f"{{py:class}}`{name} <{part.__module__}.{part.__qualname__}>`"


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _measure(part: Any) -> str:
    better = "lower" if part.lower_is_better else "higher"
    return f"{code(part().measure)}, {better} is better"


def _vectors(count: float) -> str:
    return "d" if round(count) == 1 else f"{count:.0f} d" if count else "nothing"


def _sends(part: Any) -> str:
    objective, many = part(), 1000
    return _vectors(objective.exchanges * objective.layout(many).length / many)


def _is_sent(part: Any) -> str:
    objective = part()
    return _vectors(objective.exchanges - 1 + objective.broadcasts)


def _under_privacy(part: Any) -> str:
    if part.unproven:
        return f"refused: {part.unproven}"
    objective = part()
    if objective.exchanges > 1:
        count = objective.exchanges
        return f"one event for {count} exchanges, each at z / √{count}"
    vectors = "its one vector" if objective.sends_updates_alone else "everything it sends"
    return f"one clip over {vectors}, one event"


def _witness(part: Any) -> Any:
    return part().of(CLIENTS).witness(1, CLIENTS)


def _relation(part: Any) -> str:
    witness = _witness(part)
    return str(witness.relation) if witness.release else "refused under privacy"


def _event(part: Any) -> str:
    release = _witness(part).release
    return code(type(release).__name__) if release else "none"


def _amplifies(part: Any) -> str:
    amplified = PoissonSampled | TruncatedPoisson | WithoutReplacement | RandomAllocation
    return _yes(isinstance(_witness(part).release, amplified))


def _sees(part: Any) -> str:
    if issubclass(part, SumRule):
        rule = part()
        sums = "one sum" if rule.passes == 1 else f"{rule.passes} sums"
        key = ", by `passes`" if "passes" in part.model_fields else ""
        return f"{sums}{key}{', or rows' if issubclass(part, RowRule) and rule.robust else ''}"
    return " and ".join(["rows", *(f"`{need}`" for need in sorted(part().needs()))])


def _tolerates(part: Any) -> str:
    return part.tolerance or f"{tolerates(part(), ROWS)} of {ROWS}"


def _reads(part: Any) -> str:
    order = [*Knowledge]
    known = sorted(part.knows, key=order.index)
    return ", ".join(knowledge.value for knowledge in known) or "nothing"


def _guarantee(part: Any) -> str:
    if not part().acts:
        return "holds"
    reads = part.knows & {Knowledge.ALL_HONEST, Knowledge.RULE}
    return "void: it reads protected data" if reads else "nominal"


def _does(part: Any) -> str:
    attack = part()
    acts = {
        "poisons examples": attack.poisons,
        "steers training": attack.steers,
        "replaces updates": attack.corrupts,
    }
    return " and ".join(what for what, does in acts.items() if does) or "nothing"


COLUMNS: Mapping[str, Columns] = {
    "source": {
        "has natural clients": lambda part: _yes(part.natural_partition),
        "clients are people": lambda part: _yes(part.holds_real_clients),
    },
    "partition": {
        "keeps natural clients": lambda part: _yes(part.natural),
        "random assignment": lambda part: _yes(part.by_chance),
    },
    "loss": {"first measure": _measure},
    "objective": {
        "sends": _sends,
        "receives": _is_sent,
        "state": lambda part: _vectors(part.model_construct().keeps),
        "under user-level privacy": _under_privacy,
    },
    "client_mechanism": {"protects examples": lambda part: _yes(part.private)},
    "sampler": {
        "relation": _relation,
        "event of a round": _event,
        "amplification": _amplifies,
        "uses clients' sizes": lambda part: _yes(part.reads_sizes),
    },
    "availability": {"availability varies": lambda part: _yes(part.varies)},
    "mechanism": {
        "noise is added by": lambda part: NOISE[part.trust],
        "arithmetic": lambda part: prose(inspect.cleandoc(part.arithmetic)),
        "correlated over rounds": lambda part: _yes(part.remembers),
    },
    "rule": {
        "needs": _sees,
        f"Byzantine clients it is defined for, of {ROWS}": _tolerates,
    },
    "before": {f"mixtures of {ROWS} rows": lambda part: str(part.model_construct().left(ROWS))},
    "attack": {"does": _does, "reads": _reads, "a run's ε": _guarantee},
    "measure": {
        "better": lambda part: "lower" if part.lower_is_better else "higher",
    },
    "protocol": {
        "view of each party": lambda part: part.seen,
        "opens sums, and adds central noise": lambda part: part.opener,
        "sums": lambda part: "rounded" if part.approximate else "exact",
    },
}
"""Columns of the table of a kind: title -> the text for a part."""
