"""Activation maps: where in an image its code comes from, by Grad-CAM.

The map of ``x`` is ``relu(sum_c a_c A_c)`` with ``A`` the last feature map of the encoder and ``a_c`` the mean over
positions of the gradient of a score by ``A_c`` (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391). Without labels the
score is ``f(x) . f(clean) / |f(clean)|``: the length of the clean code, and what of the changed image looks like the clean
one.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError

Map = Float[Tensor, "b h w"]


def feature_map(encoder: Encoder, pixels: Pixels) -> tuple[Codes, Tensor | None]:
    """Return the codes and the last feature map (b, c, h, w) on the way to them, if there is one of several positions."""
    maps: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        image = isinstance(output, Tensor) and output.ndim == 4 and len(output) == len(pixels)
        if image and output.requires_grad and output[0, 0].numel() > 1:
            maps[:] = [output]

    hooks = [part.register_forward_hook(keep) for part in encoder.module.modules()]
    try:
        codes = encoder.forward(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return codes, maps[0] if maps else None


def gradcam(encoder: Encoder, pixels: Pixels, towards: Codes) -> Map:
    """Return the map of each image for the similarity of its code to the code ``towards``; nan where there is none.

    Raises:
        HoldfastError: the encoder passes no gradient.
    """
    with torch.enable_grad():
        codes, features = feature_map(encoder, pixels.detach().requires_grad_())
        if not codes.requires_grad:
            raise HoldfastError(
                f"{encoder.name} passes no gradient to its input (detached, quantised or wrapped in no_grad), which "
                "Grad-CAM needs; leave grad-cam out"
            )
        score = (codes * towards / torch.linalg.vector_norm(towards, dim=1, keepdim=True)).sum()
        slope = None if features is None else torch.autograd.grad(score, features, allow_unused=True)[0]
    if features is None or slope is None:
        return pixels.new_full((len(pixels), 1, 1), torch.nan)
    weights = slope.mean((2, 3), keepdim=True)
    return (weights * features).sum(1).relu().detach()
