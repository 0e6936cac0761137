"""Calls of modules: in evaluation mode, in the fast memory order, with errors as refusals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from traceback import walk_tb
from typing import NoReturn

import torch
from torch import Tensor, nn

from privfed.core.errors import Refused
from privfed.core.own_code import in_own_code


@contextlib.contextmanager
def scoring(module: nn.Module) -> Iterator[None]:
    """A context with `module` and its parts in evaluation mode, without dropout."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def channels_last(x: Tensor) -> Tensor:
    """Images `[B, C, H, W]` in the memory order in which convolutions are fastest on CPUs."""
    channels, height, width = x.shape[1:]
    if channels == 1:  # both orders at once, which its strides must show
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def failed_layer(error: BaseException, module: nn.Module) -> str:
    """Returns the name and type of the layer of `module` whose call raised `error`; or ""."""
    names = {id(part): name for name, part in module.named_modules() if name}
    called = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    layers = [part for part in called if isinstance(part, nn.Module) and id(part) in names]
    return f"{names[id(layers[-1])]!r} ({type(layers[-1]).__name__})" if layers else ""


@contextlib.contextmanager
def errors_as_refusals(x: Tensor, module: nn.Module) -> Iterator[None]:
    """Converts any error of a user's module on x into a `Refused`."""
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        kind = "tokens" if x.dtype == torch.int64 else "numbers"
        fitting = "lstm (or a module that embeds them)" if kind == "tokens" else "logistic or mlp"
        reason = " ".join(str(error).split())
        layer = failed_layer(error, module)
        where = f", in its layer {layer}" if layer else ""
        raise Refused(
            f"model.name: the model does not take these examples, {kind} of shape "
            f"{tuple(x.shape[1:])}{where}: {type(error).__name__}: {reason}. For {kind}, use "
            f"{fitting}{in_own_code(error)}",
            key="model.name",
        ) from error


def refuse_part(name: str, why: str) -> NoReturn:
    """Raises `Refused` for the part of the model called `name` (the complete model if empty)."""
    raise Refused(f"model.name: {repr(name) if name else 'the model'} {why}")


def refuse_model(why: str) -> NoReturn:
    """Raises `Refused` for the model."""
    refuse_part("", why)
