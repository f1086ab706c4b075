"""The views of the papers: the random transforms of an image before it is encoded in training.

If a paper's own program differs from the chain here, the docstring of the class says how. Crops keep the size of the
image and are bilinear; those of DINO and BYOL are bicubic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from holdfast.transforms.augmentations.colour import ColorJitter, GaussianBlur, Grayscale, Solarize
from holdfast.transforms.augmentations.cropping import HorizontalFlip, RandomAffine, RandomResizedCrop
from holdfast.transforms.base import Chain, Transform, View
from holdfast.transforms.everyday import GaussianNoise


@final
@dataclass(frozen=True)
class SimclrView(View):
    """SimCLR (Chen et al. 2020, appendix A); its CIFAR-10 form (B.9) is ``strength=0.5,blur=0``."""

    strength: float = 1.0
    """Strength of the colour changes."""
    blur: float = 0.5
    """Probability of the blur."""
    name = "simclr-view"

    @property
    def chain(self) -> Chain:
        strong = 0.8 * self.strength
        jitter = ColorJitter(strong, strong, strong, 0.2 * self.strength)
        blur = (GaussianBlur(self.blur),) if self.blur else ()
        return Chain((RandomResizedCrop(), HorizontalFlip(), jitter, Grayscale(), *blur))


@final
class MocoV2View(View):
    """MoCo v2 (Chen et al. 2020, https://arxiv.org/abs/2003.04297), as in its program."""

    name = "moco-v2-view"
    chain = Chain((RandomResizedCrop(0.2), ColorJitter(), Grayscale(), GaussianBlur(kernel=1.0), HorizontalFlip()))


@final
class MocoCifarView(View):
    """MoCo on CIFAR-10, without blur: its authors' demonstration and Zhong et al. 2022, appendix C.3."""

    name = "moco-cifar-view"
    chain = Chain((RandomResizedCrop(), HorizontalFlip(), ColorJitter(), Grayscale()))


@final
@dataclass(frozen=True)
class ByolView1(View):
    """First view of BYOL (Grill et al. 2020, appendix B) and Barlow Twins, always blurred; jitter is torchvision's."""

    scale_min: float = 0.08
    """Smallest crop, as a fraction of the image's area."""
    name = "byol-view-1"

    @property
    def chain(self) -> Chain:
        return Chain((RandomResizedCrop(self.scale_min), *flip_and_colors(), GaussianBlur(1.0)))


@final
@dataclass(frozen=True)
class ByolView2(View):
    """Second view of BYOL (Grill et al. 2020, appendix B) and Barlow Twins, seldom blurred and sometimes solarized."""

    scale_min: float = 0.08
    """Smallest crop, as a fraction of the image's area."""
    name = "byol-view-2"

    @property
    def chain(self) -> Chain:
        return Chain((RandomResizedCrop(self.scale_min), *flip_and_colors(), GaussianBlur(0.1), Solarize()))


@final
@dataclass(frozen=True)
class DinoGlobalView1(View):
    """First global crop of DINO (Caron et al. 2021), always blurred."""

    scale_min: float = 0.4
    """Smallest crop, as a fraction of the image's area."""
    name = "dino-global-view-1"

    @property
    def chain(self) -> Chain:
        return Chain((RandomResizedCrop(self.scale_min), *flip_and_colors(), GaussianBlur(1.0, kernel=1.0)))


@final
@dataclass(frozen=True)
class DinoGlobalView2(View):
    """Second global crop of DINO (Caron et al. 2021), seldom blurred and sometimes solarized."""

    scale_min: float = 0.4
    """Smallest crop, as a fraction of the image's area."""
    name = "dino-global-view-2"

    @property
    def chain(self) -> Chain:
        blur = GaussianBlur(0.1, kernel=1.0)
        return Chain((RandomResizedCrop(self.scale_min), *flip_and_colors(), blur, Solarize()))


@final
@dataclass(frozen=True)
class DinoLocalView(View):
    """Local crop of DINO (Caron et al. 2021), at the size of the image where theirs are 96 pixels of 224."""

    scale_min: float = 0.05
    """Smallest crop, as a fraction of the image's area."""
    scale_max: float = 0.4
    """Largest crop, as a fraction of the image's area."""
    name = "dino-local-view"

    @property
    def chain(self) -> Chain:
        crop = RandomResizedCrop(self.scale_min, self.scale_max)
        return Chain((crop, *flip_and_colors(), GaussianBlur(0.5, kernel=1.0)))


@final
class RvclMnistView(View):
    """RVCL on MNIST (Wang and Liu 2022), as in its program: no flip, at least 0.4 of the area."""

    name = "rvcl-mnist-view"
    chain = Chain((ColorJitter(), Grayscale(), RandomResizedCrop(0.4)))


@final
class RvclCifarView(View):
    """RVCL on CIFAR-10 (Wang and Liu 2022) and RoCL (Kim et al. 2020), as in their programs: colours before the crop."""

    name = "rvcl-cifar-view"
    chain = Chain((ColorJitter(), Grayscale(), HorizontalFlip(), RandomResizedCrop()))


@final
class DigitsView(View):
    """The built-in digit encoders: turned, scaled, shifted by half a pixel of 8, brighter or darker, noisy."""

    name = "digits-view"
    chain = Chain((RandomAffine(), ColorJitter(0.2, 0.0, 0.0, 0.0, p=1.0), GaussianNoise(0.05)))


def flip_and_colors() -> tuple[Transform, ...]:
    """Return what the views of BYOL and DINO have in common."""
    return HorizontalFlip(), ColorJitter(0.4, 0.4, 0.2, 0.1), Grayscale()
