"""What was meant: names by fewest slips, mistakes in the file's words, errors in one's own code."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from lanes import every_case

import privfed
from privfed.cli.main import main
from privfed.config.mistakes import OTHER_NAMES
from privfed.config.reading import load
from privfed.config.sections import SECTIONS
from privfed.core import text
from privfed.core.errors import Refused
from privfed.core.own_code import own_frames
from privfed.core.parts import find
from privfed.core.registry import BUILT_IN, OTHER_PARTS
from privfed.core.text import distance, nearest
from privfed.deploy.files.data_file import SiteTable
from privfed.deploy.files.federation_file import FederationFile
from privfed.deploy.site.policy import LocalPolicy
from privfed.grid.load import load_grid

COLUMNS = ["mean_radius", "mean_texture", "mean perimeter", "worst_perimeter", "perimeter_error"]
SHORT = st.text("ab_ C", max_size=6)


@every_case(
    "written, known, meant",
    [
        ("mean_perimeter", COLUMNS, "mean perimeter"),
        ("perimeter_mean", COLUMNS, "mean perimeter"),
        ("mean_perimetre", ["mean_texture", "mean_perimeter"], "mean_perimeter"),
        ("Label", ["table", "label"], "label"),
        ("lrr", ["lr", "mu"], "lr"),
        ("xy", ["ab", "lr"], None),
        ("a", ["b", "c"], None),
        ("", ["b"], None),
        ("entirely_other", COLUMNS, None),
        ("same", [], None),
        ("fnag", ["fang", "flag"], "fang"),
    ],
)
def test_the_nearest_name_is_meant(written, known, meant):
    assert nearest(written, known) == meant


@given(SHORT, SHORT)
def test_distance_is_symmetric_and_zero_for_the_same(one, other):
    assert distance(one, one) == 0
    assert distance(one, other) == distance(other, one)
    assert distance(one, other) <= max(len(one), len(other)) + 1


@given(st.text("abc", min_size=2, max_size=8), st.data())
def test_one_slip_counts_one(name, data):
    at = data.draw(st.integers(0, len(name) - 2))
    swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    left_out = name[:at] + name[at + 1 :]
    assert distance(name, swapped) == (name != swapped)
    assert distance(name, left_out) == 1


TABLE = ("source=table", "path=t.csv", "client=c", "label=y", "classes=2", "clients=3")


@every_case(
    "given, message",
    [
        ("missing=no", r"data\.missing is 'no'; expected .*'refuse'.* or "),
        ("missing=true", r"data\.missing is True; expected .*'refuse'"),
        ("label=3", r"data\.label is 3; expected text or a list$"),
        ("label=[1]", r"data\.label\.0 is 1; expected text$"),
        ("features={a=[1]}", r"data\.features\.a is \[1\]; expected at least 2 entries$"),
        ("features={a='b'}", r"data\.features\.a is 'b'; expected a list$"),
        (
            "categories={s=[1.5]}",
            r"data\.categories\.s\.0 is 1\.5; expected text, an integer or true",
        ),
        ("outside=clipp", r"data\.outside is 'clipp'; expected .* \(did you mean 'clip'\?\)$"),
    ],
)
def test_values_of_several_kinds_are_told_in_the_files_words(given, message):
    with pytest.raises(Refused, match=message) as refused:
        load(None, [f"data.{key}" for key in (*TABLE, given)])
    said = str(refused.value)
    assert refused.value.key.startswith(f"data.{given.partition('=')[0]}")
    for internal in ("literal[", "dict[", "list[", "Input", "valid ", "pydantic", "Value error"):
        assert internal not in said


OWN = {
    "build": "def build(features, width):\n    return inner(width)\n\n\ndef inner(width):\n"
    "    raise KeyError('hidden size')\n",
    "forward": "import torch\n\n\nclass build(torch.nn.Module):\n"
    "    def __init__(self, features, width):\n        super().__init__()\n"
    "        self.layer = torch.nn.Linear(features[0], width)\n\n    def forward(self, x):\n"
    "        return self.layer(x.nothing)\n",
    "module": "raise OSError('weights are not here')\n",
}
LINES = {"build": (2, 6), "forward": (10,), "module": (1,)}


@every_case("where", OWN)
def test_an_error_in_a_users_model_shows_their_frames_and_no_others(tmp_path, monkeypatch, where):
    (tmp_path / f"own_{where}.py").write_text(OWN[where])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(main, ["check", "--set", f"model.name=own_{where}:build"])
    assert result.exit_code == 2
    assert "in your own code:" in result.stderr
    for line in LINES[where]:
        assert f'own_{where}.py", line {line}, in ' in result.stderr
    assert result.stderr.count('File "') == len(LINES[where])


def test_an_error_in_a_users_loader_shows_their_frames_alone_and_its_text_on_request(
    tmp_path, monkeypatch
):
    (tmp_path / "own_loader.py").write_text(
        "from privfed.data.sources.digits import Digits\n\n\nclass Source(Digits):\n"
        "    def load(self, clients, streams):\n        x = {}\n"
        "        return x['patient ' + '7']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["check", "--set", "data.source=own_loader:Source"]
    quiet = CliRunner().invoke(main, words)
    assert quiet.exit_code == 1
    assert 'own_loader.py", line 7, in load' in quiet.stderr
    assert "KeyError in your own code" in quiet.stderr
    assert quiet.stderr.count('File "') == 1
    assert "patient 7" not in quiet.output
    assert "patient 7" in CliRunner().invoke(main, [*words, "--show-values"]).stderr


def test_frames_of_libraries_are_nobodys_own():
    try:
        load(None, ["client.lr=x"])
    except Refused as error:
        frames = own_frames(error)
    assert "privfed/config/config.py" not in frames
    assert "test_suggestions.py" in frames


UNKNOWN = "\n".join(f"unknown_{number} = {number}" for number in range(5000))


@every_case(
    "read, table",
    [
        (load, "[client]"),
        (load, "[model.lora]\nrank = 2"),
        (load_grid, ""),
        (LocalPolicy.read, "[budget]"),
        (SiteTable.read, ""),
        (FederationFile.read, "[sites]"),
    ],
    ids=["run file", "table in a run file", "grid", "policy", "data file", "federation"],
)
def test_of_thousands_of_mistakes_ten_are_reported_and_the_others_counted(
    tmp_path, monkeypatch, read, table
):
    """Also in time: what was meant is looked for ten times, since each search takes long."""
    path, searches = tmp_path / "many.toml", []

    def counted(name, other):
        searches.append(name)
        return distance(name, other)

    monkeypatch.setattr(text, "distance", counted)
    path.write_text(f"{table}\n{UNKNOWN}\n")
    with pytest.raises(
        Refused, match=r"49\d\d more mistakes follow; correct these first"
    ) as refusal:
        read(path)
    assert len(str(refusal.value).splitlines()) <= 11
    assert len(set(searches)) <= 10


def test_a_name_that_is_far_too_long_is_not_compared(monkeypatch):
    monkeypatch.delattr(text, "_slips")
    assert nearest("momentum" * 10_000, ["momentum", "lr"]) is None


SAID = {other: key for key, others in OTHER_NAMES.items() for other in others.split()}


def test_other_libraries_names_lead_to_keys_and_parts_that_exist():
    keys = {
        f"{name}.{key}"
        for name, section in SECTIONS.items()
        for key in {*section.keys.model_fields, *section.parts}.union(
            *(
                find(kind, part, name).model_fields
                for kind, _ in section.parts.values()
                for part in BUILT_IN[kind]
            )
        )
    }
    assert OTHER_NAMES.keys() <= keys
    assert not SAID.keys() & {key.rpartition(".")[2] for key in keys}
    for kind, names in OTHER_PARTS.items():
        others = " ".join(names.values()).split()
        assert names.keys() <= BUILT_IN[kind].keys()
        assert len(set(others)) == len(others)
        assert not {*others} & {part.replace("_", "") for part in BUILT_IN[kind]}


@pytest.mark.parametrize("other", SAID)
def test_another_librarys_name_of_a_key_is_understood_wherever_it_is_written(tmp_path, other):
    key, (section, name) = SAID[other], SAID[other].split(".")
    (tmp_path / "run.toml").write_text(f"[{section}]\n{other} = 1\n")
    for call in ((tmp_path / "run.toml",), (None, [f"{section}.{other}=1"])):
        with pytest.raises(Refused, match=rf"did you mean .*'{key}'.*\?"):
            load(*call)
    with pytest.raises(Refused, match=f"e.g. .*{name}=1"):
        load(None, [f"{other}=1"])
    with pytest.raises(Refused, match=rf"pass .*({name}=…|{section}=dict\({name}=…\))"):
        privfed.check(**{other: 1})
    flag = f"--{other.replace('_', '-')}"
    assert f"--set {key}=…" in CliRunner().invoke(main, ["train", flag, "1"]).stderr


@pytest.mark.parametrize(
    "key, written, meant",
    [
        ("server.optimizer", "SGD", "fedavg"),
        ("server.optimizer", "fed_avg", "fedavg"),
        ("aggregation.rule", "Krum2", "krum"),
        ("aggregation.rule", "Coordinate-Median", "median"),
        ("secure.protocol", "SecAgg+", "masks"),
        ("model.loss", "MSELoss", "squared_error"),
    ],
)
def test_another_librarys_name_of_a_part_is_understood(key, written, meant):
    section, name = key.split(".")
    with pytest.raises(Refused, match=f"did you mean '{meant}'"):
        privfed.check(**{section: {name: written}})


def test_calibrate_understands_them_too():
    with pytest.raises(Refused, match="it is 'noise_multiplier' here"):
        privfed.calibrate(delta=1e-5, sigma=1.0)
    ended = CliRunner().invoke(main, ["calibrate", "--num-clients", "5"])
    assert "Did you mean '--population'?" in ended.stderr
    assert "'--json'" in CliRunner().invoke(main, ["train", "--jsn"]).stderr
