"""Whether two encoders preprocess images alike: preprocessings tried on a few images.

Image files can be read again, resized or decoded as another program may have done it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from holdfast.commands.parity_sides import Coded
from holdfast.commands.parity_trials import (
    AS_IT_IS,
    DECODING,
    INPUTS,
    RESIZING,
    Attempt,
    of_decodings,
    of_files,
    of_pixels,
    stated_by,
)
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Pixels
from holdfast.core.geometry import Preprocessing
from holdfast.core.images import Images, Subset
from holdfast.core.optimised import codes_of
from holdfast.core.records import Claim, Estimate, Verdict
from holdfast.core.run_settings import without_tf32
from holdfast.core.statistics.summaries import Scale, series_of, summarise
from holdfast.data.by_name import Selection
from holdfast.data.reading.decode import USUAL, Decoding
from holdfast.data.reading.scan import Encoded
from holdfast.run.inputs import Inputs
from holdfast.service.parity import ROUNDING, distances


@dataclass(frozen=True, eq=False)
class Files:
    """Files by the names of their images."""

    source: Encoded
    rows: dict[str, int]

    @classmethod
    def of(cls, images: Images) -> Files | None:
        """Return the files of ``images``; None if they were no files."""
        source, rows = images.source, list(range(len(images)))
        while isinstance(source, Subset):
            rows = [source.rows[row] for row in rows]
            source = source.source
        return cls(source, dict(zip(images.ids, rows, strict=True))) if isinstance(source, Encoded) else None

    def read(self, names: Sequence[str], geometry: Preprocessing, decoding: Decoding) -> UInt8[Tensor, "b c h w"]:
        """Return the pixels of the images called ``names``."""
        return self.source.otherwise(geometry, decoding).read([self.rows[name] for name in names])

    def depends(self, name: str) -> tuple[bool, bool]:
        """Return whether a file says how it is turned, and whether it has transparent parts."""
        return self.source.depends(self.rows[name])


# A wrong resize or normalisation is the usual cause of another space with the same weights. What brings the median distance
# of the codes down to ``MATCHES`` of what it is, and most of all, is named as the cause.
#
# Several causes may come together. So the search goes from kind to kind (normalisation and channels, resizing,
# decoding), adds the nearest of each to what it has, and goes round until nothing comes nearer. What it can do
# without is left out again. How a file is turned and what is behind transparent parts is judged on files that say so.

PROBED = 12
"""Images on which a preprocessing is judged ..."""
SIFTED = 4
"""... if it is among the ``SHOWN`` nearest of its kind on this many of them, and the nearest of all or ``HOPEFUL`` there."""
LOOKED_AT = 500
"""Files whose headers are read, those whose codes moved most, for some that are turned or transparent."""
MATCHES = 0.25
HOPEFUL = 2 * MATCHES
NEARER = 0.9
"""What a kind brings the distance down to before it is taken beside the others."""
ROUNDS = 3
SHOWN = 3
"""Number of nearest attempts that are stored and judged on all images."""
QUESTION = "Are images prepared alike?"

Judged = tuple[Estimate, Attempt]
Kind = tuple[Sequence[Attempt], tuple[str, ...], list[str]]
"""Attempts, the part of them that is tried, and the images they are tried on."""


def preprocessing(
    reference: Coded, candidate: Coded, inputs: Inputs, scale: Scale, divergence: Divergence
) -> tuple[list[Estimate], Verdict] | None:
    """Return how far codes are apart under other preprocessings, and whether one explains the difference.

    The candidate's is changed; that of the reference where the candidate is a file of codes. Nothing is said of two files,
    of codes of different widths, of inputs that are no images, and of one encoder in two precisions.

    Args:
        reference, candidate: both sides.
        inputs: the images.
        scale: the median distance between the reference's codes of different images, as ``divergence`` embeds them.
        divergence: what codes are compared by.
    """
    changed, fixed = (reference, candidate) if candidate.side.encoder.codes_only else (candidate, reference)
    encoder, other = changed.side.encoder, fixed.side.encoder
    weights = [side.stored_from or side.fingerprint for side in (encoder, other)]
    alike = weights[0] == weights[1] or reference.codes.shape[1] != candidate.codes.shape[1]
    if encoder.codes_only or alike or len(encoder.domain.shape) != 3 or encoder.domain.shape[0] not in (1, 3):
        return None
    request = inputs.request
    loaded = {  # is not loaded again
        (domain, geometry): images[Selection(domain, limit=PROBED, seed=request.seed).choose(images.ids)]
        for (domain, geometry), images in inputs.loaded.items()
    }
    fewer = request.model_copy(update={"limit": min(PROBED, request.limit or PROBED)})
    few = replace(inputs, request=fewer, loaded=loaded, bank_named=None)
    return PreprocessingSearch(changed, fixed, few, scale, divergence).answer()


@dataclass(frozen=True, eq=False)
class PreprocessingSearch:
    """One encoder, whose preprocessing is changed, against the codes of the same images by another."""

    changed: Coded
    fixed: Coded
    inputs: Inputs
    scale: Scale
    divergence: Divergence
    read: dict[tuple[str, Preprocessing | None, Decoding], Pixels] = field(default_factory=dict)
    """Pixels of images, as files become them."""
    tried: set[str] = field(default_factory=set)
    """Names of what was tried."""

    @cached_property
    def files(self) -> Files | None:
        """The files of all images that have codes, if they are files."""
        return Files.of(self.changed.population.images)

    @cached_property
    def names(self) -> list[str]:
        """The images that both sides have codes of; those that attempts are sifted on come first."""
        encoder, coded = self.changed.side.encoder, set(self.changed.ids) & set(self.fixed.ids)
        images = self.inputs.prepared(encoder.domain, encoder.geometry)
        names = [name for name in images.ids if name in coded]
        step = -(-len(names) // SIFTED) or 1
        return [*names[::step], *(name for position, name in enumerate(names) if position % step)]

    @cached_property
    def odd(self) -> tuple[list[str], bool, bool]:
        """The images of files that say how they are turned, or are transparent; whether some do the one or the other."""
        if self.files is None or not self.fixed.side.encoder.codes_only:
            return [], False, False
        coded = set(self.changed.ids) & set(self.fixed.ids)
        names = [name for name in self.changed.ids if name in coded]
        moved = self.apart(self.fixed, _codes_of(self.changed, names), names)
        found, both = list[str](), [False, False]
        for position in moved.argsort(descending=True, stable=True)[:LOOKED_AT].tolist():
            says = self.files.depends(names[position])
            if any(says):
                found.append(names[position])
                both = [before or now for before, now in zip(both, says, strict=True)]
            if len(found) == PROBED:
                break
        return found, both[0], both[1]

    def answer(self) -> tuple[list[Estimate], Verdict]:
        """Return the numbers of the nearest attempts, and the verdict."""
        encoder, other = self.changed.side.encoder, self.fixed.side.encoder
        start = Attempt(encoder.geometry)
        before = self.as_it_is(self.names)
        odd, turned, transparent = self.odd
        decodings = of_decodings(turned, transparent, encoder.geometry)
        kinds: list[Kind] = []
        if not before.value <= ROUNDING:
            readable = self.files is not None or isinstance(self.inputs.images_named, str)
            kinds = [
                (list(of_pixels(encoder, other)), INPUTS, self.names),
                (list(of_files(encoder, other)) if readable else [], RESIZING, self.names),
            ]
        kinds.append((decodings, DECODING, odd))
        best, judged = self.search(start, kinds)
        best = self.without_needless(best, start, odd)
        on = odd if best.decoding != USUAL else self.names
        here, after = self.as_it_is(on), self.judge(best, on)[0]
        shown = sorted(judged, key=_value)[:SHOWN]
        if best.name != AS_IT_IS and after.value <= MATCHES * here.value:
            others = [each for each, attempt in shown if attempt.name != best.name]
            name = after.conditions["preprocessing"]
            reason = (
                f"no: with {name} codes are {after.value:.2g} of the distance between images apart instead of "
                f"{here.value:.2g} ({after.n} images)"
            )
            witness = {"preprocessing": name, "tried": str(len(self.tried))}
            verdict = Verdict(question=QUESTION, status="refuted", reason=reason, witness=witness)
            return [here, after, *others][: SHOWN + 1], verdict
        return [before, *(each for each, _ in shown)], self.unexplained(before, [each for each, _ in shown[:1]])

    def search(self, start: Attempt, kinds: Sequence[Kind]) -> tuple[Attempt, list[Judged]]:
        """Return the nearest combination that was found, and all that were judged on ``names``."""
        best, judged, seen = start, dict[str, Judged](), dict[int, Attempt]()
        for turn in range(ROUNDS * len(kinds)):
            options, part, names = kinds[turn % len(kinds)]
            if not options or not names or seen.get(turn % len(kinds)) is best:
                continue
            now = self.judge(best, names)[0]
            found = self.nearest([best.taking(option, part) for option in options], names)
            if names is self.names:
                judged |= {attempt.name: (estimate, attempt) for estimate, attempt in found}
            if found[0][0].value <= NEARER * now.value:
                best = found[0][1]
            seen[turn % len(kinds)] = best
        return best, list(judged.values())

    def without_needless(self, best: Attempt, start: Attempt, odd: list[str]) -> Attempt:
        """Return ``best`` without what the distance hardly depends on."""
        for part, names in ((DECODING, odd), (RESIZING, self.names), (INPUTS, self.names)):
            less = best.taking(start, part)
            if less.name == best.name:
                continue
            if self.judge(less, names)[0].value <= self.judge(best, names)[0].value / HOPEFUL:
                best = less
        return best

    def as_it_is(self, names: list[str]) -> Estimate:
        """Return how far the codes of these images are apart as they are."""
        return _estimate(AS_IT_IS, self.apart(self.fixed, _codes_of(self.changed, names), names))

    def judge(self, attempt: Attempt, names: list[str]) -> Judged:
        """Return how far the codes of all ``names`` are apart under ``attempt``."""
        return _estimate(attempt.name, self.moved(attempt, names)), attempt

    def nearest(self, attempts: Sequence[Attempt], names: list[str]) -> list[Judged]:
        """Return the ``SHOWN`` nearest of ``attempts``, the nearest first: found on few images, and judged on all.

        Only the nearest is judged where it cannot match either.
        """
        self.tried.update(attempt.name for attempt in attempts)
        sifted = [(_estimate(attempt.name, self.moved(attempt, names, SIFTED)), attempt) for attempt in attempts]
        first = sorted(sifted, key=_value)
        hopeful = [each for each in first if each[0].value <= HOPEFUL * self.as_it_is(names).value]
        return sorted((self.judge(attempt, names) for _, attempt in hopeful[:SHOWN] or first[:1]), key=_value)

    def moved(self, attempt: Attempt, names: list[str], count: int | None = None) -> Float[Tensor, "b"]:
        """Return how far the codes of the first ``count`` images, prepared like this, are from those by the other side."""
        if not names:
            return torch.empty(0, dtype=torch.float64)
        run = self.changed.side.settings
        encoder = self.changed.side.encoder.to(run.device, run.dtype)
        with without_tf32():
            codes = codes_of(encoder, attempt(self.pixels(attempt, names)[:count])).cpu()
        return self.apart(self.fixed, codes, names[:count])

    def pixels(self, attempt: Attempt, names: list[str]) -> Pixels:
        """Return the pixels that files become, read once."""
        key = ("names" if names is self.names else "odd", attempt.geometry, attempt.decoding)
        if key not in self.read:
            run, domain = self.changed.side.settings, self.changed.side.encoder.domain
            if self.files is not None and attempt.geometry is not None:
                values = self.files.read(names, attempt.geometry, attempt.decoding)
                self.read[key] = values.to(run.device).to(run.dtype) / 255
            else:
                images = self.inputs.prepared(domain, attempt.geometry)
                rows = {name: row for row, name in enumerate(images.ids)}
                self.read[key] = images.pixels([rows[name] for name in names], run.device, run.dtype, domain)
        return self.read[key]

    def apart(self, other: Coded, codes: Float[Tensor, "b d"], names: Sequence[str]) -> Float[Tensor, "b"]:
        """Return how far ``codes`` are from those of ``other``."""
        there, here = (self.divergence.embed(each) for each in (_codes_of(other, names), codes))
        assert there is not None
        assert here is not None
        return distances(there, here, self.scale)

    def unexplained(self, before: Estimate, nearest: Sequence[Estimate]) -> Verdict:
        """Return that nothing that was tried explains the difference, and what that leaves; nan compares as false."""
        witness = {"preprocessing": AS_IT_IS, "tried": str(len(self.tried))}
        if before.value <= ROUNDING:
            reason = (
                f"yes, for most images: codes of {before.n} are {before.value:.2g} of the distance between images apart, "
                "so the difference lies in single images"
            )
            return Verdict(question=QUESTION, status="no violation found", reason=reason, witness=witness)
        best, cause = nearest[0] if nearest else before, ""
        left = f"{before.value:.2g} of the distance as it is, which no other makes smaller"
        if best.value < before.value:
            nearest_name = best.conditions["preprocessing"]
            left = (
                f"the nearest, {nearest_name}, leaves {best.value:.2g} of the distance, and {before.value:.2g} as it is"
            )
        # Weights explain what is left where all of the preprocessing is known of both sides.
        sides = [self.changed.side.encoder, self.fixed.side.encoder]
        known = all(not side.codes_only and stated_by(side) is not None for side in sides)
        if known and sides[0].domain == sides[1].domain and best.value <= MATCHES:
            cause = ", so weights or arithmetic differ"
        reason = f"none of the {len(self.tried)} usual preprocessings explains it{cause} ({left}; {before.n} images)"
        return Verdict(question=QUESTION, status="no violation found", reason=reason, witness=witness)


def _codes_of(coded: Coded, names: Sequence[str]) -> Float[Tensor, "b d"]:
    rows = {name: position for position, name in enumerate(coded.ids)}
    return coded.codes[[rows[name] for name in names]]


def _estimate(name: str, moved: Float[Tensor, "b"]) -> Estimate:
    conditions = {"preprocessing": name}
    of = "how far codes of a few images are apart, prepared like this"
    series = series_of(
        "distance_prepared", conditions, moved, "share of the clean distance", Claim.ESTIMATE, of, "no such image"
    )
    return summarise(series, "median", "lower").model_copy(update={"series": None, "statistic": "other"})


def _value(tried: Judged) -> float:
    value = tried[0].value
    return value if value == value else float("inf")
