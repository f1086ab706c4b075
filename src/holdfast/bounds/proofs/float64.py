"""Float64 arithmetic whose errors are counted: every result comes with, or has lost, more than it can be wrong.

A sum of n products, in any order, errs by at most ``gamma_n |a| . |b|`` with ``gamma_n = n u / (1 - n u)`` and u = 2^-53
(Higham 2002, *Accuracy and Stability of Numerical Algorithms*, section 3.1), and by ``n`` times the smallest number where
products underflow. Errors themselves are computed with some units to spare.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrix = Any
"""An array, or a sparse matrix of scipy."""

UNIT = 2.0**-53
SMALLEST = 1e-300
"""Far more than what products lose that underflow."""
SPARE = 1 + 1e-9
"""Covers the rounding of errors, which are sums of at most a million positive terms."""


def gamma(terms: int) -> float:
    """Return how much a sum of so many products may err, as a share of the sum of their sizes; with room for two more."""
    return (terms + 2) * UNIT / (1 - (terms + 2) * UNIT) * SPARE


def product(left: Array, right: Matrix) -> tuple[Array, Array]:
    """Return ``left @ right`` and by how much each entry errs at most."""
    terms = left.shape[-1]
    return left @ right, gamma(terms) * (np.abs(left) @ abs(right)) + terms * SMALLEST


def dot_below(left: Array, right: Array) -> Array:
    """Return numbers at or below ``left @ right`` for a matrix and a vector."""
    value, error = product(left, right)
    return below(value - error)


def below(values: Array) -> Array:
    """Return the next numbers below ``values``: what a single rounding to nearest has made of something is no less."""
    return np.nextafter(values, -np.inf)


def above(values: Array) -> Array:
    """Return the next numbers above ``values``."""
    return np.nextafter(values, np.inf)


def size(low: Array, high: Array) -> Array:
    """Return the largest absolute value in boxes."""
    return np.maximum(np.abs(low), np.abs(high))
