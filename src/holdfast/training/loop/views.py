"""The views of images that an objective compares: augmented, and small crops resized."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.training.recipe import Recipe


def views_of(pixels: Pixels, recipe: Recipe, noise: Noise) -> tuple[Float[Tensor, "b ..."], ...]:
    """Return as many views of each image as the objective asks for, then its small crops."""
    count = recipe.objective.views
    augmentations = [recipe.augmentation] * count
    if count > 1 and recipe.second_augmentation is not None:
        augmentations[1] = recipe.second_augmentation
    augmentations += [recipe.crop_augmentation] * recipe.objective.crops
    views = [
        pixels if augmentation is None else augmentation.applied(pixels, noise.fork("view", place))
        for place, augmentation in enumerate(augmentations)
    ]
    return (*views[:count], *(resized(crop, recipe.crop_size) for crop in views[count:]))


def resized(pixels: Pixels, size: int | None) -> Float[Tensor, "b ..."]:
    """Return images of this height and width; None leaves them as they are."""
    return pixels if size is None else interpolate(pixels, (size, size), mode="bilinear", antialias=True)


def check_views(recipe: Recipe, domain: Domain, pixels: Pixels, noise: Noise) -> None:
    """Raise where augmentations cannot change such images, or an adversary could make anything of them.

    In training augmentations do not look at what they are given.
    """
    if recipe.adversary is not None:
        recipe.adversary.ball.check(domain)
    noise = noise.to(pixels.device)
    for way in (recipe.augmentation, recipe.second_augmentation, recipe.crop_augmentation):
        if way is None:
            continue
        way(pixels, noise)
        if domain.low < 0 or domain.high > 1:
            raise HoldfastError(
                f"{way} changes pixels in [0, 1], and the encoder's lie in [{domain.low:g}, {domain.high:g}]; put the "
                "scaling inside the encoder, or train without augmentation"
            )
