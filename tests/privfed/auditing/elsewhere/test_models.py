"""Released models, in all forms in which pipelines save them."""

import os

import numpy as np
import pytest
import torch
from lanes import every_case
from safetensors.torch import save_file

from privfed.auditing.judged_models import model_files, models
from privfed.canary.layouts import flatten
from privfed.core.errors import Refused

ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3) * number for number in range(1, 13)]
STATE = {f"layer{n}.weight": torch.from_numpy(each) for n, each in enumerate(ARRAYS)}
STATE["steps"] = torch.tensor(3)


def save_npz_list(path):
    np.savez(path, *ARRAYS)


def save_npz_names(path):
    np.savez(path, **{name: each.numpy() for name, each in STATE.items()})


def save_npy(path):
    np.save(path, flatten(ARRAYS))


def save_state(path):
    torch.save(STATE, path)


def save_tensors(path):
    save_file(STATE, path)


@every_case(
    ("save", "suffix", "given"),
    [
        (save_npz_list, "npz", ARRAYS),
        (save_npz_names, "npz", STATE),
        (save_npy, "npy", ARRAYS),
        (save_state, "pt", STATE),
        (save_state, "pth", STATE),
        (save_tensors, "safetensors", STATE),
    ],
    ids=["list", "names", "flat", "state_dict", "pth", "safetensors"],
)
def test_a_file_is_read_as_the_client_reads_what_was_saved(tmp_path, save, suffix, given):
    path = tmp_path / f"model.{suffix}"
    save(path)
    (model,) = models([path], 72)
    np.testing.assert_array_equal(model, flatten(given))


def test_files_are_in_the_order_of_their_last_numbers(tmp_path):
    for name in ("v2-round10.npy", "v2-round9.npy", "v2-round0.npy"):
        np.save(tmp_path / name, np.zeros(3))
    (tmp_path / "notes7.txt").write_text("")
    (tmp_path / ".8.npy").write_text("")
    names = [path.name for path in model_files(tmp_path)]
    assert names == ["v2-round0.npy", "v2-round9.npy", "v2-round10.npy"]


@every_case(
    ("names", "problem"),
    [
        (["1.npy"], "has 1 models"),
        ([], "has 0 models"),
        (["first.npy", "1.npy"], "no number in its name"),
        (["a1.npy", "b01.npz"], "both have the number 1"),
    ],
    ids=["single", "empty", "unnumbered", "twice"],
)
def test_files_in_no_order_are_refused(tmp_path, names, problem):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(Refused, match=problem):
        model_files(tmp_path)


class Evil:
    def __reduce__(self):
        return print, ("run",)


@every_case("suffix", ["npy", "npz", "pt", "safetensors"])
@every_case("content", [b"", b"PK\x03\x04", b"garbage" * 9], ids=len)
def test_a_damaged_file_is_a_plain_error(tmp_path, suffix, content):
    path = tmp_path / f"1.{suffix}"
    path.write_bytes(content)
    with pytest.raises(Refused, match="cannot be read"):
        list(models([path], 3))


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save([Evil()], tmp_path / "1.pt")
    np.save(tmp_path / "2.npy", np.array([Evil()]), allow_pickle=True)
    for name in ("1.pt", "2.npy"):
        with pytest.raises(Refused, match="nothing that could run code"):
            list(models([tmp_path / name], 3))
    assert not capsys.readouterr().out


@every_case(
    ("model", "problem"),
    [
        (np.zeros(4), "has 4 floating-point numbers"),
        (np.array([0, np.inf, 0]), "not finite"),
        (np.array(["a"]), "of type"),
        (np.array([0, 1e300, 0]), "above 1e\\+100"),
    ],
    ids=["dimension", "infinite", "text", "diverged"],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, model, problem):
    np.save(tmp_path / "1.npy", model)
    with pytest.raises(Refused, match=problem):
        list(models([tmp_path / "1.npy"], 3))


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "1.npz")
    with pytest.raises(Refused, match="is no file"):
        list(models([tmp_path / "1.npz"], 3))
