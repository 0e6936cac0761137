"""A module tried on made-up examples, before it meets anybody's data.

The guarantee needs a client's row to be a function of that client's examples, the broadcast model
and its own randomness. So everything that training changes has to lie in the flat vector, nothing
may be remembered from one call to the next, and one example's output may not depend on the others
beside it (how many stand there depends on who else is trained at the same time). A trial cannot
prove this of all code; it refuses what is commonly met, by name.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn

from privfed.errors import Refused
from privfed.models.outputs import refuse_structured
from privfed.own_code import in_own_code
from privfed.vector import Shapes

Run = Callable[[Tensor, int, Tensor], Tensor]
_KEPT = 8
_CLOSE: dict[str, float] = {"rtol": 1e-3, "atol": 1e-5}


@dataclass(frozen=True)
class Trial:
    """`random`: training draws (dropout). `fingerprint`: a few outputs, at fixed parameters.

    `channels_last`: images may come in that order of memory; a module that flattens by `view`, say,
    takes them in the usual one only.
    """

    random: bool
    fingerprint: tuple[float, ...]
    channels_last: bool = False


def try_module(
    module: nn.Module, shapes: Shapes, x: Tensor, expected: tuple[int, ...], seed: int
) -> Trial:
    """Try `module` on made-up x `[3, *features]`, of which outputs have the shape `expected`.

    At the start and at other parameters, since a layer that starts at zero hides what is before it.
    Raises `Refused`.
    """
    named = dict(module.named_parameters())
    flat, moved = shapes.flatten(named), _ordinary(shapes)
    before = _state(module)

    def run(x: Tensor, seed: int, flat: Tensor = moved) -> Tensor:
        with torch.random.fork_rng(devices=[]), told(x), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            out: Tensor = torch.func.functional_call(module, shapes.views(flat), (x,))
        return out

    outputs = run(x, seed, flat)
    refuse_structured(outputs)
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if found != expected:
        raise Refused(
            f"model.name: for {len(x)} examples of shape {tuple(x.shape[1:])} the model gives "
            f"{found}; expected {expected}, since the data have {expected[-1]} outputs to learn"
        )
    if not bool(outputs.isfinite().all()):
        refuse("", "gives numbers that are not finite, for three examples of ordinary size")
    if not any(_learns(run, x, seed, where) for where in (flat, moved)):
        refuse("", "has a gradient of zero wherever it was tried: nothing would be learned")
    once = run(x, seed).detach()
    run(x.flip(0), seed + 1)
    _refuse_changes(module, before)
    if not torch.equal(moved, _ordinary(shapes)):
        refuse("", "changes the parameters it is given (an embedding with max_norm, say)")
    if not _same(once, run(x, seed).detach()):
        refuse(
            "",
            "remembers something from one call to the next: one client's examples would reach the "
            "next client outside the vector that is clipped and noised. Make its output a function "
            "of its parameters and its input",
        )
    _refuse_own_parameters(module, shapes, moved, flat, once, lambda: _plain(module, x, seed))
    random = not _same(once, run(x, seed + 1).detach())
    with scoring(module):
        scored = run(x, seed).detach()
        fewer = run(x[:2], seed).detach()
    if not _same(scored[:2], fewer) or not (random or _same(once[:2], run(x[:2], seed).detach())):
        refuse(
            "",
            "mixes the examples of a batch: what one gives depends on the others beside it, as in "
            "batch normalisation. Use a normalisation within each example",
        )
    fingerprint = scored.double().flatten()[:_KEPT].nan_to_num().tolist()
    return Trial(
        random, tuple(fingerprint), _takes_channels_last(lambda other: run(other, seed), x, once)
    )


def channels_last(x: Tensor) -> Tensor:
    """Images `[B, C, H, W]` in the order in which convolutions and pooling are fastest on CPUs."""
    channels, height, width = x.shape[1:]
    if channels == 1:  # in both orders at once, but for what its strides say
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def _takes_channels_last(run: Callable[[Tensor], Tensor], x: Tensor, once: Tensor) -> bool:
    """Whether the module gives the same, `once`, for images in that order."""
    if x.dim() != 4 or not x.is_floating_point():
        return False
    with contextlib.suppress(Refused):
        return _same(once, run(channels_last(x)).detach())
    return False


@contextlib.contextmanager
def told(x: Tensor) -> Iterator[None]:
    """Whatever a user's own code raises on x, as a refusal."""
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        kind = "tokens" if x.dtype == torch.int64 else "numbers"
        fitting = "lstm (or a module that embeds them)" if kind == "tokens" else "logistic or mlp"
        said = " ".join(str(error).split())
        raise Refused(
            f"model.name: the model does not take these examples, {kind} of shape "
            f"{tuple(x.shape[1:])}: {type(error).__name__}: {said}. For {kind} there is {fitting}"
            f"{in_own_code(error)}",
            key="model.name",
        ) from error


def refuse(name: str, why: str) -> NoReturn:
    """Refuse the part of the model called `name` (empty: all of it)."""
    raise Refused(f"model.name: {repr(name) if name else 'the model'} {why}")


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, **_CLOSE, equal_nan=True)


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all tensors that the module holds, however it holds them."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(module)}


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{key}".lstrip("."), value


def _refuse_changes(module: nn.Module, before: dict[str, Tensor]) -> None:
    after = dict(_tensors(module))
    for name, tensor in after.items():
        known = before.get(name)
        if known is None or known.shape != tensor.shape or not torch.equal(known, tensor):
            refuse(
                name,
                "is a buffer that training changes (or a parameter that it changes by itself): one "
                "client's examples would reach the next client and the model outside the vector "
                "that is clipped and noised. Remove it, or keep its module in eval mode",
            )


def _ordinary(shapes: Shapes) -> Tensor:
    """Fixed parameters `[d]` of ordinary size, whatever the model starts from."""
    generator = torch.Generator().manual_seed(1)
    return torch.cat(
        [
            torch.randn(math.prod(shape), generator=generator)
            / math.sqrt(math.prod(shape[1:]) or 1)
            for shape in shapes.shapes
        ]
    )


def _learns(run: Run, x: Tensor, seed: int, flat: Tensor) -> bool:
    leaf = flat.clone().requires_grad_()
    outputs = run(x, seed, leaf)
    with told(x):
        (gradient,) = torch.autograd.grad(outputs.square().sum(), leaf)
    return bool(gradient.any())


def _refuse_own_parameters(
    module: nn.Module,
    shapes: Shapes,
    moved: Tensor,
    start: Tensor,
    once: Tensor,
    plain: Callable[[], Tensor],
) -> None:
    """A parameter that the module also holds elsewhere (in a list) would not follow the vector."""
    named = dict(module.named_parameters())

    def put(flat: Tensor) -> None:
        with torch.no_grad():
            for name, view in shapes.views(flat).items():
                named[name].copy_(view)

    put(moved)
    try:
        outputs = plain()
    finally:
        put(start)
    if not _same(once, outputs):
        refuse(
            "",
            "uses a parameter that it holds twice (in a list, say) and not by its name, so it "
            "would never train; hold it in a ModuleList or ParameterList",
        )


def _plain(module: nn.Module, x: Tensor, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]), torch.no_grad(), told(x):
        torch.manual_seed(seed)
        out: Tensor = module(x)
        return out


@contextlib.contextmanager
def scoring(module: nn.Module) -> Iterator[None]:
    """As the model is used: without dropout."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
