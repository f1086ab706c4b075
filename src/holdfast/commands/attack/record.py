"""What is recorded of an attack: numbers for every image, and whether the saved pixels keep the rules."""

from __future__ import annotations

from holdfast.core.records import SCHEMA_VERSION, EncoderInfo, ImagesInfo, Number, Record


class MovedImage(Record):
    """What the attack did to one image (or to one view of it)."""

    id: str
    target: str | None
    clean_gain: Number
    """The objective at the clean image."""
    gain: Number
    """The objective at the attacked image."""
    norm: Number
    """The size of the perturbation, in the norm of the ball."""
    l2: Number
    """How far the code moved."""
    cosine: Number
    png: str | None
    l2_of_png: Number | None
    """How far the code of the PNG file is from the clean one: rounding to 256 levels may undo an attack or help it."""
    norm_of_png: Number | None = None
    """The size of the perturbation in the PNG file."""
    png_in_ball: bool | None = None
    """Whether rounding leaves the image in its ball."""
    png_is_clean: bool | None = None
    """Whether the PNG file is that of the clean image: rounding has undone all of the change."""


class Replay(Record):
    """The saved pixels, read back and encoded once more."""

    in_range: bool
    in_ball: bool
    largest_norm: Number
    code_difference: Number
    """The largest difference to the saved codes, as a share of the largest code."""
    same_codes: bool
    """Whether that is no more than rounding."""

    @property
    def passed(self) -> bool:
        return self.in_range and self.in_ball and self.same_codes


class AttackRecord(Record):
    """Everything about an attack but the pixels."""

    schema_version: int = SCHEMA_VERSION
    encoder: EncoderInfo
    images: ImagesInfo
    settings: dict[str, str]
    batch_sizes: tuple[int, ...] | None
    """For an objective that looks at whole batches: how large they were, for that changes the result."""
    clean_distance: Number
    """The median l2 distance of two clean codes, with which displacements compare; nan of a single image."""
    moved: tuple[MovedImage, ...]
    missing: int = 0
    """How many images were not attacked yet, because a budget was spent."""
    replay: Replay
    provenance: dict[str, str]
