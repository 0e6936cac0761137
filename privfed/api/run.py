"""A run as an object: its guarantee, model and records, and operations on these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting.documents import from_json
from accounting.errors import LedgerBroken
from accounting.ledger import Ledger
from accounting.statement import epsilon_at
from privfed.api.answer import Answer, from_here, in_kind_of, plain
from privfed.api.arguments import other_rows
from privfed.api.guarantee import RunGuarantee, audited
from privfed.api.resuming import TemporaryFolder, warn_of_delta
from privfed.api.rounds import Callback, InProgress, Opened, further_rounds
from privfed.config.config import Config
from privfed.core.deferred import nn
from privfed.core.errors import Broken, Busy, Refused, public_text
from privfed.core.text import with_numbers
from privfed.models.pretrained import mark
from privfed.store.run_directory import RunDirectory
from privfed.store.run_record import RunRecord

if TYPE_CHECKING:
    from privfed.run.outcome import Observer


class Run(InProgress):
    """A run, defined by its directory alone: another process can load the same run.

    `privfed.train` and `privfed.load` create it, and `privfed.start` one that is in progress
    (`InProgress`). Its properties are read from the directory, and the guarantee is recomputed from
    the ledger whenever the ledger has grown. Answers state the run's path relative to the working
    directory, unless `keeps_name` is set.
    """

    def __init__(
        self,
        directory: RunDirectory,
        folder: TemporaryFolder | None = None,
        keeps_name: bool = False,
        opened: Opened | None = None,
    ) -> None:
        super().__init__(opened)
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
        """Saves the last round, and returns the run directory with the path that tables show."""
        self._save()
        if self._keeps_name:
            return self._directory
        return RunDirectory(from_here(self.path), self._directory.given)

    def _refuse_in_progress(self) -> None:
        if self._loop is not None:
            raise Busy("this run is in progress; leave its `with` block first, by a break")

    @property
    def config(self) -> Config:
        """The resolved configuration.

        Raises `Refused` if a part is not available, and `Broken` if the run file was edited.
        """
        return self._directory.config.read()

    @property
    def guarantee(self) -> RunGuarantee:
        """The guarantee that the ledger proves. Raises `Broken` if there is none."""
        from privfed.auditing.run_audit import audit

        head = self._chain().head()
        if head not in self._audits:
            self._audits = {head: RunGuarantee.of(audit(self._directory))}
        return self._audits[head]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping for each evaluated round, in a list that `pandas.DataFrame` accepts.

        As in `Round.metrics`, the spent ε of a simulation or a run without a guarantee is
        "nominal_epsilon".
        """
        from privfed.run.outcome import RoundRecord

        terms = self._chain().terms
        nominal = terms.get("note") or terms.get("guarantee")
        rows = [with_numbers(from_json(text)) for text in self._directory.metrics.texts()]
        records = (RoundRecord(row["round"], row) for row in rows)
        return [dict(each.nominally().public) for each in records] if nominal else rows

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """One mapping for each charge: its round, its event with parameters, and its hash."""
        return [
            {"round": charge.round, **charge.event.to_json(), "hash": charge.hash}
            for charge in self._chain().charges
        ]

    @property
    def summary(self) -> dict[str, Any]:
        """The results of the run: its metrics, the baseline's, and the spent ε.

        Raises `Refused` if the run has not ended.
        """
        summary = RunRecord(self._directory).summary
        if not summary:
            raise Refused(f"{self.path} has not ended; continue the run by resume()")
        return dict(summary)

    @property
    def model(self) -> nn.Module:
        """The trained network, on the CPU and in evaluation mode, with trainable weights.

        The network's input is preprocessed rows (`predict` and `export` preprocess raw rows), or
        the network's own named inputs. A run that starts from these weights counts this run's
        spending.
        """
        from privfed.models.adapters import merge_model
        from privfed.models.calling import with_user_calls
        from privfed.trained.stored_model import stored_model

        directory = self._near
        form = directory.checkpoint.form()
        if form is None:
            raise Refused(
                f"{self.path} was written by an older version, whose checkpoint does not state the "
                "form of an example, so run.model is unavailable; score the model by evaluate()"
            )
        network, params, _ = stored_model(directory, form.empty())
        trained = merge_model(with_user_calls(network.module), network.hold(params))
        for name in trained:
            network.module.get_parameter(name).requires_grad_(True)
        lineage = {**self._directory.checkpoint.lineage(), "path": str(self.path)}
        start = network.shapes.views(network.initial_params)
        same = {n for n, view in network.shapes.views(params).items() if view.equal(start[n])}
        mark(network.module, {*trained, *network.averaged.names} - same, lineage)
        return network.module.eval()

    def audit(self, accountant: str | None = None, head: str | None = None) -> Answer:
        """Recomputes the ε spent from the ledger and evaluates canaries: `privfed.audit`."""
        return audited(self._near, accountant, head)

    def evaluate(
        self,
        other: Any = None,
        predictions: str | Path | None = None,
        *,
        group: str = "",
        keys: Sequence[str] = (),
    ) -> Answer:
        """Evaluates the model on the run's own test examples, or on other labelled rows.

        Args:
          other: a table or a path as `privfed.Table` takes them, or (x, y) if the run trained on
            arrays; None for the run's own source.
          predictions: a file to write the predictions to.
          group: a column; every metric is also computed for each of its groups. "": that of the
            run's `evaluation.group`, if any.
          keys: for the run's own source, keys to change, as "data.key=value".
        """
        from privfed.report.trained_model import evaluation_table
        from privfed.trained.evaluate import evaluate

        to = None if predictions is None else Path(predictions)
        evaluation = evaluate(self._near, keys if other is None else other_rows(other), to, group)
        return Answer.of(evaluation, partial(evaluation_table, predictions=to))

    def evaluate_by_clients(self, epsilon: float | None = None, **keys: Any) -> Answer:
        """Lets the run's clients evaluate the model in one more round, charged to its ledger.

        Args:
          epsilon: the epsilon of this evaluation alone; None for a run without privacy.
          keys: keys of [evaluation]: `measures`, `group`, `size`.
        """
        from privfed.report.trained_model import clients_table
        from privfed.run.evaluation.evaluate_by_clients import evaluate_by_clients

        self._refuse_in_progress()
        return Answer.of(evaluate_by_clients(self._near, epsilon, plain(keys)), clients_table)

    def predict(self, rows: Any, out: str | Path | None = None) -> Any:
        """Predicts the labels of `rows`, and writes them to `out` if given.

        `rows` is a table, arrays, or the path of a file.

        Returns:
          A table with the prediction for each row, in order: of pandas for pandas rows, else of
            Arrow.
        """
        from privfed.trained.predict import predict

        to = None if out is None else Path(out)
        return in_kind_of(rows, predict(self._near, other_rows(rows), to).table)

    def export(self, to: str | Path, adapters: bool = False) -> Answer:
        """Writes the model, with its preprocessing, to a file for other programs.

        Args:
          to: a .safetensors, .pt2 or .onnx file, or a folder for adapters in peft's format; it must
            not exist.
          adapters: whether to write only the weights that `[model.lora]` trained.
        """
        from privfed.report.trained_model import export_table
        from privfed.trained.export import export

        self._refuse_in_progress()
        return Answer.of(export(self._near, Path(to), adapters), export_table)

    def report(self, out: str | Path | None = None, simulation: bool = False) -> Path:
        """Writes a page of HTML about the run, by default into its directory; returns the path.

        Args:
          out: the file.
          simulation: whether to show simulation data that no epsilon covers.

        Raises:
          Broken: if the run's files contradict each other.
        """
        from privfed.report.page.write import write_run_page

        return write_run_page(self._near, None if out is None else Path(out), simulation).path

    def claim(self, out: str | Path | None = None) -> Answer:
        """Returns this run's guarantee as a claim: one document, which `privfed.verify` checks.

        Args:
          out: a file to write the claim to.

        Raises:
          Broken: if the run's files contradict each other.
        """
        from privfed.api.claims import claim_answer
        from privfed.claims.derived import derived_claim
        from privfed.claims.evidence import evidence_of

        self._refuse_in_progress()
        return claim_answer(derived_claim(evidence_of(self._near)), out)

    def resume(
        self,
        *,
        rounds: int | None = None,
        epsilon: float | None = None,
        observers: Sequence[Observer] = (),
        on_round: Callback | None = None,
        on_evaluation: Callback | None = None,
        on_end: Callable[[Run], object] | None = None,
        progress: bool | None = None,
    ) -> Run:
        """Resumes this run, and returns the ended run.

        Args:
          rounds: the total number of rounds; by default unchanged.
          epsilon: the privacy budget; by default unchanged.
          observers: receive each round.
          on_round: called with each completed `privfed.Round`.
          on_evaluation: called with each round that the run evaluated.
          on_end: called with the run once it has ended.
          progress: whether progress is shown; None: in terminals and notebooks.

        Raises:
          Refused: if more than the budget is already spent, or the population has changed.
        """
        warn_of_delta(self._directory.config.read())
        further = self._further(rounds, epsilon, observers, progress)
        return further._run_to_end(on_round, on_evaluation, on_end)

    def start(
        self,
        *,
        rounds: int | None = None,
        epsilon: float | None = None,
        observers: Sequence[Observer] = (),
        progress: bool | None = False,
    ) -> Run:
        """Prepares `resume` with the same arguments, one round at a time: see `privfed.start`."""
        warn_of_delta(self._directory.config.read())
        return self._further(rounds, epsilon, observers, progress)

    def _further(self, *arguments: Any) -> Run:
        """Returns a `Run` to be entered by `with`; the arguments are those of `start`."""
        self._refuse_in_progress()
        opened = further_rounds(self._directory, self._folder is None, *arguments)
        return Run(self._directory, self._folder, opened=opened)

    def _chain(self) -> Ledger:
        """Returns the current ledger. Raises `Broken` if it was edited."""
        try:
            return Ledger.load(self._directory.ledger)
        except LedgerBroken as error:
            raise Broken(public_text(error)) from None

    def __fspath__(self) -> str:
        """Returns the path, so that a run can replace its path: `privfed.audit([run, other])`."""
        return str(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a run as its path, without the objects that were passed."""
        return _opened, (str(self.path),)

    def __repr__(self) -> str:
        facts: Mapping[str, Any] = {}
        if self._directory.summary.exists():
            facts = self.summary
        if not facts:
            return f"<privfed run {from_here(self.path)}, not ended>"
        nominal, measure = facts["simulation"] or facts["guarantee"], next(iter(facts))
        spent = epsilon_at(float(facts["epsilon"]), facts["delta"], bool(nominal))
        scored = f"{measure} {facts[measure]:.4g}, " if facts["test_examples"] else ""
        stopped = ", stopped at its budget" if facts["stopped_at_budget"] else ""
        stopped += ", no better than the baseline" if facts.get("not_learned") else ""
        return (
            f"<privfed run {from_here(self.path)}: {scored}ε {spent}, "
            f"{facts['charges']} rounds{stopped}>"
        )


def _opened(path: str) -> Run:
    """Returns the run at `path`, without objects that were passed."""
    return Run(RunDirectory.open(Path(path)))
