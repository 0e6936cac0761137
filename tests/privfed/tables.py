"""Tables of clients, as files, and runs over them."""

import numpy as np

WHO = [f"h{n % 12}" for n in range(48)]
AGE = np.linspace(20, 90, 48).round(1)
SEX = [("f", "m")[n % 2] for n in range(48)]
ILL = ["yes" if age > 50 else "no" for age in AGE]
FAST = ("cohort.size=6", "run.rounds=3", "run.trainer=loop", "privacy.noise_multiplier=1.0")


def written(path, **columns):
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def population(path, names="abcdefghij", column="person"):
    lines = [f"{column},house,x,y"]
    lines += [f"{name},{ord(name) % 3},{n / 9},{n % 2}" for name in names for n in range(9)]
    path.write_text("\n".join(lines))
    return [
        "data.source=table",
        f"data.path={path}",
        f"data.client={column}",
        "data.clients=10",
        "data.label=y",
        "data.classes=2",
        "data.features={ x = [0, 1] }",
        "data.holdout=clients",
        "data.holdout_fraction=0.3",
        "data.population=people",
        "cohort.size=4",
        "privacy.noise_multiplier=2.0",
        "privacy.delta=1e-3",
        "run.rounds=2",
    ]
