"""Dataclasses as the JSON objects that ledgers, files and commands state."""

from dataclasses import dataclass, field
from pathlib import Path

from accounting.documents import UNLESS_EMPTY, UNSTATED, Encoded, Kinded, called, encoded
from accounting.events import Event
from accounting.noises import Gaussian
from accounting.releases import PoissonSampled


@dataclass(frozen=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True)
class Picture(Encoded):
    stated_last = ("count",)

    path: Path = field(metadata=called("file"))
    points: tuple[Point, ...]
    secret: str = field(metadata=UNSTATED)
    note: str = field(default="", metadata=UNLESS_EMPTY)

    @property
    def count(self):
        return len(self.points)


@dataclass(frozen=True)
class Round(Kinded):
    kind = "round"

    radius: float


def test_fields_stand_by_their_names_in_their_order():
    picture = Picture(Path("a/b.svg"), (Point(1.0, 2.0),), "hidden")
    stated = picture.to_json()
    assert stated == {"file": "a/b.svg", "points": [{"x": 1.0, "y": 2.0}], "count": 1}
    assert [*stated] == ["file", "points", "count"]
    noted = Picture(Path("b"), (), "hidden", note="no points")
    assert noted.to_json() == {"file": "b", "points": [], "note": "no points", "count": 0}


def test_a_kind_stands_first():
    assert list(Round(2.0).to_json().items()) == [("kind", "round"), ("radius", 2.0)]


def test_what_states_itself_does_so_at_any_depth():
    nested = encoded({"shapes": (Round(1.0), None), "name": "three"})
    assert nested == {"shapes": [{"kind": "round", "radius": 1.0}, None], "name": "three"}
    assert encoded(Point) is Point, "a class is no value of it"


def test_an_event_states_its_slack_where_there_is_one():
    event = Event(PoissonSampled(0.5, Gaussian(2.0)), "poisson")
    release = {"kind": "poisson", "rate": 0.5, "of": {"kind": "gaussian", "noise_multiplier": 2.0}}
    terms = {"sampler": "poisson", "relation": "add/remove", "unit": "client"}
    assert event.to_json() == {"release": release, **terms}
    late = Event(event.release, "poisson", slack=1e-9)
    assert late.to_json() == {"release": release, **terms, "slack": 1e-9}
    assert Event.from_json(late.to_json()) == late
