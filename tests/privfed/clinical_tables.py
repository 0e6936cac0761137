"""A synthetic table of patients in two arms, with times and deaths, and its run file."""

import numpy as np
from tables import written

SEEDED = ("--set", "run.randomness=seeded")
FULL = ("--set", "cohort.size=0", "--set", "cohort.sampler=full")
MASKS = ("--set", "secure.protocol=masks", "--set", "privacy.mechanism=discrete_gaussian")


def patients(count=400, seed=0):
    """Returns the columns of a table: exponential times in two arms, uniform censoring, 4 sites."""
    rng = np.random.default_rng(seed)
    arm = rng.choice(["a", "b"], count)
    times = rng.exponential(np.where(arm == "a", 40.0, 80.0))
    censoring = rng.uniform(20.0, 150.0, count)
    return {
        "patient": [f"p{n}" for n in range(count)],
        "days": np.minimum(times, censoring).round(2).tolist(),
        "died": (times <= censoring).astype(int).tolist(),
        "arm": arm.tolist(),
        "ward": [f"w{n % 4}" for n in range(count)],
        "sex": rng.choice(["f", "m"], count).tolist(),
        "age": rng.integers(20, 90, count).tolist(),
    }


def run_file(folder, *lines, columns=None, clients=400, sections=""):
    table = written(folder / "patients.csv", **(columns or patients(clients)))
    path = folder / "run.toml"
    path.write_text(
        "\n".join(
            [
                "[data]",
                'source = "table"',
                f'path = "{table}"',
                'client = "patient"',
                'population = "trial"',
                f"clients = {clients}",
                'holdout = "none"',
                *lines,
                "[data.categories]",
                'arm = ["a", "b"]',
                'sex = ["f", "m"]',
                "[cohort]",
                f"size = {clients // 2}",
                "[privacy]",
                "delta = 1e-3",
                sections,
            ]
        )
        + "\n"
    )
    return path
