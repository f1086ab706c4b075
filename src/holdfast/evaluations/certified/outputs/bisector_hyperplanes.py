"""The hyperplanes in code space between an image and others: past one, a code is closer to the other image than to its own.

Under l2 ``d(z, f(x')) < d(z, f(x))`` means ``n . z < c`` for ``n`` along ``f(x) - f(x')`` and ``c`` the value of ``n . z``
half the way between them; under cosine ``n . z < 0`` for ``n`` along ``u(x) - u(x')``, with unit codes ``u``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError

ALIKE = 1e-6
"""Distance of two codes, as a share of their length, up to which they may differ by rounding alone."""


@dataclass(frozen=True)
class BisectorHyperplanes:
    """Hyperplanes between ``b`` codes and ``m`` others each: ``n . z = c`` with unit ``normals`` and ``offsets`` ``c``."""

    normals: Float[Tensor, "b m d"]
    offsets: Float[Tensor, "b m"]
    defined: Bool[Tensor, "b m"]

    def signed_distances(self, codes: Float[Tensor, "b p d"]) -> Float[Tensor, "b m p"]:
        """Return how far each of ``p`` codes is from each hyperplane; negative where it is closer to the other."""
        return self.normals @ codes.mT - self.offsets[..., None]


def bisector_hyperplanes(divergence: Divergence, anchors: Codes, others: Float[Tensor, "b m d"]) -> BisectorHyperplanes:
    """Return the hyperplanes at which a code is as close to each of ``others`` as to its own image, of ``anchors``.

    Raises:
        HoldfastError: under this divergence they are no hyperplanes.
    """
    if not isinstance(divergence, (L2Distance, Cosine)):
        raise HoldfastError(
            f"under {divergence} the codes closer to another image are no half-space, so that none can be certified; "
            "use the divergences l2 and cosine"
        )
    anchors = anchors[:, None]
    if isinstance(divergence, Cosine):
        anchors, others = (codes / codes.norm(dim=2, keepdim=True) for codes in (anchors, others))
    difference = anchors - others
    length = difference.norm(dim=2)
    # A zero code has no direction: its length is nan, and so not above.
    defined = length > ALIKE * torch.maximum(anchors.norm(dim=2), others.norm(dim=2))
    normals = torch.where(defined[..., None], difference / length[..., None], 0.0)
    middle = (
        (normals * (anchors + others)).sum(2) / 2 if isinstance(divergence, L2Distance) else torch.zeros_like(length)
    )
    return BisectorHyperplanes(normals, torch.where(defined, middle, 0.0), defined)
