"""Parameters as one vector and back, in every layout in which pipelines have them."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import every_case

from privfed.canary.layouts import flatten, shifted
from privfed.core.errors import Refused

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=12)
KINDS = st.sampled_from([np.float16, np.float32, np.float64, np.int64])
LAYOUTS = {
    "list": list,
    "tuple": tuple,
    "mapping": lambda arrays: {f"layer{n}": each for n, each in enumerate(arrays)},
    "state_dict": lambda arrays: OrderedDict(
        (f"layer{n}", torch.from_numpy(each)) for n, each in reversed([*enumerate(arrays)])
    ),
}


def leaves(parameters):
    return parameters.values() if hasattr(parameters, "values") else parameters


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=30)
@given(shapes=SHAPES, kinds=st.lists(KINDS, min_size=12, max_size=12))
def test_a_shift_adds_to_the_vector_and_keeps_the_layout(layout, shapes, kinds):
    arrays = [
        np.arange(np.prod(shape), dtype=kind).reshape(shape)
        for shape, kind in zip(shapes, kinds, strict=False)
    ]
    parameters = LAYOUTS[layout](arrays)
    before = flatten(parameters)
    moved = shifted(parameters, np.arange(len(before)) % 7 * 0.25)
    np.testing.assert_allclose(flatten(moved), before + np.arange(len(before)) % 7 * 0.25)
    np.testing.assert_array_equal(flatten(parameters), before)
    assert type(moved) is type(parameters)
    if hasattr(moved, "keys"):
        assert list(moved) == list(parameters)
    for new, old in zip(leaves(moved), leaves(parameters), strict=True):
        assert new.dtype == old.dtype
        assert new.shape == old.shape
    dimension = sum(each.size for each in arrays if each.dtype.kind == "f")
    assert len(before) == dimension


def test_a_mapping_is_read_in_the_order_of_its_names_as_files_keep_no_other():
    model = {"b": np.array([1.0]), "a": np.array([2.0])}
    other = {"a": np.array([2.0]), "b": np.array([1.0])}
    assert flatten(model).tolist() == flatten(other).tolist() == [2.0, 1.0]


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_tensors_of_low_precision_on_their_device_keep_it(precision):
    received = torch.zeros(3, dtype=precision, requires_grad=True)
    moved = shifted(received, np.array([1.0, 2.0, -4.0]))
    assert moved.dtype == precision
    assert moved.tolist() == [1.0, 2.0, -4.0]


@every_case(
    ("parameters", "problem"),
    [
        ([1.0, 2.0], "of type float"),
        ({"state_dict": {"a": np.zeros(3)}}, "'state_dict' is of type dict"),
        (np.zeros(3, dtype=complex), "an array of type complex128; expected real numbers"),
        ({"a": torch.zeros(3, dtype=torch.complex64)}, "'a' is an array of type torch.complex64"),
        (np.zeros(4), "the model has 4 floating-point numbers, but the canaries have 3"),
        ([np.zeros(3, dtype=int)], "the model has no floating-point numbers"),
        (np.zeros(3, dtype=np.float16), "does not fit"),
        (np.full(3, np.nan), "not finite"),
    ],
    ids=[
        "numbers",
        "nested",
        "complex",
        "complex tensor",
        "dimension",
        "integers",
        "overflow",
        "nan",
    ],
)
def test_what_is_no_model_is_refused(parameters, problem):
    with pytest.raises(Refused, match=problem):
        shifted(parameters, np.full(3, 1e6))


def test_an_archive_of_arrays_is_answered_as_a_mapping(tmp_path):
    np.savez(tmp_path / "model.npz", bias=np.zeros(1), weight=np.zeros(2))
    moved = shifted(np.load(tmp_path / "model.npz"), np.array([1.0, 2.0, 3.0]))
    assert {name: each.tolist() for name, each in moved.items()} == {"bias": [1], "weight": [2, 3]}
