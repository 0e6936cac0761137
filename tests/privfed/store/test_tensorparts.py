"""Files of tensors are written part by part, and are what the library of their format writes."""

import numpy as np
import pytest
import torch
from lanes import every_case
from safetensors.torch import save

from privfed.store import tensorfile
from privfed.store.tensorfile import file_parts

TYPES = ("int64", "float64", "float32", "int32", "bfloat16", "float16", "int16", "int8", "uint8")


def every_type():
    tensors = {
        f"{n}/{name}": torch.arange(7).to(getattr(torch, name)) for n, name in enumerate(TYPES)
    }
    return {**tensors, "true": torch.tensor([True, False]), "one number": torch.tensor(2.5)}


@every_case(
    "tensors",
    [
        {},
        every_type(),
        {"none": torch.zeros(0, 3), "b": torch.ones(2, 3), "a": torch.ones(1)},
        {"apart": torch.arange(12.0).view(3, 4).T, "view": torch.arange(9.0)[2:5]},
        {'é "quoted"\n\x01\\': torch.ones(2), "ä": torch.ones(1)},
    ],
)
def test_bytes_are_those_of_the_library(tensors, monkeypatch):
    monkeypatch.setattr(tensorfile, "_BATCH_SIZE", 5)  # or all of these were of one part
    about = {"privfed": '{"a": "\\u00e9/<"}'}
    written = b"".join(file_parts(tensors, about))
    assert written == save({name: each.contiguous() for name, each in tensors.items()}, about)


def test_numbers_are_written_from_where_they_lie():
    numbers = torch.arange(3.0)
    _, part = file_parts({"x": numbers}, {})
    assert np.shares_memory(np.asarray(part), numbers.numpy())


def test_what_was_written_is_read_again(tmp_path):
    tensors = {**every_type(), "apart": torch.arange(6.0).view(2, 3).T}
    tensorfile.write(tmp_path / "file", tensors, {"round": 3})
    again, about = tensorfile.unpack(tmp_path / "file")
    assert about["round"] == 3
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert (tmp_path / "file").read_bytes() == tensorfile.pack(tensors, {"round": 3})


def test_another_type_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="complex64"):
        tensorfile.write(tmp_path / "file", {"x": torch.zeros(1, dtype=torch.complex64)}, {})
    assert not list(tmp_path.iterdir())
