"""Spreads: no mass and no mean is lost, and little variance is added."""

import math

import numpy as np
import pytest
from lanes import every_case

from accounting.bounds.spread import added, lognormal, regridded


@every_case("std, step", [(3.0, 0.05), (0.5, 0.02), (1e-3, 5e-5)])
def test_spreads_keep_mass_and_mean(std, step):
    single = lognormal(-(std**2) / 2, std, step)
    double = added(single, single, step / 2)
    triple = added(single, double, step / 4)
    for law, mean in (
        (single, 1.0),
        (double, 2.0),
        (triple, 3.0),
        (regridded(triple, step / 8), 3.0),
        (regridded(triple, step * 4), 3.0),
    ):
        assert law.masses.sum() + law.zero == pytest.approx(1.0, rel=1e-14)
        assert law.masses @ np.exp(law.logarithms) + law.far == pytest.approx(mean, rel=1e-13)
        assert law.masses.min() >= 0
        assert 0 <= law.zero < 1e-18
        assert 0 <= law.far < 1e-18 * mean
        variance = float(law.masses @ np.exp(2 * law.logarithms)) - mean**2
        least = mean * math.expm1(std**2)
        assert least * (1 - 1e-9) <= variance <= least * (1 + 12 * step**2 / min(1.0, std**2))
