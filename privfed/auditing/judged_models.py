"""Models that another pipeline released, read from a folder in order."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.auditing.canaries.scores import without_common
from privfed.canary.layouts import Numbers, flatten
from privfed.core.errors import Refused, public_text, refuse_too_large

_BATCH_SIZE = 2**26
"""Number of entries of model differences that are multiplied with all directions at a time."""


@dataclass(frozen=True)
class Cosines:
    """Cosines of K directions with the changes of a model by T releases.

    Attributes:
      by_release: cosines with the change by each release, shape `[T, K]`.
      final: cosines with the total change, from the initial model to the last, shape `[K]`.
    """

    by_release: Numbers
    final: Numbers

    def statistics(self) -> dict[str, Numbers]:
        """Returns canaries' scores `[K]`: "iterates" by single releases, "final" by total change.

        The scores do not depend on the secret bits. "iterates" is the sum over releases, without
        components that all releases share, such as the model's path. That also hides canaries that
        take part in every round, which "final" shows. With a single release, only "final" is
        returned.
        """
        if len(self.by_release) == 1:
            return {"final": self.final}
        return {"iterates": without_common(self.by_release).sum(0), "final": self.final}


def cosines(directions: NDArray[np.float32], models: Iterable[Numbers]) -> Cosines:
    """Returns the cosines of `directions` with the differences of successive models.

    Releases that changed nothing are left out.

    Args:
      directions: unit directions, shape `[K, d]`.
      models: flat models, each of shape `[d]`.

    Raises:
      Refused: if the last model equals the first.
    """
    ends: list[Numbers] = []
    units = _units(models, ends)
    batch_size = max(1, _BATCH_SIZE // directions.shape[1])
    rows = []
    while batch := list(islice(units, batch_size)):
        rows.append(np.stack(batch) @ directions.T)
    whole_way = ends[-1] - ends[0]
    if not rows or not whole_way.any():
        raise Refused(
            "the last released model equals the first, but the test needs models that change; "
            "name the models of a training run"
        )
    final = directions @ _unit(whole_way)
    return Cosines(np.concatenate(rows).astype(np.float64), final.astype(np.float64))


def _units(models: Iterable[Numbers], ends: list[Numbers]) -> Iterable[NDArray[np.float32]]:
    """Yields the differences of successive models, as unit vectors; zero differences are left out.

    Sets `ends` to the first and the last model that were read so far.
    """
    for before, after in pairwise(models):
        ends[:] = [ends[0] if ends else before, after]
        if (after != before).any():
            yield _unit(after - before)


def _unit(vector: Numbers) -> NDArray[np.float32]:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


_LARGEST = 1e100
"""Largest accepted entry of a model: its square, and sums of many squares, are finite."""


def model_files(folder: Path) -> list[Path]:
    """Returns the model files in `folder`, in the order of the last number in their names.

    Hidden files, and files whose suffix is not in `_READERS`, are left out.

    Raises:
      Refused: if `folder` is no directory or has fewer than two models, or if a name has no number
        or the number of another model.
    """
    if not folder.is_dir():
        raise Refused(
            f"--releases is {folder}, which is no directory; name a directory of released models"
        )
    numbered: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in _READERS or path.name.startswith("."):
            continue
        digits = re.findall(r"\d+", path.stem)
        if not digits:
            raise Refused(
                f"{path} has no number in its name, so its position among the releases is "
                "unknown; name the initial model 0, and later ones by their rounds"
            )
        number = int(digits[-1])
        if number in numbered:
            raise Refused(
                f"{numbered[number]} and {path} both have the number {number}; expected one "
                "model of each round, with the round as the last number in its name"
            )
        numbered[number] = path
    if len(numbered) < 2:
        raise Refused(
            f"{folder} has {len(numbered)} models ({', '.join(_READERS)}); expected the "
            "initial one, and the last or all that were released"
        )
    return [numbered[number] for number in sorted(numbered)]


def models(paths: list[Path], dimension: int) -> Iterator[Numbers]:
    """Yields the models in the files at `paths`, each as one vector `[d]`.

    Raises:
      Refused: if a file holds no model of `dimension` numbers, all finite and at most 1e100 in
        magnitude.
    """
    for path in paths:
        model = _read(path)
        if len(model) != dimension:
            raise Refused(
                f"{path} has {len(model):,} floating-point numbers, but the canaries have "
                f"{dimension:,}; expected models in the layout that the clients were given"
            )
        if not np.isfinite(model).all():
            raise Refused(
                f"{path} has entries that are not finite, so it cannot be audited; expected a "
                "model that did not diverge"
            )
        if np.abs(model).max() > _LARGEST:
            raise Refused(
                f"{path} has entries above {_LARGEST:g} in magnitude, so it cannot be audited; "
                "expected a model that did not diverge"
            )
        yield model


def _read(path: Path) -> Numbers:
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is no file; name a file that holds a model")
    try:
        _refuse_bomb(path)
        return flatten(_READERS[path.suffix.lower()](path))
    except Refused as error:
        raise Refused(f"{path}: {public_text(error)}") from None
    except MemoryError:
        raise
    except Exception as error:  # raised by libraries that parse untrusted files
        raise Refused(
            f"{path} cannot be read as a {path.suffix} file of arrays: {public_text(error)}; "
            "nothing that could run code is unpickled: save arrays, tensors, or a state_dict"
        ) from None


def _refuse_bomb(path: Path) -> None:
    """Raises `Refused` for a zip archive that would unpack to more than the free memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        refuse_too_large("it", size, "expected a model, and nothing else")


def _read_npy(path: Path) -> Any:
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_npz(path: Path) -> Any:
    """Returns the file's arrays: a list if all names are defaults (`arr_0`, ...), else by name."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if all(re.fullmatch(r"arr_\d+", name) for name in arrays):
        return [arrays[name] for name in sorted(arrays, key=lambda name: int(name[4:]))]
    return arrays


def _read_torch(path: Path) -> Any:
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".safetensors": _read_safetensors,
}
"""Reader of each file type, by suffix."""
