"""Tests of the estimators with scikit-learn's interface, and scikit-learn's own checks of them."""

import pickle

import numpy as np
import pandas as pd
import pytest
from lanes import every_case
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import privfed
from privfed import FederatedClassifier, FederatedRegressor
from privfed.core.errors import Refused

SEEDED = {"run": {"randomness": "seeded", "threads": 1}, "privacy": {"noise_multiplier": 0.1}}
DECLARED = {
    "client": "patient",
    "bounds": {"age": (18, 94), "bmi": (11, 42)},
    "labels": ["no", "yes"],
    "clients": 100,
    "delta": 1e-3,
    "rounds": 5,
}
ONE_CLASS = "privfed refuses a constant label by its own error, which is no ValueError"
EXPECTED_FAILURES = {
    "check_classifiers_one_label": ONE_CLASS,
    "check_fit2d_1sample": ONE_CLASS,
    "check_regressors_train": "expects R² above 0.5, for which five rounds are too few",
}
QUICK = {"check_n_features_in", "check_estimators_pickle", "check_estimators_unfitted"}
pytestmark = pytest.mark.filterwarnings("ignore:δ = .* is not below 1 / clients")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


ESTIMATORS = [
    FederatedClassifier(simulation=True, rounds=5, keys={**SEEDED, "client": {"lr": 0.5}}),
    FederatedRegressor(simulation=True, rounds=5, keys=SEEDED),
]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scikit_learns_own_checks(estimator):
    done = check_estimator(
        estimator, expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None
    )
    failed = {each["check_name"]: each["exception"] for each in done if each["status"] == "failed"}
    assert not failed
    assert {each["check_name"] for each in done if each["status"] == "xfail"} <= {
        *EXPECTED_FAILURES
    }
    assert len(done) > 40


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_some_of_scikit_learns_own_checks(estimator):
    checks = [check for _, check in estimator_checks_generator(estimator)]
    quick = [check for check in checks if check.func.__name__ in QUICK]
    assert len(quick) >= len(QUICK)
    for check in quick:
        check(clone(estimator))


def _rows():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"age": rng.integers(18, 95, 600), "bmi": rng.uniform(15, 40, 600)})
    rows["patient"] = [f"p{n}" for n in rng.integers(0, 100, 600)]
    rows["sex"] = "f"
    return rows, np.where(rows["age"] > 56, "yes", "no")


def test_a_classifier_trains_on_a_frame_as_train_does_on_its_table():
    rows, y = _rows()
    estimator = FederatedClassifier(**DECLARED, epsilon=8)
    estimator = clone(estimator).set_params(keys={"run": SEEDED["run"]}).fit(rows, y)
    table = privfed.Table(
        rows.assign(y=y), label="y", features=DECLARED["bounds"], holdout="none",
        labels=["no", "yes"], client="patient", clients=100,
    )  # fmt: skip
    run = privfed.train(table, epsilon=8, delta=1e-3, rounds=5, run=SEEDED["run"])
    shown = estimator.predict_proba(rows)
    assert (shown[:, 1] == run.predict(rows)["probability_yes"]).all()
    assert estimator.guarantee_.epsilon == run.guarantee.epsilon <= 8
    assert list(estimator.classes_) == ["no", "yes"]
    assert list(estimator.feature_names_in_) == ["age", "bmi"]
    assert estimator.score(rows, y) > 0.8
    again = pickle.loads(pickle.dumps(estimator))
    assert (again.predict(rows[["age", "bmi"]]) == estimator.predict(rows)).all()
    assert repr(estimator.run_).count("ε") == 1  # without a measure, since there is no test set


def test_columns_named_as_the_estimators_own_are_features():
    rows, y = _rows()
    rows = rows.rename(columns={"age": "y", "bmi": "client"})
    keys = {**DECLARED, "bounds": {"y": (18, 94), "client": (11, 42)}, "epsilon": 8}
    assert FederatedClassifier(**keys).fit(rows, y).n_features_in_ == 2


def test_without_a_client_column_each_row_is_a_client():
    rows, y = _rows()
    keys = {"bounds": [(18, 94), (11, 42)], "labels": [0, 1], "clients": 600, "rounds": 2}
    x = rows[["age", "bmi"]].to_numpy()
    estimator = FederatedClassifier(**keys, epsilon=8).fit(x, (y == "yes") * 1.0)
    assert estimator.run_.config.data.clients == 600
    assert set(estimator.predict(x)) <= {0, 1}
    FederatedClassifier(**keys | {"clients": 100}, client=rows["patient"], epsilon=8).fit(x, y == 1)


def test_a_simulation_reads_its_declaration_from_the_rows():
    rows, _ = _rows()
    x, y = rows[["age", "bmi"]], rows["age"] / 2
    keys = {**SEEDED, "client": {"lr": 0.2}}
    estimator = FederatedRegressor(simulation=True, rounds=60, keys=keys).fit(x, y)
    assert estimator.run_.config.source.label_bounds == [y.min(), y.max()]
    assert estimator.guarantee_.note.startswith("simulation")
    assert estimator.score(x, y) > 0.5


@every_case(
    "changes, message",
    [
        ({"bounds": None, "clients": None}, r"bounds, clients: not declared.*bounds=\(0, 1\)"),
        ({"client": "patnt"}, "client is 'patnt', but the rows have no such column"),
        ({"client": ["a", "b"]}, "client names 2 clients for 600 rows"),
        ({"bounds": {"aeg": (0, 1)}}, "bounds names 'aeg', but the rows have no such column"),
        ({"bounds": (0, 1)}, "a feature that is not a number; select columns"),
        ({"labels": ["no", "maybe"]}, "y has a value that is not one of labels"),
        ({"labels": ["no"]}, "y has a value that is not one of labels"),
        ({"keys": 3}, "keys is 3; expected them by section"),
        ({"keys": {"lr": 1}}, r"unknown argument 'lr'.*client=dict\(lr=…\)"),
        ({"epsilon": 0}, "privacy.epsilon is 0; expected a number above 0"),
    ],
)
def test_refusals(changes, message):
    rows, y = _rows()
    with pytest.raises(Refused, match=message) as refusal:
        FederatedClassifier(**{**DECLARED, "epsilon": 4, **changes}).fit(rows, y)
    assert "'f'" not in str(refusal.value)  # no cell is quoted


def test_bounds_of_another_number_of_features_and_an_empty_client_are_refused():
    rows, y = _rows()
    keys = {**DECLARED, "bounds": [(0, 1)] * 3}
    with pytest.raises(Refused, match=r"bounds is of shape \(3, 2\).* each of 2 features"):
        FederatedClassifier(**keys).fit(rows[["age", "bmi", "patient"]], y)
    rows.loc[5, "patient"] = np.nan
    with pytest.raises(Refused, match="row 6: the client column 'patient' is empty"):
        FederatedClassifier(**DECLARED).fit(rows, y)
