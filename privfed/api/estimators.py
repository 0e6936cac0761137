"""Estimators with the interface of scikit-learn, which train by `privfed.train`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from privfed.api.answer import plain
from privfed.api.population import Table
from privfed.api.training import train
from privfed.core.errors import Refused
from privfed.data.tables.cells import as_text

_LABEL, _CLIENT = "y", "client"
"""Columns in addition to the features."""


class _Federated(BaseEstimator, ABC):  # type: ignore[misc]
    """The common base class of both estimators."""

    _labels = '["no", "yes"]'
    """An example of the argument `labels`, as messages show it."""
    run_: Any

    def __init__(
        self,
        *,
        client: str | Sequence[Any] | None = None,
        bounds: Any = None,
        labels: Sequence[Any] | None = None,
        clients: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        rounds: int | None = None,
        model: Any = None,
        keys: Mapping[str, Mapping[str, Any]] | None = None,
        simulation: bool = False,
        out: str | PathLike[str] | None = None,
        progress: bool | None = False,
    ) -> None:
        self.client = client
        self.bounds = bounds
        self.labels = labels
        self.clients = clients
        self.epsilon = epsilon
        self.delta = delta
        self.rounds = rounds
        self.model = model
        self.keys = keys
        self.simulation = simulation
        self.out = out
        self.progress = progress

    def _fitted(self, X: Any, y: Any) -> Self:
        """Trains on the rows `X` `[n, d]` with labels `y` `[n]`, which `_of_label` declares."""
        if not self.simulation:
            self._refuse_undeclared()
        if not isinstance(self.keys or {}, Mapping):
            raise Refused(
                f'keys is {self.keys!r}; expected them by section, {{"run": {{"seed": 1}}}}'
            )
        sections: dict[str, Any] = {**(self.keys or {})}
        if self.simulation:
            sections["run"] = {**sections.get("run", {}), "simulation_metrics": True}
        owners = self._owners(X)
        x, y = self._valid(X, y=y, y_numeric=isinstance(self, FederatedRegressor))
        client = list(map(str, range(len(x)))) if owners is None else owners
        if len(client) != len(x):
            raise Refused(
                f"client names {len(client)} clients for {len(x)} rows; expected one for each row"
            )
        label, declared = self._of_label(y)
        named = self.client if isinstance(self.client, str) else _CLIENT
        population = Table(
            pa.table({**self._columns(x), _LABEL: label, named: client}),
            label=_LABEL,
            client=named,
            clients=len({*client}) if self.clients is None else self.clients,
            features=self._bounds(x),
            holdout="none",
            **declared,
        )
        self.run_ = train(
            population,
            model=self.model,
            epsilon=self.epsilon,
            delta=self.delta,
            rounds=self.rounds,
            out=self.out,
            progress=self.progress,
            **sections,
        )
        self.guarantee_ = self.run_.guarantee
        return self

    @abstractmethod
    def _of_label(self, y: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Returns the column of the label, and the keys that declare it.

        Raises `Refused` if a class in `y` is not declared, or if there is only one class.
        """

    def _predicted(self, X: Any) -> Any:
        """Returns the table of predictions for the rows `X` `[n, d]`."""
        check_is_fitted(self)
        x = self._valid(X, reset=False)
        return self.run_.predict(pa.table(self._columns(x)))

    def _owners(self, X: Any) -> list[str] | None:
        """Returns the client of each row, "" for an empty cell.

        None if each row is a client of its own. Raises `Refused` if the column `client` is missing.
        """
        owners = self.client
        if isinstance(owners, str):
            if owners not in getattr(X, "columns", []):
                raise Refused(
                    f"client is {owners!r}, but the rows have no such column; pass a table that "
                    "has it, or the client of each row as an array"
                )
            owners = X[owners]
        if owners is None:
            return None
        cells = np.asarray(owners).ravel().tolist()
        return ["" if cell is None or cell != cell else str(cell) for cell in cells]

    def _valid(self, X: Any, **checks: Any) -> Any:
        """Returns the features as numbers, with the labels if given.

        Messages of errors quote no cell of the rows.
        """
        names = list(getattr(X, "columns", []))
        client = self.client if isinstance(self.client, str) else None
        features = self.bounds if isinstance(self.bounds, Mapping) else names
        if absent := [name for name in features if name not in names]:
            raise Refused(
                f"bounds names {absent[0]!r}, but the rows have no such column; rename it"
            )
        if names:
            X = X[[name for name in features if name != client]]
        try:
            return validate_data(self, X, dtype=float, **checks)
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
        raise Refused(
            "the rows have a feature that is not a number; select columns of numbers by "
            "bounds={column: (low, high)}, or declare a privfed.Table with categories="
        )

    def _refuse_undeclared(self) -> None:
        """Raises `Refused` unless the public `bounds`, `labels` and `clients` are given."""
        examples = {"bounds": "(0, 1)", "labels": self._labels, "clients": "500"}
        missing = [name for name in examples if getattr(self, name) is None]
        if missing:
            raise Refused(
                f"{', '.join(missing)}: not declared, but reading this from private rows would be "
                "a further release; pass public constants, for example "
                f"{', '.join(f'{name}={examples[name]}' for name in missing)}, or, if no row is "
                "private, simulation=True"
            )

    def _columns(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the features `x` `[n, d]` as columns by name."""
        names = list(getattr(self, "feature_names_in_", []))
        if not names or {_LABEL, _CLIENT} & {*names}:
            names = [f"x{n}" for n in range(x.shape[1])]
        return dict(zip(names, x.T, strict=True))

    def _bounds(self, x: np.ndarray) -> dict[str, Any]:
        """Returns the bounds of each column of `x`. Raises `Refused` for another number of them."""
        names = [*self._columns(x)]
        bounds: Any = self.bounds
        if bounds is None:
            bounds = np.stack([x.min(0), x.max(0) + (x.min(0) == x.max(0))], 1)
        if isinstance(bounds, Mapping):
            bounds = [bounds[name] for name in self.feature_names_in_]
        pairs = np.asarray(bounds, float)
        if pairs.shape not in ((2,), (len(names), 2)):
            raise Refused(
                f"bounds is of shape {pairs.shape}; expected (low, high), or a pair for each of "
                f"{len(names)} features"
            )
        return dict(zip(names, np.broadcast_to(pairs, (len(names), 2)).tolist(), strict=True))


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that is trained with privacy for each client, for code of scikit-learn.

    `fit` calls `privfed.train` on a `privfed.Table` of the rows. No row becomes public: the run has
    no test set. Each fit is a separate run with a separate ε; `privfed.audit` composes several.

    Args:
      client: the client of each row: the name of a column of the rows, which is then no feature,
        or an array; None if each row is a client of its own.
      bounds: bounds (low, high) of every feature, a pair for each, or pairs by column, which
        select the columns that are features; public constants. Values beyond them are clipped.
      labels: the values of the label; for `FederatedRegressor`, the bounds (low, high) of the
        number to predict.
      clients: the approximate number of clients, a public constant.
      epsilon: the privacy budget.
      delta: `privacy.delta`.
      rounds: `run.rounds`.
      model: as for `privfed.train`.
      keys: further keys of a run file by section: `{"client": {"lr": 0.1}}`.
      simulation: whether `bounds`, `labels` and `clients` are read from the rows if they are left
        out. The run is then a simulation, whose ε is nominal.
      out: the new run directory; by default one in runs/.
      progress: whether progress is shown.

    Attributes:
      run_: the `privfed.Run`.
      guarantee_: its guarantee.
      n_features_in_: the number of features.
      feature_names_in_: names of the features, if the rows have names.
      classes_: the values of the label, sorted.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on the rows `X` `[n, d]` with labels `y` `[n]`."""
        return self._fitted(X, y)

    def _of_label(self, y: np.ndarray) -> tuple[Any, dict[str, Any]]:
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.labels is None else np.asarray(self.labels))
        words = {value: as_text(value) for value in self.classes_.tolist()}
        if not words.keys() >= {*y.tolist()}:
            raise Refused(
                "y has a value that is not one of labels; list every value, of the type that y has"
            )
        if len(words) < 2:
            raise Refused("the label has one class, but a classifier needs two; add the others")
        return [words[value] for value in y.tolist()], {"labels": [*words.values()]}

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns probabilities `[n, classes]` of the rows `X` `[n, d]`, ordered as `classes_`."""
        table = self._predicted(X)
        names = [f"probability_{as_text(each)}" for each in self.classes_.tolist()]
        return np.stack([np.asarray(table[name]) for name in names], 1)

    def predict(self, X: Any) -> np.ndarray:
        """Returns the predicted classes `[n]` of the rows `X` `[n, d]`."""
        best = self.predict_proba(X).argmax(1)
        chosen: np.ndarray = self.classes_[best]
        return chosen


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """Predicts a number; like `FederatedClassifier`, but `labels` are the number's bounds."""

    _labels = "(0, 100)"

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on the rows `X` `[n, d]` with numbers `y` `[n]`."""
        return self._fitted(X, y)

    def _of_label(self, y: np.ndarray) -> tuple[Any, dict[str, Any]]:
        bounds = (y.min(), y.max()) if self.labels is None else self.labels
        return y, {"label_bounds": plain(bounds)}

    def predict(self, X: Any) -> np.ndarray:
        """Returns the predicted numbers `[n]` of the rows `X` `[n, d]`."""
        return np.asarray(self._predicted(X)["prediction"])
