"""A small table of clients, a run file over it, and questions about it."""

import numpy as np
from tables import written

from privfed.analytics.questions import NumbersQuestion, Questions, as_values
from privfed.analytics.spelling import Spelling
from privfed.data.tables.cells import Words
from privfed.data.tables.delimited import Dialect

CLIENTS = 60
SEEDED = "run.randomness=seeded"
QUICK = ("--buckets", "4", "--letters", "6", "--column", "age", "--column", "town")


def folk(clients=CLIENTS, seed=0):
    """Returns the columns of a table: one to four rows of each client, in random order."""
    rng = np.random.default_rng(seed)
    who = rng.permutation(np.repeat(np.arange(clients), rng.integers(1, 5, clients)))
    rows = len(who)
    return {
        "person": [f"p{n}" for n in who],
        "age": [f"{age:.0f}" if age > 22 else "" for age in rng.uniform(20, 90, rows)],
        "town": rng.choice(["Bonn", "Oslo", "Rome"], rows, p=[0.6, 0.3, 0.1]).tolist(),
        "sex": rng.choice(["f", "m"], rows).tolist(),
        "weight": rng.normal(70, 12, rows).round(1).tolist(),
        "seen": [f"2020-{month:02d}-15" for month in rng.integers(1, 13, rows)],
        "ill": rng.integers(0, 2, rows).tolist(),
        "ward": [f"w{n % 4}" for n in who],
    }


def run_file(folder, *lines, clients=CLIENTS, sections="", columns=None):
    """Writes a run file over `folk` into a folder, with further `lines` in [data]."""
    table = written(folder / "folk.csv", **(columns or folk(clients)))
    public = folk(5, seed=9)
    written(folder / "public.csv", **{**public, "person": [f"q{n}" for n in public["person"]]})
    path = folder / "run.toml"
    path.write_text(
        "\n".join(
            [
                "[data]",
                'source = "table"',
                f'path = "{table}"',
                f'test_path = "{folder / "public.csv"}"',
                'client = "person"',
                'population = "folk"',
                f"clients = {clients}",
                *lines,
                "[data.features]",
                "weight = [40.0, 120.0]",
                "[data.dates]",
                'seen = { first = "2020-01-01", last = "2021-01-01" }',
                "[data.categories]",
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


def words(values):
    """Returns a column of cells; empty ones hold nothing."""
    known, codes = np.unique([str(value) for value in values], return_inverse=True)
    texts = [str(value) for value in known]
    codes = codes.astype(np.int64)
    return Words(
        np.where(np.isin(codes, [texts.index("")] if "" in texts else []), -1, codes), texts
    )


def asked(rows=1, buckets=4, letters=6):
    """Returns one question of each kind: undeclared, a range, dates, values."""
    days = (18262.0, 18628.0)
    return Questions(
        (
            NumbersQuestion("open", spelling=Spelling(buckets, letters)),
            NumbersQuestion("range", (0.0, 100.0)),
            NumbersQuestion("dates", days, "iso"),
            as_values("values", ["a", "b", True]),
        ),
        rows,
    )


def vectors(question, columns, owners, most=None):
    """Returns each client's vector `[clients, d]`, from columns of cells and their owners."""
    from privfed.analytics.questions import ClientRows, chosen_rows

    owners = np.asarray(owners)
    order = np.arange(len(owners), dtype=np.uint64)
    chosen = chosen_rows(owners, order, most or question.rows)
    names = (each.name for each in question.questions)
    by_name = dict(zip(names, map(words, columns), strict=True))
    rows = ClientRows(by_name, Dialect(), *chosen, np.bincount(owners))
    if most is not None:  # a fault: more rows than those that the amplitudes are for
        return _spread(question, rows)
    return _added(question.of_table(rows), question)


def _added(at, question):
    rows = np.zeros((len(at), question.length))
    for client, places in enumerate(at):
        np.add.at(rows[client], places[places >= 0], question.amplitudes[places[places >= 0]])
    return rows


def _spread(question, rows):
    from dataclasses import replace

    wide = replace(question, rows=max(rows.sizes))
    at = wide.of_table(rows)
    return _added(at, question)
