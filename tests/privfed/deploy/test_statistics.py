"""Releases of statistics over agents: what sites serve, at which cost, and what they decline."""

import json
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from clinical_tables import patients
from commands import run
from hospitals import SEALING, data_text, hospitals
from lanes import every_case
from small import model
from tables import written

from accounting.documents import from_toml
from accounting.ledger import Ledger
from privfed.analytics.counted_table import CountedTable
from privfed.analytics.regression.release import regression_of
from privfed.analytics.release import released_sums
from privfed.analytics.survival.table import SurvivalTable
from privfed.config.config import digest
from privfed.config.reading import load
from privfed.core.errors import Busy
from privfed.core.streams import Streams
from privfed.data.tables.readable import TableFile
from privfed.deploy.carriers.carrier import Loopback
from privfed.deploy.coordinator.coordinate import coordinate
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.receipts import Receipts
from privfed.deploy.messages.declaration import Declaration, ExampleForm
from privfed.deploy.messages.envelope import Kind, Reply, read_answer
from privfed.deploy.site.policy import RELEASES, TEXT, Allowances, Code, LocalPolicy, SpendingLimit
from privfed.deploy.site.policy_check import refusal
from privfed.deploy.site.population import most_examples
from privfed.deploy.site.site_setup import site_config
from privfed.run.train import train

CLIENTS = 60
POLICY = TEXT.replace('releases = ["training"] ', 'releases = ["statistics"] ').replace(
    "epsilon = 2.0", "epsilon = 1e300"
)
ALL = Allowances(releases=[*RELEASES], models=["lstm"], objectives=["fedprox"])
"""What concerns training lists no part of a release."""
SIMULATED = POLICY.replace("simulation = false", "simulation = true")
ASKED = {
    "survive": [
        "--time",
        "days",
        "--event",
        "died",
        "--until",
        "100",
        "--bins",
        "3",
        "--group",
        "arm",
    ],
    "regress": ["--outcome=died", "--by=arm", "--by=age", "--cut=age=0,50,120"],
    "describe": ["--column=age", "--buckets=2", "--letters=2"],
}
"""By command, the columns of a release."""


def federation(folder, policy=SIMULATED):
    """Three hospitals, each with a table of patients in two arms, and the run file."""
    made = hospitals(folder / "sites", patients=CLIENTS, policy=policy)
    columns = {**patients(CLIENTS), "hospital": [f"h{n % 3}" for n in range(CLIENTS)]}
    for name in ("all", *made.names):
        here = [name in ("all", at) for at in columns["hospital"]]
        kept = {key: np.array(cells)[here].tolist() for key, cells in columns.items()}
        written(made.table(name), **kept).chmod(0o600)
    for name in made.names:
        text = data_text(made.table(name), clients=25) + "reading = 0.5\n"
        (made.root / name / "data.toml").write_text(text)
    (made.root / "patients.toml").write_text(
        f"""
[data]
source = "table"
path = "{made.table("all")}"
client = "patient"
population = "stays"
clients = {CLIENTS}
holdout = "none"
sites = 3
site_partition = "elsewhere"
[data.categories]
arm = ["a", "b"]
sex = ["f", "m"]
[cohort]
size = 30
[privacy]
delta = 1e-5
mechanism = "discrete_gaussian"
sizing = "layers"
[secure]
protocol = "masks"
threat = "malicious"
"""
    )
    return made


def asked(made, command, *keys, epsilon=8):
    """The run file that the command writes for its release."""
    file = made.root / f"{command}{len([*made.root.glob('*.toml')])}.toml"
    overrides = [word for key in keys for word in ("--set", key)]
    words = (*ASKED[command], "--epsilon", epsilon, "--run-file", file, *overrides)
    answer = run(command, made.root / "patients.toml", *words)
    assert answer.exit_code == 0, answer.output
    assert f"privfed {command} RUN_DIR" in answer.output
    return file


def made_by_sites(made, file, out):
    sites = {site: made.agent(site).answer for site in range(made.count)}
    facts = (made.federation_file, made.key_file, out)
    coordinate(file, *facts, connect=lambda _: Loopback(sites), seconds=60, patience=0)
    return released_sums(out, (CountedTable,), "…")


def exact(made, file):
    """The sum of all clients' vectors, by the definition of the source, and without sites."""
    source = load(file).source.model_copy(update={"path": str(made.table("all"))})
    x = source.load(CLIENTS, Streams(0, simulated=True)).x
    counts = source.questions
    total = np.zeros(counts.length + 1)
    np.add.at(total, x.numpy(), np.append(0.0, counts.amplitudes)[x.numpy()])
    return total[1:]


@pytest.mark.parametrize("command", ASKED)
def test_three_agents_release_what_all_clients_add_up_to(tmp_path, command):
    """Their noise is a quarter of a client, and receipts charge what the ledger charges."""
    made, out = federation(tmp_path), tmp_path / "out"
    file = asked(made, command, epsilon=32)
    released = made_by_sites(made, file, out)
    assert 0.1 < released.noise < 0.4
    difference = released.total - exact(made, file)
    assert np.abs(difference).max() < 6 * released.noise
    assert difference.std() > released.noise / 6
    for command_of_run in (command, "audit", "report"):
        answer = run(command_of_run, out)
        assert answer.exit_code == 0, answer.output
    ledger = Ledger.load(out / "ledger.jsonl")
    assert sum(ledger.spending.values()) == 1
    for site in range(3):
        receipts = Receipts.load(made.folder(site).receipts)
        assert dict(receipts.spending()) == dict(ledger.spending)


NUMBERS = {
    "linear": (1, ["--family=linear", "--outcome=days", "--by=arm", "--by=age"]),
    "logistic": (8, ["--outcome=died", "--by=arm", "--by=age"]),
}
"""By family, the rounds and the columns of a regression on numbers."""


@pytest.mark.parametrize("family", NUMBERS)
def test_three_agents_release_a_regression_on_numbers(tmp_path, family):
    """Each round is charged at every site, and agents know the model and its rounds."""
    made, out, (rounds, columns) = federation(tmp_path), tmp_path / "out", NUMBERS[family]
    text = made.root / "patients.toml"
    ranges = "[data.features]\ndays = [1, 150]\nage = [20, 90]\n[cohort]"
    text.write_text(text.read_text().replace("[cohort]", ranges))
    file = made.root / "numbers.toml"
    answer = run("regress", text, *columns, "--epsilon", 64, "--run-file", file)
    assert answer.exit_code == 0, answer.output
    sites = {site: made.agent(site).answer for site in range(made.count)}
    facts = (made.federation_file, made.key_file, out)
    coordinate(file, *facts, connect=lambda _: Loopback(sites), seconds=60, patience=0)
    release = regression_of(out)
    assert abs(release.clients - CLIENTS) < 6 * release.noise / math.sqrt(0.05 * max(1, rounds - 4))
    assert run("audit", out).exit_code == 0
    for site in range(3):
        receipts = Receipts.load(made.folder(site).receipts)
        assert sum(receipts.spending().values()) == rounds


@pytest.mark.parametrize("keys", [(), ("data.sites_per_client=2",)])
def test_a_seeded_release_by_agents_is_the_simulators_bit_for_bit(tmp_path, keys):
    """Also if a client may be at two sites: each adds its vector at half of its norm."""
    made = federation(tmp_path)
    keys = ("run.randomness=seeded", *keys)
    here = asked(made, "survive", *keys, 'data.site_partition="even"', 'data.site="hospital"')
    train(load(here), tmp_path / "here")
    released = made_by_sites(made, asked(made, "survive", *keys), tmp_path / "there")
    first, second = (model(tmp_path / name) for name in ("here", "there"))
    assert torch.equal(first["model/counts"], second["model/counts"])
    assert np.abs(released.total - exact(made, here)).max() < 6 * released.noise


def test_a_site_without_simulations_sends_at_the_deadline(tmp_path):
    """Of any number of clients and rows: one example of each of its most clients is rehearsed."""
    made = federation(tmp_path, POLICY)
    file = asked(made, "survive", "secure.deadline=1.0")
    checked = run("site", "check", made.folder(0).path, file, "--json")
    facts = json.loads(checked.stdout)
    assert (facts["cohort"], facts["clients"], facts["rows"]) == (25, 20, 20)
    late = run("site", "check", made.folder(0).path, asked(made, "survive"))
    assert "deadline" in late.output
    assert late.exit_code == 2
    began = time.monotonic()
    assert made_by_sites(made, file, tmp_path / "out").noise > 0
    assert time.monotonic() - began > 3 * (0.5 + 1.0)  # each reads, and sends, at a fixed time


def declared(made, text, constants=None):
    """The declaration of a run file, with a ledger that was opened for it."""
    path = made.root / f"declared{len([*made.root.glob('declared*')])}.jsonl"
    Ledger.create(path, {"config": digest(from_toml(text))})
    opening = path.read_bytes().split(b"\n")[0]
    form = ExampleForm((1,), "int64", (1,), "float32", 2)
    return Declaration(opening, text, form, constants or {}, SEALING.public)


def answered(made, declaration):
    message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
    return read_answer(made.agent(0).answer(message))


@pytest.fixture(scope="module")
def joining(tmp_path_factory):
    made = federation(tmp_path_factory.mktemp("joining"))
    return made, asked(made, "survive").read_text()


@pytest.fixture
def made(joining):
    made = joining[0]
    yield made
    made.folder(0).policy.write_text(SIMULATED)


def allowing(made, *releases):
    made.folder(0).policy.write_text(
        SIMULATED.replace('["statistics"]', json.dumps([*releases]), 1)
    )


TRAINING = (
    *("data.label=sick", "data.classes=2", "data.features={age=[18,94],bmi=[11,42]}"),
    *("privacy.mechanism=discrete_gaussian", "secure.threat=malicious", "privacy.delta=1e-5"),
)


def test_statistics_and_training_are_allowed_separately(made, joining):
    """The table lacks the columns of the training, which is the next reason to decline."""
    statistics = declared(made, joining[1])
    training, _ = hospitals(made.root.parent / "others").declaration(*TRAINING)
    training = declared(made, training.text)
    training = replace(training, examples=ExampleForm((2,), "float32", (), "int64", 2))
    for releases, of_statistics in ((["statistics"], True), (["training"], False)):
        allowing(made, *releases)
        declined = training if of_statistics else statistics
        assert answered(made, declined) == (Reply.DECLINED, b"release")
        if of_statistics:
            assert answered(made, statistics) == (Reply.ANSWERED, statistics.run)
        else:
            assert answered(made, training) == (Reply.DECLINED, b"table")
    allowing(made, "training", "evaluation", "statistics")
    assert answered(made, statistics) == (Reply.ANSWERED, statistics.run)
    assert answered(made, training) == (Reply.DECLINED, b"table")


DOCTORED = {
    "another model": ('name = "counts"\n', 'name = "lstm"\n'),
    "another loss": ('loss = "added"', 'loss = "cross_entropy"'),
    "other amplitudes": ("        1.0,\n", "        0.5,\n"),
    "further rounds": ("rounds = 1\n", "rounds = 2\n"),
    "a sample of clients": (f"size = {CLIENTS}\n", "size = 10\n"),
    "a smaller clip": ("\nclip = 1.0", "\nclip = 0.5"),
    "an adaptive clip": ("adaptive_clip = false", "adaptive_clip = true"),
    "other steps": ("epochs = 1", "epochs = 2"),
    "another objective": ('objective = "sgd"', 'objective = "fedprox"'),
    "another optimizer": ('optimizer = "fedavg"', 'optimizer = "fedavgm"'),
    "another rule": ('rule = "mean"', 'rule = "geometric_median"'),
    "a compression": ('[compression]\nname = "none"', '[compression]\nname = "random_mask"'),
    "clients' measures": ('by = "test"', 'by = "clients"'),
    "fixed noise": ("epsilon = 8.0", "noise_multiplier = 1.0"),
}
"""A change of a release's run file by which more, or something else, would be released."""


@every_case("case", DOCTORED)
def test_a_run_with_a_source_of_statistics_that_is_not_its_release_is_declined(joining, case):
    made, text = joining
    old, new = DOCTORED[case]
    doctored = text.replace(old, new)
    if case == "another model":
        before, after = doctored.split("stretches = [")
        doctored = before + after.split("\n]\n", 1)[1]
    assert doctored != text
    assert judged(made, text) is None
    assert judged(made, doctored).code is Code.RELEASE


def judged(made, text):
    policy, table = (
        LocalPolicy(budget=SpendingLimit(epsilon=9.0), allow=ALL),
        SiteTable.read(made.folder(0).data),
    )
    return refusal(policy, site_config(text, table), made.federation, 13)


def test_a_declared_run_that_is_not_its_sources_release_is_declined(joining):
    made, text = joining
    old, new = DOCTORED["further rounds"]
    doctored = declared(made, text.replace(old, new))
    assert answered(made, doctored) == (Reply.DECLINED, b"release")


def test_a_site_builds_the_model_of_a_release_without_the_coordinators_constants(joining):
    """Other amplitudes would count some clients more than the run file states."""
    made, text = joining
    doctored = declared(made, text, {"amplitudes": torch.full((13,), 9.0)})
    facts = (doctored.text, doctored.examples, doctored.constants)
    table, setup = made.member(0).accepted(*facts)
    assert (setup.network.constants["amplitudes"] == 1.0).all()
    assert (table.rows, most_examples(setup.plan.config, table)) == (5, 1)


def test_the_models_of_releases_need_a_source_that_states_them(made, joining):
    text = joining[1]
    allowing(made, "training", "statistics")
    declaration = declared(made, asked_by_a_table(text), {"amplitudes": torch.ones(13)})
    assert answered(made, declaration) == (Reply.DECLINED, b"model")


def asked_by_a_table(text):
    """The run file with a source of training examples, and the model of the release."""
    before, after = text.split('source = "survival_table"')
    data, rest = after.split("\n[model]", 1)
    others = ("missing_words", "rows_per_client", "earlier", "time", "event", "group", "edges")
    keys = [line for line in data.splitlines() if " = " in line and not line.startswith(others)]
    columns = 'label = "died"\nlabel_bounds = [0.0, 1.0]\nfeatures = {days = [0.0, 9.0]}\n'
    single = "\n".join(key for key in keys if not key.endswith("["))
    return f'{before}source = "table"\n{columns}{single}\n[model]{rest}'


def test_an_unusable_entry_counts_as_unusable_and_excludes_nobody(tmp_path):
    made = federation(tmp_path)
    table = made.table("h0")
    header, *rows = table.read_text().splitlines()
    spoiled = [",".join([patient, "soon", *others]) for patient, _, *others in map(cells, rows)]
    table.write_text("\n".join([header, *spoiled[:12], *rows[12:]]) + "\n")
    released = made_by_sites(made, asked(made, "survive"), tmp_path / "out")
    assert released.total.sum() == pytest.approx(CLIENTS, abs=5 * released.noise * 13**0.5)
    assert released.total[-1] == pytest.approx(12, abs=5 * released.noise)


def test_the_first_rows_of_a_client_count_at_a_site(tmp_path):
    rows = {"p": [*"abab"], "t": [1, 25, 11, 15], "e": [1, 1, 0, 0]}
    path = written(tmp_path / "t.csv", **rows)
    table = SurvivalTable(path="", client="p", time="t", event="e", edges=[0.0, 10.0, 20.0, 30.0])
    cells = table.load_from(TableFile(path, table.dialect)).x.squeeze(1) - 1
    assert cells.tolist() == [0, 4]


def cells(row):
    return row.split(",")


def test_a_table_without_a_column_is_declined_and_the_check_names_it(tmp_path, caplog):
    """As in training: the names of columns depend on no client."""
    made = federation(tmp_path)
    table = made.table("h0")
    table.write_text(table.read_text().replace("died", "dead", 1))
    file = asked(made, "survive")
    checked = run("site", "check", made.folder(0).path, file)
    assert checked.exit_code == 2
    assert "data.event names 'died'" in checked.output
    with pytest.raises(Busy, match="h0: declined table"):
        made_by_sites(made, file, tmp_path / "out")
    assert "data.event names 'died'" in caplog.text


def test_a_description_by_sites_declares_a_training_at_the_same_sites(tmp_path):
    made, out = federation(tmp_path), tmp_path / "out"
    made_by_sites(made, asked(made, "describe"), out)
    assert run("describe", out).exit_code == 0
    stated = run("declare", "--from", out, "--label", "arm")
    assert stated.exit_code == 0, stated.output
    (tmp_path / "training.toml").write_text(stated.stdout)
    config = load(tmp_path / "training.toml", ["cohort.size=30"])
    assert config.at_remote_sites
    assert config.data.sites == 3
    assert config.privacy.prior == [str(out)]


def test_a_run_file_is_written_once(tmp_path):
    made = federation(tmp_path)
    file = asked(made, "survive")
    before = file.read_text()
    words = (*ASKED["survive"], "--epsilon", 2, "--run-file", file)
    answer = run("survive", made.root / "patients.toml", *words)
    assert answer.exit_code == 2
    assert "exists already" in answer.output
    assert file.read_text() == before
    assert not [*made.root.glob("**/ledger.jsonl")]
