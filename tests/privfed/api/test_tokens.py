"""Token ids, masks and several named inputs: declared, never scaled, passed on by name."""

import numpy as np
import pytest
import torch
from torch import nn

import privfed
from privfed.core.streams import Streams
from privfed.data.federation import NO_LABEL
from privfed.data.inputs import Input, by_name, side_by_side, synthetic_inputs

NOISE = {"noise_multiplier": 0.5, "delta": 1e-2}
FEW = {"cohort": {"size": 8}, "rounds": 2, "privacy": NOISE}
SEEDED = {"run": {"randomness": "seeded", "seed": 3}}
VOCABULARY, LENGTH, CLIENTS = 20, 6, 24
NAMED = {
    "ids": {"tokens": VOCABULARY, "shape": (LENGTH,)},
    "mask": {"mask": True, "shape": (LENGTH,)},
    "age": {"bounds": (0, 120), "shape": (1,)},
}


class NextToken(nn.Module):
    def __init__(self, vocabulary=VOCABULARY):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, x):
        assert x.dtype == torch.int64
        return self.head(self.embedding(x).tanh())


class Named(nn.Module):
    """Reads its inputs by name, and the age only if it should."""

    def __init__(self, ignores=()):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(9, 3)
        self.ignores = ignores

    def forward(self, ids, mask, age):
        weights = torch.ones_like(mask) if "mask" in self.ignores else mask
        age = age * 0 if "age" in self.ignores else age
        words = (self.embedding(ids).tanh() * weights[..., None]).sum(-2) / weights.sum(-1)[
            ..., None
        ]
        return self.head(torch.cat([words, age], -1))


def sequences(count, rng=None, vocabulary=VOCABULARY):
    return (rng or np.random.default_rng(0)).integers(0, vocabulary, (count, LENGTH))


def of_clients(make):
    rng = np.random.default_rng(1)
    return {f"c{k}": make(k % 3 + 1, rng) for k in range(CLIENTS)}


def named(count, rng):
    mask = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (count, 1))
    x = {"ids": sequences(count, rng), "mask": mask, "age": rng.integers(0, 120, (count, 1))}
    return x, rng.integers(0, 3, count)


def examples(people):
    keys = {k: v for k, v in people.section.items() if k not in ("source", "clients", "holdout")}
    return people.section["source"].model_validate(keys).load(CLIENTS, Streams(0))


def next_tokens(**changes):
    declared = {"shape": (LENGTH,), "tokens": VOCABULARY, "next_token": True, "clients": CLIENTS}
    return privfed.Arrays(of_clients(sequences), **{"test": sequences(9), **declared, **changes})


def test_token_ids_reach_an_embedding_as_integers_and_are_not_scaled():
    arrays = {"a": sequences(3), "b": sequences(2)}
    declared = {"shape": (LENGTH,), "tokens": VOCABULARY, "next_token": True, "clients": 2}
    loaded = examples(privfed.Arrays(arrays, **declared))
    assert loaded.x.dtype == torch.int64
    assert torch.equal(loaded.x, torch.from_numpy(np.concatenate([*arrays.values()])))
    assert torch.equal(loaded.y[:, :-1], loaded.x[:, 1:])
    assert (loaded.y[:, -1] == NO_LABEL).all()
    assert loaded.classes == VOCABULARY


def test_a_module_with_an_embedding_trains_predicts_and_scores():
    run = privfed.train(next_tokens(), model=NextToken(), temporary=True, **FEW)
    assert run.evaluate(sequences(9))["accuracy"] == run.evaluate()["accuracy"]
    predicted = run.predict(sequences(9))
    assert predicted.num_rows == 9
    assert len(predicted["prediction"][0].as_py().split()) == LENGTH
    assert run.model(torch.from_numpy(sequences(2))).shape == (2, LENGTH, VOCABULARY)


def test_next_tokens_are_the_labels_that_one_could_give_oneself(tmp_path):
    def labelled(count, rng):
        x = sequences(count, rng)
        return x, np.concatenate([x[:, 1:], np.full((count, 1), -100)], 1)

    own = privfed.Arrays(
        of_clients(labelled), test=labelled(9, np.random.default_rng(0)), shape=(LENGTH,),
        tokens=VOCABULARY, classes=VOCABULARY, label_shape=(LENGTH,), clients=CLIENTS,
    )  # fmt: skip
    torch.manual_seed(0)
    model = NextToken()
    trained = [
        privfed.train(people, model=model, out=tmp_path / name, **FEW, **SEEDED).model
        for name, people in (("shifted", next_tokens()), ("given", own))
    ]
    for ours, theirs in zip(*(model.parameters() for model in trained), strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, torch.zeros_like(ours))


@pytest.mark.parametrize("spoiled", [VOCABULARY, -1, 0.5, float("nan")])
def test_an_id_outside_of_the_vocabulary_is_refused_without_showing_it(spoiled):
    arrays = {"a": sequences(3).astype(float)}
    arrays["a"][1, 2] = spoiled
    people = privfed.Arrays(arrays, shape=(LENGTH,), tokens=VOCABULARY, next_token=True, clients=1)
    with pytest.raises(
        privfed.Refused, match="example 2: a value is not an id from 0 to 19"
    ) as refused:
        examples(people)
    assert str(spoiled) not in str(refused.value).replace("from 0 to 19", "")


def test_a_declared_unknown_id_replaces_others_but_not_fractions():
    arrays = {"a": sequences(2)}
    arrays["a"][0, :2] = VOCABULARY, -7
    declared = {"shape": (LENGTH,), "tokens": VOCABULARY, "unknown": 1, "next_token": True}
    loaded = examples(privfed.Arrays(arrays, clients=1, **declared))
    assert loaded.x[0, :2].tolist() == [1, 1]
    assert loaded.y[0, 0] == 1
    assert loaded.counts["clipped_values"] == 2
    arrays["a"] = arrays["a"] + 0.5
    with pytest.raises(privfed.Refused, match="a value is not an id"):
        examples(privfed.Arrays(arrays, clients=1, **declared))


def test_named_inputs_lie_side_by_side_and_come_back_by_name():
    inputs = {name: Input(**{k: plain(v) for k, v in each.items()}) for name, each in NAMED.items()}
    synthetic = synthetic_inputs(inputs, 5)
    values = by_name(synthetic, inputs)
    assert torch.equal(side_by_side(values, inputs), synthetic)
    assert values["ids"].dtype == values["mask"].dtype == torch.int64
    assert values["ids"].max() == VOCABULARY - 1
    assert ((values["mask"].diff() <= 0).all(), values["mask"][:, 0].all()) == (True, True)


def plain(value):
    return list(value) if isinstance(value, tuple) else value


def named_people(**changes):
    test = named(9, np.random.default_rng(0))
    return privfed.Arrays(
        of_clients(named), inputs=NAMED, classes=3, clients=CLIENTS, test=test, **changes
    )


def test_named_inputs_are_passed_to_forward_by_name(tmp_path):
    loaded = examples(named_people())
    x, _ = of_clients(named)["c0"]
    values = by_name(loaded.x, loaded.inputs)
    first = {name: value[np.flatnonzero(loaded.owners == 0)] for name, value in values.items()}
    assert np.array_equal(first["ids"], x["ids"])
    assert np.array_equal(first["mask"], x["mask"])
    assert np.allclose(first["age"], x["age"].clip(0, 120) / 60 - 1)
    test = named(9, np.random.default_rng(0))
    model = Named()
    run = privfed.train(named_people(), model=model, out=tmp_path / "run", **FEW)
    assert run.evaluate(test)["accuracy"] == run.evaluate()["accuracy"]
    assert run.predict(test[0]).num_rows == 9
    run.export(tmp_path / "net.safetensors")
    by = {name: torch.from_numpy(np.asarray(value)) for name, value in test[0].items()}
    by["age"] = by["age"].clip(0, 120) / 60 - 1
    assert run.model(**by).shape == (9, 3)
    resumed = privfed.load(run.path, model=model, data=named_people()).resume(rounds=3)
    assert len(resumed.ledger) == 3


def test_stacked_models_give_the_updates_of_single_ones(tmp_path):
    torch.manual_seed(0)
    model = Named()
    trained = [
        privfed.train(
            named_people(), model=model, out=tmp_path / way, cohort={"size": 8}, rounds=2,
            privacy=NOISE, run={**SEEDED["run"], "trainer": way},
        ).model
        for way in ("stacked", "loop")
    ]  # fmt: skip
    for ours, theirs in zip(*(model.parameters() for model in trained), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_masked_positions_are_not_predicted():
    ids, mask = sequences(2), np.array([[1, 1, 1, 0, 0, 0], [1] * 6])
    inputs = {name: NAMED[name] for name in ("ids", "mask")}
    people = {"a": {"ids": ids, "mask": mask}}
    loaded = examples(privfed.Arrays(people, inputs=inputs, next_token="ids", clients=1))
    labelled = loaded.y != NO_LABEL
    assert labelled.tolist() == [[True, True, *[False] * 4], [*[True] * 5, False]]


def test_padding_without_a_mask_is_not_predicted():
    ids = np.array([[3, 4, 5, 0, 0, 0]])
    loaded = examples(next_tokens_of({"a": ids}, padding=0))
    assert loaded.y.tolist() == [[4, 5, *[NO_LABEL] * 4]]


def next_tokens_of(arrays, **declared):
    shaped = {"shape": (LENGTH,), "tokens": VOCABULARY, "next_token": True, "clients": len(arrays)}
    return privfed.Arrays(arrays, **shaped, **declared)


def test_a_budget_of_tokens_leaves_out_further_examples_of_each_client():
    arrays = {"a": sequences(5), "b": sequences(1)}
    loaded = examples(next_tokens_of(arrays, tokens_per_client=2 * LENGTH + 1))
    assert np.bincount(loaded.owners).tolist() == [2, 1]
    assert np.array_equal(loaded.x[:2], arrays["a"][:2])
    mask = np.array([[1, 1, 1, 0, 0, 0]] * 5)
    inputs = {name: NAMED[name] for name in ("ids", "mask")}
    people = {"a": {"ids": sequences(5), "mask": mask}}
    masked = privfed.Arrays(people, inputs=inputs, next_token="ids", clients=1, tokens_per_client=9)
    assert len(examples(masked)) == 3


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"inputs": {"ids": {"shape": (LENGTH,)}}}, "an input has exactly one of them"),
        ({"inputs": {"ids": {"shape": (LENGTH,), "tokens": 5, "unknown": 5}}}, "unknown is 5"),
        ({"inputs": {"ids": {"shape": (LENGTH,), "bounds": (1, 1)}}}, "expected .low, high"),
        ({"inputs": {"y": {"shape": (LENGTH,), "tokens": 5}}}, "an input is called 'y'"),
        (
            {"tokens": 5, "shape": (LENGTH,), "bounds": (0, 1)},
            "bounds is .0, 1., but .* remove bounds=",
        ),
        ({"inputs": NAMED, "tokens": 5}, "^tokens is 5, but inputs= declares .*remove tokens=$"),
        ({"inputs": NAMED, "bounds": (0, 1)}, "^bounds is .0, 1., but .*; remove bounds=$"),
        (
            {"inputs": NAMED, "shape": (3,), "bounds": (0, 1)},
            "^shape is .3,. and bounds is .0, 1., but .*; remove shape= and bounds=$",
        ),
        ({"tokens": 5, "shape": (LENGTH,), "next_token": "ids"}, "next_token is 'ids'"),
        ({"tokens": 5, "shape": (LENGTH,), "next_token": True, "classes": 5}, "leave those out"),
        (
            {"tokens": 5, "shape": (LENGTH,), "label_shape": (LENGTH,)},
            "label_shape is set, but classes is not",
        ),
        ({"bounds": (0, 5), "shape": (LENGTH,), "classes": 5, "tokens_per_client": 3}, "no input"),
    ],
)
def test_contradictory_declarations_are_refused(declared, reason):
    people = {"a": (sequences(2, vocabulary=5), np.zeros((2, *declared.get("label_shape", ()))))}
    if "next_token" in declared:
        people = {"a": sequences(2, vocabulary=5)}
    if "inputs" in declared:
        people = {"a": ({name: sequences(2) for name in declared["inputs"]}, np.zeros(2))}
    with pytest.raises(privfed.Refused, match=reason):
        privfed.check(privfed.Arrays(people, clients=30, **{"classes": 0, **declared}))


def test_arrays_of_other_names_are_refused_without_showing_them():
    with pytest.raises(privfed.Refused, match="exactly 'ids', 'mask', 'age'") as refused:
        privfed.Arrays({"a": ({"secret": sequences(2)}, np.zeros(2))}, inputs=NAMED, clients=1)
    assert "secret" not in str(refused.value)


def test_a_label_of_a_position_that_is_no_class_is_refused():
    y = np.full((2, LENGTH), VOCABULARY)
    people = privfed.Arrays(
        {"a": (sequences(2), y)}, shape=(LENGTH,), tokens=VOCABULARY, classes=VOCABULARY,
        label_shape=(LENGTH,), clients=1,
    )  # fmt: skip
    with pytest.raises(privfed.Refused, match="the label 'y' is not a class"):
        examples(people)


@pytest.mark.parametrize("ignored", ["mask", "age"])
def test_a_model_that_ignores_an_input_is_refused(ignored):
    with pytest.raises(privfed.Refused, match=f"outputs do not depend on its input '{ignored}'"):
        privfed.train(named_people(), model=Named((ignored,)), temporary=True, **FEW)


def test_an_embedding_smaller_than_the_vocabulary_is_refused():
    with pytest.raises(privfed.Refused, match="ids go up to 19, and an embedding has a row"):
        privfed.train(next_tokens(), model=NextToken(VOCABULARY - 1), temporary=True, **FEW)
