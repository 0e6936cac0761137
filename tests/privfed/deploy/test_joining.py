"""Which runs a site declines as they are declared: each reason has its fixed word."""

import sys
from dataclasses import replace

import pytest
from hospitals import POLICY, data_text, hospitals
from small import small

from accounting.documents import from_toml
from accounting.ledger import Ledger
from privfed.config.config import digest
from privfed.core.errors import Refused
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.messages.envelope import Kind, Reply, read_answer
from privfed.deploy.site import joining, site_setup
from privfed.deploy.site.policy import Code, Declined

SEEDED = "run.randomness=seeded"
DECLINED = {
    Code.SIMULATION: (("simulation = true", "simulation = false"), (SEEDED,)),
    Code.PROTOCOL: (('threat = "curious"', 'threat = "curious"\nprotocols = ["none"]'), ()),
    Code.MECHANISM: (("sites = 2", 'sites = 2\nmechanisms = ["discrete_gaussian"]'), ()),
    Code.THREAT: (('threat = "curious"', 'threat = "malicious"'), ()),
    Code.SITES: (("sites = 2", "sites = 4"), ()),
    Code.DELTA: (("delta = 1e-3", "delta = 1e-6"), ()),
    Code.BUDGET: ((), ("privacy.epsilon=inf",)),
    Code.OBJECTIVE: (('"sgd", "fedprox", "feddane"', '"fedprox"'), ()),
    Code.MODEL: (("[allow]", '[allow]\nmodels = ["mlp"]'), ()),
    Code.PARAMETERS: (("[allow]", "[allow]\nparameters = 3"), ()),
    Code.RELEASE: (('releases = ["training", "evaluation"]', 'releases = ["statistics"]'), ()),
    Code.DEADLINE: (("simulation = true", "simulation = false"), ("secure.deadline=0.000001",)),
}
"""By its word: a change of the policy, and keys of the run."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("joining") / "sites")


@pytest.fixture
def folder(made):
    """Site 0's, whose policy and data are put right again."""
    folder = made.folder(0)
    yield folder
    folder.policy.write_text(POLICY)
    folder.data.write_text(data_text(made.table("h0")))


def answered(made, declaration):
    message = made.signed(Kind.DECLARATION, declaration.run, declaration.encode())
    return read_answer(made.agent(0).answer(message))


def reopened(made, declaration, text):
    """The declaration of another run file, with a ledger that was opened for it."""
    path = made.root / f"reopened{len(list(made.root.glob('reopened*')))}.jsonl"
    Ledger.create(path, {"config": digest(from_toml(text))})
    return replace(declaration, opening=path.read_bytes().split(b"\n")[0], text=text)


def test_a_run_that_keeps_to_the_policy_is_joined(made, folder):
    declaration, _ = made.declaration()
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)


UNSEEN = ("data.test_path=", "data.holdout=none")
BY_CLIENTS = ("evaluation.by=clients", "evaluation.every=2")
BINARY = "model.loss=binary_cross_entropy"
SEXES = ("data.features={age=[18,94]}", 'data.categories={bmi=["25","26"]}')
GROUPED = ("evaluation.group=bmi", *SEXES)
STAND_INS = {
    "two classes": (BINARY,),
    "two classes, nothing public": (BINARY, *UNSEEN),
    "two classes, by clients": (BINARY, *BY_CLIENTS),
    "two classes, by clients alone": (BINARY, *UNSEEN, *BY_CLIENTS),
    "groups": GROUPED,
    "groups, by clients alone": (*GROUPED, *UNSEEN, *BY_CLIENTS),
    "groups beside a pattern": (*GROUPED, "data.features={'a*'=[18,94]}", *BY_CLIENTS),
    "clients' groups": (*SEXES, "client.objective=afl", "client.group=bmi", "client.groups=3"),
}


@pytest.mark.parametrize("case", STAND_INS)
def test_no_run_is_declined_for_what_examples_are_that_stand_for_nobodys(made, folder, case):
    """Those by which a site builds the model: of one class, and in no group."""
    folder.policy.write_text(POLICY.replace('"feddane"]', '"feddane", "afl"]'))
    keys = STAND_INS[case]
    declaration, _ = made.declaration(*keys)
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)


LABELS = ("compression.name=soft_labels", "compression.examples=12", "compression.classes=2")


def test_clients_models_are_checked_before_any_is_built(made, folder, monkeypatch):
    declaration, _ = made.declaration(*LABELS, 'compression.models=["logistic", "mlp"]')
    assert answered(made, declaration) == (Reply.ANSWERED, declaration.run)
    folder.policy.write_text(POLICY.replace("[allow]", '[allow]\nmodels = ["logistic"]'))
    real = joining.bare_setup

    def without_client_models(config, *facts):
        assert not config.compression.architectures, "a client's model is built"
        return real(config, *facts)

    monkeypatch.setattr(joining, "bare_setup", without_client_models)
    assert answered(made, declaration) == (Reply.DECLINED, b"model")


def test_public_examples_are_declared_and_not_too_many(made, folder, monkeypatch):
    declaration, _ = made.declaration(*LABELS)
    assert answered(made, replace(declaration, constants={})) == (Reply.DECLINED, b"proof")
    monkeypatch.setattr(site_setup, "_MOST_FEATURES", 23)
    assert answered(made, declaration) == (Reply.DECLINED, b"proof")


@pytest.mark.parametrize("code", DECLINED)
def test_what_a_policy_does_not_allow_is_declined_by_its_word(made, folder, code):
    change, keys = DECLINED[code]
    declaration, _ = made.declaration(*keys)
    if change:
        assert change[0] in POLICY
        folder.policy.write_text(POLICY.replace(*change))
    before = folder.receipts.read_bytes()
    assert answered(made, declaration) == (Reply.DECLINED, code.value.encode())
    assert folder.receipts.read_bytes() == before
    assert not (folder.state / declaration.run.hex()).exists()


def test_a_run_about_no_table_is_declined(made, folder):
    declaration, _ = made.declaration()
    with pytest.raises(Declined) as declined:
        made.member(0).accepted(small().toml(), declaration.examples, None)
    assert declined.value.code == Code.SOURCE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = ",
        "[run]\nrounds = 'many'\n",
        "[run]\nrounds = 4\n[privacy]\n",
        "\x00",
    ],
)
def test_what_is_no_run_file_is_declined(made, folder, text):
    """Also where the ledger cites it: only what a run file is can be cited."""
    declaration, _ = made.declaration()
    with pytest.raises(Declined) as declined:
        made.member(0).accepted(text, declaration.examples, None)
    assert declined.value.code in (Code.PART, Code.PROOF, Code.SOURCE)
    assert answered(made, replace(declaration, text=text)) == (Reply.DECLINED, b"run")


def test_no_module_that_a_run_file_names_is_imported(made, folder, monkeypatch, tmp_path):
    """Neither a model nor any other part, whatever the ledger cites."""
    (tmp_path / "foreign29.py").write_text("raise SystemExit('its code ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    declaration, _ = made.declaration()
    for old, new, code in (
        ('objective = "sgd"', 'objective = "foreign29:make"', b"part"),
        ('name = "logistic"', 'name = "foreign29:make"', b"model"),
        ('rule = "mean"', 'rule = "foreign29:make"', b"part"),
        ('source = "table"', 'source = "foreign29:make"', b"part"),
    ):
        assert declaration.text.count(old) == 1, old
        foreign = reopened(made, declaration, declaration.text.replace(old, new))
        assert answered(made, foreign) == (Reply.DECLINED, code)
    assert "foreign29" not in sys.modules


def test_a_combination_without_proof_is_declined(made, folder):
    declaration, _ = made.declaration()
    text = declaration.text.replace('rule = "mean"', 'rule = "krum"')
    assert text != declaration.text
    reply, word = answered(made, reopened(made, declaration, text))
    assert (reply, word) == (Reply.DECLINED, b"proof")


DATA = {
    "population": ('population = "stays"', 'population = "our stays"'),
    "path": ("path = ", "paht = "),
    "clients": ("clients = 20", "clients = 0"),
    "rows": ("rows = 5", "rows = 0"),
    "delimiter": ("rows = 5", 'rows = 5\ndelimiter = ";;"'),
    "decimal": ("rows = 5", 'rows = 5\ndecimal = "-"'),
    "encoding": ("rows = 5", 'rows = 5\nencoding = "utf-99"'),
    "threads": ("rows = 5", "rows = 5\nthreads = 0"),
    "format": ("rows = 5", "rows = 5\nformat = 9"),
    "cients": ("rows = 5", "rows = 5\ncients = 9"),
}


@pytest.mark.parametrize("key", DATA)
def test_mistakes_in_data_toml_are_refused_by_file_and_key(made, folder, key):
    text = data_text(made.table("h0"))
    assert DATA[key][0] in text
    folder.data.write_text(text.replace(*DATA[key]))
    with pytest.raises(Refused) as refused:
        SiteTable.read(folder.data)
    assert str(folder.data) in str(refused.value)
    assert key in str(refused.value)
    with pytest.raises(Refused):
        made.member(0)


def test_all_mistakes_of_data_toml_come_at_once_and_a_missing_key_is_named(made, folder):
    folder.data.write_text('population = "stays"\nclients = 0\nrows = "few"\n')
    with pytest.raises(Refused) as refused:
        SiteTable.read(folder.data)
    for key in ("path", "clients", "rows"):
        assert key in str(refused.value)


def test_a_path_is_relative_to_the_file_and_says_whose_the_rest_is(made, folder):
    folder.data.write_text(
        'population = "a"\nclient = "patient"\npath = "../h0.csv"\nclients = 9\nrows = 2\n'
    )
    table = SiteTable.read(folder.data)
    assert table.path == str(folder.path / "../h0.csv")
    assert table.settled["site"] == table.settled["test_path"] == ""
