"""Three hospitals' tables of synthetic patients, and a public one, with a known readmission
rule.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

NAMES = ("berlin", "paris", "rome")
COLUMNS = ("patient", "age", "bmi", "pressure", "days", "readmitted")
BOUNDS = {"age": [18, 98], "bmi": [14, 54], "pressure": [80, 220], "days": [0, 40]}
PUBLIC_ROWS = 600


def write_tables(folder: Path, patients: int, seed: int) -> None:
    """Writes `NAME.csv` for each hospital, with `patients` patients in total, and `public.csv`."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(NAMES):
        mine = range(number, patients, len(NAMES))
        rows = [row for patient in mine for row in _stays(rng, f"p{patient}", number)]
        _write(folder / f"{name}.csv", rows)
    public = [_stays(rng, f"q{row}", row % len(NAMES))[0] for row in range(PUBLIC_ROWS)]
    _write(folder / "public.csv", public)


def _stays(rng: np.random.Generator, patient: str, hospital: int) -> list[list[object]]:
    """Returns one to four rows of one patient; the hospitals' populations differ in age."""
    age = float(np.clip(rng.normal(52 + 6 * hospital, 16), 18, 98))
    bmi = float(np.clip(rng.normal(27, 5), 14, 54))
    rows: list[list[object]] = []
    for _ in range(rng.integers(1, 5)):
        pressure = float(np.clip(rng.normal(110 + 0.4 * age, 14), 80, 220))
        days = float(np.clip(rng.exponential(6), 0, 40))
        score = 0.09 * (age - 58) + 0.12 * (bmi - 27) + 0.04 * (pressure - 133) + 0.15 * (days - 6)
        readmitted = int(rng.random() < 1 / (1 + np.exp(-score)))
        rows.append([patient, round(age), round(bmi, 1), round(pressure), round(days), readmitted])
    return rows


def _write(path: Path, rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
