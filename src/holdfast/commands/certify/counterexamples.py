"""Whether a counterexample is one in float32 for any order of summation, by any machine that rounds to nearest.

The codes of an input, as executed in float32, lie in a box that holds whatever the order of sums is
(``bounds/rounding``). A linear function of them is certainly below a number if it is so for all codes of that box.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.bounds.relaxations.rules import Box
from holdfast.bounds.rounding.executed_encoder import executed_encoder
from holdfast.bounds.rounding.formats import Format
from holdfast.bounds.rounding.steps import size
from holdfast.core.encoder import Encoder, Pixels

UNCERTAIN = "an input refutes it as computed here, but perhaps not where sums are taken in another order"


def codes_in_float32(encoder: Encoder, points: Pixels) -> Box:
    """Return bounds of the codes of ``points`` in float32 for any order of summation, as float64.

    Raises:
        HoldfastError: nothing is known of the rounding of an operation, or it may lose all digits.
    """
    return executed_encoder(encoder, torch.float32, "cpu").codes(points.cpu())


def highest(
    specifications: Float[Tensor, "b m d"], codes: Box, products: torch.dtype, offset: Float[Tensor, "m"] | None = None
) -> Float[Tensor, "b m"]:
    """Return upper bounds of ``specifications @ codes + offset`` for all ``codes`` of a box (b, d), in ``products``."""
    lower, upper = (end[:, None] for end in codes)
    constant = specifications.new_zeros(()) if offset is None else offset
    ends = torch.where(specifications > 0, specifications * upper, specifications * lower).sum(2) + constant
    terms = (specifications.abs() * size(codes)[:, None]).sum(2) + constant.abs()
    # Twice as many roundings as there are: once for theirs, and once for those of this sum, which are of float64.
    kind, count = Format(products), specifications.shape[2] + 2
    return ends + kind.gamma(2 * count) * terms + count * kind.tiny
