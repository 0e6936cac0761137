"""Exports give the run's own predictions without privfed, and say which run made them."""

import functools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import built
from lanes import every_case
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tables import AGE, FAST, ILL, SEX, WHO, written

from accounting.ledger import Ledger
from privfed.auditing.prior_runs import priors
from privfed.cli.main import main
from privfed.config.reading import load
from privfed.core.errors import Broken, Busy, Refused
from privfed.data.preprocessing import Category, Numbers, Preprocessing
from privfed.models.form import Form
from privfed.models.recipes import Logistic
from privfed.run.train import train
from privfed.store.lineage import Lineage
from privfed.store.run_directory import RunDirectory
from privfed.store.tensorfile import pack, unpack
from privfed.trained import export_formats
from privfed.trained.export import export
from privfed.trained.export_formats import Preprocess
from privfed.trained.predict import predict
from privfed.trained.stored_model import stored_model
from privfed.trained.synthetic_rows import synthetic_rows


def settings(folder):
    return [
        *("data.source=table", f"data.path={folder / 't.csv'}", "data.client=who", *FAST),
        *("data.label=ill", 'data.labels=["no", "yes"]', "data.clients=12", "privacy.delta=1e-2"),
        *("data.features={age=[18, 94], bmi=[11, 42]}", "data.missing=30.0"),
        'data.categories={sex=["f", "m"], smoker=["no", "yes"]}',
        *("model.name=mlp", "model.hidden=[4]", "model.loss=binary_cross_entropy"),
        *("data.holdout=clients", "data.population=patients"),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose data are gone, and one of which the exports are made."""
    folder = tmp_path_factory.mktemp("export")
    bmi, smoker = [11 + n % 31 for n in range(len(AGE))], ["no"] * 24 + ["yes"] * 24
    written(folder / "t.csv", who=WHO, bmi=bmi, age=AGE, sex=SEX, smoker=smoker, ill=ILL)
    train(load(None, settings(folder)), folder / "run")
    shutil.move(folder / "t.csv", folder / "moved.csv")
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run):
    """The export of each kind, made once."""
    return functools.cache(lambda kind: export(run, run.parent / f"model.{kind}"))


@pytest.fixture
def weights(exported):
    return exported("safetensors").to


def new_rows(folder):
    """As a table, and as the raw columns that an export takes."""
    age, bmi = [30.5, "", 200, 18, -math.inf], [20, 99.5, "", 11.25, -3]
    sex, smoker = ["f", "m", "x", "", "m"], ["yes", "no", "no", "maybe", ""]
    path = written(folder / "new.csv", smoker=smoker, sex=sex, age=age, bmi=bmi)
    empty = {"": math.nan}
    numbers = np.array(
        [[empty.get(each, each) for each in pair] for pair in zip(age, bmi, strict=True)]
    )
    return path, numbers, np.array([[0, 1], [1, 0], [-1, 0], [-1, -1], [1, -1]])


def own(run, path):
    predictions = predict(run, [f"data.path={path}"]).table
    return np.stack([predictions["probability_no"], predictions["probability_yes"]], 1)


READERS = {
    "pt2": """
import json, sys, numpy as np, torch
facts = {"privfed.json": ""}
model = torch.export.load(sys.argv[1], extra_files=facts).module()
given = np.load(sys.argv[2])
found = model(torch.from_numpy(given["numbers"]), torch.from_numpy(given["categories"])).numpy()
facts = json.loads(facts["privfed.json"])
""",
    "onnx": """
import json, sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
(found,) = session.run(None, dict(np.load(sys.argv[2])))
facts = json.loads(session.get_modelmeta().custom_metadata_map["privfed"])
""",
    "safetensors": """
import json, sys, numpy as np, torch
from safetensors import safe_open
with safe_open(sys.argv[1], "pt") as file:
    facts = json.loads(file.metadata()["privfed"])
    weights = {name: file.get_tensor(name) for name in file.keys()}
how, given = facts["preprocessing"], np.load(sys.argv[2])
start, end = how["onto"]
x = []
for column, declared in zip(given["numbers"].T, how["numbers"]):
    low, high = declared["bounds"]
    filled = np.where(np.isnan(column), declared["missing"], column)
    x.append((filled.clip(low, high) - low) * (end - start) / (high - low) + start)
for codes, declared in zip(given["categories"].T, how["categories"]):
    x += [codes == place for place, _ in enumerate(declared["values"])]
x = torch.tensor(np.stack(x, 1), dtype=torch.float32)
linear = torch.nn.Linear
model = torch.nn.Sequential(torch.nn.Flatten(), linear(6, 4), torch.nn.ReLU(), linear(4, 1))
model.load_state_dict(weights)
odds = model(x).detach()[:, 0]
found = torch.stack([(-odds).sigmoid(), odds.sigmoid()], 1).numpy()
""",
}
SINGLE_PROCESS = """
assert not any(name.split(".")[0] in ("privfed", "accounting") for name in sys.modules)
print(json.dumps({"found": found.tolist(), "facts": facts}))
"""


def read_here(kind, *files):
    """What the reader of `kind`, which imports public libraries alone, makes of `files`."""
    space = {}
    code = READERS[kind].replace("sys.argv[1]", repr(str(files[0])))
    with export_formats.quiet(kind):  # libraries' own warnings
        exec(code.replace("sys.argv[2]", repr(str(files[1]))), space)
    return space["found"], space["facts"]


def read_alone(kind, *files):
    """The same in a process of its own, which cannot have loaded privfed."""
    words = [sys.executable, "-c", READERS[kind] + SINGLE_PROCESS, *map(str, files)]
    reader = subprocess.run(words, capture_output=True, text=True, cwd=files[0].parent, check=False)
    assert reader.returncode == 0, reader.stderr
    answer = json.loads(reader.stdout)
    return answer["found"], answer["facts"]


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("reader", [read_here, pytest.param(read_alone, marks=pytest.mark.slow)])
def test_a_program_without_privfed_gets_the_runs_own_numbers(run, exported, tmp_path, kind, reader):
    """The run's data need not be there."""
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    made = exported(kind)
    assert made.checked == 64
    assert made.difference < 1e-6
    path, numbers, codes = new_rows(tmp_path)
    np.savez(tmp_path / "raw.npz", numbers=numbers, categories=codes)
    found, facts = reader(kind, made.to, tmp_path / "raw.npz")
    np.testing.assert_allclose(found, own(run, path), atol=1e-6)
    ledger = Ledger.load(run / "ledger.jsonl")
    assert facts["run"] == ledger.terms["id"]
    assert facts["population"] == ledger.terms["population"]
    assert facts["ledger_head"] == ledger.head().hex()
    assert (facts["unit"], facts["relation"], facts["round"]) == ("client", "add/remove", 3)
    assert 0 < facts["epsilon"] < math.inf
    assert "any one client" in facts["meaning"]
    assert facts["label"]["names"] == ["no", "yes"]
    assert [each["name"] for each in facts["inputs"]] == ["numbers", "categories"]
    assert Lineage.from_json(facts["lineage"]).runs[0].head == facts["ledger_head"]


def test_a_start_from_an_export_is_recognised_wherever_it_lies(run, weights, tmp_path):
    """It counts as a start from the run directory does, and is refused where nothing counts it."""
    shutil.copy(run.parent / "moved.csv", tmp_path / "t.csv")
    start = str(shutil.copy(weights, tmp_path / "renamed.safetensors"))
    keys = [*settings(tmp_path), f"model.init={start}"]
    known = Ledger.load(run / "ledger.jsonl").terms["id"]
    with pytest.raises(Refused, match=rf"by run {known}\).*privacy\.prior = the directory of run"):
        train(load(None, keys), tmp_path / "refused")
    counted = [*keys, f'privacy.prior=["{run}"]', "run.rounds=1", "client.lr=0.0"]
    outcome = train(load(None, counted), tmp_path / "next")
    assert outcome.guarantee.uncovered == ""
    assert outcome.guarantee.rounds == 4
    from_run = [key.replace(start, str(run)) for key in counted]
    assert priors(load(None, counted)) == priors(load(None, from_run))
    bare = tmp_path / "bare.safetensors"
    save_file(load_file(start), bare)
    said = [*settings(tmp_path), f"model.init={bare}", "run.rounds=1"]
    assert priors(load(None, said)).uncovered == "of unknown origin"
    others = [key.replace("data.client=who", "data.client=visitor") for key in keys]
    moved = [key.replace("=patients", "=others").replace("t.csv", "o.csv") for key in others]
    uncovered = priors(load(None, moved)).uncovered
    assert uncovered == f"trained by runs that are not counted: {known}"


def test_an_export_starts_the_same_model(run, weights):
    stored, _ = unpack(run / "checkpoint.safetensors")
    exported = load_file(weights)
    assert exported.keys() == {k.removeprefix("model/") for k in stored if k.startswith("model/")}
    assert all(torch.equal(tensor, stored[f"model/{k}"]) for k, tensor in exported.items())


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_a_program_is_no_start(tmp_path, suffix):
    with pytest.raises(Refused, match="use an export to"):
        built(Logistic(), (4,), init=f"{tmp_path / 'model'}.{suffix}")


def test_what_differs_from_the_runs_own_predictions_is_never_written(run, tmp_path, monkeypatch):
    to = tmp_path / "model.safetensors"

    def off(self, content, what):
        right = self.right(content, what)
        return lambda inputs: right(inputs) + 1e-3

    kind = export_formats.Safetensors
    monkeypatch.setattr(kind, "right", kind.read, raising=False)
    monkeypatch.setattr(kind, "read", off)
    with pytest.raises(Refused, match="gives other predictions than the run"):
        export(run, to)
    assert not [*tmp_path.iterdir()]


@every_case(
    "fault",
    [
        lambda how: how.model_copy(update={"onto": (-1.0, 1.01)}),
        lambda how: how.model_copy(update={"numbers": how.numbers[::-1]}),
        lambda how: how.model_copy(
            update={"numbers": tuple(n.model_copy(update={"missing": 0.0}) for n in how.numbers)}
        ),
        lambda how: how.model_copy(
            update={
                "categories": (
                    Category(column="sex", values=("f",)),
                    Category(column="smoker", values=("m", "no", "yes")),
                )
            }
        ),
    ],
)
def test_wrong_preprocessing_is_noticed_by_the_made_up_rows(run, tmp_path, monkeypatch, fault):
    form = RunDirectory.open(run).checkpoint.form()
    wrong = form.model_copy(update={"preprocessing": fault(form.preprocessing)})
    right = Preprocess.__init__

    monkeypatch.setattr(Preprocess, "__init__", lambda self, how: right(self, wrong.preprocessing))
    with pytest.raises(Refused, match="gives other predictions than the run"):
        export(run, tmp_path / "model.safetensors")
    assert not [*tmp_path.iterdir()]


WORDS = Category(column="s", values=("a", "b"))
HOW = Preprocessing(
    numbers=(Numbers(column="x", bounds=(0.0, 10.0)), Numbers(column="y", bounds=(0.0, 1.0))),
    categories=(WORDS,),
    onto=(-1.0, 1.0),
    shape=(4,),
)


@every_case(
    "changes, refused",
    [
        ({}, [False, True, False, False]),
        ({"clips": False}, [False, True, True, True]),
        (
            {"clips": False, "categories": (WORDS.model_copy(update={"lacks": True}),)},
            [False, True, True, False],
        ),
    ],
)
def test_rows_that_a_run_would_refuse_are_marked(changes, refused):
    numbers = torch.tensor([[5.0, 1.0], [math.nan, 1.0], [11.0, 0.0], [0.0, 0.5]]).double()
    codes = torch.tensor([[1], [0], [0], [-1]])
    x, marked = Preprocess(HOW.model_copy(update=changes))(numbers, codes)
    assert marked.tolist() == refused
    assert x[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert x[3].tolist() == [-1.0, 0.0, 0.0, 0.0]


def test_made_up_rows_hold_every_kind_of_cell(run):
    directory = RunDirectory.open(run)
    form = directory.checkpoint.form()
    network, params, _ = stored_model(run, form.empty())
    found = synthetic_rows(form, directory.config.read().source, network, params)
    numbers, codes = found.inputs
    for column, each in zip(numbers.T, form.preprocessing.numbers, strict=True):
        low, high = each.bounds
        assert column.isnan().any()
        assert (column < low).any()
        assert (column > high).any()
        assert ((column > low) & (column < high)).any()
    assert {*codes.flatten().tolist()} == {-1, 0, 1, 2}
    assert found.expected.std(0).min() > 1e-3, "rows that all give one answer would show nothing"


def test_a_checkpoint_of_an_older_version_is_exported_with_its_data_at_hand(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    tensors, about = unpack(run / "checkpoint.safetensors")
    form = about.pop("form")
    assert Form.model_validate(form, strict=False) == RunDirectory.open(run).checkpoint.form()
    (tmp_path / "run/checkpoint.safetensors").write_bytes(pack(tensors, about))
    with pytest.raises(Refused, match="does not exist"):
        export(tmp_path / "run", tmp_path / "model.safetensors")
    shutil.copy(run.parent / "moved.csv", run.parent / "t.csv")
    found = export(tmp_path / "run", tmp_path / "model.safetensors")
    (run.parent / "t.csv").unlink()
    assert found.facts["preprocessing"] == form["preprocessing"]


PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/predictions_and_exports.md"


@pytest.mark.slow
def test_what_the_page_shows_gives_the_runs_own_predictions(run, exported, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    torch_code, onnx_code = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for kind in ("onnx", "pt2"):
        shutil.copy(exported(kind).to, tmp_path / f"model.{kind}")
    monkeypatch.chdir(tmp_path)
    new = written(tmp_path / "t.csv", age=[71, ""], bmi=[24.5, 50], sex="fm", smoker=["yes", "x"])
    space = {}
    for code in (torch_code, onnx_code):
        exec(code, space)
        probabilities = torch.as_tensor(space["probabilities"]).numpy()
        np.testing.assert_allclose(probabilities, own(run, new), atol=1e-6)
    assert space["facts"]["run"] == Ledger.load(run / "ledger.jsonl").terms["id"]


def test_dates_in_seconds_keep_their_digits(tmp_path):
    """Single precision would know them to two minutes."""
    how = Preprocessing(
        numbers=(Numbers(column="when", bounds=(1.7e9, 1.7e9 + 1000)),),
        onto=(-1.0, 1.0),
        shape=(1,),
    )
    x, _ = Preprocess(how)(torch.tensor([[1.7e9 + 250.5]], dtype=torch.float64))
    assert float(x) == pytest.approx(-0.499, abs=1e-7)


def asked(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_screen_and_the_json_say_what_the_file_takes_gives_and_promises(run, tmp_path):
    shown = " ".join(asked("export", run, "--to", tmp_path / "a.safetensors").stdout.split())
    assert "numbers float64 [rows, 2]: age, bmi" in shown
    assert "categories int64 [rows, 2]: sex, smoker" in shown
    assert "probabilities, float32 [rows, 2]: no, yes" in shown
    assert "the predictions for 64 synthetic rows differ from the run's own" in shown
    assert "for any one client" in shown
    printed = json.loads(asked("export", run, "--to", tmp_path / "b.safetensors", "--json").stdout)
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["privfed"])
    assert {key: printed[key] for key in facts} == facts
    assert printed["bytes"] == (tmp_path / "b.safetensors").stat().st_size
    assert "t.csv" not in json.dumps(facts), "paths of this machine are nobody's business"


@every_case(
    "to, message",
    [
        ("model.pkl", "ends in .safetensors, .pt2, .onnx"),
        ("gone/model.pt2", "the folder gone is missing"),
        ("run/checkpoint.safetensors", "exists; nothing was changed"),
    ],
)
def test_places_that_an_export_cannot_have_are_refused(run, monkeypatch, to, message):
    monkeypatch.chdir(run.parent)
    before = (run / "checkpoint.safetensors").read_bytes()
    result = asked("export", "run", "--to", to)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (run / "checkpoint.safetensors").read_bytes() == before


def test_runs_that_prove_nothing_are_not_exported(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    to = tmp_path / "model.safetensors"
    (tmp_path / "run/checkpoint.safetensors").unlink()
    with pytest.raises(Refused, match="has no checkpoint"):
        export(tmp_path / "run", to)
    shutil.copy(run / "checkpoint.safetensors", tmp_path / "run")
    ledger = tmp_path / "run/ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"charge"', b'"chrage"', 1))
    with pytest.raises(Broken, match="proves no guarantee"):
        export(tmp_path / "run", to)
    assert asked("export", tmp_path / "run", "--to", to).exit_code == 5
    assert asked("export", tmp_path, "--to", to).exit_code == 2
    assert not to.exists()


def test_a_model_that_a_format_cannot_hold_is_refused_with_what_would_work():
    def unknown():
        raise ValueError("secret")

    with pytest.raises(Refused, match=r"as an ONNX graph \(ValueError\); export the model") as no:  # noqa: SIM117
        with export_formats.quiet("an ONNX graph"):
            unknown()
    assert (no.value.private, "secret" in str(no.value)) == ("secret", False)
    with pytest.raises(Refused, match=r"pip install 'privfed\[onnx\]'"), export_formats.quiet("x"):
        raise ImportError("no module", name="onnx")


class Held(torch.nn.Module):
    """A frozen normalisation, a layer that is used twice, dropout, and logits in a mapping."""

    def __init__(self, features, width):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(features[0])
        self.conv = torch.nn.Conv2d(features[0], features[0], 3, padding=1)
        self.drop, self.head = torch.nn.Dropout(0.3), torch.nn.Linear(features[0], width)

    def forward(self, x):
        hidden = self.conv(self.conv(self.norm(x)).relu()).mean((2, 3))
        return {"hidden": hidden, "logits": self.head(self.drop(hidden))}


IMAGES = ("data.features={image=[0, 255]}", "data.label=y", "data.classes=3", "data.path=PATH.npz")
NUMBERS = ("data.path=PATH.csv", "data.features={a=[0, 1], b=[0, 1]}", 'data.categories={s=["f"]}')
MODELS = {
    "images": ("model.name=cnn", "model.channels=[4]", *IMAGES),
    "own": (f"model.name={__name__}:Held", "model.output=logits", "model.frozen=['norm']", *IMAGES),
    "several labels": (
        *('data.label=["y0", "y1"]', "model.loss=multi_label", "model.k=1", "data.missing=0.5"),
        *NUMBERS,
    ),
    "a number": (
        *("data.label=z", "data.label_bounds=[0, 100]", "model.loss=squared_error"),
        *(*NUMBERS, "data.outside=refuse", 'data.categories={s=["f", "m"]}'),
    ),
    "words alone": (*NUMBERS, "data.label=y0", "data.classes=2", "data.features={}"),
    "a pattern": (*NUMBERS, "data.label=y0", "data.classes=2", 'data.features={"[ab]"=[0, 1]}'),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_every_kind_are_exported_to_every_format(tmp_path, name):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 60)).round(2)
    who = [f"c{n % 12}" for n in range(60)]
    labels = {"y0": (a > 0.5).astype(int), "y1": (b > 0.5).astype(int), "z": (100 * a).round(1)}
    written(tmp_path / "t.csv", who=who, a=a, b=b, s=["f", "m"] * 30, **labels)
    images = rng.integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "t.npz", image=images, y=rng.integers(0, 3, 60), who=who)
    keys = [key.replace("PATH", str(tmp_path / "t")) for key in MODELS[name]]
    keys += ["data.source=table", "data.client=who", "data.clients=12", "data.holdout=clients"]
    train(load(None, [*keys, "privacy.delta=1e-2", *FAST]), tmp_path / "run")
    for suffix in ("safetensors", "pt2", "onnx"):
        assert export(tmp_path / "run", tmp_path / f"model.{suffix}").difference < 1e-4


@pytest.mark.slow
def test_text_is_exported_to_every_format(tmp_path):
    lines = (f"S{n % 6}:\nto be or not to be that is the question number {n}" for n in range(60))
    (tmp_path / "play.txt").write_text("\n\n".join(lines))
    keys = ["data.source=text", f"data.path={tmp_path / 'play.txt'}", "data.clients=6"]
    keys += ["data.window=10", "model.name=lstm", "model.hidden=8", "data.holdout=clients", *FAST]
    train(load(None, [*keys, "cohort.size=3", "privacy.delta=1e-2"]), tmp_path / "run")
    for suffix in ("safetensors", "pt2", "onnx"):
        found = export(tmp_path / "run", tmp_path / f"model.{suffix}")
        assert found.facts["inputs"] == [{"name": "x", "dtype": "int64", "shape": ["rows", 10]}]
        assert found.facts["output"]["shape"] == ["rows", 10, 98]


def test_a_run_that_goes_on_is_not_exported(run, tmp_path):
    """What is said of it and its weights would be of different rounds."""
    with RunDirectory.open(run).locked(), pytest.raises(Busy, match="in use"):
        export(run, tmp_path / "model.safetensors")
    assert not any(tmp_path.iterdir())
