"""Converts clients' texts to token ids by a given tokenizer, with declared lengths and budgets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from privfed.api.population import TABLE, Arrays
from privfed.core.errors import Refused, public_text
from privfed.data.tables.arrow import is_table, settled
from privfed.data.tables.readable import TableObject

_IDS, _MASK = "input_ids", "attention_mask"
"""Arguments of `forward`, as models of transformers call them."""
Labelled = tuple[list[str], np.ndarray | None]
"""Texts, and their labels `[n]`."""


class Texts(Arrays):
    """Clients' texts as tokens, for models that take `input_ids` and `attention_mask`.

    Without labels, the model predicts each next token: a text becomes windows, which overlap by one
    token so that each token is predicted once. With labels, a text is one example, cut to its first
    tokens. Shorter examples are padded at their end; padding is masked, and never predicted.
    Nothing is derived from the texts; the tokenizer, too, must not be trained on private texts.

    Args:
      population: the name of each client -> a list of texts, or a pair (texts, labels); or a table
        with the columns that `text`, `client` and `label` name: pandas, Polars, Arrow, or a
        `datasets.Dataset`.
      tokenizer: a tokenizer of the library transformers or tokenizers, or a function from a text to
        its token ids.
      window: number of tokens of an example.
      clients: the approximate number of clients, a public constant.
      vocabulary: size of the model's vocabulary (`model.config.vocab_size`), at least that of the
        tokenizer, which is the default.
      tokens_per_client: the largest number of tokens of a client; 0: no limit. Further examples are
        left out.
      text: the column of texts in a table.
      client: the column of clients.
      label: the column of labels; "": none.
      test: public texts: a list, a pair (texts, labels), or a table.
      declared: further keys of [data]; `classes` or `labels` declares the labels.

    Raises:
      Refused: for data of another form, a vocabulary that is too small, and texts that the
        tokenizer does not accept.
    """

    called = "the texts"

    def __init__(
        self,
        population: Any,
        *,
        tokenizer: Any,
        window: int,
        clients: int,
        vocabulary: int = 0,
        tokens_per_client: int = 0,
        text: str = "text",
        client: str = "client",
        label: str = "",
        test: Any = None,
        **declared: Any,
    ) -> None:
        if not isinstance(window, int | np.integer) or window < 2:
            raise Refused(f"window is {window!r}; expected an integer of 2 or more")
        self._tokenizer, self._window = tokenizer, window
        named = {"classes", "labels", "label_bounds"} & declared.keys()
        self._labelled = bool(label or named)
        self._words = bool(declared.get("labels"))
        by_client = (
            _of_table(population, text, client, label, self._words)
            if is_table(population)
            else population
        )
        if not isinstance(by_client, Mapping):
            raise Refused(
                f"population is a {type(by_client).__name__}; expected texts by client, as "
                '{"anna": ["…"]}, or a table with the columns of text= and client='
            )
        size = _size(tokenizer, vocabulary)
        if test is not None and is_table(test):
            test = _all_of(_of_table(test, text, "", label, self._words))
        super().__init__(
            {
                name: self._arrays(each, f"client {n}")
                for n, (name, each) in enumerate(by_client.items(), 1)
            },
            inputs={
                _IDS: {"tokens": size, "shape": [window]},
                _MASK: {"mask": True, "shape": [window]},
            },
            next_token=False if self._labelled else _IDS,
            clients=clients,
            test=None if test is None else self._arrays(test, "the test texts"),
            tokens_per_client=tokens_per_client,
            tokenizer=_called(tokenizer, size),
            **declared,
        )
        if named & {"classes", "labels"}:  # classifiers of transformers have an output for each
            self.loss = "cross_entropy"

    def encoded(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Converts texts to the model's inputs, as `run.predict` and `run.evaluate` take them.

        Args:
          texts: texts, each of which becomes one example, or several windows.

        Returns:
          `input_ids` and `attention_mask`, both `[n, window]`.
        """
        return self._inputs(list(texts), "the texts")[0]

    def _arrays(self, passed: Any, called: str) -> Any:
        """Returns the inputs of one client's texts; with declared labels, (inputs, labels).

        `called` names the texts in messages.
        """
        texts, y = passed if isinstance(passed, tuple) and len(passed) == 2 else (passed, None)
        texts = None if isinstance(texts, str) or not isinstance(texts, Iterable) else [*texts]
        if texts is None or not all(isinstance(each, str) for each in texts):
            raise Refused(f"data: {called} holds objects other than texts; expected a list of str")
        if self._labelled != (y is not None):
            expected = "a pair (texts, labels)" if self._labelled else "a list of texts"
            raise Refused(
                f"data: {called} has {'labels' if y is not None else 'no labels'}, but classes= or "
                f"labels= {'declares' if self._labelled else 'does not declare'} labels; expected "
                f"{expected}"
            )
        inputs, rows = self._inputs(texts, called)
        if y is None:
            return inputs
        labels = np.asarray(y)
        if labels.shape[:1] != (len(texts),):
            raise Refused(
                f"data: the numbers of labels and texts in {called} differ; expected one label "
                "for each text"
            )
        return inputs, labels[rows]

    def _inputs(self, texts: list[str], called: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the inputs `[n, window]`, and the index `[n]` of each input's text.

        `called` names the texts in messages.
        """
        windows, rows = [], []
        for row, tokens in enumerate(self._tokens(texts, called)):
            for window in self._windows(tokens):
                windows.append(window)
                rows.append(row)
        ids = np.full((len(windows), self._window), self._padding, dtype=np.int64)
        mask = np.zeros_like(ids)
        for place, window in enumerate(windows):
            ids[place, : len(window)], mask[place, : len(window)] = window, 1
        return {_IDS: ids, _MASK: mask}, np.array(rows, dtype=np.int64)

    def _windows(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yields the examples of one text; none for a single token without labels, or no tokens."""
        if self._labelled:
            yield from [ids[: self._window]] if len(ids) else []
            return
        for start in range(0, len(ids) - 1, self._window - 1):
            yield ids[start : start + self._window]

    @property
    def _padding(self) -> int:
        stated = getattr(self._tokenizer, "padding", None)  # of tokenizers
        padding = (stated or {}).get("pad_id", getattr(self._tokenizer, "pad_token_id", None))
        return 0 if padding is None else int(padding)

    def _tokens(self, texts: list[str], called: str) -> list[Sequence[int]]:
        """Returns the token ids of each text.

        Raises `Refused` if the tokenizer fails; `called` names the texts in the message.
        """
        tokenizer = self._tokenizer
        if not texts:
            return []
        try:
            if hasattr(tokenizer, "encode_batch"):  # a tokenizer of `tokenizers`
                return [
                    [i for i, mask in zip(each.ids, each.attention_mask, strict=True) if mask]
                    for each in tokenizer.encode_batch(texts)
                ]
            if hasattr(tokenizer, "convert_ids_to_tokens"):  # a tokenizer of `transformers`
                cut = {"truncation": True, "max_length": self._window} if self._labelled else {}
                ids: list[Sequence[int]] = tokenizer(texts, verbose=False, **cut)[_IDS]
                return ids
            return [list(tokenizer(text)) for text in texts]
        except Exception as error:  # a user's own object, whose error may quote a text
            raise Refused(
                f"data: the tokenizer fails on {called}: {public_text(error)}; expected a "
                "tokenizer of transformers or tokenizers, or a function from a text to token ids",
                private=" ".join(str(error).split()),
            ) from None


def _of_table(rows: Any, text: str, client: str, label: str, words: bool) -> dict[str, Labelled]:
    """Returns the texts and labels of each client in a table; without `client`, all under "".

    `words` is whether labels are texts.
    """
    table = TableObject(settled(rows), TABLE, ())
    named = {text, *filter(None, [client, label if words else ""])}
    names = table.names()
    for key, column in (("text", text), ("client", client), ("label", label)):
        if column and column not in names:
            raise Refused(
                f"{key} is {column!r}, but {TABLE} has no such column; name one of its columns"
            )
    numbers = {label: repr(label)} if label and not words else {}
    columns = table.read(numbers, {name: repr(name) for name in named})
    cells = {
        name: np.array([*column.values, ""])[column.codes] for name, column in columns.words.items()
    }
    owners = cells[client] if client else np.zeros(columns.rows, dtype="U1")
    y = None if not label else cells[label] if words else columns.numbers[label]
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    by_client: dict[str, Labelled] = {}
    ends = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for rows_of in np.split(order, ends) if len(order) else ():
        by_client[str(owners[rows_of[0]])] = (
            [str(cells[text][row]) for row in rows_of],
            None if y is None else y[rows_of],
        )
    return by_client


def _all_of(by_client: Mapping[str, Labelled]) -> Any:
    """Returns all rows of a table without a client column: texts, or a pair (texts, labels)."""
    texts, y = by_client.get("", ([], None))
    return texts if y is None else (texts, y)


def _size(tokenizer: Any, vocabulary: int) -> int:
    """Returns the size of the model's vocabulary: `vocabulary`, or else that of the tokenizer.

    Raises `Refused` if neither is known, or if `vocabulary` is smaller than the tokenizer's.
    """
    if hasattr(tokenizer, "get_vocab_size"):
        tokens = int(tokenizer.get_vocab_size())
    else:
        tokens = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    if not (tokens or vocabulary):
        raise Refused("vocabulary is missing; declare the number of token ids of this tokenizer")
    if vocabulary and vocabulary < tokens:
        raise Refused(
            f"vocabulary is {vocabulary}, but the tokenizer has {tokens} tokens; expected at least "
            "as many: resize the model's embedding, or use the model's own tokenizer"
        )
    return vocabulary or tokens


def _called(tokenizer: Any, size: int) -> str:
    """Returns the configured name of a tokenizer, with its size and, if known, its digest.

    The digest is that of its vocabulary, as `get_vocab` returns it.
    """
    name = getattr(tokenizer, "__name__", type(tokenizer).__name__)
    if not hasattr(tokenizer, "get_vocab"):
        return f"{name}, {size} tokens"
    listed = repr(sorted(tokenizer.get_vocab().items())).encode()
    return f"{name}, {size} tokens, sha256 {hashlib.sha256(listed).hexdigest()[:16]}"
