"""LSTMs and GRUs of c models, each with its own parameters, stacked.

`torch.func.vmap` has no rule for PyTorch's recurrent layers. Under `StackedRecurrence`, their calls
within `vmap` are computed here, position by position: one batched product of [input, state, 1] and
all weights yields the gates of all models. The backward pass collects the gradient of the weights
in one product at its end.

Equations, gates and their order are those of `torch.nn.LSTM` and `torch.nn.GRU` (Hochreiter &
Schmidhuber 1997 with the forget gates of Gers et al. 2000; Cho et al. 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


def unflattened() -> None:
    """Does nothing; replaces `flatten_parameters` of recurrent layers.

    On a GPU that method moves weights to other memory, also the weights that
    `torch.func.functional_call` passes. Gradient steps would then update copies, not the client's
    model, and stacked weights cannot be moved at all.
    """


class StackedRecurrence(TorchFunctionMode):
    """A context in which `torch.func.vmap` stacks the LSTM and GRU layers of models.

    Layers with projections (`proj_size`), dropout between layers or packed sequences are left to
    PyTorch, which has no rule for them.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        layer = _LAYERS.get(func)
        if layer and not kwargs and _is_plain(*args):
            return _stacked_layers(layer, *args)
        return func(*args, **(kwargs or {}))


class _Layer(torch.autograd.Function):
    """One direction of a recurrent layer of c models.

    Maps x `[c, T, B, i]`, the weights of input and state and their biases `[c, gates h, *]`, and
    initial states `[c, B, h]` (for an LSTM also cells) to states `[c, T, B, h]`. Further outputs
    are an LSTM's last cells, and the tensors that `backward` needs.
    """

    results: ClassVar[int]
    """Number of outputs that are not for `backward`."""

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.mark_non_differentiable(*output[cls.results :])
        ctx.save_for_backward(*output[cls.results :])
        ctx.set_materialize_grads(False)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        """Returns outputs for tensors with a further dimension of models."""
        size = info.batch_size
        models = [
            (each.expand(size, *each.shape) if dim is None else each.movedim(dim, 0)).flatten(0, 1)
            for each, dim in zip(tensors, in_dims, strict=True)
        ]
        outputs = cls.apply(*models)  # type: ignore[no-untyped-call]
        return tuple(each.unflatten(0, (size, -1)) for each in outputs), (0,) * len(outputs)


class _Lstm(_Layer):
    """The four gates are input, forget, cell and output."""

    results = 2

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, state: Tensor, cell: Tensor
    ) -> tuple[Tensor, ...]:
        weights = torch.cat((w, u, (b + d)[..., None]), 2)
        z, states = _inputs(x, state)
        gates = x.new_empty(*z[1:].shape[:3], 4, state.shape[-1])
        cells, tanhs = torch.empty_like(states), torch.empty_like(states[1:])
        cells[0] = cell
        for t, now in enumerate(gates):
            torch.bmm(z[t], weights.transpose(1, 2), out=now.flatten(2))
            enters, keeps, new, leaves = now.unbind(2)
            now[:, :, :2].sigmoid_()
            new.tanh_()
            leaves.sigmoid_()
            torch.mul(keeps, cells[t], out=cells[t + 1]).addcmul_(enters, new)
            torch.tanh(cells[t + 1], out=tanhs[t])
            torch.mul(leaves, tanhs[t], out=states[t + 1])
        saved = (each.transpose(0, 1) for each in (z, gates, cells, tanhs))
        return _by_model(states), cells[-1].clone(), weights, *saved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, last: Tensor | None, *_: None) -> Any:
        weights, *saved = ctx.saved_tensors
        z, gates, cells, tanhs = (each.transpose(0, 1) for each in saved)
        width = tanhs.shape[-1]
        inputs, before = torch.empty_like(z[:-1, ..., : -width - 1]), slice(-width - 1, -1)
        slopes = torch.empty_like(gates)
        state = torch.zeros_like(tanhs[0])
        grad = state[:, None].expand(-1, len(gates), -1, -1) if grad is None else grad
        cell = torch.zeros_like(state) if last is None else last.clone()
        for t in reversed(range(len(gates))):
            enters, keeps, new, leaves = gates[t].unbind(2)
            torch.addcmul(gates[t], gates[t], gates[t], value=-1, out=slopes[t])
            at_enters, at_keeps, at_new, at_leaves = slopes[t].unbind(2)
            down = grad[:, t] + state
            through = down * leaves
            cell += through.addcmul_(through * tanhs[t], tanhs[t], value=-1)
            at_enters.mul_(new).mul_(cell)
            at_keeps.mul_(cells[t]).mul_(cell)
            torch.addcmul(enters, enters * new, new, value=-1, out=at_new).mul_(cell)
            at_leaves.mul_(tanhs[t]).mul_(down)
            cell *= keeps
            step = torch.bmm(slopes[t].flatten(2), weights)
            inputs[t], state = step[..., : -width - 1], step[..., before]
        packed = _gradient(slopes, z)
        w, u, b = packed[..., : -width - 1], packed[..., before], packed[..., -1]
        return inputs.transpose(0, 1), w, u, b, b, state, cell


class _Gru(_Layer):
    """The four blocks of h gates: reset, update, and the candidate's terms of input and state."""

    results = 1

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, state: Tensor
    ) -> tuple[Tensor, ...]:
        width = state.shape[-1]
        both = torch.cat((w, u, (b + d)[..., None]), 2)[:, : 2 * width]
        of_input, of_state = (each[:, 2 * width :] for each in (w, u))
        rows = of_input, torch.zeros_like(of_state), b[:, 2 * width :, None]
        more = torch.zeros_like(of_input), of_state, d[:, 2 * width :, None]
        weights = torch.cat((both, torch.cat(rows, 2), torch.cat(more, 2)), 1)
        z, states = _inputs(x, state)
        gates = x.new_empty(*z[1:].shape[:3], 4, width)
        for t, now in enumerate(gates):
            torch.bmm(z[t], weights.transpose(1, 2), out=now.flatten(2))
            now[:, :, :2].sigmoid_()
            resets, keeps, new, recalled = now.unbind(2)
            new.addcmul_(resets, recalled).tanh_()
            torch.lerp(new, states[t], keeps, out=states[t + 1])
        return _by_model(states), weights, z.transpose(0, 1), gates.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor, ...]:
        weights, *saved = ctx.saved_tensors
        z, gates = (each.transpose(0, 1) for each in saved)
        width = gates.shape[-1]
        inputs, before = torch.empty_like(z[:-1, ..., : -width - 1]), slice(-width - 1, -1)
        slopes = torch.empty_like(gates)
        state = torch.zeros_like(grad[:, 0])
        for t in reversed(range(len(gates))):
            resets, keeps, new, recalled = gates[t].unbind(2)
            both = gates[t][:, :, :2]
            torch.addcmul(both, both, both, value=-1, out=slopes[t][:, :, :2])
            at_resets, at_keeps, at_new, at_recalled = slopes[t].unbind(2)
            down = grad[:, t] + state
            at_keeps.mul_(z[t, ..., before] - new).mul_(down)
            torch.addcmul(down, down, keeps, value=-1, out=at_new)
            at_new.addcmul_(at_new * new, new, value=-1)
            at_resets.mul_(recalled).mul_(at_new)
            torch.mul(at_new, resets, out=at_recalled)
            step = torch.bmm(slopes[t].flatten(2), weights)
            inputs[t] = step[..., : -width - 1]
            state = torch.addcmul(step[..., before], down, keeps)
        packed = _gradient(slopes, z)
        for_input = packed[:, : 3 * width]
        for_state = torch.cat((packed[:, : 2 * width], packed[:, 3 * width :]), 1)
        w, b = for_input[..., : -width - 1], for_input[..., -1]
        return inputs.transpose(0, 1), w, for_state[..., before], b, for_state[..., -1], state


def _inputs(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Returns [input, state, 1] per position `[T + 1, c, B, i + h + 1]`, and its states (a view).

    Only the initial state is filled in.
    """
    c, length, batch, entries = x.shape
    z = x.new_ones(length + 1, c, batch, entries + state.shape[-1] + 1)
    z[:-1, ..., :entries] = x.transpose(0, 1)
    states = z[..., entries:-1]
    states[0] = state
    return z, states


def _by_model(states: Tensor) -> Tensor:
    """Returns all states except the initial ones, as `[c, T, B, h]`."""
    return states[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _gradient(slopes: Tensor, z: Tensor) -> Tensor:
    """Returns the gradient of all weights `[c, 4h, i + h + 1]`, from those of gates."""
    rows = slopes.flatten(3).transpose(0, 1).flatten(1, 2)
    return torch.bmm(rows.transpose(1, 2), z[:-1].transpose(0, 1).flatten(1, 2))


def _is_plain(x: Tensor, states: Any, weights: Any, *options: Any) -> bool:
    """Whether arguments of `torch.lstm` or `torch.gru` are those of a layer that can be stacked."""
    if not isinstance(weights, list | tuple):  # a packed GRU's states, after its batch sizes
        return False
    biased, layers, dropout, training, bidirectional, _ = options
    per_direction = (4 if biased else 2) * layers * (2 if bidirectional else 1)
    return len(weights) == per_direction and not (dropout and training)


def _stacked_layers(
    layer: type[_Layer],
    x: Tensor,
    initial: Any,
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Returns the results of `torch.lstm` or `torch.gru`, for the same arguments."""
    starts = (initial,) if isinstance(initial, Tensor) else tuple(initial)
    x = x.transpose(0, 1) if batch_first else x
    ends: list[list[Tensor]] = [[] for _ in starts]
    directions, count = 2 if bidirectional else 1, 4 if biased else 2
    for depth in range(layers):
        outputs = []
        for back in range(directions):
            place = depth * directions + back
            parts = [*weights[place * count : (place + 1) * count]]
            if not biased:
                parts += 2 * [parts[0].new_zeros(len(parts[0]))]
            given = (x.flip(0) if back else x, *parts, *(start[place] for start in starts))
            states, *cells = layer.apply(*(each[None] for each in given))  # type: ignore[no-untyped-call]
            outputs.append(states[0].flip(0) if back else states[0])
            for end, each in zip(ends, (states[0, -1], *(cell[0] for cell in cells)), strict=False):
                end.append(each)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    last = (torch.stack(each) for each in ends)
    return x.transpose(0, 1).contiguous() if batch_first else x, *last


_LAYERS: dict[Any, type[_Layer]] = {torch.lstm: _Lstm, torch.gru: _Gru}
