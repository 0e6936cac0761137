"""A synthetic table of patients, private and public, and its declarations."""

import numpy as np
import pandas as pd
from torch import nn

DECLARED = {
    "client": "patient",
    "label": "readmitted",
    "labels": ["no", "yes"],
    "features": {"age": (18, 94), "bmi": (11, 42)},
    "categories": {"sex": ["f", "m"]},
    "clients": 60,
}
SMALL = {"cohort": {"size": 20}, "rounds": 4, "epsilon": 8, "delta": 1e-3}
"""Arguments of a very short run."""
SEEDED = {"run": {"randomness": "seeded", "seed": 3}}


def patients(count, seed=0):
    """Returns three rows for each of `count` patients, in random order."""
    rng = np.random.default_rng(seed)
    rows = 3 * count
    age, bmi = rng.uniform(18, 94, rows), rng.normal(26, 4, rows).clip(11, 42)
    ill = (age - 56) / 20 + (bmi - 26) / 6 + rng.normal(0, 0.5, rows) > 0
    frame = {
        "patient": [f"{seed}-{row // 3}" for row in range(rows)],
        "age": age.round(2),
        "bmi": bmi.round(2),
        "sex": rng.choice(["f", "m"], rows),
        "readmitted": np.where(ill, "yes", "no"),
    }
    return pd.DataFrame(frame).sample(frac=1.0, random_state=seed, ignore_index=True)


def net(hidden=5):
    """Returns a custom network for four features and one output."""
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 1))
