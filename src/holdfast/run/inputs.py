"""The encoders and images of a request, in memory or by name, each loaded once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.core.encoder import MADE_IN_PYTHON, Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning, check_known, warn
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images
from holdfast.data import by_name as data
from holdfast.data.by_name import Selection
from holdfast.data.reading.scan_cache import ScanCache
from holdfast.encoders import by_name as encoders
from holdfast.encoders.baseline import random_init, raw_pixels
from holdfast.encoders.builtin import TOUR as TOURED
from holdfast.encoders.by_name import Options, named
from holdfast.encoders.embeddings import SOURCE, Embeddings
from holdfast.measure.bank import alongside, apart
from holdfast.measure.evaluation import with_bank
from holdfast.report.text import listed
from holdfast.run.catalog import evaluations
from holdfast.run.request import Request

TOUR = "builtin:digits"
OWN = f"{SOURCE}:"
"""The images of embeddings that were computed elsewhere, where none are named: their rows."""
WITH_IMAGES = ("builtin:", OWN)
"""Encoders that are measured on images of their own where none are named begin so."""
NO_IMAGES = "no images to measure on; name a folder of them with --images"
PICTURES = Domain((3, 224, 224))
"""Default domain of images for stored embeddings, if no encoder gives one."""
AS_LOADED = Options()
NamedEncoder = str | Encoder
"""An encoder, or the reference of one: ``timm:resnet50``."""
NamedImages = str | Path | Images | Tensor
"""Images, pixels in [0, 1], or a folder, a file or a reference: ``photos/``, ``hf:user/name``."""


@dataclass(frozen=True)
class Loaded:
    """Encoders in memory by their name in the request, and images in memory."""

    encoders: Mapping[str, Encoder] = field(default_factory=dict)
    images: Images | None = None
    bank: Images | None = None


NOTHING = Loaded()


@dataclass(frozen=True)
class Inputs:
    """Encoders of a request, and images and reference set per domain and geometry, loaded when needed."""

    request: Request
    encoders: Sequence[Encoder]
    images_named: str | Images
    bank_named: str | Images | None
    scan_cache: ScanCache
    loaded: dict[tuple[Domain, Preprocessing | None], Images] = field(default_factory=dict)
    """Images, as inputs of a domain that were read by a geometry."""
    others: dict[object, Images] = field(default_factory=dict)
    """Stored embeddings of images, and banks."""

    @classmethod
    def of(cls, request: Request, at_hand: Loaded, scan_cache: ScanCache) -> Inputs:
        """Return the inputs that ``request`` names, with its encoders loaded.

        Raises:
            HoldfastError: something it names does not exist or cannot be read.
        """
        bank = request.bank if at_hand.bank is None else at_hand.bank
        others = (reference for reference in request.encoders if reference not in at_hand.encoders)
        if (at_hand.images, request.images) == (None, None) and not all(
            named(reference)[1].startswith(WITH_IMAGES) for reference in others
        ):  # before anything is loaded
            raise HoldfastError(NO_IMAGES)
        encoders = encoders_of(request, at_hand.encoders)
        images = images_reference(request, encoders) if at_hand.images is None else at_hand.images
        if images == OWN:
            stored = [each for each in encoders if isinstance(each, Embeddings)]
            if not stored:
                raise HoldfastError(
                    f"no encoder stands for stored embeddings, whose rows {OWN} names; name images, as in {TOUR}"
                )
            _warn_of_other_rows(stored)
        return cls(request, encoders, images, bank, scan_cache)

    def images(self, encoder: Encoder) -> Images:
        """Return the images that ``encoder`` is measured on."""
        if not isinstance(encoder, Embeddings):
            return self.prepared(encoder.domain, encoder.geometry)
        return self._once(encoder, lambda: self._rows(encoder))  # all rows, or those of the images that are named

    def bank(self, encoder: Encoder) -> Images | None:
        """Return the reference set for ``encoder`` without its measured images, if there is one."""
        if self.bank_named is None:
            return None
        if not isinstance(encoder, Embeddings):
            return self._prepared_bank(encoder.domain, encoder.geometry)
        if self._own:
            return self._once(("bank", encoder), lambda: self._read_bank(encoder.domain, None, self.images(encoder)))
        return self._once(("bank", encoder), lambda: encoder.images(self._prepared_bank(*self._shown)))

    def prepared(self, domain: Domain, geometry: Preprocessing | None) -> Images:
        """Return the images as inputs of ``domain``, read from files by ``geometry``."""
        if (domain, geometry) not in self.loaded:
            self.loaded[domain, geometry] = self._select(self.images_named, self.request.limit, domain, geometry)
        return self.loaded[domain, geometry]

    def _prepared_bank(self, domain: Domain, geometry: Preprocessing | None) -> Images:
        return self._once(
            (domain, geometry), lambda: self._read_bank(domain, geometry, self.prepared(domain, geometry))
        )

    def _once(self, key: object, load: Callable[[], Images]) -> Images:
        if key not in self.others:
            self.others[key] = load()
        return self.others[key]

    @property
    def _own(self) -> bool:
        """Whether stored embeddings are measured on their own rows, not on named images."""
        return isinstance(self.images_named, str) and self.images_named == OWN

    @property
    def _shown(self) -> tuple[Domain, Preprocessing | None]:
        """Domain for images of stored embeddings: that of the first encoder that takes images."""
        shown = next((each for each in self.encoders if not each.codes_only), None)
        return (PICTURES, None) if shown is None else (shown.domain, shown.geometry)

    def _rows(self, encoder: Embeddings) -> Images:
        if not self._own:
            return encoder.images(self.prepared(*self._shown))
        limit = self.request.limit
        images = encoder.images(others=[each.stored for each in self.encoders if isinstance(each, Embeddings)])
        if limit is None:
            return images
        return images[Selection(encoder.domain, limit=limit, seed=self.request.seed).choose(images.ids)]

    def _read_bank(self, domain: Domain, geometry: Preprocessing | None, images: Images) -> Images:
        assert self.bank_named is not None
        return self._beside(self._select(self.bank_named, self.request.bank_limit, domain, geometry), images)

    def _beside(self, bank: Images, images: Images) -> Images:
        """Return ``bank`` as the evaluations need it: without copies of ``images``, or unchanged to compare both.

        Raises:
            HoldfastError: both are asked for, and there are copies.
        """
        known = evaluations()
        comparing = [name for name in self.request.only if name in known and known[name].compares_bank]
        if not comparing:
            return apart(bank, images)
        others = [name for name in self.request.only if name in known and name not in comparing]
        if others := [name for name in others if with_bank(known[name]())]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HoldfastWarning)
                copies = len(bank) - len(apart(bank, images))
            if copies:
                raise HoldfastError(
                    f"{comparing[0]} compares both sets with the {copies} images that are in both, and "
                    f"{others[0]} searches a bank without them. Evaluate {comparing[0]} in a run of its own"
                )
        return alongside(bank, images)

    def _select(self, named: str | Images, limit: int | None, domain: Domain, geometry: Preprocessing | None) -> Images:
        return select(named, domain, geometry, limit=limit, seed=self.request.seed, scan_cache=self.scan_cache)


def loading_of(options: Mapping[str, Any]) -> Options:
    """Return the loading options of every encoder from a command's ``options``."""
    return Options(options["arch"], options["size"], options["trust_remote_code"])


def checked(encoder: object) -> NamedEncoder:
    """Return ``encoder`` if it is one, or a reference."""
    if not isinstance(encoder, (str, Encoder)):
        raise HoldfastError(
            f"an Encoder is needed or its reference, as in 'timm:resnet50', got {type(encoder).__name__}; a module of "
            "your own becomes one as Encoder(module, name, Domain((3, 224, 224)))"
        )
    return encoder


def reference_or_images(images: object) -> str | Images:
    """Return images that need no loading, or the reference of others."""
    if isinstance(images, Tensor):
        return Images(images)
    if not isinstance(images, (str, Path, Images)):
        raise HoldfastError(
            f"images are a folder, a reference, Images or a tensor in [0, 1], got {type(images).__name__}; "
            "torch.as_tensor makes a tensor of an array"
        )
    return str(images) if isinstance(images, Path) else images


def named_images(images: NamedImages | None) -> tuple[str | None, Images | None]:
    """Return the reference of ``images``, and the images themselves if they are in memory."""
    if images is None:
        return None, None
    given = reference_or_images(images)
    return (given, None) if isinstance(given, str) else (reference_of(given), given)


def encoders_by_reference(encoders: Sequence[NamedEncoder]) -> dict[str, Encoder]:
    """Return the encoders that are in memory by what a request calls them.

    Raises:
        HoldfastError: two are called alike.
    """
    at_hand = [encoder for encoder in map(checked, encoders) if isinstance(encoder, Encoder)]
    named = {reference_of(encoder): encoder for encoder in at_hand}
    if len(named) < len(at_hand):
        names = ", ".join(encoder.name for encoder in at_hand)
        raise HoldfastError(f"two of the encoders are called alike ({names}); give each one a name of its own")
    return named


def reference_of(named: NamedEncoder | Images) -> str:
    """Return the reference of an encoder or images; objects in memory have a name.

    Example:
        >>> import torch
        >>> reference_of("timm:resnet50"), reference_of(Images(torch.zeros(1, 1, 2, 2), name="grey"))
        ('timm:resnet50', 'python:grey')
    """
    if isinstance(named, Images):
        return f"{MADE_IN_PYTHON}:{named.name}"
    encoder = checked(named)
    if isinstance(encoder, str):
        return encoder
    made_in_python = encoder.source == MADE_IN_PYTHON
    return f"{MADE_IN_PYTHON}:{encoder.name}" if made_in_python else f"{encoder.name}={encoder.source}"


def load_encoder(encoder: NamedEncoder, options: Options = AS_LOADED) -> Encoder:
    """Return an encoder in memory, or the one that a reference names, for what takes more than embeddings.

    Raises:
        HoldfastError: the encoder cannot be loaded, is in memory with ``options`` for loading, or is stored embeddings.
    """
    encoder = checked(encoder)
    loaded = encoders.load(encoder, options) if isinstance(encoder, str) else encoder
    if loaded.codes_only:
        raise HoldfastError(
            f"{loaded.name} holds embeddings alone, and this takes the encoder that made them; only evaluate, parity, "
            "drift and threshold can do with embeddings"
        )
    if isinstance(encoder, str):
        return loaded
    _check_as_loaded(encoder.name, options)
    return encoder


def _check_as_loaded(name: str, options: Options) -> None:
    if options != AS_LOADED:
        raise HoldfastError(
            f"arch, size and trust_remote_code say how to load an encoder, and {name} is in memory; leave them out"
        )


def select(
    images: NamedImages,
    domain: Domain,
    geometry: Preprocessing | None = None,
    *,
    limit: int | None = None,
    seed: int = 0,
    scan_cache: ScanCache | None = None,
) -> Images:
    """Return images as inputs of ``domain``, loaded if a reference names them; ``seed`` chooses ``limit`` of them.

    Raises:
        HoldfastError: they cannot be loaded, or are no inputs for this domain.
    """
    images = reference_or_images(images)
    if isinstance(images, str):
        return data.load(images, domain, geometry, limit=limit, seed=seed, scan_cache=scan_cache)
    images.pixels([0], domain=domain)
    return images if limit is None else images[Selection(domain, limit=limit, seed=seed).choose(images.ids)]


def _warn_of_other_rows(codes: Sequence[Embeddings]) -> None:
    """Warn where files hold embeddings of different images, whose numbers cannot be compared."""
    first, *others = codes
    known = set(first.stored.ids)
    for other in others:
        shared = len(known & set(other.stored.ids))
        if not shared == len(known) == len(other.stored):
            warn(
                f"{first.name} and {other.name} hold embeddings of different images ({shared} ids are in both, of "
                f"{len(known)} "
                f"and {len(other.stored)}), so their numbers stand apart and are not compared"
            )


def images_reference(request: Request, encoders: Sequence[Encoder]) -> str:
    """Return the reference of the images; by default the built-in ones, or the rows of stored embeddings."""
    if request.images is None and encoders and all(encoder.codes_only for encoder in encoders):
        return OWN
    if request.images is None and not all(named(encoder)[1].startswith("builtin:") for encoder in request.encoders):
        raise HoldfastError(NO_IMAGES)
    return request.images or TOUR


def encoders_of(request: Request, at_hand: Mapping[str, Encoder]) -> list[Encoder]:
    """Return the encoders that ``request`` names, the baselines last; two of one name are called by their source.

    Those ``at_hand``, by reference, are not loaded.

    Raises:
        HoldfastError: one cannot be loaded, or all are in memory and the request says how to load them.
    """
    if not request.encoders and request.images not in (None, TOUR):
        raise HoldfastError(f"no encoder to measure on {request.images}; name one, as in timm:resnet50")
    options = Options(None, request.size, request.trust_remote_code)
    if request.encoders and all(reference in at_hand for reference in request.encoders):
        _check_as_loaded(at_hand[request.encoders[0]].name, options)
    named = encoders.references(request.encoders, request.arch, options)
    loaded = [at_hand.get(reference) or encoders.load(reference, options) for reference, options in named]
    loaded = loaded or [encoders.load(f"builtin:{name}") for name in TOURED]
    everyone = [*loaded, *_baselines(request, loaded)]
    counted = Counter(encoder.name for encoder in everyone)
    for place, encoder in enumerate(everyone):
        if counted[encoder.name] > 1 and encoder.source != MADE_IN_PYTHON:
            everyone[place] = copy(encoder)  # the caller's own keeps its name
            everyone[place].name = encoder.source
    return everyone


def _baselines(request: Request, encoders: Sequence[Encoder]) -> list[Encoder]:
    kinds = ("pixels", "random")
    check_known("baseline", request.baselines, kinds)
    baselines: list[Encoder] = []
    if "pixels" in request.baselines:
        for encoder in {encoder.domain: encoder for encoder in reversed(encoders)}.values():
            pixels = raw_pixels(encoder.domain)
            pixels.geometry = encoder.geometry  # so that both see the same images
            baselines.append(pixels)
    if "random" in request.baselines:
        drawn: dict[str, tuple[Encoder, list[str]]] = {}
        without = [encoder.name for encoder in encoders if not encoder.parameters]
        if without:
            warn(
                f"random baseline: left out for {listed(without)}, which {'has' if len(without) == 1 else 'have'} no "
                "weights to draw again"
            )
        for encoder in encoders:
            if not encoder.parameters:
                continue
            fresh = random_init(encoder, request.seed)
            drawn.setdefault(fresh.fingerprint, (fresh, []))[1].append(encoder.name)
        for fresh, alike in drawn.values():  # one architecture has one random baseline
            fresh.name = f"{' and '.join(alike)} (random weights)"
            baselines.append(fresh)
    return baselines
