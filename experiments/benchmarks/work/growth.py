"""The growth of time: a straight line through the measurements, and its figure."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accounting.durable import write_atomically
from privfed.grid.pictures.figures import COLOURS, DASHES, STYLE


@dataclass(frozen=True)
class Line:
    """seconds = start + slope x, and the largest relative residual over the measured range.

    `exponent` is the slope over logarithms from the middle of x on: 1 if time is linear.
    """

    start: float
    slope: float
    std: float
    exponent: float

    @classmethod
    def through(cls, xs: Sequence[float], seconds: Sequence[float]) -> Line:
        """Fits a line by least squares of relative residuals.

        >>> line = Line.through([1, 2, 4, 8], [3.0, 5.0, 9.0, 17.0])
        >>> round(line.start, 6), round(line.slope, 6), round(line.std, 6)
        (1.0, 2.0, 0.0)
        """
        x, y = np.asarray(xs, dtype=float), np.asarray(seconds, dtype=float)
        design = np.stack([1 / y, x / y], axis=1)
        (start, slope), *_ = np.linalg.lstsq(design, np.ones_like(y), rcond=None)
        late = slice(len(x) // 2, None)
        exponent = np.polyfit(np.log(x[late]), np.log(y[late]), 1)[0]
        off = np.abs((start + slope * x) / y - 1).max()
        return cls(float(start), float(slope), float(off), float(exponent))


@dataclass(frozen=True)
class Growth:
    """Seconds per round by x: the median, and quartiles of the repeats."""

    what: str
    xs: tuple[float, ...]
    low: tuple[float, ...]
    seconds: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def line(self) -> Line:
        return Line.through(self.xs, self.seconds)


def draw(growths: Sequence[Growth], path: Path) -> None:
    """Draws one panel each: medians with quartiles, and the straight line through them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    with matplotlib.rc_context(STYLE):
        canvas, panels = pyplot.subplots(1, len(growths), figsize=(3.4 * len(growths), 2.9))
        try:
            for axes, growth in zip(np.atleast_1d(panels), growths, strict=True):
                middle = [1e3 * value for value in growth.seconds]
                spread = [
                    [1e3 * (m - a) for m, a in zip(growth.seconds, growth.low, strict=True)],
                    [1e3 * (b - m) for m, b in zip(growth.seconds, growth.high, strict=True)],
                ]
                axes.errorbar(
                    growth.xs,
                    middle,
                    spread,
                    fmt="o",
                    color=COLOURS[0],
                    capsize=2,
                    label="measured",
                )
                line, last = growth.line, max(growth.xs)
                ends = [max(0.0, -line.start / line.slope) if line.slope else 0.0, last]
                axes.plot(
                    ends,
                    [1e3 * (line.start + line.slope * x) for x in ends],
                    color=COLOURS[1],
                    linestyle=DASHES[1],
                    label="linear fit",
                )
                axes.xaxis.set_major_formatter(EngFormatter(sep=""))
                axes.set(xlabel=growth.what, xlim=(0, None), ylim=(0, None))
            np.atleast_1d(panels)[0].set_ylabel("ms per round")
            np.atleast_1d(panels)[0].legend()
            buffer = io.BytesIO()
            canvas.savefig(buffer, format=path.suffix[1:], metadata={"Date": None})
        finally:
            pyplot.close(canvas)
    write_atomically(path, buffer.getvalue())


def rounded(value: float) -> str:
    """Formats a number with three digits, without an exponent.

    >>> rounded(0.012345), rounded(1234.5)
    ('0.0123', '1,234')
    """
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"
