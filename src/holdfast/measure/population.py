"""The images of a run with their clean embeddings, random choices and fits.

A fit is learned once from a whole population and shared by everything that needs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.core.discovery import OldName, OldNames
from holdfast.core.divergences import Divergence, Linear
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError, check_whole
from holdfast.core.images import Images
from holdfast.core.noise import hashed_each
from holdfast.core.objective import AttackContext
from holdfast.core.optimised import codes_of, optimised
from holdfast.core.points.counting import Groups, Kin, nearest_rows
from holdfast.core.records import EncoderInfo, ImagesInfo
from holdfast.core.run_settings import Observed, RunSettings, without_tf32
from holdfast.core.statistics.groups import numbered

Learned = TypeVar("Learned")
LooksAt = Literal["codes", "inputs", "encoder"]
"""What of an encoder is looked at: the ``codes`` of clean images alone, their ``inputs`` beside them, or the ``encoder``
itself, as for codes of images that are made from these. Codes that were computed elsewhere have no encoder."""


@dataclass(frozen=True)
class Fit(ABC, OldNames, Generic[Learned]):
    """Something learned once from a whole population; its fields are its settings.

    ``population.learned`` computes it. Equal fits share one computation.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Version of the fit; it rises whenever what is learned changes."""
    uses_labels: ClassVar[bool] = False
    """True if ``learn`` reads labels, which are then part of the key of the fit and of its users."""
    uses_groups: ClassVar[bool] = False
    """True if ``learn`` reads groups of images, which are then part of these keys."""
    uses_bank: ClassVar[bool] = False
    """True if ``learn`` reads the reference set, which is then part of these keys."""
    uses_texts: ClassVar[bool] = False
    """True if ``learn`` reads the text tower and names of classes, which are then part of these keys."""
    forwards = OldName("forward_passes")

    def looks_at(self) -> LooksAt:
        """Part of the encoder that the fit reads; by default the encoder itself."""
        return "encoder"

    def forward_passes(self, population: Population) -> int:
        """Forward passes to learn, about; a gradient counts as 3. By default none."""
        return 0

    @abstractmethod
    def learn(self, population: Population) -> Observed:
        """Return what there is to learn, as named tensors of any shape."""

    @abstractmethod
    def restore(self, population: Population, learned: Observed) -> Learned:
        """Load the fit from what was ``learned``; cheap, and without a new decision.

        Args:
            population: Images of the run with their clean embeddings.
            learned: Tensors that ``learn`` returned.
        """


@final
@dataclass(frozen=True)
class Whitening(Fit[Divergence]):
    """The matrix that a divergence takes from the clean codes."""

    divergence: Divergence
    name = "whitening"
    version = 1

    def looks_at(self) -> LooksAt:
        return "codes"

    def learn(self, population: Population) -> Observed:
        fitted = self.divergence.fit(population.codes)
        assert isinstance(fitted, Linear), f"{self.divergence} learns no matrix"
        return {"matrix": fitted.matrix}

    def restore(self, population: Population, learned: Observed) -> Divergence:
        return Linear(learned["matrix"].to(population.run.device), self.divergence)


def whitenings(asking: Any) -> tuple[Fit[Any], ...]:
    """Return what the divergences among the fields of ``asking`` learn.

    Example:
        >>> from holdfast.core.divergences import L2Distance, Whitened
        >>> @dataclass(frozen=True)
        ... class Asking:
        ...     divergences: tuple[Divergence, ...]
        >>> [str(fit.divergence) for fit in whitenings(Asking((L2Distance(), Whitened())))]
        ['whitened']
    """
    values = [getattr(asking, field.name) for field in fields(asking)]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return tuple(Whitening(part) for part in flat if isinstance(part, Divergence) and part.learns)


def info_of(images: Images) -> ImagesInfo:
    """Return what a record says of ``images``."""
    skipped = tuple(f"{name}: {reason}" for name, reason in images.skipped.items())
    return ImagesInfo(name=images.name, fingerprint=images.fingerprint, count=len(images), skipped=skipped)


LONELY = "pairs of images are needed, but there is only one image; add images"


class Population:
    """Images of a run with their clean embeddings, on the run's device and in its precision.

    The bank is a reference set: probes learn from it and retrieval searches it. None of its images is measured.

    Args:
        encoder: Encoder to measure.
        images: Images to measure it on.
        run: Seed, device, precision and batch size.
        codes: Embeddings of all images, shape (n, d), if they are known.
        known: Fits that were learned, or why they failed; others are learned at first use.
        bank: Reference set; None without.
        other_encoders: Other encoders of the run, on which transferred attacks are made.
    """

    shuffled, places, originals = OldName("random_order"), OldName("order_of"), OldName("first_copies")
    couples, others = OldName("disjoint_pairs"), OldName("random_others")

    def __init__(
        self,
        encoder: Encoder,
        images: Images,
        run: RunSettings,
        codes: Codes | None = None,
        known: Mapping[Fit[Any], Observed | Exception] | None = None,
        bank: Population | None = None,
        other_encoders: Sequence[Encoder] = (),
    ) -> None:
        self.encoder, self.images, self.run = encoder.to(run.device, run.dtype), images, run
        self._other_encoders, self._placed = tuple(other_encoders), dict[str, Encoder]()
        self._bank, self._codes = bank, codes
        self._known, self._restored = dict(known or {}), dict[Fit[Any], Any]()

    def __getstate__(self) -> dict[str, Any]:
        """Hand a worker what was learned, but not what each process makes of it."""
        state = {name: value for name, value in vars(self).items() if name not in ("double", "optimised", "_working")}
        return {**state, "_restored": {}, "_placed": {}}

    def at_work(self) -> Population:
        """This population on the device of the workers, as a worker computes on it.

        Raises:
            HoldfastError: The device is not there.
        """
        return self if self.run.workers is None else self._working

    @cached_property
    def _working(self) -> Population:
        """This population on the device of the workers, made once in each of them."""
        bank = None if self._bank is None else self._bank.at_work()
        run = replace(self.run, device=self.run.workers or self.run.device, workers=None)
        return Population(self.encoder, self.images, run, self._codes, self._known, bank, self._other_encoders)

    @cached_property
    def codes(self) -> Float[Tensor, "n d"]:
        """Clean embeddings of all images, shape (n, d)."""
        if self._codes is not None:
            return self._codes.to(self.run.device)
        return self.run.batches(
            range(len(self.images)), lambda rows: {"codes": represent(self.encoder, self.images, rows, self.run)}
        )["codes"]

    @property
    def bank_images(self) -> Images | None:
        """The images of the bank, if there is one."""
        return None if self._bank is None else self._bank.images

    @property
    def bank(self) -> Population:
        """The bank.

        Raises:
            HoldfastError: there is none.
        """
        if self._bank is None:
            raise HoldfastError("this needs a bank, images to learn from or to search; name them with --bank")
        return self._bank

    def encoder_of(self, fingerprint: str) -> Encoder:
        """Encoder of the run with this fingerprint, on the run's device and in its precision.

        Raises:
            HoldfastError: No encoder has this fingerprint.
        """
        if fingerprint not in self._placed:
            known = {encoder.fingerprint: encoder for encoder in (*self._other_encoders, self.encoder)}
            if fingerprint not in known:
                raise HoldfastError(
                    f"no encoder of this run has the fingerprint {fingerprint}; name it among its encoders"
                )
            self._placed[fingerprint] = known[fingerprint].to(self.run.device, self.run.dtype)
        return self._placed[fingerprint]

    @property
    def labels(self) -> Int[Tensor, "n"]:
        """The label of each image, on the run's device.

        Raises:
            HoldfastError: they have none.
        """
        if self.images.labels is None:
            raise HoldfastError(
                f"this needs labels, and {self.images.name} has none; give them as in photos?labels=folders, or as "
                "the array labels beside the images"
            )
        return torch.as_tensor(self.images.labels).to(self.run.device, torch.int64)

    @property
    def encoder_info(self) -> EncoderInfo:
        """Return what a record says of the encoder."""
        return EncoderInfo(
            name=self.encoder.name,
            source=self.encoder.source,
            fingerprint=self.encoder.fingerprint,
            parameters=self.encoder.parameters,
            features=self.codes.shape[1],
            inputs=self.encoder.inputs,
            warnings=(self.encoder.caution,) if self.encoder.caution else (),
        )

    @property
    def images_info(self) -> ImagesInfo:
        """Return what a record says of the images."""
        return info_of(self.images)

    def pixels(self, rows: Sequence[int]) -> Pixels:
        """Return the images at ``rows``, checked against the encoder's domain."""
        return self.images.pixels(rows, self.run.device, self.run.dtype, self.encoder.domain)

    def context(
        self, rows: Sequence[int], targets: Sequence[int] | None = None, rivals: Tensor | None = None
    ) -> AttackContext:
        """Attack context of the images at ``rows``.

        Args:
            rows: Rows of the population.
            targets: Row of the target of each image; None for untargeted attacks.
            rivals: Clean embeddings of competitors of each image, shape (b, k, d).
        """
        pixels = self.pixels(rows)
        noise = self.run.noise([self.images.ids[row] for row in rows])
        return AttackContext(self.optimised, pixels, noise, None if targets is None else self.pixels(targets), rivals)

    def learned(self, fit: Fit[Learned]) -> Learned:
        """Learn ``fit`` from these images and embeddings, once.

        Raises:
            Exception: It could not be learned; every call raises the same error.
        """
        if fit not in self._restored:
            with without_tf32():
                learned = self._known[fit] if fit in self._known else fit.learn(self)
            if isinstance(learned, Exception):
                raise learned
            self._known[fit], self._restored[fit] = learned, fit.restore(self, learned)
        restored: Learned = self._restored[fit]
        return restored

    def fitted(self, divergence: Divergence) -> Divergence:
        """``divergence``, fitted to the clean embeddings and set to the encoder's tokens."""
        return self.learned(Whitening(divergence)) if divergence.learns else divergence.of_tokens(self.encoder.tokens)

    @cached_property
    def double(self) -> Encoder:
        """The encoder in float64, where the last word on a certificate is spoken."""
        return self.encoder.to(self.run.device, torch.float64)

    @cached_property
    def optimised(self) -> Encoder:
        """The encoder, optimised for speed: for embeddings and attacks."""
        return optimised(self.encoder)

    def encode(self, pixels: Pixels) -> Codes:
        """Embeddings of ``pixels``, on this run's device."""
        return codes_of(self.encoder, pixels)

    @cached_property
    def random_order(self) -> Int[Tensor, "n"]:
        """All rows in an order that seed and ids alone decide; every random choice uses it."""
        keys = hashed_each((self.run.seed, "order"), self.images.ids)
        return torch.from_numpy(np.argsort(keys, kind="stable"))

    def choose(self, count: int) -> list[int]:
        """Up to ``count`` random rows, ascending; the choice ignores the order of images."""
        check_whole(count, "the number of samples", 1)
        return sorted(self.random_order[:count].tolist())

    @cached_property
    def first_copies(self) -> Int[Tensor, "n"]:
        """For each row, the row that stands for all exact copies: the first in ``random_order``."""
        digests = np.array(self.images.digests, dtype=object)[self.random_order.numpy()].tolist()
        # A dictionary keeps the place that is written last, hence from the end.
        first = dict(zip(reversed(digests), reversed(range(len(digests))), strict=True))
        stands_for = np.fromiter((first[digest] for digest in digests), np.int64, len(digests))
        originals = torch.empty_like(self.random_order)
        originals[self.random_order] = self.random_order[torch.from_numpy(stands_for)]
        return originals

    # What follows hands out other images. No image is another one to an image of its own group.

    @cached_property
    def groups(self) -> Groups | None:
        """The number of each image's group; None where the images have no groups.

        Raises:
            HoldfastError: all images are of one group, so no image has another one.
        """
        kin = kin_of(self.images, self.images)
        return None if kin is None else kin.theirs

    def groups_of(self, rows: Sequence[int]) -> Groups | None:
        """Groups of the images at ``rows``, on the embeddings' device; None without groups."""
        return None if self.groups is None else self.groups[list(rows)].to(self.codes.device)

    @property
    def lonely(self) -> bool:
        """Whether no image has another one: there is one image, or one group of them."""
        return len(set(self.images.groups or self.images.ids)) < 2

    @property
    def fewest_others(self) -> int:
        """Number of other images that every image has at least.

        Raises:
            HoldfastError: there is only one image, or one group of them.
        """
        if len(self.images) < 2:
            raise HoldfastError(LONELY)
        return len(self.images) - 1 if self.groups is None else Kin(self.groups, self.groups).fewest

    @cached_property
    def partners(self) -> Int[Tensor, "n"]:
        """For each row the row of a random other image: the next one in ``random_order``.

        Without groups, every image is one other's partner.

        Raises:
            HoldfastError: There is only one image, or one group of images.
        """
        if len(self.images) < 2:
            raise HoldfastError(LONELY)
        partners = torch.empty_like(self.random_order)
        if self.groups is None:
            partners[self.random_order] = self.random_order.roll(-1)  # the one that comes after it
            return partners
        ordered = self.groups[self.random_order]
        ends = (ordered != ordered.roll(-1)).nonzero()[:, 0]  # where the next image is of another group
        following = ends[torch.searchsorted(ends, torch.arange(len(ordered))) % len(ends)]
        partners[self.random_order] = self.random_order[(following + 1) % len(ordered)]
        return partners

    def disjoint_pairs(self, count: int) -> list[int]:
        """Up to ``count`` random rows, ascending, whose pairs with their partners share no image."""
        check_whole(count, "the number of pairs", 1)
        if self.groups is None:
            return sorted(self.random_order[: max(1, len(self.images) - 1) : 2][:count].tolist())
        partners, taken, chosen = self.partners.tolist(), set[int](), list[int]()
        for row in self.random_order.tolist():
            if not taken & {row, partners[row]}:
                taken |= {row, partners[row]}
                chosen.append(row)
        return sorted(chosen[:count])

    def random_others(self, rows: Sequence[int], count: int) -> Int[Tensor, "b k"]:
        """For each of ``rows`` up to ``count`` random other images: the next in ``random_order``.

        Args:
            rows: Rows of the population.
            count: Largest number of other images, 1 or more.

        Raises:
            HoldfastError: There is only one image, or one group of images.
        """
        # As many more as may be of the own group are looked at, and these are put last.
        images, count = len(self.images), min(count, self.fewest_others)
        steps = 1 + torch.arange(count + images - 1 - self.fewest_others)
        following = self.random_order[(self.order_of[list(rows)][:, None] + steps) % images]
        if self.groups is not None:
            own = self.groups[following] == self.groups[list(rows)][:, None]
            following = following.gather(1, own.int().argsort(dim=1, stable=True))
        return following[:, :count]

    @property
    def gallery(self) -> Population:
        """What is searched for other images: the bank if there is one, else these images."""
        return self if self._bank is None else self._bank

    @cached_property
    def _kin_in_bank(self) -> Kin | None:
        return kin_of(self.images, self.bank.images)

    def kin(self, rows: Sequence[int], gallery: Population | None = None) -> Kin | None:
        """Groups of ``rows`` and of a gallery, matched by name; None unless both have groups.

        Args:
            rows: Rows of the population.
            gallery: Population to search; by default the reference set, else these images.

        Raises:
            HoldfastError: For some image, the gallery holds no image of another group.
        """
        whole = self._kin_in_gallery(gallery or self.gallery)
        if whole is None:
            return None
        device = self.codes.device
        return Kin(whole.mine[list(rows)].to(device), whole.theirs.to(device))

    def _kin_in_gallery(self, gallery: Population) -> Kin | None:
        if gallery is not self:
            return self._kin_in_bank
        return None if self.groups is None else Kin(self.groups, self.groups)

    def nearest(
        self, divergence: Divergence, codes: Codes, rows: Sequence[int], count: int, gallery: Population | None = None
    ) -> Int[Tensor, "b k"]:
        """Rows of the nearest other images of a gallery, nearest first.

        Args:
            divergence: Distance between embeddings, fitted if it needs to be.
            codes: Embeddings to look up, shape (b, d).
            rows: Image that each embedding belongs to; it is left out with its group.
            count: Largest number of neighbours.
            gallery: Population to search; by default the reference set, else these images.
        """
        gallery = gallery or self.gallery
        whole, exclude = self._kin_in_gallery(gallery), rows if gallery is self else ()
        count = count if whole is None else min(count, whole.fewest)
        return nearest_rows(divergence, codes, gallery.codes, count, exclude, self.kin(rows, gallery))

    @cached_property
    def order_of(self) -> Int[Tensor, "n"]:
        """Where each row stands in ``random_order``."""
        return self.random_order.argsort()


def kin_of(images: Images, gallery: Images) -> Kin | None:
    """Return the groups of ``images`` and of those in ``gallery``, numbered by name; None unless both have groups.

    Raises:
        HoldfastError: for some image, the gallery holds no image of another group.
    """
    if images.groups is None or gallery.groups is None:
        return None
    numbers = numbered(np.array([*images.groups, *gallery.groups], dtype=str))
    kin = Kin(*map(torch.from_numpy, np.split(numbers, [len(images)])))
    if kin.fewest < 1:
        raise HoldfastError(
            f"images of other groups are needed, but all {len(gallery)} images of {gallery.name} are of the group "
            f"{gallery.groups[0]!r}. Add images of another group, or leave groups out"
        )
    return kin


def represent(encoder: Encoder, images: Images, rows: Sequence[int], run: RunSettings) -> Codes:
    """Return the clean codes of the images at ``rows``, shape (b, d)."""
    codes = codes_of(encoder, images.pixels(rows, run.device, run.dtype, encoder.domain))
    bad = ~torch.isfinite(codes).all(1)
    if bad.any():
        first = images.ids[rows[int(bad.nonzero()[0])]]
        raise HoldfastError(
            f"{encoder.name} returned NaN or infinite embeddings for image {first!r}; check its weights and precision"
        )
    largest, info = float(codes.abs().max()), torch.finfo(codes.dtype)
    if largest > info.max**0.45 or 0 < largest < info.tiny**0.45:
        raise HoldfastError(
            f"{encoder.name} returned embeddings as large as {largest:.0e}, whose squares {codes.dtype} cannot hold; "
            "rescale the encoder's output, or use --precision float64"
        )
    return codes
