"""The study of low-rank adaptation: its network, what methods train, and whose words are public."""

from pathlib import Path

import pytest
import torch
from helpers import DATA, built

from experiments.lora import start
from experiments.lora.network import Transformer
from privfed.data.sources.text import PRINTABLE, Characters, speeches
from privfed.grid.load import load_grid
from privfed.models.recipes import UserNetwork

SHAKESPEARE = DATA / "shakespeare" / "tinyshakespeare.txt"
STUDY = Path(start.__file__).parent
NUMBERS = {
    "grid.toml": {
        "full": 630_498,
        "head": 12_642,
        "LoRA, rank 1": 3_456,
        "LoRA, rank 4": 13_824,
        "LoRA, rank 16": 55_296,
        "LoRA, rank 4, A trained": 24_576,
        "start": 12_642,
    },
    "large.toml": {
        "full": 10_753_634,
        "head": 37_730,
        "LoRA, rank 4": 82_944,
        "LoRA, rank 16": 331_776,
        "start": 37_730,
    },
}
GRIDS = {name: load_grid(STUDY / name) for name in NUMBERS}
METHODS = [
    pytest.param(name, method, marks=pytest.mark.slow if large else (), id=f"{name} {method.name}")
    for name, grid in GRIDS.items()
    for method in grid.method
    for large in [name == "large.toml" and method.name != "head"]
]


def test_the_transformer_looks_at_no_later_character():
    net = Transformer((12,), 20, size=8, layers=2, heads=2).eval()
    x = torch.randint(0, 20, (3, 12), generator=torch.Generator().manual_seed(0))
    later = x.clone()
    later[:, 7:] = (x[:, 7:] + 1) % 20
    before, after = net(x), net(later)
    assert before.shape == (3, 12, 20)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="Shakespeare's plays are not at hand")
def test_whoever_speaks_in_public_is_no_client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start.split(SHAKESPEARE)
    public, clients = (speeches(tmp_path / name) for name in ("public.txt", "speakers.txt"))
    assert not public.keys() & clients.keys()
    everybody = speeches(SHAKESPEARE)
    assert all(everybody[name] == spoken for name, spoken in clients.items())


@pytest.mark.parametrize("name, method", METHODS)
def test_each_method_trains_the_numbers_that_the_page_states(name, method):
    window = torch.zeros(2, start.WINDOW, dtype=torch.int64)
    keys = {
        key.removeprefix("model."): value for key, value in method.set.items() if "model." in key
    }
    (arguments,) = GRIDS[name].grid.get("model.arguments", [{}])
    recipe = UserNetwork.of(Transformer)(arguments=arguments)
    characters = Characters(PRINTABLE).count
    net = built(recipe, (start.WINDOW,), characters, x=window, y=window, **keys)
    assert net.shapes.length == NUMBERS[name][method.name]
    assert f"{net.shapes.length:,}" in (STUDY / "README.md").read_text("utf-8")
