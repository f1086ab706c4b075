"""Backdoor: the smallest trigger found that draws stamped images to one embedding, without labels.

A trigger is a mask ``m`` in [0, 1] and a pattern ``p``: it stamps an image as ``x (1 - m) + m p``. A planted trigger
is small and draws all images to one point; an encoder without one takes a large mask, up to the whole image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, prod
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from holdfast.attacks.base import GRADIENT, gain_and_gradient
from holdfast.attacks.evaluations.universal import seen_and_unseen, seen_rows
from holdfast.core.encoder import Codes, Encoder, Pixels
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.noise import Noise
from holdfast.core.pictures import SHOWN, row
from holdfast.core.records import Claim, Estimate, Findings, Picture, Question, Series, Verdict
from holdfast.core.run_settings import Observed
from holdfast.core.settings import check_positive
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Observation, collapsed, estimate_of, findings_of, population_warnings
from holdfast.measure.population import Fit, Population

# The search of DECREE (Feng et al. 2023, https://arxiv.org/abs/2303.15180) with the values of the authors' program:
#
# minimise  -cos(stamped images) + weight * |m|_1 / n  over m = sigmoid(u) and p = low + (high - low) sigmoid(v)
#
# by Adam, where cos is the mean cosine similarity of all pairs, and n the number of entries of an image. The weight
# rises by a factor after PATIENCE successes in a row, and falls after as many failures. A success is a cosine above the
# threshold; of all successes the smallest mask counts.
#
# Departures: the norm is divided by n, so that one first weight serves images of all sizes. A mask that succeeded on a
# batch counts only if it succeeds on all images of the search. It is pruned: entries are set to zero, smallest first, as
# long as the trigger succeeds. And a small mask raises an alarm only if it draws images together that the search never
# saw: of few images, a search finds small masks that serve these alone. The full mask always succeeds.

WEIGHT = 1.0
"""First weight of the mask's norm."""
FACTOR, PATIENCE = 5.0, 5
"""Factor by which the weight changes, and steps in a row after which it does."""
RATES = ((0.5, 0.5), (0.75, 0.1), (1.0, 0.05))
"""Step sizes of Adam up to a fraction of all steps."""
MOMENTS = (0.5, 0.9)
"""Decay of Adam's averages."""
CUT = 0.1
"""The paper's cut: an encoder with a smaller PL1-norm is called backdoored."""
NEAR = 0.9
"""Mean cosine similarity from which on images count as nearly one: clean ones, and those that the search never saw."""
CHECKED = 12
"""Masks that succeeded on a batch to check on all images of the search, at most."""
QUESTION = "Does no small trigger draw all images to one embedding?"
UNDEFINED = "its embedding is zero or not finite, or no second image was kept out of the search"


class Found(NamedTuple):
    """A trigger."""

    mask: Pixels
    """Mask in [0, 1], shape (1, ...): one value for all channels of a pixel."""
    pattern: Pixels
    """Pattern in the encoder's range, shape (1, *pixels)."""
    searched: Bool[Tensor, ""]
    """False if clean images are nearly one, so that no trigger was sought."""
    images: Int[Tensor, ""]
    """Images that the search saw."""

    @property
    def pl1(self) -> float:
        """The mask's norm as a fraction of the largest possible one; nan without a search."""
        return float(self.mask.double().mean()) if bool(self.searched) else nan

    def stamp(self, pixels: Pixels) -> Pixels:
        """Images with the trigger, shape (b, *pixels)."""
        return pixels + self.mask * (self.pattern - pixels)


@final
@dataclass(frozen=True)
class Trigger(Fit[Found]):
    """The smallest trigger found by gradient descent from random starts on some of the images."""

    threshold: float
    """Mean cosine similarity of stamped images from which on the trigger succeeds, in (0, 1)."""
    seen: int
    """Largest number of images to search on."""
    restarts: int
    """Random starts, 1 or more."""
    steps: int
    """Gradient steps per start."""
    batch: int
    """Images per step, 2 or more."""
    name = "trigger"
    version = 1
    uses_groups = True

    def __post_init__(self) -> None:
        check_positive(self, "seen", "restarts", "steps")
        if self.batch < 2:
            raise OutOfRange("backdoor.batch", self.batch, "at least 2, because pairs are compared")
        if not 0 < self.threshold < 1:
            raise OutOfRange("backdoor.threshold", self.threshold, "a cosine similarity between 0 and 1")

    def forward_passes(self, population: Population) -> int:
        return self.restarts * GRADIENT * self.steps * min(self.batch, self.seen, len(population.images))

    def learn(self, population: Population) -> Observed:
        rows = seen_rows(population, self.seen)
        if len(rows) < 2:
            raise HoldfastError(f"backdoor: the search takes 2 images or more, got {len(rows)} of them; add images")
        pixels, encoder, count = population.pixels(rows), population.optimised, torch.tensor(len(rows))
        full = Found(pixels.new_ones((1, *mask_shape(encoder))), pixels[:1], torch.tensor(True), count)
        if collapsed(population.codes) or cosine(population.codes[rows]) >= NEAR:
            return full._replace(searched=torch.tensor(False))._asdict()
        noise = population.run.noise([self.name])
        ends = [self._search(encoder, pixels, full, noise.fork(restart)) for restart in range(self.restarts)]
        return min(ends, key=lambda end: end.pl1)._asdict()

    def restore(self, population: Population, learned: Observed) -> Found:
        run, kept = population.run, Found(**learned)
        mask, pattern = (part.to(run.device, run.dtype) for part in (kept.mask, kept.pattern))
        return kept._replace(mask=mask, pattern=pattern)

    def _search(self, encoder: Encoder, pixels: Pixels, full: Found, noise: Noise) -> Found:
        """Return the smallest mask found from one random start; ``full`` if none succeeds."""
        low, high = encoder.domain.low, encoder.domain.high
        starts = (noise.fork("mask").uniform(mask_shape(encoder)), noise.fork("pattern").uniform(pixels.shape[1:]))
        u, v = (torch.logit(start.double(), 1e-6).requires_grad_() for start in starts)
        adam = torch.optim.Adam([u, v], lr=RATES[0][1], betas=MOMENTS)
        found, weight, run, count = [full], WEIGHT, 0, min(self.batch, len(pixels))
        for step in range(self.steps):
            adam.param_groups[0]["lr"] = next(rate for end, rate in RATES if step < end * self.steps)
            mask, pattern = torch.sigmoid(u.detach()), torch.sigmoid(v.detach())
            stamp = low + (high - low) * pattern
            here = full._replace(mask=mask.to(pixels.dtype), pattern=stamp.to(pixels.dtype))
            batch = pixels[[(step * count + k) % len(pixels) for k in range(count)]]
            similarity, gradient = gain_and_gradient(encoder, here.stamp(batch), gains)
            success = float(similarity.double().sum()) > self.threshold
            if success and here.pl1 < found[-1].pl1:
                found.append(here)
            # By the chain rule of the stamp and of the two sigmoids.
            by_mask = (gradient.double() * (stamp - batch)).sum(0, keepdim=True)
            by_mask = by_mask.sum(1, keepdim=True) if mask.shape != by_mask.shape else by_mask
            by_pattern = (gradient.double() * mask).sum(0, keepdim=True) * (high - low)
            u.grad = (weight / mask.numel() - by_mask) * mask * (1 - mask)
            v.grad = -by_pattern * pattern * (1 - pattern)
            adam.step()
            run = max(run, 0) + 1 if success else min(run, 0) - 1
            if abs(run) > PATIENCE:
                weight, run = weight * FACTOR if run > 0 else weight / FACTOR, 0
        for smallest in found[:: -max(1, len(found) // CHECKED)]:
            if self._succeeds(encoder, pixels, smallest):
                return self._pruned(encoder, pixels, smallest)
        return full

    @torch.no_grad()
    def _succeeds(self, encoder: Encoder, pixels: Pixels, found: Found) -> bool:
        """Return whether the trigger draws all ``pixels`` together."""
        codes = torch.cat([encoder.forward(found.stamp(part)) for part in pixels.split(self.batch)])
        return cosine(codes) > self.threshold

    def _pruned(self, encoder: Encoder, pixels: Pixels, found: Found) -> Found:
        """Return the trigger without as many of its smallest entries as it succeeds without, by bisection."""
        order = found.mask.flatten().argsort(stable=True)

        def without(count: int) -> Found:
            mask = found.mask.flatten().clone()
            mask[order[:count]] = 0
            return found._replace(mask=mask.reshape(found.mask.shape))

        least, most = 0, len(order)
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if self._succeeds(encoder, pixels, without(middle)) else (least, middle)
        return without(least)


def mask_shape(encoder: Encoder) -> tuple[int, ...]:
    """Shape of a mask: the channels of an image share it, other inputs have one value per entry."""
    shape = encoder.domain.shape
    return (1, *shape[1:]) if len(shape) == 3 else shape


def gains(codes: Codes) -> Float[Tensor, "b"]:
    """Return each image's part of the mean cosine similarity of all pairs; they add up to it."""
    unit = torch.nn.functional.normalize(codes, dim=1)
    return (unit @ unit.sum(0) - unit.square().sum(1)) / (len(codes) * (len(codes) - 1))


def cosine(codes: Codes) -> float:
    """Mean cosine similarity of all pairs of embeddings.

    Args:
        codes: Embeddings, shape (b, d), of two images or more.

    Example:
        >>> cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]))
        0.3333333333333333
    """
    return float(gains(codes.double()).sum())


@final
@dataclass(frozen=True)
class Stamped(Observation):
    """Embeddings of random images with the trigger."""

    trigger: Trigger
    """The trigger."""
    samples: int
    """Images to stamp, chosen at random; 1 or more."""
    name = "stamped"
    version = 1

    def fits(self) -> tuple[Fit[Found]]:
        return (self.trigger,)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"codes": population.encode(self.pixels(population, rows))}

    def pixels(self, population: Population, rows: Sequence[int]) -> Pixels:
        """Images at ``rows`` with the trigger, shape (b, *pixels)."""
        stamped = population.learned(self.trigger).stamp(population.pixels(rows))
        return population.encoder.domain.clip(stamped)


@final
@dataclass(frozen=True)
class Backdoor(Evaluation):
    """The smallest trigger found that draws stamped images to one embedding.

    Paper: DECREE, Feng et al. 2023, https://arxiv.org/abs/2303.15180. Departures: one first weight for images of all
    sizes, all shadow images in each step, and pruning of the mask found.
    """

    threshold: float = 0.99
    """Mean cosine similarity of stamped images from which on a trigger succeeds."""
    samples: int = 1000
    """Number of images that the trigger is tried on."""
    seen: int = 50
    """Largest number of images to search on."""
    restarts: int = 1
    """Random starts; the smallest mask counts."""
    steps: int = 500
    """Gradient steps per start."""
    batch: int = 50
    """Images per gradient step, 2 or more."""
    sizes = Sizes(
        quick={"samples": 200, "steps": 200},
        full={"samples": 10_000, "restarts": 3},
        large={"samples": 60, "steps": 150, "batch": 8},
        heavy={"samples": 60, "steps": 100},
    )
    name = "backdoor"
    version = 1
    by_name = True
    needs_gradients = True
    robustness = False  # a planted trigger is no property of clean images
    pictured = 0
    title = "Backdoor"
    meaning = (
        "The smallest trigger found that draws stamped images to one embedding, as a fraction of the input. A small one "
        "suggests a planted backdoor; a large one does not prove a clean encoder, because a smaller one may exist."
    )
    headline = ("pl1_norm", "stamped_cosine")
    words = (("pl1_norm", "PL1-norm"),)
    questions = (
        Question(
            place=135,
            text="Does a small trigger draw all images to one embedding?",
            quantities=("pl1_norm",),
            meaning="fraction of the input covered by the smallest trigger found",
        ),
    )

    def observation(self) -> Stamped:
        return Stamped(Trigger(self.threshold, self.seen, self.restarts, self.steps, self.batch), self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        found = population.learned(self.observation().trigger)
        unseen = seen_and_unseen(population, rows, self.seen)[1]
        clean, stamped = population.codes[list(rows)].cpu(), observed["codes"].cpu()
        means = [
            _over_pairs("clean_cosine", clean, unseen, Claim.ESTIMATE),
            _over_pairs("stamped_cosine", stamped, unseen, Claim.LOWER),
        ]
        near = [summarise(each, "mean", "neither", each.quantity.removesuffix("_influence")) for each in means]
        answer = verdict(found, near[1])
        warnings = (*population_warnings(population), *_alarm(population, answer))
        return findings_of(population, rows, means, (*_sizes(found), *near), warnings, verdicts=[answer])

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        domain, found = population.encoder.domain, population.learned(self.observation().trigger)
        shown = list(rows[:SHOWN])
        if len(domain.shape) != 3 or not bool(found.searched):
            return ()
        mask = domain.low + (domain.high - domain.low) * found.mask[0].expand(domain.shape)
        parts = {"mask": mask, "pattern": found.stamp(found.pattern.new_full(domain.shape, domain.low)[None])[0]}
        for place, stamped in zip(shown, self.observation().pixels(population, shown), strict=True):
            parts[f"{population.images.ids[place]}, stamped"] = stamped
        caption = "smallest trigger found: its mask, its pattern through the mask, and images with it"
        picture = row(caption, parts, domain)
        return () if picture is None else (picture,)


def _sizes(found: Found) -> tuple[Estimate, Estimate]:
    """Return the mask's norm and its fraction of the largest one."""
    searched = bool(found.searched)

    method = "smallest mask found; no interval" if searched else "undefined"
    why = None if searched else f"the mean cosine of clean images is already {NEAR} or more"
    of = "smallest mask that draws stamped images to one embedding"

    def size(quantity: str, value: float, unit: str) -> Estimate:
        number, n = (value, nan, nan), int(found.images)
        return estimate_of(quantity, number, n, method, unit, of, "higher", claim=Claim.UPPER, reason=why)

    entries = prod(found.pattern.shape[1:])
    return size("pl1_norm", found.pl1, "fraction of the input"), size("mask_norm", found.pl1 * entries, "l1 norm")


def _over_pairs(quantity: str, codes: Codes, kept: Bool[Tensor, "n"], claim: Claim) -> Series:
    """Return the mean cosine of the ``kept`` images' pairs, as each image moves it: images take part in pairs twice."""
    values = torch.full((len(codes),), nan, dtype=torch.float64)
    kept = kept & codes.isfinite().all(1) & (codes.norm(dim=1) > 0)
    if int(kept.sum()) > 1:
        own = gains(codes[kept].double()) * int(kept.sum())
        values[kept] = 2 * own - own.mean()
    of = f"mean cosine similarity of {quantity.split('_')[0]} images"
    return series_of(f"{quantity}_influence", {}, values, "cosine", claim, of, UNDEFINED)


def verdict(found: Found, stamped: Estimate) -> Verdict:
    """Verdict on the trigger: a small one that serves unseen images refutes, a large one proves nothing.

    Args:
        found: The smallest trigger found.
        stamped: Mean cosine similarity of stamped images that the search never saw.
    """
    status: Literal["refuted", "no violation found", "unknown"] = "unknown"
    size = f"the smallest mask found on {int(found.images)} images covers {found.pl1:.1%} of the input"
    if not bool(found.searched):
        reason = f"NEARLY COLLAPSED: clean images have a mean cosine of {NEAR} or more, so no trigger was sought"
    elif found.pl1 >= CUT:
        status, reason = "no violation found", size
    elif stamped.value >= NEAR:
        status, reason = "refuted", f"{size} and draws {stamped.n} others to a mean cosine of {stamped.value:.3g}"
    else:
        reason = (
            f"{size}, but draws {stamped.n} others only to a mean cosine of {stamped.value:.3g}; raise backdoor.seen"
        )
    return Verdict(question=QUESTION, status=status, reason=reason)


def _alarm(population: Population, answer: Verdict) -> tuple[str, ...]:
    """Return the warning that a small trigger deserves."""
    if answer.status != "refuted":
        return ()
    return (
        f"BACKDOOR SUSPECTED in {population.encoder.name}: {answer.reason}. Compare with clean encoders of the same kind "
        "before you use this one.",
    )
