"""Polynomials by their values at roots of unity: extended to twice as many, and evaluated
elsewhere.
"""

from __future__ import annotations

import numpy as np

from experiments.bounded_rows.field import (
    MODULUS,
    Elements,
    add,
    multiply,
    powers,
    root_of_unity,
    subtract,
)


def evaluate(coefficients: Elements, root: int) -> Elements:
    """Returns the values `[n, m]` of m polynomials at the powers of `root`, of order n = 2^k.

    `coefficients` is `[n, m]`. The fast Fourier transform (Cooley & Tukey 1965) starts from
    transforms of one coefficient each.
    """
    size, columns = coefficients.shape
    parts: Elements = coefficients.reshape(size, 1, columns)
    while len(parts) > 1:
        half, length = len(parts) // 2, parts.shape[1]
        twiddles = powers(pow(root, half, MODULUS), length).reshape(1, length, 1)
        turned = multiply(twiddles, parts[half:])
        parts = np.concatenate([add(parts[:half], turned), subtract(parts[:half], turned)], axis=1)
    return parts.reshape(size, columns)


def between(values: Elements) -> Elements:
    """Returns the values `[n, m]` of m polynomials at the odd powers of a root of order 2 n.

    `values` `[n, m]` are those at the even powers; degrees are below n.
    """
    size = len(values)
    inverse = np.array([pow(size, -1, MODULUS)], np.uint64)
    coefficients = evaluate(values, pow(root_of_unity(size), -1, MODULUS))
    shift = multiply(powers(root_of_unity(2 * size), size), inverse)
    return evaluate(multiply(coefficients, shift.reshape(-1, 1)), root_of_unity(size))


def reading(size: int, point: int) -> Elements:
    """Returns the weights `[size]` that evaluate a polynomial of degree below `size` at `point`.

    They weight its values at the powers of a root of unity of order `size`, none of which is
    `point` (Lagrange's formula there: (x^n - 1) w^k / (n (x - w^k))).
    """
    roots = [int(root) for root in powers(root_of_unity(size), size)]
    scale = (pow(point, size, MODULUS) - 1) * pow(size, -1, MODULUS)
    weights = [scale * root * pow(point - root, -1, MODULUS) % MODULUS for root in roots]
    return np.array(weights, np.uint64)
