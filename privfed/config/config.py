"""The typed configuration of a run: sections and keys, assembled from the parts' own files.

A TOML file (or nothing: the default run) and `--set section.key=value` become frozen, strict
models. What is written goes before what the task's loss holds best, and that before a field's own
default. Unknown keys, wrong types and values out of range are refused here, all of them in one
message; what may be combined is `privfed.plan.plan`'s business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tomli_w

from accounting.documents import from_toml
from attacks.types import Attack, Knowledge
from defenses.types import Rule
from privfed.client.compression.compressed import ShapesByName, compressed
from privfed.client.compression.compression import Compression
from privfed.client.dp_sgd import ClientMechanism, ExamplePrivacy, protects_examples
from privfed.client.objective import Objective
from privfed.config.attack_keys import AttackKeys, expected_hostile
from privfed.config.chosen import Chosen
from privfed.config.resolved import Resolved
from privfed.config.sections import (
    FORMAT,
    SECTIONS,
    Aggregation,
    Audit,
    Budget,
    Client,
    CohortKeys,
    Data,
    EvaluationKeys,
    Privacy,
    Run,
    Secure,
    Stop,
)
from privfed.core.errors import Refused
from privfed.core.parts import Part, catalogued, find
from privfed.core.schedules import Schedule
from privfed.data.partitions.basic import Partition
from privfed.data.partitions.shift import Shift
from privfed.data.source import NamesSites, Source
from privfed.metrics.measure import Measure
from privfed.models.loss import Loss
from privfed.models.recipes import Model, Weighted
from privfed.models.start import Start
from privfed.privacy.mechanism import Mechanism
from privfed.privacy.shared_noise import JointNoise, SharedNoise, noised_jointly, shares_noise
from privfed.sampling.availability import Availability, Devices
from privfed.sampling.cohort import Sampler
from privfed.sampling.evaluation_rounds import EvaluationRounds
from privfed.secure.summation import RowHiding, SumProtocol, shows_no_row
from privfed.server.optimizer import ServerOptimizer

Raw = dict[str, dict[str, Any]]
WITH_WEIGHTS = "the module that was passed"


@dataclass(frozen=True, kw_only=True)
class Config:
    """A resolved run: its sections' own keys, its parts, and by which names these were asked for.

    `noise_multiplier` is what calibration found, None before, and `admitted` the smallest cohort
    that a secure sum begins with, where that was solved for, in rounds that train, and in those
    that evaluate (`evaluation_admitted`); a resume keeps them. `chosen` says that the run is one of
    several to choose from. `given` are the classes of parts that were passed as classes rather than
    named, by kind.
    """

    run: Run
    data: Data
    start: Start
    client: Client
    cohort: CohortKeys
    privacy: Privacy
    aggregation: Aggregation
    secure: Secure
    attackers: AttackKeys
    audit: Audit
    evaluation: EvaluationKeys
    stop: Stop
    budget: Budget
    devices: Devices

    source: Source
    partition: Partition
    shift: Shift
    model: Model
    loss: Loss
    objective: Objective
    compression: Compression
    client_schedule: Schedule
    client_mechanism: ClientMechanism
    optimizer: ServerOptimizer
    server_schedule: Schedule
    sampler: Sampler
    availability: Availability
    mechanism: Mechanism
    rule: Rule
    protocol: SumProtocol
    attack: Attack

    names: Mapping[str, str]
    given: Mapping[str, type[Part]] = field(default_factory=dict)
    noise_multiplier: float | None = None
    admitted: int = 0
    chosen: Chosen | None = None
    evaluation_admitted: int = 0

    @property
    def resolved(self) -> Resolved:
        """What a plan solved for."""
        return Resolved(self.noise_multiplier, self.admitted, self.chosen, self.evaluation_admitted)

    @property
    def parts(self) -> dict[str, Part]:
        """All parts by kind, for whoever goes over them."""
        kinds = (kind for section in SECTIONS.values() for kind, _ in section.parts.values())
        return {kind: getattr(self, kind) for kind in kinds}

    def messages(self, shapes: ShapesByName | None = None) -> Objective:
        """The objective as it sends, for models of these `shapes`: whoever charges asks for it."""
        return compressed(self.objective, self.compression, self.run.seed, shapes)

    @property
    def attacked(self) -> bool:
        """Whether anybody attacks."""
        return self.attackers.fraction > 0.0 and bool(self.attack.acts or self.attackers.lies)

    @property
    def unbounded(self) -> bool:
        """Whether attackers ignore the bounds that honest clients keep: no site lets them."""
        stage, free = self.attackers.stage, self.secured and not self.by_sites
        return stage == "after_bound" or (stage == "auto" and free)

    @property
    def by_sites(self) -> bool:
        """Whether sites are the parties: each sums its own clients' rows, and adds noise to that.

        Where the server sees rows, and adds the noise, where clients live changes nothing.
        """
        asked = self.data.sites > 0 and self.secure.parties != "clients"
        return asked and (self.secured or self.mechanism.trust == "client")

    @property
    def apart(self) -> bool:
        """Whether clients are at sites on machines of their own, and none of them is here."""
        return self.data.sites > 0 and self.data.site_partition == "elsewhere"

    @property
    def hostile(self) -> int:
        """How many of a cohort are taken to be hostile: as declared, and no fewer than are expected
        where attackers are simulated, whose number may be drawn (such a run is a simulation).
        """
        expected = self.attackers.fraction * self.sampler.size
        return expected_hostile(self.aggregation.byzantine, expected)

    @property
    def site_column(self) -> str:
        """The source's column that says which site holds a client; empty where none does."""
        return self.source.site if isinstance(self.source, NamesSites) else ""

    @property
    def evaluation_rounds(self) -> EvaluationRounds:
        """Which rounds clients evaluate in."""
        every = self.evaluation.every or self.run.evaluate_every
        return EvaluationRounds(every if self.evaluation.by == "clients" else 0)

    @property
    def nothing_public(self) -> bool:
        """Whether no example is public, so that clients alone say how good the model is."""
        return self.data.holdout == "none"

    @property
    def void(self) -> bool:
        """Whether attackers read raw updates, so that others' rows depend on a member's data."""
        return self.attacked and Knowledge.ALL_HONEST in self.attack.knows

    @property
    def row_hiding(self) -> RowHiding | None:
        """The protocol by which rows are summed unseen; None where the server sees them."""
        return self.protocol if shows_no_row(self.protocol) else None

    @property
    def shared_noise(self) -> SharedNoise | None:
        """The mechanism where clients make up its noise together; None for all others."""
        return self.mechanism if shares_noise(self.mechanism) else None

    @property
    def joint_noise(self) -> JointNoise | None:
        """The mechanism where clients share noise of rows that are seen; None for all others."""
        return self.mechanism if noised_jointly(self.mechanism) else None

    @property
    def colluding(self) -> int | None:
        """How many clients may see more than others do; None where noise counts on none of them."""
        return self.hostile + self.joint_noise.colluders if self.joint_noise else None

    @property
    def against(self) -> str:
        """The party whose guarantee the budget gates, of noise that clients share; else empty."""
        if self.joint_noise:
            return "clients"
        if self.shared_noise is None:
            return ""
        return "sites" if self.by_sites else self.privacy.against

    @property
    def keeping(self) -> str:
        """Which key has clients keep something from round to round; empty where none does."""
        if self.objective.keeps:
            return f"client.objective = {self.names['objective']!r}"
        if self.compression.keeps:
            return f"compression.name = {self.names['compression']!r} with error_feedback"
        return f"model.local = {self.start.local}" if self.start.local else ""

    @property
    def example_privacy(self) -> ExamplePrivacy | None:
        """How silos protect their examples; None where they train without."""
        return self.client_mechanism if protects_examples(self.client_mechanism) else None

    @property
    def secured(self) -> bool:
        """Whether rows are summed by a protocol that shows nobody's."""
        return bool(self.protocol.hides_rows)

    @property
    def real_clients(self) -> bool:
        """Whether clients are the source's own, each with its own examples, and no simulation."""
        return bool(self.source.real_people and not self.partition.deals)

    @property
    def starts_from(self) -> str:
        """What the model starts from: a file or a run, weights that it came with, or nothing."""
        return self.start.init or (WITH_WEIGHTS if isinstance(self.model, Weighted) else "")

    @property
    def before(self) -> tuple[Any, ...]:
        """The pre-aggregators, in order."""
        values = self.aggregation.model_dump()
        parts = [find("before", name, "aggregation.before") for name in self.aggregation.before]
        return tuple(part(**{key: values[key] for key in part.model_fields}) for part in parts)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What clients measure where they evaluate. Raises `Refused` for a name nobody knows."""
        names = self.evaluation.measures
        return tuple(find("measure", name, "evaluation.measures")() for name in names)

    def with_run(self, **changes: Any) -> Config:
        """The same with other values in `[run]`."""
        return replace(self, run=self.run.model_copy(update=changes))

    def values(self) -> Raw:
        """Every key with its value, by section, as in a run file; unset keys are left out."""
        out: Raw = {}
        for name, section in SECTIONS.items():
            out[name] = {key: self.names[kind] for key, (kind, _) in section.parts.items()}
            models: list[Part] = [getattr(self, kind) for kind, _ in section.parts.values()]
            if section.field:
                models.append(getattr(self, section.field))
            for model in models:
                out[name] |= model.model_dump(exclude_none=True)
        return out

    def raw(self) -> Raw:
        """The same, with parts that were passed as classes: what it is assembled from."""
        return with_given(self.values(), self.given)

    def toml(self) -> str:
        """The resolved run file, which `load` reads back to an equal configuration."""
        values = self.values()
        nested: dict[str, Any] = {"format": FORMAT, **values}
        nested["client"] = {**values["client"], "privacy": nested.pop("client.privacy")}
        if self.noise_multiplier is not None:
            nested["resolved"] = self.resolved.to_json()
        return tomli_w.dumps(nested)

    def digest(self) -> str:
        """`digest` of the file that `toml` writes."""
        return digest(self.toml())


def with_given(raw: Raw, given: Mapping[str, type[Any]]) -> Raw:
    """`raw` with the classes `given` in the place of the names of parts of these kinds.

    Raises `Refused` where a class is not the part that is named.
    """
    out = {name: dict(section) for name, section in raw.items()}
    for name, section in SECTIONS.items():
        for key, (kind, default) in section.parts.items():
            if kind not in given:
                continue
            stated, passed = out.setdefault(name, {}).get(key, default), given[kind]
            if catalogued(kind, passed) != stated:
                raise Refused(
                    f"{name}.{key} is {stated!r} in this run, and {catalogued(kind, passed)!r} was "
                    "passed for it; a run goes on with its own parts: leave this one out",
                    key=f"{name}.{key}",
                )
            out[name][key] = passed
    return out


def digest(text: str) -> str:
    """SHA-256 of all that a resume may not change in a resolved run file, as it is written there.

    Defaults that later versions add do not enter, and no part is built or imported.
    """
    document = from_toml(text)
    document["run"].pop("rounds")
    document["privacy"].pop("epsilon", None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
