"""A measure that does not suit the labels is refused, with what it needs."""

import pytest
from lanes import every_case
from scorings import BINARY, DIGITS, MEASURES, NUMBER, SCORINGS, SUITED, TAGS, TEXT

from privfed.core.errors import Refused
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN
from privfed.metrics.accuracy import RecallAtK
from privfed.metrics.measure_row import MeasureRow

UNSUITED = [
    (kind, name) for kind, names in SUITED.items() for name in MEASURES if name not in names
]


@every_case("kind, name", UNSUITED)
def test_an_unsuited_measure_is_refused(kind, name):
    with pytest.raises(Refused, match=f"'{name}', which needs .*; leave that measure out"):
        MeasureRow.of([MEASURES[name]], SCORINGS[kind])


def test_a_refusal_says_what_labels_are():
    for scoring, words in (
        (BINARY, "one of 2 classes per example"),
        (TEXT, "one of 7 classes per position of a sequence"),
        (TAGS, "6 columns of 0/1 labels"),
        (NUMBER, "a number to predict"),
    ):
        with pytest.raises(Refused, match=words):
            MeasureRow.of([RecallAtK(k=9)], scoring)


def test_no_measures_and_one_twice_are_refused():
    with pytest.raises(Refused, match="is empty; name one or more"):
        MeasureRow.of([], DIGITS)
    with pytest.raises(Refused, match="'accuracy' more than once"):
        MeasureRow.of([MEASURES["accuracy"]] * 2, DIGITS)


def test_every_measure_is_named():
    named = {
        find("measure", name, "evaluation.measures")().title(NUMBER) for name in BUILT_IN["measure"]
    }
    assert named == {*MEASURES}
