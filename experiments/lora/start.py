"""The public initial model, trained on the first plays, and the speakers of the other plays.

    python -m experiments.lora.start shakespeare/tinyshakespeare.txt

It writes `public.txt`, `speakers.txt` and `start.safetensors` into the current folder. Speakers in
the public plays are not clients.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from experiments.lora.network import Transformer
from privfed.data.sources.text import PRINTABLE, Characters, speeches

PUBLIC = 0.27
"""Default fraction of the file that is public: the first two plays."""
WINDOW, BATCH = 80, 32
STEPS, EVERY = 1000, 100
RATE = 2e-3


def main() -> None:
    """Splits the plays, trains the initial model on the public ones, and prints its losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plays", type=Path)
    parser.add_argument("--size", type=int, default=128, help="the width of the transformer")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--device", default="cpu", help="where it is trained: cpu or cuda")
    parser.add_argument("--public", type=float, default=PUBLIC, help="the part that is public")
    arguments = parser.parse_args()
    split(arguments.plays, arguments.public)
    shape = {key: getattr(arguments, key) for key in ("size", "layers", "heads")}
    public = Path("public.txt").read_text(encoding="utf-8")
    save_file(trained(public, shape, torch.device(arguments.device)), "start.safetensors")


def split(plays: Path, part: float = PUBLIC) -> None:
    """Writes `public.txt`, and `speakers.txt` without the speakers in it."""
    text = plays.read_text(encoding="utf-8")
    cut = text.index("\n\n", int(part * len(text)))
    public, rest = Path("public.txt"), Path("speakers.txt")
    public.write_text(text[:cut] + "\n", encoding="utf-8")
    rest.write_text(text[cut + 2 :], encoding="utf-8")
    known, others = speeches(public), speeches(rest)
    blocks = [
        f"{name}:\n{speech}"
        for name, spoken in others.items()
        if name not in known
        for speech in spoken
    ]
    rest.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def trained(text: str, shape: dict[str, int], device: torch.device) -> dict[str, Tensor]:
    """Returns the parameters by name with the least loss on the held-out last tenth of the text."""
    characters = Characters(PRINTABLE)
    tokens = torch.from_numpy(characters.encode(text)).to(device)
    cut = int(0.9 * len(tokens))
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = Transformer((WINDOW,), characters.count, **shape).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    best, least = {}, float("inf")
    for step in range(1, STEPS + 1):
        starts = torch.randint(0, cut - WINDOW - 1, (BATCH,), generator=generator)
        loss = _loss(net, tokens[:cut], starts)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % EVERY:
            continue
        with torch.no_grad():
            starts = torch.arange(cut, len(tokens) - WINDOW - 1, WINDOW)
            score = float(_loss(net, tokens, starts))
        print(f"{step}: loss {float(loss.detach()):.3f}, on the last tenth {score:.4f}", flush=True)
        if score < least:
            least, best = score, {n: t.detach().cpu().clone() for n, t in net.state_dict().items()}
    return best


def _loss(net: Transformer, tokens: Tensor, starts: Tensor) -> Tensor:
    """Returns the mean loss of the windows that begin at `starts` `[B]`."""
    places = (starts[:, None] + torch.arange(WINDOW)).to(tokens.device)
    outputs = net(tokens[places])
    return functional.cross_entropy(outputs.flatten(0, 1), tokens[places + 1].flatten())


if __name__ == "__main__":
    main()
