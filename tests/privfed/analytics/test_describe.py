"""A description from end to end: charged as any round, audited, counted by training, declared."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from commands import run
from description_setup import CLIENTS, QUICK, SEEDED, folk, run_file
from lanes import every_case, mostly_slow
from scipy.stats import chi2
from tables import written

from accounting.events import ADD_REMOVE, REPLACE_ONE, ZERO_OUT
from accounting.guarantee import guarantee
from accounting.ledger import Ledger
from accounting.releases import noise_of
from privfed.analytics.describe import DescriptionRequest
from privfed.analytics.described_table import DescribedTable
from privfed.analytics.release import noise_on_sum, release_run
from privfed.analytics.statistics_file import read_statistics
from privfed.auditing.prior_runs import priors
from privfed.config.reading import load
from privfed.core.streams import Streams
from privfed.plan.plan import plan
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import under, unpack

ASKING = DescriptionRequest(2.0, None, ("age", "town"), 2, 4, 6)
MASKS = ("secure.protocol=masks", "cohort.sampler=full", "cohort.size=0")
MASKED = ("secure.protocol=masks", "privacy.mechanism=skellam")
SHIPPED = {
    "central": (),
    "masks": MASKS,
    "skellam": ("privacy.mechanism=skellam", *MASKS),
    "local": ("privacy.mechanism=local_gaussian",),
}


def described(folder, *words, epsilon="4", file=None):
    return run(
        *("describe", file or run_file(folder), "--epsilon", epsilon, "--out", folder / "out"),
        *("--set", SEEDED, *QUICK, *words),
    )


def released(folder):
    tensors, _ = unpack(folder / "checkpoint.safetensors")
    return under(tensors, "model/")["counts"].double().numpy()


def sets(overrides):
    return [word for override in overrides for word in ("--set", override)]


@every_case(
    ("overrides", "relation", "share"),
    [
        ((), ADD_REMOVE, 1.0),
        (("cohort.sampler=truncated_poisson",), ADD_REMOVE, 1.0),
        (("privacy.adaptive_clip=true", "privacy.clip=3.0"), ADD_REMOVE, 1.0),
        (("cohort.sampler=fixed_size",), REPLACE_ONE, 0.5),
        (("cohort.sampler=full", "cohort.size=0"), ZERO_OUT, 1.0),
        (
            (
                *("cohort.sampler=cyclic", "cohort.separation=10", "cohort.size=0"),
                "privacy.mechanism=banded",
            ),
            ZERO_OUT,
            1.0,
        ),
        (("cohort.sampler=allocation", "cohort.slots=10", "cohort.size=0"), ADD_REMOVE, 1.0),
        (
            (
                *("cohort.sampler=allocation", "cohort.slots=10", "cohort.size=0"),
                "privacy.mechanism=banded",
            ),
            ZERO_OUT,
            1.0,
        ),
    ],
)
def test_everybody_takes_part_and_nothing_is_amplified(tmp_path, overrides, relation, share):
    config = release_run(run_file(tmp_path), overrides, ASKING)
    planned = plan(config)
    assert planned.event.relation == relation
    assert config.run.rounds == 1
    assert config.mechanism.clip == 1.0
    witness = config.sampler.witness(1, CLIENTS)
    assert witness.rate == 1.0
    assert noise_of(planned.event.release).noise_multiplier == pytest.approx(
        planned.noise_multiplier * share
    )
    assert planned.guarantee.epsilon <= 2.0


def test_the_run_is_charged_once_and_audited(tmp_path):
    answer = described(tmp_path, "--json")
    assert answer.exit_code == 0, answer.output
    stated = json.loads(answer.stdout)
    ledger = Ledger.load(tmp_path / "out" / "ledger.jsonl")
    assert len(ledger.charges) == 1
    assert stated["ledger_head"] == ledger.head().hex()
    assert stated["rows_per_client"] == 1
    audited = json.loads(run("audit", tmp_path / "out", "--json").stdout)
    assert audited["ledger_ok"] is True
    assert audited["epsilon"] == stated["epsilon"] <= 4.0
    again = json.loads(run("describe", tmp_path / "out", "--json").stdout)
    assert again == stated


@pytest.mark.parametrize("name", mostly_slow(SHIPPED, "central"))
def test_noise_is_as_large_as_it_is_stated(tmp_path, name):
    """That of a release, beside one of the same rows without noise; and no other scale passes."""
    overrides = SHIPPED[name]
    file = run_file(tmp_path)
    for epsilon, out in (("8", "noised"), ("inf", "exact")):
        answer = run(
            *("describe", file, "--epsilon", epsilon, "--out", tmp_path / out, "--set", SEEDED),
            *(*QUICK, *sets(overrides if epsilon == "8" else ())),
        )
        assert answer.exit_code == 0, answer.output
    config = RunDirectory.open(tmp_path / "noised").config.read()
    difference = (released(tmp_path / "noised") - released(tmp_path / "exact")) * CLIENTS
    stated = read_statistics(tmp_path / "noised").noise
    length = len(difference)
    assert stated > 0.3
    assert config.source.questions.length == length
    for scale, accepted in ((1.0, True), (0.93, False), (1.07, False)):
        statistic = float((difference**2).sum() / (scale * stated) ** 2)
        assert (1e-4 < chi2.cdf(statistic, length) < 1 - 1e-4) == accepted


def test_training_counts_what_the_description_spent(tmp_path):
    assert described(tmp_path).exit_code == 0
    declared = run("declare", "--from", tmp_path / "out", "--label", "sex")
    assert declared.exit_code == 0, declared.output
    text = declared.stdout.replace("size = 0 ", "size = 20 ").replace(
        "epsilon = 4.0", "epsilon = 9"
    )
    (tmp_path / "train.toml").write_text(text)
    words = ("--set", "run.rounds=3", "--out", tmp_path / "trained", "--json")
    answer = run("train", tmp_path / "train.toml", *words)
    assert answer.exit_code == 0, answer.output
    outcome = json.loads(answer.stdout)
    assert outcome["prior"] == [str(tmp_path / "out")]
    assert outcome["epsilon"] == pytest.approx(9.0, rel=1e-3)
    alone = run(
        *("train", tmp_path / "train.toml", "--set", "privacy.prior=[]", "--set", "run.rounds=3"),
        *("--out", tmp_path / "uncounted", "--json"),
    )
    uncounted = json.loads(alone.stdout)
    assert uncounted["noise_multiplier"] < outcome["noise_multiplier"]
    audited = json.loads(run("audit", tmp_path / "trained", "--json").stdout)
    assert audited["epsilon"] == pytest.approx(outcome["epsilon"])


def test_a_share_of_the_budget_is_that_of_the_variance_budget(tmp_path):
    """Noise of training and description as the share has them spend the budget together."""
    path = run_file(tmp_path, sections="[run]\nrounds = 20\n[budget]\nstatistics = 0.2")
    answer = run("describe", path, "--out", tmp_path / "out", "--json")
    assert answer.exit_code == 0, answer.output
    planned = plan(RunDirectory.open(tmp_path / "out").config.read())
    alone = guarantee(planned.spending(1), 1e-3).epsilon
    assert json.loads(answer.stdout)["epsilon"] == pytest.approx(alone)
    rate, share = 0.5, 0.2
    training = planned.noise_multiplier / math.sqrt((1 - share) / (share * 20 * rate**2))
    keys = (f"data.clients={CLIENTS}", f"cohort.size={CLIENTS // 2}", "run.rounds=20")
    rounds = load(None, [*keys, f"privacy.noise_multiplier={training}"])
    together = Counter(planned.spending(1)) + Counter(plan(rounds).spending(20))
    assert guarantee(together, 1e-3).epsilon == pytest.approx(4.0, rel=1e-3)


def test_without_a_share_its_cost_has_to_be_said(tmp_path):
    answer = run("describe", run_file(tmp_path), "--out", tmp_path / "out")
    assert answer.exit_code == 2
    assert "--epsilon is missing" in answer.output
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def description(tmp_path_factory):
    folder = tmp_path_factory.mktemp("described")
    assert described(folder).exit_code == 0
    return folder / "out"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("data.population=others", "other [data]"),
        ("data.client=ward", "are not the clients of this run"),
        pytest.param(
            "cohort.sampler=full", "agree in both can be composed", marks=pytest.mark.slow
        ),
        ("run.randomness=secret", "is a simulation"),
    ],
)
def test_others_cannot_count_it(tmp_path, description, change, reason):
    text = run("declare", "--from", description, "--label", "sex").stdout
    size = "0 " if "full" in change else "20 "
    (tmp_path / "train.toml").write_text(text.replace("size = 0 ", f"size = {size}"))
    answer = run("train", tmp_path / "train.toml", "--set", change, "--out", tmp_path / "trained")
    assert answer.exit_code == 2
    assert reason in " ".join(answer.output.split())
    assert not (tmp_path / "trained" / "ledger.jsonl").exists()


def test_a_declaration_follows_from_the_release(tmp_path):
    described(tmp_path, epsilon="inf")
    text = run("declare", "--from", tmp_path / "out" / "statistics.json", "--label", "sex").stdout
    written_file = load_text(tmp_path, text)
    source = written_file.source
    columns = folk()
    ages = [float(each) for each in columns["age"] if each]
    assert source.features["age"][0] <= min(ages) < max(ages) <= source.features["age"][1]
    assert source.categories["town"] == ["Bonn", "Oslo", "Rome"]
    assert source.labels == ["f", "m"]
    assert "2020-01-01" <= source.dates["seen"].first <= "2020-01-15"
    assert source.missing["age"] == pytest.approx(np.median(ages), abs=10)
    assert written_file.data.clients == CLIENTS
    assert written_file.privacy.prior == [str(tmp_path / "out")]


@pytest.fixture(scope="module")
def ill(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ill")
    described(folder, "--column", "ill", "--rows-per-client", "4", epsilon="inf")
    return folder / "out"


@every_case(
    ("label", "keys"),
    [
        ("ill", {"classes": 2}),
        ("weight", {"label_bounds": [40.0, 120.0]}),
        ("town", {"labels": ["Bonn", "Oslo", "Rome"]}),
    ],
)
def test_a_label_of_any_kind_is_declared(tmp_path, ill, label, keys):
    config = load_text(tmp_path, run("declare", "--from", ill, "--label", label).stdout)
    values = config.values()["data"]
    assert values["label"] == label
    for key, value in keys.items():
        if key == "label_bounds":
            assert 40.0 <= values[key][0] < values[key][1] <= 120.0
        else:
            assert values[key] == value


def load_text(folder, text):
    path = folder / "declared.toml"
    path.write_text(text.replace("size = 0 ", "size = 20 "))
    return load(path)


@every_case("classes", ['["0", "1"]', '"two"', "true", "1", "2.5", "{ 0 = 1 }"])
def test_classes_that_are_no_count_are_refused(tmp_path, classes):
    answer = described(tmp_path, file=run_file(tmp_path, 'label = "ill"', f"classes = {classes}"))
    assert answer.exit_code == 2
    assert "data.classes is" in answer.output
    assert "an integer above 1" in " ".join(answer.output.split())


def test_a_declaration_keeps_who_adds_the_noise(tmp_path):
    keys = ("secure.protocol=masks", "privacy.mechanism=skellam", "secure.threshold=0.6")
    described(tmp_path, *sets((*keys, "secure.bits=40")))
    text = run("declare", "--from", tmp_path / "out", "--label", "sex").stdout
    config = load_text(tmp_path, text)
    assert config.names["mechanism"] == "skellam"
    assert config.names["protocol"] == "masks"
    assert config.protocol.threshold == 0.6
    assert config.protocol.bits == 40


PAIRS = """[aggregation]
byzantine = 5
[cohort]
sampler = "full"
[privacy]
delta = 1e-3
mechanism = "pairwise_gaussian"
pair_noise = 0.5
"""


@every_case(
    ("keys", "colluders"),
    [
        ("", 6),
        ("colluders = 3", 8),
        ("colluders = 0\n[attack]\nname = 'sign_flip'\nfraction = 0.1", 6),
    ],
)
def test_who_may_be_hostile_to_training_colludes_against_a_description(tmp_path, keys, colluders):
    """And training counts the description, in which as many were counted on for nothing."""
    file = run_file(tmp_path)
    file.write_text(file.read_text().partition("[cohort]")[0] + PAIRS + keys)
    answer = described(tmp_path, "--json", file=file)
    assert answer.exit_code == 0, answer.output
    terms = Ledger.load(tmp_path / "out" / "ledger.jsonl").terms
    assert (terms["against"], terms["colluders"]) == ("clients", colluders)
    prior = {"data.label": "ill", "data.classes": 2, "run.rounds": 1}
    prior |= {"run.randomness": "seeded", "privacy.prior": [str(tmp_path / "out")]}
    words = sets(f"{key}={json.dumps(value)}" for key, value in prior.items())
    (event,) = Ledger.load(tmp_path / "out" / "ledger.jsonl").run_spending
    for more, same in ((), True), (("aggregation.byzantine=9", "privacy.epsilon=9"), False):
        training = load(file, [f"{k}={json.dumps(v)}" for k, v in prior.items()] + [*more])
        ((counted,),) = (each.spending for each in priors(training).runs)
        assert (counted == event) == same, "it is charged for more colluders, and no fewer"
        assert counted.noise.noise_multiplier <= event.noise.noise_multiplier
    trained = run("check", file, *words)
    assert trained.exit_code == 0, trained.output


@pytest.mark.parametrize("wrong", ["byzantine = 'five'", "byzantine = -1"])
def test_a_wrong_number_of_hostile_clients_is_refused(tmp_path, wrong):
    file = run_file(tmp_path)
    lines = PAIRS.replace("byzantine = 5", wrong)
    file.write_text(file.read_text().partition("[cohort]")[0] + lines)
    answer = described(tmp_path, file=file)
    assert answer.exit_code == 2
    assert "aggregation.byzantine" in answer.output


def test_a_declaration_keeps_what_pairs_share_and_whom_it_is_against(tmp_path):
    file = run_file(tmp_path)
    file.write_text(file.read_text().partition("[cohort]")[0] + PAIRS + "colluders = 2")
    described(tmp_path, file=file)
    text = run("declare", "--from", tmp_path / "out", "--label", "sex").stdout
    config = load_text(tmp_path, text)
    assert config.names["sampler"] == "full"
    assert (config.colluding, config.joint_noise.pair_noise) == (7, 0.5)
    words = sets(("privacy.epsilon=20", "run.rounds=1"))
    answer = run("check", tmp_path / "declared.toml", *words)
    assert answer.exit_code == 0, answer.output


def test_sites_sum_what_they_hold(tmp_path):
    file = run_file(tmp_path, 'site = "ward"', "sites = 4")
    answer = described(tmp_path, *sets(MASKED), "--json", file=file)
    assert answer.exit_code == 0, answer.output
    stated = json.loads(answer.stdout)
    assert stated["relation"] == ADD_REMOVE
    assert abs(stated["clients"]["value"] - CLIENTS) < 30
    config = load_text(
        tmp_path, run("declare", "--from", tmp_path / "out", "--label", "sex").stdout
    )
    assert (config.source.site, config.data.sites) == ("ward", 4)


def test_public_clients_are_not_described(tmp_path):
    file = run_file(tmp_path, 'holdout = "clients"', "holdout_fraction = 0.5")
    answer = described(tmp_path, "--json", epsilon="inf", file=file)
    public = json.loads((tmp_path / "out" / "report" / "public_clients.json").read_text())
    stated = json.loads(answer.stdout)
    names = next(each for each in public.values() if isinstance(each, list) and each)
    assert stated["clients"]["value"] == pytest.approx(CLIENTS - len(names), abs=0.01)


def test_a_file_may_be_named(tmp_path):
    file = run_file(tmp_path)
    words = ("--epsilon", "2", "--set", SEEDED, *QUICK, "--out", tmp_path / "told.json")
    assert run("describe", file, *words).exit_code == 0
    assert read_statistics(tmp_path / "told.json") == read_statistics(tmp_path / "told")
    again = run("describe", file, *words)
    assert again.exit_code == 2
    assert "exists" in again.output


@every_case(
    ("words", "reason"),
    [
        (("--column", "nobody"), "names 'nobody', but {}/folk.csv has no such column"),
        (("--column", "person"), "is named twice"),
        (("--set", "data.source=digits"), "has no columns by name"),
        (("--set", 'data.population=""'), "data.population is missing"),
        (("--set", 'data.client=""'), "data.client is missing"),
        (("--set", "privacy.mechanism=none"), "released with noise"),
        (("--set", 'data.partition="iid"'), "makes a simulation"),
        (("--set", 'data.holdout="examples"'), "makes a simulation"),
        (("--set", 'data.features={ "w*" = [0, 1] }'), "is a pattern"),
        (("--set", "data.features={ weight = [1, 1] }"), "expected low < high"),
        (("--set", 'data.path="gone.csv"'), "does not exist"),
        (("--set", "cohort.size=1000"), "at most all clients"),
        (
            tuple(sets((*MASKS, "privacy.mechanism=skellam", "aggregation.byzantine=2"))),
            "tolerates none of them",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(tmp_path, words, reason):
    answer = described(tmp_path, *words)
    assert answer.exit_code == 2, answer.output
    assert reason.format(tmp_path) in " ".join(answer.output.split())
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


def test_a_cell_of_somebody_is_not_quoted(tmp_path):
    columns = folk()
    columns["person"][3] = "  Ada Lovelace"
    answer = described(tmp_path, file=run_file(tmp_path, columns=columns))
    assert answer.exit_code == 2
    assert "Lovelace" not in answer.output


def test_a_taken_folder_is_left_alone(tmp_path):
    assert described(tmp_path).exit_code == 0
    before = (tmp_path / "out" / "ledger.jsonl").read_bytes()
    again = described(tmp_path)
    assert again.exit_code == 2
    assert "contains another run" in again.output
    assert (tmp_path / "out" / "ledger.jsonl").read_bytes() == before


@every_case(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("[1, 2]", "is not the output"),
        ('{"format": 9}', "format = 9"),
        ('{"format": 1, "epsilon": 2}', "is not the output"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, text, reason):
    (tmp_path / "statistics.json").write_text(text)
    answer = run("declare", "--from", tmp_path / "statistics.json", "--label", "x")
    assert answer.exit_code == 2
    assert reason in " ".join(answer.output.split())


def test_declaring_needs_one_origin_and_a_known_label(tmp_path):
    described(tmp_path)
    for words in ((), ("--from", tmp_path / "out", tmp_path / "folk.csv")):
        assert run("declare", *words, "--label", "x").exit_code == 2
    answer = run("declare", "--from", tmp_path / "out", "--label", "nobody")
    assert answer.exit_code == 2
    assert "expected one of" in answer.output
    assert run("declare", "--from", tmp_path / "gone", "--label", "x").exit_code == 2


def test_a_run_that_trained_is_no_description(tmp_path):
    from small import trained

    trained(tmp_path / "run")
    answer = run("describe", tmp_path / "run")
    assert answer.exit_code == 2
    assert "is not a run of `privfed describe`" in " ".join(answer.output.split())
    assert run("describe", tmp_path / "run", "--epsilon", "1").exit_code == 2


def test_a_description_that_went_on_is_no_description(tmp_path):
    described(tmp_path)
    again = ("--set", "run.rounds=2", "--set", "privacy.epsilon=9")
    assert run("train", "--resume", tmp_path / "out", *again).exit_code == 0
    answer = run("describe", tmp_path / "out")
    assert answer.exit_code == 2
    assert "was resumed for 2 rounds" in answer.output


def test_a_charge_without_a_release_is_spent(tmp_path, monkeypatch):
    """A crash between the two: nothing is read, and nothing is charged again."""
    from privfed.store.round_logs import Releases

    def crashes(*_):
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Releases, "write", crashes)
        assert described(tmp_path).exit_code != 0
    assert run("describe", tmp_path / "out").exit_code == 2
    assert len(Ledger.load(tmp_path / "out" / "ledger.jsonl").charges) == 1


def test_tables_say_what_was_released(tmp_path):
    answer = described(tmp_path)
    assert "age" in answer.output
    assert "nominal" in answer.output
    assert "privfed declare --from" in answer.output.replace("\n", "")


def test_how_often_a_client_is_counted_changes_the_release_not_its_cost(tmp_path):
    planned = [
        plan(release_run(run_file(tmp_path), (), DescriptionRequest(2.0, None, ("age",), rows)))
        for rows in (1, 50)
    ]
    assert planned[0].event == planned[1].event
    assert planned[0].noise_multiplier == planned[1].noise_multiplier
    assert noise_on_sum(planned[0], 100) == pytest.approx(planned[0].noise_multiplier, rel=1e-3)
    assert math.isclose(planned[0].mechanism.clip, 1.0)


def test_which_of_its_rows_count_is_decided_by_a_clients_own_randomness(tmp_path):
    """Of three rows one counts, each as often: 600 clients, within five standard deviations."""
    clients = 600
    table = {"person": [f"p{n % clients}" for n in range(3 * clients)]}
    place = [n // clients for n in range(3 * clients)]
    source = DescribedTable(
        path=str(written(tmp_path / "rows.csv", **table, place=place)),
        client="person",
        values={"place": [0, 1, 2]},
    )
    x = source.load(clients, Streams(0)).x
    chosen = Counter(x[:, 0].tolist())
    assert len(chosen) == 3
    assert all(abs(count - 200) < 5 * math.sqrt(600 * 2 / 9) for count in chosen.values())
    assert not torch.equal(x, source.load(clients, Streams(1)).x)


def test_a_client_at_several_sites_is_divided_among_them(tmp_path):
    """Half the clip at each of two, so that all its parts together move the sum by one at most."""
    file = run_file(tmp_path, 'site = "ward"', "sites = 4", "sites_per_client = 2")
    config = release_run(file, MASKED, ASKING)
    assert config.data.sites_per_client == 2
    assert plan(config, length=50).mechanism.clip == 0.5


def test_one_client_more_moves_the_sum_by_one_at_most(tmp_path):
    """Whatever it holds: the release on neighbouring tables, without noise."""
    columns = folk()
    mine = [n for n, who in enumerate(columns["person"]) if who == "p7"]
    without = {
        name: [value for n, value in enumerate(values) if n not in mine]
        for name, values in columns.items()
    }
    sums = []
    for name, table in (("with", columns), ("less", without)):
        folder = tmp_path / name
        folder.mkdir()
        written(folder / "unused.csv", **table)
        answer = described(
            folder, "--rows-per-client", "2", epsilon="inf", file=run_file(folder, columns=table)
        )
        assert answer.exit_code == 0, answer.output
        sums.append(released(folder / "out") * CLIENTS)
    moved = np.linalg.norm(sums[0] - sums[1])
    assert 0.3 < moved <= 1.0 + 1e-4
