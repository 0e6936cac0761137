"""A run that takes milliseconds, for tests of everything except training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from privfed.config.config import Config
from privfed.config.reading import load
from privfed.run.outcome import Outcome
from privfed.run.train import train
from privfed.store.round_logs import Releases

SMALL = (
    "data.source=synthetic",
    "data.features=6",
    "data.classes=3",
    "data.size_min=2",
    "data.size_mean=1.0",
    "data.size_std=0.5",
    "data.clients=12",
    "cohort.size=4",
    "client.batch_size=4",
    "privacy.noise_multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.4",
    "run.rounds=7",
    "run.evaluate_every=2",
    "run.checkpoint_every=3",
    "run.trainer=stacked",
    "run.chunk=5",
)


def small(*overrides: str) -> Config:
    return load(None, [*SMALL, *overrides])


def trained(path: Path, *overrides: str) -> Outcome:
    return train(small(*overrides), path)


def model(path: Path) -> dict[str, torch.Tensor]:
    """Returns every tensor of the checkpoint."""
    with safe_open(path / "checkpoint.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def about(path: Path) -> dict[str, object]:
    """Returns the checkpoint's metadata."""
    with safe_open(path / "checkpoint.safetensors", "pt") as file:
        return json.loads(file.metadata()["privfed"])


def same_run(first: Path, second: Path) -> None:
    """Asserts bit-identical checkpoint, ledger, metrics, configuration and summary.

    Ledgers state the rounds that a run planned at first. Of a run that was extended later, this,
    the hashes that follow from it, and the guarantee over planned rounds differ.
    """
    files = [path / "report/summary.json" for path in (first, second)]
    assert all(file.exists() for file in files), "a run has not ended"
    summaries = [json.loads(file.read_text()) for file in files]
    follows, planned = (
        {"run"},
        [_ledger(path)[0]["terms"].get("planned") for path in (first, second)],
    )
    names = ("checkpoint.safetensors", "ledger.jsonl", "metrics.jsonl", "config.toml")
    if planned[0] != planned[1]:
        follows |= {"planned", "ledger_head"}
        assert _but_for_planned_rounds(first) == _but_for_planned_rounds(second)
        torch.testing.assert_close(model(first), model(second), rtol=0, atol=0)
        names = names[2:]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    one, other = ({k: v for k, v in each.items() if k not in follows} for each in summaries)
    assert one == other


def _ledger(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]


def _but_for_planned_rounds(path: Path) -> str:
    """The ledger and the checkpoint's metadata, without the first number of rounds and hashes."""
    lines = _ledger(path)
    hashes = [line["hash"] for line in lines]
    del lines[0]["terms"]["planned"]["rounds"]
    text = json.dumps([lines, about(path)])
    for number, each in enumerate(hashes):
        text = text.replace(each, f"hash {number}")
    return text


def same_but_for_rounding(first: Path, second: Path) -> None:
    """Asserts identical runs, up to rounding on a GPU, which depends on chunks of stacked
    models.
    """
    if not torch.cuda.is_available():
        same_run(first, second)
        return
    for name in ("ledger.jsonl", "config.toml"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    torch.testing.assert_close(model(first), model(second), rtol=1e-4, atol=1e-5)


def stop_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts training once the release of round `rounds` is on disk."""
    real = Releases.write

    def write(self, charge, released, state):
        real(self, charge, released, state)
        if charge.round == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(Releases, "write", write)
