"""A run as an object: what it guarantees, its model, its records, and what is done with it next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accounting.documents import from_json
from accounting.errors import LedgerBroken
from accounting.ledger import Ledger
from accounting.statement import epsilon_at
from privfed.api.answer import Answer, from_here, plain
from privfed.api.going_on import TemporaryFolder
from privfed.api.guarantee import RunGuarantee, audited
from privfed.config.config import Config
from privfed.config.overrides import assign
from privfed.config.reading import reassembled
from privfed.core.deferred import nn
from privfed.core.errors import Broken, Refused, public_text
from privfed.core.text import with_numbers
from privfed.data.sources.declared_table import DeclaredTable
from privfed.data.sources.table import GivenTable, Table
from privfed.data.tables import array_table
from privfed.data.tables.arrow import is_pandas, is_table, settled
from privfed.data.tables.readable import Readable, TableFile, TableObject
from privfed.models.pretrained import mark
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord

if TYPE_CHECKING:
    from privfed.run.outcome import Observer


_CALLED = "the rows"
"""What messages call what was passed."""


def other_rows(rows: Any) -> Callable[[Config], Config]:
    """How the configuration of a run changes for it to be used on `rows`."""

    def changed(config: Config) -> Config:
        raw, source = config.raw(), config.source
        if isinstance(rows, str | Path) and not isinstance(source, DeclaredTable):
            assign(raw, "data.path", str(rows))
            return reassembled(raw, config)
        if not isinstance(source, DeclaredTable):
            raise Refused(
                f"the run's people come from the source {config.names['source']!r}; expected the "
                "path of other data of that form"
            )
        of_tables = {key for part in (GivenTable, Table) for key in part.model_fields}
        kind: type[DeclaredTable] = Table
        data: dict[str, Any] = {"source": "table", "path": str(rows)}
        table = _readable(rows, source)
        if not isinstance(table, TableFile):
            kind, data = GivenTable, {"source": GivenTable.of(table)}
        client = raw["data"]["client"]
        names = table.names()
        client = client if client in names else ""  # nobody asks whose rows these are, nor where
        site = raw["data"].get("site", "")
        site = site if client and site in names else ""
        for key, value in raw["data"].items():
            if key not in of_tables or key in kind.model_fields:
                data.setdefault(key, value)
        raw["data"] = {**data, "client": client, "site": site}
        return reassembled(raw, config)

    return changed


def _readable(rows: Any, source: DeclaredTable) -> Readable:
    """The table that `rows` are. Raises `Refused`."""
    if isinstance(rows, str | Path):
        return TableFile(Path(rows), source.dialect)
    if isinstance(source, GivenTable) and source.shape:
        if isinstance(rows, tuple) or array_table.is_dataset(rows):
            return array_table.of_pair(rows, source.shape, _CALLED)
        return array_table.of_inputs(rows, source.shape, _CALLED)
    return TableObject(settled(rows), _CALLED, tuple(source.missing_words))


def in_kind_of(rows: Any, table: Mapping[str, np.ndarray]) -> Any:
    """`table` as one of the library that `rows` are of: pandas, or else Arrow."""
    if is_table(rows) and is_pandas(rows):
        import pandas

        return pandas.DataFrame(dict(table), index=rows.index)
    import pyarrow

    return pyarrow.table(dict(table))


class Run:
    """A run in its directory, which is all that it is: another process loads the same one.

    `privfed.train` and `privfed.load` make it. What is asked of it is read from the directory, and
    its guarantee re-computed from the ledger each time that the ledger has grown. Answers name it
    from the working directory, unless it `keeps_name`.
    """

    def __init__(
        self,
        directory: RunDirectory,
        folder: TemporaryFolder | None = None,
        keeps_name: bool = False,
    ) -> None:
        self._directory = directory
        self._keeps_name = keeps_name
        self._folder = folder
        self._audits: dict[bytes, RunGuarantee] = {}

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    @property
    def _near(self) -> RunDirectory:
        """The same under the name that tables show: no more of this machine than they need."""
        if self._keeps_name:
            return self._directory
        return RunDirectory(from_here(self.path), self._directory.given)

    @property
    def config(self) -> Config:
        """The resolved configuration. Raises `Refused` for parts that are not at hand."""
        return self._directory.config.read()

    @property
    def guarantee(self) -> RunGuarantee:
        """What the ledger proves, re-computed from it. Raises `Broken` where that is nothing."""
        from privfed.auditing.run_audit import audit

        head = self._chain().head()
        if head not in self._audits:
            self._audits = {head: RunGuarantee.of(audit(self._directory))}
        return self._audits[head]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A row for each round that was evaluated, as `pandas.DataFrame` takes them."""
        return [with_numbers(from_json(text)) for text in self._directory.metrics.texts()]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """A row for each charge: its round, the event and what it means, and the chain's hash."""
        return [
            {"round": charge.round, **charge.event.to_json(), "hash": charge.hash}
            for charge in self._chain().charges
        ]

    @property
    def summary(self) -> dict[str, Any]:
        """How the run ended: its measures beside the best constant answer, what it spent.

        Raises `Refused` where it has not ended.
        """
        summary = RunRecord(self._directory).summary
        if not summary:
            raise Refused(f"{self.path} has not ended; go on with it: resume()")
        return dict(summary)

    @property
    def model(self) -> nn.Module:
        """The trained network, on the CPU and in evaluation mode, with its weights to train on.

        It takes what a source makes of raw rows; `predict` and `export` do that by themselves. Its
        weights tell of this run's people: where they start another run, that one counts this one.
        """
        import torch

        from privfed.models.adapters import merge_model
        from privfed.trained.stored_model import stored_model

        form = self._directory.checkpoint.form()
        if form is None:
            raise Refused(f"{self.path}: an older version wrote it; load its model by evaluate()")
        network, params, _ = stored_model(self._directory, form.empty())
        with torch.no_grad():
            tensors = dict(network.module.named_parameters())
            for name, view in network.shapes.views(params).items():
                tensors[name].copy_(view)
        trained = merge_model(network.module, network.shapes.names)
        for name in trained:
            network.module.get_parameter(name).requires_grad_(True)
        lineage = {**self._directory.checkpoint.lineage(), "path": str(self.path)}
        mark(network.module, trained, lineage)
        return network.module.eval()

    def audit(self, accountant: str | None = None, head: str | None = None) -> Answer:
        """The ε really spent, from the ledger alone, and what canaries show: `privfed audit`."""
        return audited(self._near, accountant, head)

    def evaluate(
        self,
        other: Any = None,
        predictions: str | Path | None = None,
        *,
        group: str = "",
        keys: Sequence[str] = (),
    ) -> Answer:
        """Score the model on the run's own test examples, or on `other` labelled rows.

        These are a table or a path as `privfed.Table` takes them, or (x, y) where the run's people
        were arrays; or the run's own source with other `keys`, as "data.key=value". `predictions`
        is a file to write them to, and `group` a column each of whose groups is scored, too.
        """
        from privfed.report.trained_model import evaluation_table
        from privfed.trained.evaluate import evaluate

        to = None if predictions is None else Path(predictions)
        evaluation = evaluate(self._near, keys if other is None else other_rows(other), to, group)
        return Answer.of(evaluation, partial(evaluation_table, predictions=to))

    def evaluate_by_clients(self, epsilon: float, **keys: Any) -> Answer:
        """Let the run's clients score the model in one more round, charged `epsilon` by itself.

        `keys` are those of [evaluation]: `measures`, `group`, `size`. The charge is in this run's
        ledger: `privfed evaluate --federated`.
        """
        from privfed.report.trained_model import clients_table
        from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients

        wanted = {key: plain(value) for key, value in keys.items()}
        scored = evaluate_by_clients(self._near, float(epsilon), wanted)
        return Answer.of(scored, clients_table)

    def predict(self, rows: Any, out: str | Path | None = None) -> Any:
        """Predict `rows`, with labels or without: a table of the same library, a row per row.

        Of a path, arrays and the like it is an Arrow table. `out` is a file to write it to, too.
        """
        from privfed.trained.predict import predict

        to = None if out is None else Path(out)
        return in_kind_of(rows, predict(self._directory, other_rows(rows), to).table)

    def export(self, to: str | Path, adapters: bool = False) -> Answer:
        """Write the model, with its preprocessing, to a .safetensors, .pt2 or .onnx file.

        `adapters`: what `[model.lora]` trained alone, without the weights that it is added to.
        """
        from privfed.report.trained_model import export_table
        from privfed.trained.export import export

        return Answer.of(export(self._near, Path(to), adapters), export_table)

    def report(self, out: str | Path | None = None, simulation: bool = False) -> Path:
        """Write one page of HTML about the run, and return where: `privfed report`.

        Only with `simulation` does it show what no epsilon covers. Raises `Broken` where the run's
        files contradict each other.
        """
        from privfed.report.page.write import write_run_page

        return write_run_page(self._near, None if out is None else Path(out), simulation).path

    def resume(
        self,
        *,
        rounds: int | None = None,
        epsilon: float | None = None,
        observers: Sequence[Observer] = (),
        progress: bool | None = None,
    ) -> Run:
        """Go on with this run, to `rounds` in all and within the budget `epsilon`; both may stay.

        Raises `Refused` where what was spent is above that budget, or people are others.
        """
        from privfed.api.going_on import go_on, warn_of_delta

        warn_of_delta(self._directory.config.read())
        changes = {"run.rounds": rounds, "privacy.epsilon": epsilon}
        wanted = {key: plain(value) for key, value in changes.items() if value is not None}
        go_on(self._directory, wanted, observers, progress)
        return Run(self._directory, self._folder)

    def _chain(self) -> Ledger:
        """The ledger as it is now. Raises `Broken` where it was edited."""
        try:
            return Ledger.load(self._directory.ledger)
        except LedgerBroken as error:
            raise Broken(public_text(error)) from None

    def __fspath__(self) -> str:
        """The run is its directory: `privacy=dict(prior=[run])`, `privfed.audit([run, other])`."""
        return str(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled run is its path: objects that were passed are not sent along."""
        return _opened, (str(self.path),)

    def __repr__(self) -> str:
        facts: Mapping[str, Any] = {}
        if self._directory.summary.exists():
            facts = self.summary
        if not facts:
            return f"<privfed run {from_here(self.path)}, not ended>"
        measure, spent = next(iter(facts)), epsilon_at(float(facts["epsilon"]), facts["delta"])
        stopped = ", stopped at its budget" if facts["stopped_at_budget"] else ""
        return (
            f"<privfed run {from_here(self.path)}: {measure} {facts[measure]:.4g}, ε {spent}, "
            f"{facts['charges']} rounds{stopped}>"
        )


def _opened(path: str) -> Run:
    """The run at `path`, without objects."""
    return Run(RunDirectory.open(Path(path)))
