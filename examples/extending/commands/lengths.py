"""Lengths of codes: the first thing to ask of an encoder whose length is taken for confidence."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from holdfast import data, encoders
from holdfast.extend import Population, RunSettings


def lengths(encoder: str, images: str) -> Float[Tensor, "n"]:
    """Return how long the code of each image is; both are references, as on the command line.

    Raises:
        HoldfastError: a reference names nothing that can be loaded.
    """
    loaded = encoders.load(encoder)
    return Population(loaded, data.load(images, loaded.domain), RunSettings()).codes.norm(dim=1)
