"""Rounds of small transformers over clients who hold strings, next to a plain PyTorch loop.

    python -m experiments.benchmarks.language_models

Random models of transformers, a GPT-2 of next tokens and a BERT classifier: 4 layers, 128 wide, a
vocabulary of 2,000. 16 of 64 clients train for one epoch of 8 texts of 32 to 64 tokens, in batches
of 4, all parameters or adapters of rank 4. Privfed's rounds are those of a run: clipped, noised,
charged and stored. The reference is the library's own model (of peft, for adapters) under
`torch.optim.SGD`, on the same batches, without clipping, noise and files. Both take turns on one
thread, and processor times are compared. Before that, both train two rounds without noise: they
have to process as many examples and tokens, and to reach the same loss on the test texts.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import peft
import tokenizers
import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import privfed
from experiments.benchmarks.work import steadiness
from experiments.benchmarks.work.running import Running
from privfed.api.arguments import configuration
from privfed.client.batches import plan_batches
from privfed.core.memory import keep_freed
from privfed.data.inputs import by_name
from privfed.run.prepare import prepare
from privfed.run.setup import Setup

VOCABULARY, WINDOW, WIDTH, LAYERS, HEADS, CLASSES, RANK = 2000, 64, 128, 4, 4, 4, 4
CLIENTS, COHORT, TEXTS, BATCH = 64, 16, 8, 4
CHECKED, TOLERANCE = 2, 0.01
SECTIONS: dict[str, dict[str, Any]] = {
    "cohort": {"sampler": "fixed_size", "size": COHORT},
    "client": {"epochs": 1, "batch_size": BATCH},
    "server": {"optimizer": "fedavg", "lr": 1.0},
    "run": {"threads": 1, "randomness": "seeded"},
}
NOISE = {"privacy": {"noise_multiplier": 1.0, "delta": 1e-2, "clip": 0.4}}
NO_NOISE = {"privacy": {"mechanism": "none"}, "aggregation": {"weights": "uniform"}}


@dataclass(frozen=True)
class Work:
    """A model of transformers.

    `targets` are the layers that are adapted, at the learning rate `lora_lr`, and `trained` those
    that are trained next to adapters.
    """

    name: str
    kind: str
    keys: dict[str, int]
    targets: tuple[str, ...]
    lora_lr: float
    trained: tuple[str, ...] = ()

    @property
    def classifies(self) -> bool:
        return "num_labels" in self.keys

    def net(self) -> Any:
        """Returns the model with random weights, without dropout."""
        kind = getattr(transformers, self.kind)
        torch.manual_seed(0)
        return kind(kind.config_class(vocab_size=VOCABULARY, **self.keys)).eval()

    def setup(self, lora: bool, sections: dict[str, dict[str, Any]]) -> Setup:
        """Returns a run over clients who hold random strings, ready to start."""
        rng = np.random.default_rng(0)
        model: dict[str, Any] = {"name": self.net()}
        declared: dict[str, Any] = {"classes": CLASSES} if self.classifies else {}
        if lora:
            targets = [f"*.{target}" for target in self.targets]
            model["lora"] = {"rank": RANK, "targets": targets, "trained": [*self.trained]}
        population = privfed.Texts(
            {f"client {k}": self._texts(TEXTS, rng) for k in range(CLIENTS)},
            tokenizer=tokenizer(),
            window=WINDOW,
            clients=CLIENTS,
            test=self._texts(2 * TEXTS, rng),
            **declared,
        )
        sections = {**SECTIONS, **sections}
        sections["client"] = {**sections["client"], "lr": self.lora_lr if lora else 0.1}
        return prepare(configuration(population, model, {"rounds": 9999}, sections))

    def _texts(self, count: int, rng: np.random.Generator) -> Any:
        lengths = rng.integers(WINDOW // 2, WINDOW + 1, count)
        texts = [" ".join(f"w{n}" for n in rng.integers(1, VOCABULARY, each)) for each in lengths]
        return (texts, rng.integers(0, CLASSES, count)) if self.classifies else texts


WORKS = (
    Work(
        "GPT-2",
        "GPT2LMHeadModel",
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": WINDOW}
        | {"bos_token_id": 0, "eos_token_id": 0},
        ("c_attn",),
        20.0,
    ),
    Work(
        "BERT classifier",
        "BertForSequenceClassification",
        {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        | {"intermediate_size": 4 * WIDTH, "max_position_embeddings": WINDOW}
        | {"num_labels": CLASSES},
        ("query", "value"),
        1.0,
        ("classifier",),
    ),
)


def tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer of the words w1, w2, …; id 0 is padding."""
    words = {"[PAD]": 0, **{f"w{n}": n for n in range(1, VOCABULARY)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[PAD]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made


class PlainLoop:
    """Federated averaging of the library's own model on the batches of `setup`."""

    def __init__(self, work: Work, lora: bool, setup: Setup) -> None:
        self.setup, self.test = setup, setup.federation.test
        self.module = adapted(work, setup) if lora else work.net()
        self.params = [p for p in self.module.parameters() if p.requires_grad]
        self.model = [p.detach().clone() for p in self.params]
        self.round = 0

    def go(self) -> float:
        """Runs a round, and returns its processor seconds, without those of choosing batches."""
        self.round += 1
        clients = self._batches()
        began = time.process_time()
        total = [torch.zeros_like(p) for p in self.model]
        for batches in clients:
            self._hold()
            optimizer = torch.optim.SGD(self.params, lr=self.setup.executor.trainer.lr)
            for inputs, y in batches:
                optimizer.zero_grad()
                torch.autograd.backward(mean_loss(self.module(**inputs).logits, y))
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, torch._foreach_sub(self.params, self.model))
        torch._foreach_add_(self.model, total, alpha=1 / len(clients))
        return time.process_time() - began

    def loss(self) -> float:
        """The loss on the test texts."""
        self._hold()
        with torch.no_grad():
            x = self.test.x[torch.arange(len(self.test))]
            logits = self.module(**by_name(x, self.test.inputs)).logits
            return float(mean_loss(logits, self.test.y))

    @torch.no_grad()
    def _hold(self) -> None:
        torch._foreach_copy_(self.params, self.model)

    def _batches(self) -> list[list[tuple[dict[str, Tensor], Tensor]]]:
        """The inputs and labels of each batch of each client of the round."""
        setup, federation = self.setup, self.setup.federation
        cohort = setup.algorithm.draw(self.round, federation.population(), setup.streams)
        keys = setup.streams.at("shuffle", self.round, federation.identify(cohort.clients))
        planned = plan_batches(federation, cohort.clients, keys, 1, BATCH)
        chosen = [
            [torch.from_numpy(rows[mask]) for rows, mask in zip(*steps, strict=True) if mask.any()]
            for steps in zip(planned.rows, planned.mask, strict=True)
        ]
        inputs = federation.examples.inputs
        gathered = [[federation.gather(index) for index in batches] for batches in chosen]
        return [[(by_name(x, inputs), y) for x, y in batches] for batches in gathered]


def adapted(work: Work, setup: Setup) -> nn.Module:
    """Returns peft's adapted model, with the factors of privfed, of which one is not trained."""
    net = work.net()
    transposed = isinstance(net, transformers.GPT2LMHeadModel)
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=RANK,
        target_modules=[*work.targets],
        modules_to_save=[*work.trained],
        fan_in_fan_out=transposed,
    )
    module: nn.Module = peft.get_peft_model(net, config).eval()
    named, fixed, start = dict(module.named_parameters()), "lora_A", "lora_B"
    if transposed:  # weights of Conv1D are [in, out], so B A is the transpose of peft's
        fixed, start = start, fixed
    with torch.no_grad():
        for name, a in setup.network.constants.items():
            if name.endswith(".weight_lora_A"):
                layer = f"base_model.model.{name.removesuffix('.weight_lora_A')}"
                factor = named[f"{layer}.{fixed}.default.weight"].requires_grad_(False)
                factor.copy_(a[0].t() if transposed else a[0])
                named[f"{layer}.{start}.default.weight"].zero_()
    return module


def mean_loss(logits: Tensor, y: Tensor) -> Tensor:
    """The mean over examples of the mean cross-entropy of their labelled positions."""
    if y.dim() == 1:
        return nn.functional.cross_entropy(logits, y)
    each = nn.functional.cross_entropy(
        logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="none"
    )
    return (each.view(y.shape).sum(1) / (y >= 0).sum(1)).mean()


def counted(module: Any) -> Counter[str]:
    """Counts the examples and tokens that `module` processes from now on."""
    counts: Counter[str] = Counter()

    def count(_: nn.Module, ids: tuple[Tensor]) -> None:
        counts.update(examples=len(ids[0]), tokens=int((ids[0] != 0).sum()))

    module.get_input_embeddings().register_forward_pre_hook(count)
    return counts


def check(work: Work, lora: bool) -> str:
    """Trains both ways without noise, and returns their work in words.

    Raises `SystemExit` if the ways differ.
    """
    setup = work.setup(lora, NO_NOISE)
    plain, network = PlainLoop(work, lora, setup), setup.network
    counts = [counted(module) for module in (network.module, plain.module)]
    with Running(setup) as run:
        run.go(CHECKED)
        params = run.state.params
    for _ in range(CHECKED):
        plain.go()
    ours, theirs = (dict(each) for each in counts)  # before the test texts
    if ours != theirs:
        raise SystemExit(f"{work.name}: privfed processed {ours}, the plain loop {theirs}")
    begun, *losses = (
        network.evaluate(network.initial_params, plain.test)["loss"],
        network.evaluate(params, plain.test)["loss"],
        plain.loss(),
    )
    if not abs(losses[0] - losses[1]) < TOLERANCE * abs(losses[0] - begun):
        raise SystemExit(f"{work.name}: the losses are {losses}, but should be equal")
    work_done = f"{ours['examples']} examples, {ours['tokens']:,} tokens"
    return f"{work_done}; loss {begun:.6f} to {losses[0]:.6f}, plain loop {losses[1]:.6f}"


def turns(work: Work, lora: bool, count: int) -> tuple[int, list[tuple[float, float]]]:
    """Returns the number of trained parameters, and processor seconds of rounds in turn: those of
    privfed and those of the plain loop.
    """
    setup = work.setup(lora, NOISE)
    plain, taken = PlainLoop(work, lora, setup), []
    with Running(setup) as run:
        for _ in range(count + 1):
            began = time.process_time()
            run.go()
            taken.append((time.process_time() - began, plain.go()))
    return setup.network.shapes.length, taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--keep", action="store_true", help="keep freed memory, as commands do")
    arguments = parser.parse_args()
    count = arguments.turns
    torch.set_num_threads(1)
    if arguments.keep:
        keep_freed()
    console, spread = Console(width=110), [steadiness.reference()]
    table = Table(title=f"processor s per round, 1 thread, medians of {count} turns")
    for column in ("model", "trained", "parameters", "privfed", "plain loop", "ratio", "quartiles"):
        table.add_column(column, justify="left" if column in ("model", "trained") else "right")
    for work, lora in itertools.product(WORKS, (False, True)):
        trained = f"rank {RANK}" if lora else "all"
        console.print(f"{work.name}, {trained}, {CHECKED} rounds: {check(work, lora)}")
        length, taken = turns(work, lora, count)
        spread.append(steadiness.reference())
        ours, theirs = (statistics.median(each) for each in zip(*taken, strict=True))
        low, ratio, high = statistics.quantiles([a / b for a, b in taken], n=4)
        cells = f"{length:,}", f"{ours:.2f}", f"{theirs:.2f}", f"{ratio:.2f}"
        table.add_row(work.name, trained, *cells, f"{low:.2f} to {high:.2f}")
    console.print(table)
    console.print(f"{steadiness.machine()}; {steadiness.spread(spread)}")


if __name__ == "__main__":
    main()
