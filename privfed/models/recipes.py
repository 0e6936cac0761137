"""Recipes of models: their interface, linear and fully connected models, and users' functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

from pydantic import Field

from privfed.core.deferred import nn
from privfed.core.errors import Refused
from privfed.core.parts import Part, part_with_objects
from privfed.core.user_code import in_user_code
from privfed.models.pretrained import Origins


class Model(Protocol):
    """A recipe for a module that maps x `[B, *features]` to outputs `[B, *positions, width]`."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        """Returns the module for examples of the shape `features`, with `width` outputs.

        Args:
          features: shape of one example's x.
          width: number of outputs that the loss needs.
        """


@runtime_checkable
class LinearModel(Protocol):
    """A recipe of linear models, for which the default learning rate and clip of the loss are used.

    For other models, learning rate and clipping norm are chosen when the run starts
    (`privfed.run.rates`).
    """

    linear: ClassVar[bool]


@runtime_checkable
class Weighted(Protocol):
    """A recipe of a module with weights of its own, from which training starts."""

    def weights(self) -> str:
        """Returns the SHA-256 of the weights that training starts from."""

    def origins(self) -> tuple[Origins, ...]:
        """Returns the runs of privfed that are known to have trained these weights."""

    def known(self) -> bool:
        """Whether this process exported all of these weights, so that `origins` is complete."""


class Logistic(Part):
    """One linear layer, starting at zero: multinomial logistic (or linear) regression."""

    linear: ClassVar[bool] = True

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        layer = nn.Linear(math.prod(features), width)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)


class Mlp(Part):
    """Fully connected layers of the given widths with ReLU between them."""

    hidden: list[Annotated[int, Field(ge=1, le=1_000_000)]] = Field([64], min_length=1)
    """Width of each hidden layer."""

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        depth = math.prod(features)
        for hidden in self.hidden:
            layers += [nn.Linear(depth, hidden), nn.ReLU()]
            depth = hidden
        return nn.Sequential(*layers, nn.Linear(depth, width))


class UserNetwork(Part):
    """A user's `module:function` that returns a `torch.nn.Module`, or a class of modules.

    The function is called with `arguments`. It also gets `features` (the shape of one example), and
    `width` or `classes` (both the number of outputs), if it has parameters of these names.
    """

    arguments: dict[str, Any] = {}
    function: ClassVar[Callable[..., Any]]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> type[UserNetwork]:
        """Returns a model class that builds its module by `function`."""
        return part_with_objects(cls, function, function=staticmethod(function))

    def build(self, features: tuple[int, ...], width: int) -> nn.Module:
        if isinstance(self.function, nn.Module):
            raise Refused(
                "model.name names a torch.nn.Module object, but every run needs a new one; name a "
                "function that returns a new module"
            )
        known = {"features": features, "width": width, "classes": width}
        name = _name(self.function)
        try:
            parameters = inspect.signature(self.function).parameters
            accepted = {key: value for key, value in known.items() if key in parameters}
            module = self.function(**{**accepted, **self.arguments})
        except Refused:
            raise
        except (Exception, SystemExit) as error:  # users' code may raise anything
            reason = " ".join(str(error).split())
            raise Refused(
                f"model.name: {name} failed ({type(error).__name__}: {reason}); correct the "
                "function, which is called with model.arguments, and with features, width and "
                f"classes if it has these parameters{in_user_code(error)}",
                key="model.name",
            ) from error
        if not isinstance(module, nn.Module):
            raise Refused(
                f"model.name: {name} returned {type(module).__name__}; expected a torch.nn.Module"
            )
        return module


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
