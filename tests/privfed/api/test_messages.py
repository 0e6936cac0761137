"""One refusal speaks of arguments in Python, and of flags on the command line."""

import re

import numpy as np
import pytest
import torch
from commands import run
from small import SMALL, trained

import privfed
from privfed.core.errors import Refused, for_interface, resume_command
from privfed.core.failures import reporting

FLAG = re.compile(r"(?<!\w)--\w|`privfed ")


def keys(*settings):
    """The arguments of `privfed.train` for settings "section.key=value" over the small run."""
    sections = {}
    for setting in (*SMALL, *settings):
        key, _, value = setting.partition("=")
        section, _, name = key.rpartition(".")
        number = re.fullmatch(r"-?[\d.e-]+", value)
        typed = float(value) if number and re.search(r"[.e]", value) else value
        sections.setdefault(section, {})[name] = int(value) if number and typed is value else typed
    return sections


def settings(*given):
    return [word for setting in (*SMALL, *given) for word in ("--set", setting)]


MISTAKES = {
    "unknown key": ("client.learning_rate=0.1", "client.lr"),
    "key of another section": ("client.rounds=3", "run.rounds"),
    "epsilon of zero": ("privacy.epsilon=0", "privacy.epsilon is 0; expected a number above 0"),
    "negative epsilon": ("privacy.epsilon=-1", "privacy.epsilon is -1; expected a number above 0"),
    "large delta": ("privacy.delta=1.5", "privacy.delta is 1.5; expected a number below 1"),
    "few clients": ("data.clients=3", "cohort.size is 4, but data.clients is 3"),
    "unknown part": ("server.optimizer=SGD", "did you mean 'fedavg'"),
    "no GPU": ("run.device=cuda", 'no GPU is available; use "cpu" or "auto"'),
    "a folder twice": ("run.rounds=1", "nothing was changed; name a new directory, or resume"),
    "no test set": ("data.holdout=tests", "did you mean 'test'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_in_the_terms_of_each_interface(tmp_path, monkeypatch, mistake):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    setting, said = MISTAKES[mistake]
    out = tmp_path / "run"
    if mistake == "a folder twice":
        trained(out, "run.rounds=1")
    with pytest.raises(Refused) as refused:
        privfed.train(out=out, **keys(setting))
    typed = run("train", "--out", out, *settings(setting))
    in_python, on_command_line = str(refused.value), " ".join(typed.stderr.split())
    assert typed.exit_code == 2
    assert said in in_python
    assert said in on_command_line
    assert not FLAG.search(in_python)
    assert "dict(" not in on_command_line
    assert "Traceback" not in on_command_line


@pytest.mark.parametrize(
    "call, words, in_python, on_command_line",
    [
        (
            lambda run: privfed.train(out=run),
            ("train", "--out", "RUN"),
            r"^out is .*RUN, .*: privfed\.resume\('.*RUN'\)$",
            r"--out is RUN, .*: `privfed train --resume RUN`",
        ),
        (
            lambda run: privfed.load(run).export("m.bin"),
            ("export", "RUN", "--to", "m.bin"),
            r"^to is m\.bin; expected",
            r"--to is m\.bin; expected",
        ),
        (
            lambda run: privfed.audit(run, head="x"),
            ("audit", "RUN", "--head", "x"),
            "^head is x; expected",
            "--head is x; expected",
        ),
        (
            lambda run: privfed.audit([run, run], accountant="none"),
            ("audit", "RUN", "RUN", "--accountant", "none"),
            "accountant is",
            "--accountant",
        ),
        (
            lambda run: privfed.calibrate(delta=1e-5, rounds=3),
            ("calibrate", "--delta", "1e-5", "--rounds", "3"),
            "exactly one of epsilon, noise_multiplier, rounds,",
            "exactly one of --epsilon, --noise-multiplier, --rounds,",
        ),
        (
            lambda run: privfed.resume(run, rounds=1),
            ("train", "--resume", "RUN", "--set", "run.rounds=1"),
            r"^run\.rounds is 1, but this run was started with 2; raise run\.rounds, or leave it",
            r"run\.rounds is 1, but this run was started with 2; raise run\.rounds, or leave it",
        ),
    ],
    ids=["a folder twice", "export", "head", "accountant", "calibrate", "resume"],
)
def test_flags_are_arguments_in_python(
    tmp_path, monkeypatch, call, words, in_python, on_command_line
):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "RUN", "run.rounds=2")
    with pytest.raises(Refused) as refused:
        call("RUN")
    assert re.search(in_python, str(refused.value))
    assert not FLAG.search(str(refused.value))
    assert re.search(on_command_line, " ".join(run(*words).stderr.split()))


def test_commands_are_calls_in_python(tmp_path):
    both = Refused(f"take --noise-multiplier, or {resume_command(tmp_path / 'a b')}; not 'x--y'")
    assert str(both) == (
        f"take noise_multiplier, or privfed.resume({str(tmp_path / 'a b')!r}); not 'x--y'"
    )
    with reporting(quotes=None, as_json=False):
        assert str(both) == both.args[0]
    assert str(both) != both.args[0]
    assert for_interface("`privfed audit a 'b c'`") == "privfed.audit(['a', 'b c'])"
    assert for_interface("privfed report a") == "privfed.load('a').report()"
    assert for_interface("`privfed evaluate --personalise 0`") == (  # there is no such call
        "`privfed evaluate --personalise 0`"
    )


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.out = kind(8, 2, batch_first=True), torch.nn.Linear(2, 10)

    def forward(self, x):
        return self.out(self.cell(x.view(-1, 8, 8))[0][:, -1])


class Branching(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


SILOS = {
    "data": {"setting": "cross_silo"},
    "privacy": {"mechanism": "none"},
    "client": {"privacy": {"mechanism": "dp_sgd", "noise_multiplier": 1.0}},
}


@pytest.mark.parametrize(
    "model, sections, said",
    [
        (
            Recurrent(torch.nn.RNN),
            {"run": {"trainer": "stacked"}},
            "batched form of its layer 'cell' (RNN)",
        ),
        (Branching(64, 10), {"run": {"trainer": "stacked"}}, "branches on values of its input"),
        (
            Recurrent(torch.nn.LSTM),
            SILOS,
            "cannot be computed for these layers: 'cell' (LSTM); use other layers",
        ),
        (
            torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(7, 10)),
            {},
            "in its layer '1' (Linear)",
        ),
        (torch.nn.Linear(64, 7), {}, "must be (3, 10): these data and model.loss need 10"),
    ],
    ids=["stacked", "branches", "dp_sgd", "width", "outputs"],
)
def test_a_layer_that_does_not_fit_is_named(tmp_path, model, sections, said):
    with pytest.raises(Refused, match=re.escape(said)) as refused:
        privfed.train(model=model, rounds=1, out=tmp_path / "run", **sections)
    for internal in ("aten::", "Batching rule", "DPLSTM", "github.com"):
        assert internal not in str(refused.value)


X, Y = np.zeros((4, 3)), np.array(["no", "yes", "no", "yes"])


@pytest.mark.parametrize(
    "clients, shape, said",
    [
        ((X, Y), (3,), 'expected each client\'s arrays by its name, {"a": (x, y)'),
        ({"a": (X, Y)}, (3,), "y holds no numbers; declare words by labels=[…]"),
        ({"a": (X, Y == "no")}, (2, 2), "examples of another shape; expected (2, 2), as declared"),
        ({"a": (X, Y == "no")}, (3,), "has no public test examples; name some (data.test_path"),
    ],
    ids=["no clients", "labels are words", "shape", "no test set"],
)
def test_arrays_of_another_form_are_refused_with_what_to_declare(tmp_path, clients, shape, said):
    def train():
        people = privfed.Arrays(clients, shape=shape, bounds=(0, 1), classes=2, clients=20)
        privfed.train(people, rounds=1, out=tmp_path / "run", cohort={"size": 5})

    with pytest.raises(Refused, match=re.escape(said)):
        train()


def test_an_interrupted_run_states_the_call_that_resumes_it(tmp_path):
    class Impatient(privfed.Observer):
        def after_round(self, round):
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt) as interrupted:
        privfed.train(out=out, observers=[Impatient()], **keys("run.rounds=2"))
    (note,) = interrupted.value.__notes__
    assert note.endswith(f"privfed.load({str(out)!r}).resume()")
    assert privfed.load(out).resume().summary["charges"] == 2
