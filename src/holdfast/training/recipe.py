"""Recipes: all settings of a training as frozen dataclasses and TOML, with the views it compares."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.core.encoder import Domain, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName, Unreadable
from holdfast.core.noise import Noise
from holdfast.core.settings import convert, fields_of, types_of
from holdfast.encoders.architectures.base import Architecture, LoadedEncoder
from holdfast.training.adversaries.base import Adversary
from holdfast.training.feed import first_crop
from holdfast.training.learner import TrainingObjective
from holdfast.training.optimisers import SGD, Cosine, Optimiser, Schedule
from holdfast.transforms.base import Transform

# A recipe: everything that decides what training makes of given images, as frozen settings and as TOML.
#
# A file of recipes has the fields as keys and texts as values: ``objective = "simclr:temperature=0.2"``. Those that
# come with the library are files beside this one.

PRECISIONS = ("float32", "bfloat16", "float16", "float64")
MODES = ("train", "eval")


@dataclass(frozen=True)
class Recipe:
    """All settings of a training."""

    objective: TrainingObjective
    """Training objective."""
    architecture: Architecture
    """Network to train, or `encoder:REFERENCE` to continue from one."""
    augmentation: Transform | None = None
    """Transform that makes a view of an image; None uses the image itself."""
    second_augmentation: Transform | None = None
    """Transform of the second view, where it differs from the first."""
    crop_augmentation: Transform | None = None
    """Transform that makes the small crops of multi-crop objectives."""
    crop_size: int | None = None
    """Height and width of small crops in pixels; None: those of the images."""
    native: bool = False
    """True to cut the crops that views begin with from images at their own size; false: from images resized before."""
    adversary: Adversary | None = None
    """Adversary that changes the views; none: clean training."""
    optimiser: Optimiser = SGD()
    """Optimiser and its settings, as in `sgd:rate=0.1`."""
    schedule: Schedule = Cosine()
    """Learning-rate schedule."""
    batch: int = 256
    """Images in a step, over all processes."""
    epochs: int = 100
    """Passes over the images."""
    clip: float | None = None
    """Largest norm of all gradients together; None does not clip."""
    ema: float | None = None
    """Decay of a running average of the encoder's weights, which is then the result; None without."""
    precision: str = "float32"
    """float32, bfloat16 or float16 (mixed precision, weights stay in float32), or float64."""
    mode: str | None = None
    """Mode of the encoder while it learns. ``train``: batch norm by batch statistics, dropout and stochastic depth
    active. ``eval``: as in use. None: ``train`` from scratch, ``eval`` from a trained encoder. Heads always learn in
    ``train``."""
    mean: tuple[float, ...] = ()
    """Mean per channel, subtracted inside the encoder; none by default."""
    std: tuple[float, ...] = ()
    """Standard deviation per channel, divided by inside the encoder; none by default."""
    seed: int = 0
    """Seed of all random choices."""

    def __post_init__(self) -> None:
        if self.native:
            for augmentation in self.augmentations:
                first_crop(augmentation, Noise.of(0, ["any"]))
        if self.batch < 1 or self.epochs < 1:
            raise OutOfRange("batch and epochs", (self.batch, self.epochs), "at least 1")
        if self.precision not in PRECISIONS:
            raise UnknownName("precision", self.precision, PRECISIONS)
        if self.mode not in (None, *MODES):
            raise UnknownName("mode", self.mode, MODES)
        if self.clip is not None and not self.clip > 0:
            raise OutOfRange("clip", self.clip, "positive or none")
        if self.crop_size is not None and self.crop_size < 1:
            raise OutOfRange("crop_size", self.crop_size, "at least 1 pixel, or none")
        if self.ema is not None and not 0 < self.ema < 1:
            raise OutOfRange("ema", self.ema, "between 0 and 1, or none")
        if len(self.mean) != len(self.std):
            raise HoldfastError("normalisation needs both mean and std, one number per channel each, or neither")
        if self.mean and isinstance(self.architecture, LoadedEncoder):
            raise HoldfastError(f"{self.architecture} has its own normalisation inside; leave mean and std out")
        if self.objective.crops and self.crop_augmentation is None:
            raise HoldfastError(
                f"{self.objective} looks at {self.objective.crops} small crops of each image; say how they are made, as in "
                'crop_augmentation = "random-resized-crop:scale_max=0.4" (holdfast list transforms), or set crops=0'
            )

    def plain(self) -> dict[str, Any]:
        """Return all settings as texts and numbers, as one would write them in TOML."""
        # A setting that came later is left out at its default, so that older trainings go on.
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.name != "native" or self.native
        }

    @property
    def augmentations(self) -> list[Transform | None]:
        """Augmentation of each view, then of each small crop."""
        count = self.objective.views
        augmentations = [self.augmentation] * count
        if count > 1 and self.second_augmentation is not None:
            augmentations[1] = self.second_augmentation
        return augmentations + [self.crop_augmentation] * self.objective.crops

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """Build a recipe from text values, or from what TOML holds.

        Args:
            values: Settings by name; ``objective`` and ``architecture`` are needed.
            where: Place of the values, for errors.

        Raises:
            HoldfastError: A setting is unknown, missing or of another type.

        Example:
            >>> Recipe.of({"objective": "simclr", "architecture": "cnn-a", "epoch": 3})
            Traceback (most recent call last):
            holdfast.core.errors.UnknownName: ... Did you mean 'epochs'? Known: ...
        """
        known, types = fields_of(cls), types_of(cls)
        for name in values:
            if name not in known:
                raise UnknownName(f"settings of {where}", name, known)
        if missing := [name for name in ("objective", "architecture") if name not in values]:
            raise HoldfastError(f'{where} needs {" and ".join(missing)}, as in objective = "simclr"')
        return cls(**{name: convert(value, types[name], f"{where}, {name}") for name, value in values.items()})


def _plain(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, (bool, int, float)) else str(value)


def recipes() -> list[str]:
    """Return the names of the recipes that come with the library."""
    folder = files("holdfast.training").joinpath("recipes")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_settings(name: str | Path) -> dict[str, Any]:
    """Return what the recipe called ``name``, or in the file ``name``, says.

    Raises:
        HoldfastError: there is none, or it is no TOML.
    """
    path = Path(name)
    inside = files("holdfast.training").joinpath("recipes", f"{name}.toml")
    try:
        text = inside.read_text("utf-8") if str(name) in recipes() else path.read_text("utf-8")
        return tomllib.loads(text)
    except (FileNotFoundError, IsADirectoryError):
        raise UnknownName("recipe or file", str(name), recipes()) from None
    except OSError as error:
        raise Unreadable(str(name), error) from error
    except ValueError as error:
        raise Unreadable(str(name), f"it is not valid TOML ({error})") from error


def views_of(pixels: Pixels, recipe: Recipe, noise: Noise) -> tuple[Float[Tensor, "b ..."], ...]:
    """Views of each image that the objective needs, then its small crops.

    Args:
        pixels: Images, shape (b, *pixels); of a native recipe the first crop of each view, shape (b, views, *pixels).
        recipe: Recipe with objective and augmentations.
    """
    count, views = recipe.objective.views, list[Tensor]()
    for place, augmentation in enumerate(recipe.augmentations):
        own = noise.fork("view", place)
        if recipe.native:
            views.append(first_crop(augmentation, own)[2](pixels[:, place]))
        else:
            views.append(pixels if augmentation is None else augmentation.applied(pixels, own))
    return (*views[:count], *(resized(crop, recipe.crop_size) for crop in views[count:]))


def resized(pixels: Pixels, size: int | None) -> Float[Tensor, "b ..."]:
    """Images of another size, bilinear; None keeps the size.

    Args:
        size: Height and width in pixels.
    """
    return pixels if size is None else interpolate(pixels, (size, size), mode="bilinear", antialias=True)


def check_views(recipe: Recipe, domain: Domain, pixels: Pixels, noise: Noise) -> None:
    """Check that augmentations and adversary fit the images.

    Raises:
        HoldfastError: A transform does not apply, or the ball holds every input.
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
