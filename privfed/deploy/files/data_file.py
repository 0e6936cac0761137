"""`data.toml`: whose data a site holds, and how its table is read. No run says anything of this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator

from privfed.config.mistakes import listed_mistakes, mistakes
from privfed.config.reading import read_toml
from privfed.core.errors import Refused
from privfed.core.parts import Part
from privfed.data.tables.delimited import known_encoding
from privfed.deploy.files.keys import EXPECTED_NAME, NAME


class SiteTable(Part):
    """A site's table, and bounds on it that are stated whoever is in it."""

    population: str
    """What these people are called: all that the site's receipts charge, is charged to them."""
    path: str
    """A CSV or Parquet file."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    client: str
    """The column that says whose a row is: who a person is, no run says."""
    sites_per_client: int = Field(1, ge=1, le=64)
    """At how many sites of any federation, at most, one of these people may have rows."""
    clients: int = Field(ge=1, le=1_000_000_000)
    """No more people than these: a round number above what the table will ever hold."""
    rows: int = Field(ge=1, le=1_000_000)
    """No more rows of one person than these count: of more, those that come first."""
    reading: float = Field(5.0, gt=0, le=3600)
    """Seconds after which the answer to a run's declaration leaves, in which the table is read:
    else the time would tell what is in it."""
    device: str = "cpu"
    """Where this site trains: "cpu", "cuda", or "auto"."""
    threads: int = Field(1, ge=1, le=1024)
    """How many processor cores it may take."""

    @field_validator("population")
    @classmethod
    def _word(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected {EXPECTED_NAME}")
        return name

    @classmethod
    def read(cls, path: Path) -> Self:
        """What the file at `path` states. A path in it is relative to the file.

        Raises `Refused` with every mistake in it.
        """
        document = read_toml(path, "data")
        try:
            table = cls.model_validate(document)
        except ValidationError as error:
            wrong = mistakes(error, "", document, cls)
            raise Refused(listed_mistakes(wrong, f"{path}: "), key=wrong[0].key) from error
        return table.model_copy(update={"path": str(path.parent.absolute() / table.path)})

    @field_validator("path")
    @classmethod
    def _has_rows(cls, path: str) -> str:
        if Path(path).suffix.lower() == ".npz":
            raise ValueError("expected a CSV or Parquet file, whose rows can be read one by one")
        return path

    @property
    def settled(self) -> dict[str, Any]:
        """The keys of a run's table that this one settles, and those that only a run's has.

        Numbers beyond their bounds are clipped, whatever the run says: else it could ask by its
        bounds whether somebody is beyond them, and take all others' rows out.
        """
        asked = {"path": self.path, "delimiter": self.delimiter, "decimal": self.decimal}
        asked |= {"encoding": self.encoding, "client": self.client}
        return {**asked, "test_path": "", "site": "", "outside": "clip"}


TEXT = """\
# Whose data this site holds, and how its table is read. No run says anything of this. Another
# table, of other people, has a folder of its own, with its own key. The first five are needed.
format = 1

# population = "stays"             # a name for these people
# path = "/srv/hospital/stays.csv" # CSV or Parquet; from this folder, where it is not absolute
# client = "patient"               # the column that says whose a row is
# clients = 10_000                 # no more people than these, ever: a round number, not a count
# rows = 200                       # no more rows of one person than these count
# sites_per_client = 1             # at how many sites one person may have rows, at most
# delimiter = ","
# decimal = "."
# encoding = "utf-8"
# reading = 5.0                    # seconds in which the table is read, as a run is declared
# device = "cpu"                   # or "cuda"
# threads = 1                      # processor cores that training may take
"""
"""The file that a new site fills in."""
