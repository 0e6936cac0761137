"""A run directory from anybody: no code that it names runs unless its ledger vouches for it."""

import functools
import itertools
import json
import shutil
import tomllib

import pytest
import tomli_w
from click.testing import CliRunner
from lanes import mostly_slow
from safetensors import safe_open
from safetensors.torch import save_file
from small import SMALL, trained

from accounting import chain
from privfed.cli.main import main
from privfed.config.reading import keys_of_outside_parts
from privfed.config.sections import SECTIONS
from privfed.core.errors import Refused
from privfed.core.registry import BUILT_IN, LISTS
from privfed.store.config_file import ConfigFile
from privfed.store.lineage import Origin, _completed
from privfed.store.run_directory import RunDirectory

SETTINGS = [word for option in SMALL for word in ("--set", option)]


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    trained(path, "run.rounds=2")
    return path


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def touching(mark):
    return f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """The mark that importing the module `evil` leaves."""
    mark = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"{touching(mark)}Model = Server = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    return mark


def name_evil(path, what='"logistic"', by='"evil:Model"'):
    text = (path / "config.toml").read_text()
    assert what in text
    (path / "config.toml").write_text(text.replace(what, by))


COMMANDS = {
    "evaluate": ("evaluate", "RUN"),
    "evaluate on other data": ("evaluate", "RUN", "--set", "data.clients=3"),
    "personalise": ("evaluate", "RUN", "--personalise", 1),
    "resume": ("train", "--resume", "RUN"),
    "resume for more": ("train", "--resume", "RUN", "--set", "run.rounds=9"),
    "audit": ("audit", "RUN"),
    "report": ("report", "RUN"),
    "audit of two": ("audit", "RUN", "RUN"),
    "membership": ("attack", "membership", "RUN", "--shadows", 4),
    "inversion": ("attack", "inversion", "RUN"),
    "property": ("attack", "property", "RUN", "--property", "label=1"),
    "counted": ("train", *SETTINGS, "--set", 'privacy.prior=["RUN"]', "--out", "OUT"),
    "started from": ("train", *SETTINGS, "--set", "model.init=RUN", "--out", "OUT"),
}
STARTS = ("property", "started from")
"""Those that may go on without reading the configuration, or be refused for their options."""


@pytest.mark.parametrize("name", COMMANDS)
def test_an_edited_directory_has_nothing_imported(copy, evil, name):
    name_evil(copy)
    words = [str(word).replace("RUN", str(copy)) for word in COMMANDS[name]]
    ended = run(*[word.replace("OUT", str(evil.parent / "out")) for word in words])
    assert not evil.exists(), "its code ran"
    assert ended.exit_code in ((0, 2, 5) if name in STARTS else (2, 5)), ended.output
    assert ended.exit_code == 5 or name in (*STARTS, "counted"), ended.output


def test_code_runs_where_the_ledger_vouches_for_it(tmp_path, monkeypatch):
    """The check of the check: the same module is imported by a run that was trained with it."""
    mark = tmp_path / "imported"
    (tmp_path / "honest.py").write_text(
        "from privfed.models.recipes import Logistic\n"
        f"{touching(mark)}class Model(Logistic): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trained(tmp_path / "run", "model.name=honest:Model", "run.rounds=1")
    assert mark.exists()
    assert run("evaluate", tmp_path / "run").exit_code == 0
    name_evil(tmp_path / "run", "format = 1", "format = 1\n")  # other bytes, the same meaning
    assert run("evaluate", tmp_path / "run").exit_code == 0


def test_a_directory_that_never_began_imports_nothing_from_outside(copy, evil):
    (copy / "ledger.jsonl").unlink()
    stored = ConfigFile.in_folder(copy).read()
    assert stored.names["model"] == "logistic"
    for what, by in (('"logistic"', '"evil:Model"'), ('"fedavgm"', '"evil:Server"')):
        name_evil(copy, what, by)
        with pytest.raises(Refused, match=r"model\.name.* would import code"):
            RunDirectory.open(copy).config.read()
    name_evil(copy, '"evil:Model"', '"logistic"')
    name_evil(copy, "before = []", 'before = ["evil:Rule"]')
    with pytest.raises(Refused, match=r"server\.optimizer, aggregation\.before in its"):
        RunDirectory.open(copy).config.read()
    assert run("train", "--resume", copy).exit_code == 2
    assert not evil.exists()


def test_a_first_line_that_was_edited_with_it_vouches_for_nothing(copy, evil):
    before = RunDirectory(copy).config.digest()
    name_evil(copy)
    ledger = copy / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace(before, RunDirectory(copy).config.digest()))
    for words in (("evaluate", copy), ("audit", copy), ("train", "--resume", copy)):
        assert run(*words).exit_code == 5
    first, *rest = [json.loads(line) for line in ledger.read_text().splitlines()]
    first.pop("hash")
    sealed, _ = chain.sealed(chain.START, first)  # as whoever edited it would have done
    lines = ledger.read_bytes().splitlines(keepends=True)
    for after in (lines[1:], []):
        ledger.write_bytes(sealed + b"".join(after))
        for words in (("evaluate", copy), ("audit", copy), ("train", "--resume", copy)):
            assert run(*words).exit_code == 5
    assert rest
    assert not evil.exists()


def test_what_made_a_start_is_not_asked_of_an_edited_configuration(copy, evil):
    """An older ledger does not state its sources, which follow from the configuration."""
    older = Origin("id", {"unit": "somebody"}, "head")
    assert "sources" in _completed(older, copy)
    name_evil(copy)
    assert _completed(older, copy) == older.population
    assert not evil.exists()


def test_whatever_key_names_a_part_from_outside_is_seen(finished):
    text = (finished / "config.toml").read_text()
    assert keys_of_outside_parts(text, "it") == []
    for name, section in SECTIONS.items():
        for key in section.parts:
            document = tomllib.loads(text)
            table = functools.reduce(dict.__getitem__, name.split("."), document)
            table[key] = "evil:Part"
            assert keys_of_outside_parts(tomli_w.dumps(document), "it") == [f"{name}.{key}"]
    for kind, place in LISTS.items():
        document = tomllib.loads(text)
        section, _, key = place.partition(".")
        document[section][key] = [*BUILT_IN[kind], "evil:Part"]
        assert keys_of_outside_parts(tomli_w.dumps(document), "it") == [place]


NESTED = "[" * 900 + "]" * 900
FILES = ("ledger.jsonl", "config.toml", "metrics.jsonl", "aborts.jsonl", "report/summary.json")


@pytest.mark.parametrize(
    ("name", "content"),
    mostly_slow(
        itertools.product(
            [*FILES, "report/public_clients.json", "checkpoint.safetensors"], [NESTED, "[]"]
        ),
        *((name, NESTED) for name in (*FILES, "checkpoint.safetensors")),
        ("report/public_clients.json", "[]"),
    ),
)
def test_no_file_of_a_directory_ends_in_a_traceback(copy, name, content):
    if name == "checkpoint.safetensors":
        with safe_open(copy / name, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        save_file(tensors, copy / name, {"privfed": content})
    elif name == "config.toml":
        (copy / name).write_text(f"format = {content}\n")
    else:
        (copy / name).write_text(f"{content}\n")
    commands = (("audit", copy), ("report", copy), ("evaluate", copy))
    for words in (*commands, ("train", "--resume", copy)):
        ended = run(*words, "--json")
        assert ended.exit_code in (0, 2, 5), ended.output
        assert not ended.stdout or json.loads(ended.stdout.splitlines()[-1])


def test_no_run_file_or_grid_ends_in_a_traceback(tmp_path):
    for text in (f"format = {NESTED}", f"[run]\nrounds = {NESTED}", "a." * 2000 + "b = 1"):
        (tmp_path / "some.toml").write_text(text)
        for command in ("train", "check", "experiment"):
            ended = run(command, tmp_path / "some.toml")
            assert ended.exit_code == 2
            assert "nested more than 100 levels" in ended.stderr
    assert run("check", "--set", f"run.rounds={NESTED}").exit_code == 2
