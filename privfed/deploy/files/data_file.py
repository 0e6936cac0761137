"""`data.toml`: a site's population and the format of its clients' table; no run can change them."""

from __future__ import annotations

import json
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
    """The declaration of a site's table, the file of its clients' rows.

    The bounds `clients` and `rows` must not be derived from the table's content.
    """

    population: str
    """A name for the population; the site's receipts charge this population."""
    path: str
    """A CSV or Parquet file."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    decimal: Literal[".", ","] = "."
    encoding: Annotated[str, AfterValidator(known_encoding)] = "utf-8"
    client: str
    """The column that identifies the client of a row; no run can choose it."""
    sites_per_client: int = Field(1, ge=1, le=64)
    """The largest number of sites, of any federation, at which one client may have rows."""
    clients: int = Field(ge=1, le=1_000_000_000)
    """Upper bound on the number of clients, rounded up, which the table will never exceed."""
    rows: int = Field(ge=1, le=1_000_000)
    """The largest number of rows that are used of one client, who may have more: the first ones."""
    reading: float = Field(5.0, gt=0, le=3600)
    """Seconds to read the table when a run is declared, whatever it contains: a varying time would
    reveal its content. A table that takes longer is not used.
    """
    witness: str = ""
    """A second copy of the receipts, on another disk, by which a restored backup is noticed; empty
    for none."""
    device: str = "cpu"
    """The device on which this site trains: "cpu", "cuda", or "auto"."""
    threads: int = Field(1, ge=1, le=1024)
    """The largest number of processor cores to use."""

    @field_validator("population")
    @classmethod
    def _word(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected {EXPECTED_NAME}")
        return name

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the file at `path`; relative paths in it start at the folder of that file.

        Raises:
          Refused: if the file is invalid; the message lists all mistakes.
        """
        document = read_toml(path, "data")
        try:
            table = cls.model_validate(document)
        except ValidationError as error:
            wrong = mistakes(error, "", document, cls)
            raise Refused(listed_mistakes(wrong, f"{path}: "), key=wrong[0].key) from error
        folder = path.parent.absolute()
        places = {"path": table.path, "witness": table.witness}
        return table.model_copy(
            update={key: str(folder / place) for key, place in places.items() if place}
        )

    @property
    def witness_path(self) -> Path | None:
        """The path of the second copy of the receipts; None if there is no second copy."""
        return Path(self.witness) if self.witness else None

    @field_validator("path")
    @classmethod
    def _has_rows(cls, path: str) -> str:
        if Path(path).suffix.lower() == ".npz":
            raise ValueError("expected a CSV or Parquet file, whose rows can be read one by one")
        return path

    @property
    def format(self) -> dict[str, Any]:
        """The values of path, delimiter, decimal, encoding and client, by key.

        They replace the values of these keys in a run's data source.
        """
        keys = ("path", "delimiter", "decimal", "encoding", "client")
        return {key: getattr(self, key) for key in keys}

    @property
    def settled(self) -> dict[str, Any]:
        """The values that replace those of a run's data source, by key.

        These are `format`, an empty test path and site column, and `outside = "clip"`.

        Numbers beyond the run's bounds are always clipped, even if the run states "refuse": a run
        chooses its bounds, and a refusal would reveal whether any client exceeds them.
        """
        return {**self.format, "test_path": "", "site": "", "outside": "clip"}


_TEXT = """\
# This site's table and its population. A run cannot change these values. For a table of another
# population, create another site folder with its own key. The first five keys are required.
format = 1

# population = "stays"             # a name for the clients in the table
# path = "/srv/hospital/stays.csv" # CSV or Parquet; relative to this folder
# client = "patient"               # the column that identifies the client of a row
# clients = 10_000                 # upper bound on the number of clients, rounded up
# rows = 200                       # largest number of rows of one client that are used
# sites_per_client = 1             # largest number of sites at which one client may have rows
# delimiter = ","
# decimal = "."
# encoding = "utf-8"
# reading = 5.0                    # seconds to read the table when a run is declared
{witness}  # a second copy of the receipts, on another disk
# device = "cpu"                   # or "cuda"
# threads = 1                      # largest number of processor cores for training
"""


def data_template(witness: Path | None = None) -> str:
    """Returns the template of data.toml, which the operator of a new site fills in.

    Args:
      witness: path of a second copy of the receipts; None for none.
    """
    quoted = json.dumps(str(witness.absolute()), ensure_ascii=False) if witness else '"/mnt/x/w"'
    return _TEXT.format(witness=f"{'' if witness else '# '}witness = {quoted}")
