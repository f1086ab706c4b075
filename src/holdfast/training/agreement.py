"""How far embeddings are still what they were, and whether a promised agreement with the original is kept.

The promise: the mean cosine similarity to the original embeddings is at least a stated value. It is kept if the lower end of
its 95% interval over held-out images is, and missed if the upper end is below. Between the two, it is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Codes, Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.records import Claim, Estimate, Findings, Verdict
from holdfast.core.statistics.groups import group_mean_interval, numbered
from holdfast.measure.observation import collapsed
from holdfast.training.adversaries.base import in_training, untouched
from holdfast.training.adversaries.edits import Edits, worst
from holdfast.training.health import eval_codes

NAME, VERSION = "agreement", 1
"""Name of the number in reports, and version of its result."""
METHOD = "Student's, widened by skewness"
PART = 128
"""Images encoded at once."""
ATTACKED = 64
"""Most images that are attacked after each epoch."""
ATTACK = GradientAttack(steps=10, stride=0.25)
"""Attack that tells which epoch is the most robust."""


@final
@dataclass(frozen=True)
class Promise:
    """An agreement that was asked for, and what was reached on held-out images."""

    asked: float
    """Smallest mean cosine similarity to the original embeddings."""
    reached: float
    """Mean cosine similarity on images that neither training nor the choice of the epoch used."""
    low: float
    """Lower end of its 95% interval; with groups, over groups."""
    high: float
    """Upper end of its 95% interval."""
    n: int
    """Images measured."""

    @classmethod
    def of(cls, asked: float, cosines: Float[Tensor, "n"], groups: list[str] | None) -> Promise:
        """Check a promise.

        Args:
            asked: Smallest mean cosine similarity, in (0, 1).
            cosines: Cosine similarity of each image, shape (n,).
            groups: Name of the group of each image; None without groups.

        Example:
            >>> Promise.of(0.9, torch.tensor([0.95, 0.96, 0.94, 0.95]), None).status
            'kept'
        """
        values = cosines.double().cpu().numpy()
        which = np.arange(len(values)) if groups is None else numbered(np.array(groups))
        low, high = group_mean_interval(values, which, None)
        return cls(asked, float(values.mean()), max(-1.0, float(low)), min(1.0, float(high)), len(values))

    @property
    def kept(self) -> bool:
        """True if the lower end of the interval is at least what was asked."""
        return self.low >= self.asked

    @property
    def status(self) -> str:
        """``kept``, ``missed``, or ``not shown`` if the interval holds what was asked."""
        return "kept" if self.kept else "missed" if self.high < self.asked else "not shown"

    def findings(self, ids: Sequence[str]) -> Findings:
        """What a report says of the promise.

        Args:
            ids: Ids of the images.
        """
        status: dict[str, Literal["refuted", "no violation found", "unknown"]] = {
            "kept": "no violation found",
            "missed": "refuted",
        }
        reached = Estimate(
            quantity=NAME,
            conditions={"asked": f"{self.asked:g}"},
            value=self.reached,
            low=self.low,
            high=self.high,
            n=self.n,
            method=METHOD,
            unit="cosine similarity",
            claim=Claim.ESTIMATE,
            of="mean cosine similarity to the embeddings before hardening",
            better="neither",
        )
        asked = Verdict(
            question="Is the agreement with the original encoder kept?",
            status=status.get(self.status, "unknown"),
            reason=self.line,
            witness={"asked": f"{self.asked:g}", "reached": f"{self.reached:.4f}", "status": self.status},
        )
        return Findings(ids=tuple(ids), estimates=(reached,), verdicts=(asked,))

    @property
    def line(self) -> str:
        """One sentence with what was asked, what was reached and the status."""
        interval = f"95% interval {self.low:.3f} to {self.high:.3f}, n = {self.n} held-out images"
        return f"Agreement: asked {self.asked:g}, reached {self.reached:.3f} ({interval}): {self.status}."


def codes_of(module: nn.Module, images: Images, domain: Domain) -> Codes:
    """Embeddings of all images in eval mode, shape (n, d), in float32.

    Args:
        module: Network from pixels to embeddings.
        images: Images to encode.
        domain: Shape and range of the inputs.
    """
    weight = next(module.parameters())
    parts = [range(start, min(start + PART, len(images))) for start in range(0, len(images), PART)]
    batches = (images.pixels(part, weight.device, weight.dtype, domain) for part in parts)
    return torch.cat([eval_codes(module, pixels).float() for pixels in batches])


def promise_of(asked: float, original: Encoder, images: Images, device: str) -> Callable[[nn.Module], Promise]:
    """Function that checks a promised agreement of a module with the original on ``images``.

    Args:
        asked: Smallest mean cosine similarity, in (0, 1).
        original: Encoder before training.
        images: Images to measure with.
        device: Device of the original embeddings.
    """
    before = codes_of(original.to(device, torch.float32).module, images, original.domain)

    def check(module: nn.Module) -> Promise:
        return _promise(asked, before, codes_of(module, images, original.domain), images)

    return check


def _promise(asked: float, before: Codes, after: Codes, images: Images) -> Promise:
    groups = None if images.groups is None else list(images.groups)
    cosines = torch.cosine_similarity(before.double(), after.double().to(before.device))
    return Promise.of(asked, cosines, groups)


def shift_of(module: nn.Module, images: Images, domain: Domain, resisted: Ball | Edits, seed: int) -> float:
    """Median shift of embeddings under attack or the worst edit, relative to the distance to the nearest other image.

    Near 0.5 and above, images can match others; lower is more robust. At most ``ATTACKED`` images.

    Args:
        module: Network from pixels to embeddings.
        images: Images to attack.
        domain: Shape and range of the inputs.
        resisted: Perturbation set, or edits of which the worst of all counts for each image.
        seed: Seed of the starting points and edits.
    """
    rows = range(min(ATTACKED, len(images)))
    weight = next(module.parameters())
    pixels = images.pixels(rows, weight.device, weight.dtype, domain)
    noise = Noise.of(seed, [images.ids[row] for row in rows]).fork("watched attack").to(pixels.device)
    with untouched(module):
        encoder = in_training(module, domain)
        with torch.no_grad():
            clean = encoder.forward(pixels)
        moved = _moved(encoder, pixels, lambda codes: L2Distance()(codes, clean), resisted, noise)
        with torch.no_grad():
            shifts = (encoder.forward(moved) - clean).double().norm(dim=1)
    nearest = torch.cdist(clean.double(), clean.double()).fill_diagonal_(torch.inf).amin(1)
    return float((shifts / nearest).median())


def _moved(encoder: Encoder, pixels: Pixels, gain: ObjectiveFunction, resisted: Ball | Edits, noise: Noise) -> Pixels:
    if isinstance(resisted, Ball):
        return ATTACK(encoder, pixels, gain, resisted, noise).detach()
    every = replace(resisted, tried=None)
    with torch.no_grad():
        return worst(every.family, every.drawn(noise), encoder, gain, pixels, noise)


def watch_of(
    asked: float, original: Encoder, images: Images, device: str, resisted: Ball | Edits, seed: int
) -> Callable[[nn.Module], dict[str, float]]:
    """Function that measures, after each epoch, agreement and robustness on validation images.

    Args:
        asked: Smallest mean cosine similarity, in (0, 1).
        original: Encoder before training.
        images: Validation images.
        device: Device of the original embeddings.
        resisted: Perturbation set, or edits.
        seed: Seed of the attack or of the edits.
    """
    before = _known(original, images, device)

    def measure(module: nn.Module) -> dict[str, float]:
        after = codes_of(module, images, original.domain).to(before.device)
        promise = _promise(asked, before, after, images)
        measured = agreement(before, after) | {"agreement_low": promise.low, "kept": float(promise.kept)}
        if promise.kept:  # only among these epochs the most robust counts
            measured["shift"] = shift_of(module, images, original.domain, resisted, seed)
        return measured

    return measure


def agreement_of(original: Encoder, held_out: Images, device: str) -> Callable[[nn.Module], dict[str, float]]:
    """Return what compares a module's codes of the images ``held_out`` with those of the ``original``.

    Raises:
        HoldfastError: the original has one code for all of them.
    """
    before = _known(original, held_out, device)
    return lambda module: agreement(before, codes_of(module, held_out, original.domain).to(before.device))


def _known(original: Encoder, images: Images, device: str) -> Codes:
    """Embeddings of the original, refused if they are all equal."""
    before = codes_of(original.to(device, torch.float32).module, images, original.domain)
    if collapsed(before):
        raise HoldfastError(
            f"{original.name} gives one embedding to all images that are kept to measure with, so there is nothing to "
            "keep and it cannot be hardened; name another encoder, or check its weights and the range of its inputs"
        )
    return before


def agreement(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> dict[str, float]:
    """Return how far codes are what they were.

    ``agreement``: their mean cosine similarity. ``relative_distance``: how far they moved in comparison with how far they
    are from their mean, both as root mean squares. ``neighbours_kept``: the share of images whose nearest other is still
    the same.

    Example:
        >>> codes = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 4.0]])
        >>> agreement(codes, codes)
        {'agreement': 1.0, 'relative_distance': 0.0, 'neighbours_kept': 1.0}
    """
    before, after = before.double(), after.double()
    moved = (after - before).square().sum(1).mean()
    spread = (before - before.mean(0)).square().sum(1).mean()
    nearest = [torch.cdist(codes, codes).fill_diagonal_(torch.inf).argmin(1) for codes in (before, after)]
    return {
        "agreement": float(torch.cosine_similarity(before, after).mean()),
        "relative_distance": float((moved / spread).sqrt()),
        "neighbours_kept": float((nearest[0] == nearest[1]).double().mean()),
    }
