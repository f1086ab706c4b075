"""Embeddings and Grad-CAM activation maps of transformed views of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.geometry.sphere import distinct
from holdfast.measure.observation import Observation
from holdfast.measure.population import LooksAt, Population
from holdfast.transforms.base import Transform

# Activation maps: where in an image its code comes from, by Grad-CAM.
#
# The map of ``x`` is ``relu(sum_c a_c A_c)`` with ``A`` the last feature map of the encoder and ``a_c`` the mean over
# positions of the gradient of a score by ``A_c`` (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391). Without
# labels the score is ``f(x) . f(clean) / |f(clean)|``: the length of the clean code, and what of the changed image
# looks like the clean one.

Map = Float[Tensor, "b h w"]
WINDOWS = ("conv", "pool")
MIXING = ("matmul", "mm", "permute", "transpose", "reshape", "view", "softmax", "einsum")
"""Operations whose results of four axes need not be maps, though a map goes in."""


def feature_map(encoder: Encoder, pixels: Pixels) -> tuple[Codes, Tensor | None]:
    """Return the codes and the last feature map (b, c, h, w) on the way to them, if there is one of several positions."""
    maps: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if _is_map(output, len(pixels)):
            maps[:] = [output]

    hooks = [part.register_forward_hook(keep) for part in encoder.module.modules()]
    operations = _Maps(len(pixels))
    try:
        with operations:
            codes = encoder.forward(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    # A graph (ONNX, an exported program) has no modules inside, so that only its operations tell.
    return codes, maps[0] if maps else operations.last


def _is_map(value: Any, images: int) -> bool:
    """Return whether ``value`` is a map of several positions for each image, and has a gradient."""
    image = isinstance(value, Tensor) and value.ndim == 4 and len(value) == images
    return image and value.requires_grad and value[0, 0].numel() > 1


class _Maps(TorchFunctionMode):
    """Keeps the last map that operations return: of a convolution or pooling, or of what keeps the places of such a map.

    Attention has values of four axes as well (images, heads, tokens, tokens), which follow from no map entry by entry.
    """

    def __init__(self, images: int) -> None:
        super().__init__()
        self.images, self.seen = images, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if _is_map(result, self.images) and (
            any(word in name for word in WINDOWS)
            or (not any(word in name for word in MIXING) and any(self._places(each, result) for each in args))
        ):
            self.seen.append(result)
        return result

    @property
    def last(self) -> Tensor | None:
        return self.seen[-1] if self.seen else None

    def _places(self, value: Any, result: Tensor) -> bool:
        return any(value is known for known in self.seen) and value.shape[2:] == result.shape[2:]


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


def changed(population: Population, rows: Sequence[int], transform: Transform, view: int = 0) -> Pixels:
    """Return the images at ``rows`` changed by ``transform``; each ``view`` has draws of its own.

    Raises:
        HoldfastError: the encoder takes no images in [0, 1].
    """
    domain = population.encoder.domain
    if (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            f"{transform} changes images in [0, 1], but {population.encoder.name} takes [{domain.low:g}, {domain.high:g}]; "
            "put the scaling into the encoder"
        )
    noise = population.run.noise([population.images.ids[row] for row in rows]).fork("view", view)
    return transform(population.pixels(rows), noise)


def moved_back(maps: Map, change: Transform, size: tuple[int, int]) -> Map:
    """Maps of shuffled images with each place where the original image has it; other maps stay."""
    wide = nn.functional.interpolate(maps[:, None], size, mode="nearest-exact")
    back = change.undone(wide)
    if back is wide:
        return maps
    return nn.functional.adaptive_avg_pool2d(back, (int(maps.shape[1]), int(maps.shape[2])))[:, 0]


@final
@dataclass(frozen=True)
class Views(Observation):
    """The codes of each image's ``views``, in their order."""

    views: tuple[Transform, ...]
    samples: int
    name = "views"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return sorted(distinct(population, self.samples))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        codes: list[Float[Tensor, "b d"]] = [
            population.encode(changed(population, rows, transform, view)) for view, transform in enumerate(self.views)
        ]
        return {"codes": torch.stack(codes, dim=1).cpu()}

    def inputs(self, population: Population) -> int:
        return len(self.views)


@final
@dataclass(frozen=True)
class Lengths(Observation):
    """Norm (ℓ2) of each embedding."""

    samples: int
    name = "code-lengths"
    version = 1

    def looks_at(self) -> LooksAt:
        return "codes"

    def rows(self, population: Population) -> list[int]:
        return sorted(distinct(population, self.samples))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"length": torch.linalg.vector_norm(population.codes[list(rows)].double(), dim=1).cpu()}


@final
@dataclass(frozen=True)
class Maps(Observation):
    """The maps of each image and of its changed version, with each place where the original image has it."""

    change: Transform
    samples: int
    name = "grad-cam-maps"
    version = 3

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        clean, towards = population.pixels(rows), population.codes[list(rows)]
        after = gradcam(population.encoder, changed(population, rows, self.change), towards)
        return {
            "clean": gradcam(population.encoder, clean, towards).cpu(),
            "changed": moved_back(after, self.change, (int(clean.shape[2]), int(clean.shape[3]))).cpu(),
        }

    def inputs(self, population: Population) -> int:
        return 6  # two forwards and two backwards, each as long as two
