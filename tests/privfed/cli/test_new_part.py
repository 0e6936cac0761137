"""`privfed new part`: a module of every kind that loads, passes its written test, and trains."""

import importlib
import re
import sys

import pytest
from commands import run
from lanes import every_case, mostly_slow

from privfed.client.objectives.fedprox import FedProx
from privfed.core.errors import Refused
from privfed.core.registry import BUILT_IN
from privfed.testing import check_part


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder whose modules are imported, and forgotten afterwards."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in {*sys.modules} - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run_written_test(folder, name):
    """Runs the test that was written for the part."""
    importlib.invalidate_caches()
    importlib.import_module(f"test_{name}").test_it_keeps_the_contract_of_its_kind(folder / "runs")


@pytest.mark.parametrize("kind", mostly_slow(BUILT_IN, "optimizer"))
def test_a_written_part_of_every_kind_passes_its_own_test(kind, here):
    written = run("new", "part", kind, f"mine_{kind}")
    assert written.exit_code == 0, written.output
    text = (here / f"mine_{kind}.py").read_text()
    assert max(map(len, text.split("from ")[0].splitlines())) <= 100
    assert "return super()." in text, "it overrides no hook"
    assert len(text.splitlines()) < 200
    run_written_test(here, f"mine_{kind}")


def test_a_hook_that_breaks_the_contract_fails_the_written_test(here):
    assert run("new", "part", "optimizer", "backwards").exit_code == 0
    module = here / "backwards.py"
    text = module.read_text()
    step = "return super().step(params, delta, state)"
    module.write_text(text.replace(step, "return params - self.lr * delta, state"))
    with pytest.raises(AssertionError, match="Backwards fails: moves along the first update"):
        run_written_test(here, "backwards")


def test_an_error_of_a_hook_names_the_part_and_the_check(here):
    assert run("new", "part", "optimizer", "faulty").exit_code == 0
    module = here / "faulty.py"
    step = "return super().step(params, delta, state)"
    module.write_text(module.read_text().replace(step, "return params + self.rate * delta, state"))
    with pytest.raises(
        AssertionError, match=r"Faulty fails: steps are pure: AttributeError: .*rate"
    ):
        run_written_test(here, "faulty")


class Unproven(FedProx):
    """An objective whose privacy is not proved."""

    unproven = "it has no proof"


def test_the_keys_that_a_checked_part_needed_are_returned(tmp_path):
    assert check_part("objective", FedProx(mu=0.1), tmp_path / "private") == {}
    needed = check_part("objective", Unproven(), tmp_path / "open")
    assert needed["privacy.mechanism"] == "none"


def test_a_guessed_hook_fails_the_written_test(here):
    assert run("new", "part", "attack", "guess", "--like", "sign_flip").exit_code == 0
    text = (here / "guess.py").read_text().replace("def corrupt(", "def corrupt_rows(")
    (here / "guess.py").write_text(text)
    with pytest.raises(Refused, match=r"corrupt_rows is no hook.*override one of: corrupt"):
        run_written_test(here, "guess")


def test_it_extends_the_part_that_is_named(here):
    written = run("new", "part", "rule", "mine", "--like", "median", "--out", "my parts")
    assert "pytest 'my parts/test_mine.py'" in " ".join(written.output.split())
    text = (here / "my parts/mine.py").read_text()
    assert "class Mine(Median):" in text
    assert "def columns(self, ordered, byzantine" in text
    assert "Mine()" in (here / "my parts/test_mine.py").read_text()


@every_case(
    ("words", "message"),
    [
        (("optimiser", "mine"), "the kind is 'optimiser'; .*did you mean 'optimizer'"),
        (("optimizer", "2nd"), "the name is '2nd', but that is no name of a module"),
        (("optimizer", "class"), "the name is 'class', but that is no name of a module"),
        (("optimizer", "torch"), "a module of this name is installed"),
        (("optimizer", "mine", "--like", "fedadm"), "did you mean 'fedadam'"),
        (("optimizer", "taken"), "taken.py exists already"),
    ],
)
def test_what_cannot_be_written_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.py").write_text("")
    refused = run("new", "part", *words)
    assert refused.exit_code == 2, refused.output
    text = " ".join(refused.output.split())
    assert re.search(message, text), text
    assert [path.name for path in tmp_path.iterdir()] == ["taken.py"]
