"""Clients who hold strings: a given tokenizer, declared windows and budgets, nothing measured."""

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from torch import nn

import privfed
from privfed.core.streams import Streams
from privfed.data.federation import NO_LABEL
from privfed.data.inputs import by_name

NOISE = {"noise_multiplier": 0.5, "delta": 1e-2}
FEW = {"cohort": {"size": 3}, "rounds": 2, "privacy": NOISE, "temporary": True}
LETTERS = 27


def letters(text):
    """Token 1 is "a", 26 is "z"; others are left out."""
    return [ord(letter) - 96 for letter in text if "a" <= letter <= "z"]


class Reads(nn.Module):
    """Outputs at each position, or at the end of the text."""

    def __init__(self, width=LETTERS, at_end=False):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 8)
        self.head = nn.Linear(8, width)
        self.at_end = at_end

    def forward(self, input_ids, attention_mask):
        hidden = (self.embedding(input_ids) * attention_mask[..., None]).cumsum(-2).tanh()
        out = self.head(hidden)
        return out[..., -1, :] if self.at_end else out


def texts(people, **changes):
    declared = {"tokenizer": letters, "vocabulary": LETTERS, "window": 4, "clients": 3}
    return privfed.Texts(people, **{**declared, **changes})


def examples(people):
    keys = {k: v for k, v in people.section.items() if k not in ("source", "clients", "holdout")}
    return people.section["source"].model_validate(keys).load(3, Streams(0))


FRAME = pd.DataFrame(
    {
        "who": ["ann", "ben", "ann", "cho", "ben", "dee"],
        "said": ["good day", "bad", "fine", "no", "awful", "yes"],
        "mood": ["up", "down", "up", "down", "down", "up"],
        "stars": [5, 1, 4, 2, 1, 5],
    }
)
COLUMNS = {"text": "said", "client": "who"}


def test_each_token_of_a_text_is_predicted_once():
    loaded = examples(texts({"ann": ["abcdefgh"]}))
    values = by_name(loaded.x, loaded.inputs)
    assert values["input_ids"].tolist() == [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 0, 0]]
    assert values["attention_mask"].tolist() == [[1] * 4, [1] * 4, [1, 1, 0, 0]]
    assert loaded.y[loaded.y != NO_LABEL].tolist() == [*range(2, 9)]


def test_a_table_a_frame_and_a_mapping_are_the_same_clients():
    held = {who: [*rows] for who, rows in FRAME.groupby("who")["said"]}
    expected = examples(texts(held))
    tables = [FRAME, pyarrow.table(FRAME)]
    if datasets := pytest.importorskip("datasets"):
        tables.append(datasets.Dataset.from_pandas(FRAME))
    for table in tables:
        loaded = examples(texts(table, **COLUMNS))
        assert torch.equal(loaded.x, expected.x)
        assert torch.equal(loaded.y, expected.y)
        assert loaded.clients == expected.clients == ("ann", "ben", "cho", "dee")


def test_texts_train_a_model_of_next_tokens():
    people = texts({who: [*rows] for who, rows in FRAME.groupby("who")["said"]}, test=["hello all"])
    run = privfed.train(people, model=Reads(), **FEW)
    assert run.config.source.tokenizer == "letters, 27 tokens"
    assert run.predict(people.encoded(["hello"])).num_rows == 2
    others = privfed.train(texts({"ann": ["xyz", "abc"]}, test=["xy"]), model=Reads(), **FEW)
    assert run.guarantee.epsilon == others.guarantee.epsilon


@pytest.mark.parametrize(
    ("label", "declared", "width"),
    [("mood", {"labels": ["down", "up"]}, 2), ("stars", {"classes": 6}, 6)],
)
def test_texts_train_a_classifier(label, declared, width):
    public = FRAME.assign(said=["good", "worse", "ok", "so", "well", "no one"])
    people = texts(FRAME, label=label, test=public, **COLUMNS, **declared)
    loaded = examples(people)
    assert loaded.y.tolist() == [
        declared.get("labels", range(6)).index(value)
        for value in FRAME.sort_values("who", kind="stable")[label]
    ]
    run = privfed.train(people, model=Reads(width, at_end=True), **FEW)
    assert run.config.names["loss"] == "cross_entropy"
    predicted = run.predict(people.encoded(["good", "bad"]))
    assert {*predicted["prediction"].to_pylist()} <= {*declared.get("labels", range(6))}


def test_a_budget_limits_the_tokens_of_each_client():
    people = texts({"ann": ["abcdefghij"], "ben": ["abc"]}, tokens_per_client=8)
    loaded = examples(people)
    counts = by_name(loaded.x, loaded.inputs)["attention_mask"].sum(1).numpy()
    assert np.bincount(loaded.owners, counts).tolist() == [8.0, 3.0]


def test_texts_with_nothing_to_predict_give_no_example():
    loaded = examples(texts({"ann": ["a", "", "ab"], "ben": []}))
    assert len(loaded) == 1


def test_pads_of_a_tokenizer_are_no_tokens():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"a": 0, "b": 1, "[PAD]": 2}, unk_token="a")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=2, pad_token="[PAD]", length=6)
    people = texts({"ann": ["a b a"]}, tokenizer=tokenizer, vocabulary=3, tokens_per_client=3)
    loaded = examples(people)
    values = by_name(loaded.x, loaded.inputs)
    assert values["input_ids"].tolist() == [[0, 1, 0, 2]]
    assert values["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_a_table_is_searched_once_for_all_its_clients(monkeypatch):
    searches, search = [], np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda each: searches.append(1) or search(each))
    frame = pd.DataFrame({"said": ["abc"] * 200, "who": [f"c{n % 100}" for n in range(200)]})
    assert len(examples(texts(frame, **COLUMNS)).clients) == 100
    assert len(searches) < 50


class Fails:
    def __call__(self, text):
        raise ValueError(f"cannot read {text}")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: texts({"ann": "hello"}), "holds objects other than texts"),
        (lambda: texts({"ann": [1]}), "holds objects other than texts"),
        (lambda: texts(["hello"]), "expected texts by client"),
        (lambda: texts({"ann": (["a"], [1])}), "expected a list of texts"),
        (lambda: texts({"ann": ["a"]}, classes=2), "a pair .texts, labels."),
        (lambda: texts({"ann": (["a"], [1, 0])}, classes=2), "expected one label for each text"),
        (lambda: texts({"ann": ["ab"]}, vocabulary=0), "vocabulary is missing"),
        (lambda: texts({"ann": ["ab"]}, window=1), "window is 1; expected an integer of 2"),
        (lambda: texts({"ann": ["ab"]}, window="8"), "window is '8'; expected an integer of 2"),
        (lambda: texts({"ann": None}), "holds objects other than texts"),
        (lambda: texts({"ann": (["a"], 1)}, classes=2), "expected one label for each text"),
        (lambda: texts({}), "no client has an example in the texts; give"),
        (lambda: texts(FRAME[:0], **COLUMNS), "no client has an example in the texts; give"),
        (lambda: texts({"ann": ["secret"]}, tokenizer=Fails()), "the tokenizer fails on client 1"),
        (lambda: texts(FRAME, text="wrote", client="who"), "text is 'wrote', but the table has no"),
    ],
)
def test_texts_of_another_form_are_refused_without_showing_them(make, reason):
    with pytest.raises(privfed.Refused, match=reason) as refused:
        make()
    assert "secret" not in str(refused.value)


def test_a_text_with_an_id_outside_of_the_declared_vocabulary_is_refused():
    with pytest.raises(privfed.Refused, match="a value is not an id from 0 to 9"):
        examples(texts({"ann": ["xyz"]}, vocabulary=10))


def test_a_row_without_a_client_is_refused():
    with pytest.raises(privfed.Refused, match="the client column"):
        examples(texts(FRAME.assign(who=[None, *FRAME["who"][1:]]), **COLUMNS))
