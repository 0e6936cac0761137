"""The typed configuration of a run: sections and keys, assembled from the parts' own files.

A TOML file (or no file, for the default run) and `--set section.key=value` are converted to frozen,
strict models. A value in the file takes precedence over the loss's default for the key, and this
over the default of the part's own field. Unknown keys, wrong types and values out of range are
refused here, all of them in one message. `privfed.plan.plan` refuses invalid combinations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import tomli_w

from accounting.documents import from_toml
from attacks.types import Attack, Knowledge
from defenses.types import Rule
from privfed.client.compression.compressed import ShapesByName, compressed
from privfed.client.compression.compression import Compression
from privfed.client.dp_sgd import ClientMechanism, ExamplePrivacy, protects_examples
from privfed.client.objective import Objective
from privfed.config.attack_keys import AttackKeys, expected_byzantine
from privfed.config.resolved import Chosen, Resolved
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
from privfed.core.parts import Part, catalogue_name, find
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
from privfed.secure.encoded_sum import SecureProtocol
from privfed.secure.summation import SumProtocol
from privfed.server.optimizer import ServerOptimizer

Raw = dict[str, dict[str, Any]]
AUTO = "auto"
"""The value of a key whose value is chosen when the run starts."""
WITH_WEIGHTS = "the module that was passed"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a run: the keys of its sections, its parts, and the names of the parts.

    Attributes:
      names: the name of each part, by kind.
      given: the classes of parts that were passed as classes instead of names, by kind.
      noise_multiplier: the result of calibration; None before calibration.
      admitted: the smallest cohort with which a secure sum begins in a training round, or 0 if it
        was not solved for; a resume does not change it.
      evaluation_admitted: the same as `admitted`, in a round in which clients evaluate.
      open: keys that are "auto": their values are chosen when the run starts.
      auto: a text: the keys that were "auto", and the examples from which values were chosen.
      chosen: set if the run is one of several candidates of private tuning.
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
    open: tuple[str, ...] = ()
    auto: str = ""

    @property
    def resolved(self) -> Resolved:
        """The values, such as the noise multiplier, that a plan solved for."""
        solved = self.noise_multiplier, self.admitted, self.chosen, self.evaluation_admitted
        return Resolved(*solved, self.auto)

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by kind, without kinds of which a run file lists several (`LISTS`)."""
        kinds = (kind for section in SECTIONS.values() for kind, _ in section.parts.values())
        return {kind: getattr(self, kind) for kind in kinds}

    def messages(self, shapes: ShapesByName | None = None) -> Objective:
        """Returns the objective, whose messages are compressed as [compression] states.

        Args:
          shapes: the shape of each trainable parameter by name, or None if the model is not known.
        """
        return compressed(self.objective, self.compression, self.run.seed, shapes)

    @property
    def has_attackers(self) -> bool:
        """Whether simulated attackers change their data, rows, weights or clip indicators."""
        return self.attackers.fraction > 0.0 and bool(
            self.attack.acts or self.attackers.false_claims
        )

    @property
    def unbounded(self) -> bool:
        """Whether attackers' rows may exceed the norm bound of honest clients, by `attack.stage`.

        With "auto", they may if clients (not sites) are the parties of secure sums, otherwise not.
        """
        stage, free = self.attackers.stage, self.secured and not self.by_sites
        return stage == "after_bound" or (stage == "auto" and free)

    @property
    def by_sites(self) -> bool:
        """Whether the parties of sums are sites: each sums its clients' rows and adds noise.

        False if no site is declared, parties = "clients", or the server sees rows and adds noise.
        """
        asked = self.data.sites > 0 and self.secure.parties != "clients"
        return asked and (self.secured or self.mechanism.trust == "client")

    @property
    def at_remote_sites(self) -> bool:
        """Whether all clients are at sites on other machines."""
        return self.data.sites > 0 and self.data.site_partition == "elsewhere"

    @property
    def byzantine(self) -> int:
        """The assumed number of Byzantine clients in a cohort.

        It is the declared number, or the expected number of simulated attackers if that is larger
        (a run with attackers is a simulation).
        """
        expected = self.attackers.fraction * self.sampler.size
        return expected_byzantine(self.aggregation.byzantine, expected)

    @property
    def site_column(self) -> str:
        """The source's column with the site of each client; empty if there is none."""
        return self.source.site if isinstance(self.source, NamesSites) else ""

    @property
    def evaluation_rounds(self) -> EvaluationRounds:
        """The rounds in which clients evaluate; none unless evaluation.by is "clients"."""
        every = self.evaluation.every or self.run.evaluate_every
        return EvaluationRounds(every if self.evaluation.by == "clients" else 0)

    @property
    def nothing_public(self) -> bool:
        """Whether there is no public test set, so that only clients can evaluate the model."""
        return self.data.holdout == "none"

    @property
    def attackers_see_rows(self) -> bool:
        """Whether there are attackers that know all honest clients' updates (`attack.knows`)."""
        return self.has_attackers and Knowledge.ALL_HONEST in self.attack.knows

    @property
    def row_hiding(self) -> SecureProtocol | None:
        """The protocol that sums rows without revealing them; None if the server sees rows."""
        return cast("SecureProtocol", self.protocol) if self.secured else None

    @property
    def shared_noise(self) -> SharedNoise | None:
        """The mechanism, if clients or sites add shares of its noise to secure sums; else None."""
        return self.mechanism if shares_noise(self.mechanism) else None

    @property
    def joint_noise(self) -> JointNoise | None:
        """The mechanism if pairs of clients share noise that cancels in the sum; otherwise None."""
        return self.mechanism if noised_jointly(self.mechanism) else None

    @property
    def colluding(self) -> int | None:
        """Assumed Byzantine clients plus `joint_noise.colluders`; None without `joint_noise`."""
        return self.byzantine + self.joint_noise.colluders if self.joint_noise else None

    @property
    def against(self) -> str:
        """The party against which the budget holds; "" without `joint_noise` and `shared_noise`."""
        if self.joint_noise:
            return "clients"
        if self.shared_noise is None:
            return ""
        return "sites" if self.by_sites else self.privacy.against

    @property
    def keeping(self) -> str:
        """A setting that makes clients keep state between rounds, as "key = value"; or ""."""
        if self.objective.keeps:
            return f"client.objective = {self.names['objective']!r}"
        if self.compression.keeps:
            return f"compression.{self.compression.keeping} = true"
        return f"model.local = {self.start.local}" if self.start.local else ""

    @property
    def example_privacy(self) -> ExamplePrivacy | None:
        """The client mechanism, if it protects single examples (of silos); otherwise None."""
        return self.client_mechanism if protects_examples(self.client_mechanism) else None

    @property
    def secured(self) -> bool:
        """Whether a protocol sums rows without revealing any single row."""
        return bool(self.protocol.hides_rows)

    @property
    def real_clients(self) -> bool:
        """Whether clients are those of the source with their own examples, not simulated ones."""
        return bool(self.source.holds_real_clients and not self.partition.assigns)

    @property
    def starts_from(self) -> str:
        """The origin of the initial model: a file or a run, weights of a passed module, or ""."""
        return self.start.init or (WITH_WEIGHTS if isinstance(self.model, Weighted) else "")

    @property
    def before(self) -> tuple[Any, ...]:
        """The pre-aggregators, in order."""
        values = self.aggregation.model_dump()
        parts = [find("before", name, "aggregation.before") for name in self.aggregation.before]
        return tuple(part(**{key: values[key] for key in part.model_fields}) for part in parts)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The metrics of evaluation by clients. Raises `Refused` for an unknown name."""
        names = self.evaluation.measures
        return tuple(find("measure", name, "evaluation.measures")() for name in names)

    def with_run(self, **changes: Any) -> Config:
        """Returns the configuration with other values in `[run]`."""
        return replace(self, run=self.run.model_copy(update=changes))

    def values(self) -> Raw:
        """Returns each key's value or default, by section; keys that are None are absent."""
        out: Raw = {}
        for name, section in SECTIONS.items():
            out[name] = {key: self.names[kind] for key, (kind, _) in section.parts.items()}
            models: list[Part] = [getattr(self, kind) for kind, _ in section.parts.values()]
            if section.field:
                models.append(getattr(self, section.field))
            for model in models:
                out[name] |= model.model_dump(exclude_none=True)
        for target in self.open:
            name, _, key = target.rpartition(".")
            out[name][key] = AUTO
        return out

    def raw(self) -> Raw:
        """Returns `values` with the classes of parts that were passed, for `assembled`."""
        return with_given(self.values(), self.given)

    def toml(self) -> str:
        """Returns the resolved run file; for it, `read_resolved` returns an equal configuration."""
        values = self.values()
        nested: dict[str, Any] = {"format": FORMAT, **values}
        nested["client"] = {**values["client"], "privacy": nested.pop("client.privacy")}
        if solved := self.resolved.to_json():
            nested["resolved"] = solved
        return tomli_w.dumps(nested)

    def digest(self) -> str:
        """Returns the SHA-256 of the keys in `toml`, except run.rounds and privacy.epsilon."""
        return digest(from_toml(self.toml()))


def with_given(raw: Raw, given: Mapping[str, type[Any]]) -> Raw:
    """Returns `raw` with the classes `given`, by kind, in place of the names of parts.

    Args:
      raw: the keys of each section.
      given: classes of parts, by kind.

    Raises:
      Refused: if a class is not the part that `raw` names, or the default if it names none.
    """
    out = {name: dict(section) for name, section in raw.items()}
    for name, section in SECTIONS.items():
        for key, (kind, default) in section.parts.items():
            if kind not in given:
                continue
            stated, passed = out.setdefault(name, {}).get(key, default), given[kind]
            if catalogue_name(kind, passed) != stated:
                raise Refused(
                    f"{name}.{key} is {stated!r} in this run, but {catalogue_name(kind, passed)!r} "
                    f"was passed; leave {name}.{key} out, since a run continues with its own parts",
                    key=f"{name}.{key}",
                )
            out[name][key] = passed
    return out


def digest(tables: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a resolved run file without run.rounds and privacy.epsilon.

    A resume may change these two keys. The digest covers the `tables` as they are written: defaults
    of later versions do not enter, and no part is built or imported.
    """
    document = {**tables, "run": {**tables["run"]}, "privacy": {**tables["privacy"]}}
    document["run"].pop("rounds")
    document["privacy"].pop("epsilon", None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
