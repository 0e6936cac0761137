"""An example that is nobody's has the form of those that a table holds."""

import pyarrow
import pytest
import torch
from lanes import every_case

from privfed.core.errors import Refused
from privfed.data.sources.declared_examples import declared_example
from privfed.data.sources.table import Table
from privfed.data.tables.readable import TableObject
from privfed.models.form import Form

COLUMNS = {
    "features": {"age": [18.0, 94.0], "bmi": [11.0, 42.0]},
    "dates": {"seen": {"first": "2019-01-01", "last": "2020-12-31", "format": "%d.%m.%Y"}},
    "categories": {"sex": ["f", "m"], "ward": [1, 2, 3]},
    "client": "patient",
}
LABELS = {
    "names": {"label": "sick", "labels": ["no", "yes"]},
    "classes": {"label": "sick", "classes": 3},
    "number": {"label": "stay", "label_bounds": [0.0, 30.0]},
    "columns": {"label": ["a", "b"]},
}
ROWS = {
    "age": [30.0, 50.0], "bmi": [20.0, 30.0], "seen": ["05.06.2019", "07.08.2020"],
    "sex": ["m", "f"], "ward": ["3", "1"], "patient": ["p", "q"],
}  # fmt: skip
VALUES = {"names": ["yes", "no"], "classes": [2, 0], "number": [3.0, 4.0], "columns": [1, 0]}


@every_case("kind", LABELS)
def test_it_has_the_form_of_real_ones(kind):
    source = Table.model_validate({"path": "nowhere.csv", **COLUMNS, **LABELS[kind]})
    label = LABELS[kind]["label"]
    rows = {**ROWS, **dict.fromkeys([label] if isinstance(label, str) else label, VALUES[kind])}
    real = source.load_from(TableObject(pyarrow.table(rows), "rows"))
    synthetic = declared_example(source)
    assert Form.of(synthetic) == Form.of(real)
    assert len(synthetic) == 1
    assert synthetic.owners is None
    assert torch.isfinite(synthetic.x).all()


def test_a_pattern_of_columns_says_too_little():
    keys = {"path": "x.csv", "features": {"pixel*": [0.0, 1.0]}, "label": "y", "classes": 2}
    with pytest.raises(Refused, match="by a pattern"):
        declared_example(Table.model_validate(keys))
