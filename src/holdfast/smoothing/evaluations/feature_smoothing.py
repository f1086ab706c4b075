"""Feature-space smoothing: certified similarity of the mean embedding of noisy copies, for any encoder.

    cos(F(x'), a) >= 2 Phi(Phi^-1(S) - eps / sigma) - 1    for every x' with |x' - x|_2 <= eps, with confidence 1 - alpha

``F`` is the mean unit embedding of noisy copies, ``a`` that of the clean image (as an index would hold it), and ``S`` a
lower confidence bound of ``(1 + cos(f(x + noise), a)) / 2``. https://arxiv.org/abs/2601.16200;
``smoothing/noisy_codes.py`` has the derivation. Unlike center smoothing it has no factor three and never abstains. Copies
are drawn in rounds by a confidence sequence, so most images need few. Departure: ``a`` is fixed before the certifying
copies are drawn, so nothing is assumed about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import label
from holdfast.core.balls import L2
from holdfast.core.divergences import Cosine
from holdfast.core.errors import HoldfastError
from holdfast.core.records import Claim, Conditions, Estimate, Findings, Question, Series
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import Joint, findings_of, population_warnings, radius_curves
from holdfast.measure.population import Population
from holdfast.smoothing.index import Smoothing
from holdfast.smoothing.noisy_codes import AttackedUnitCodes, FeatureNoise, UnitCodes, certified_cosine
from holdfast.smoothing.plan import SIMILAR, WITH_NOISE, check_alpha, check_noise, check_radii, contradictions, sure

DRAWN = "noisy copies drawn until more of them would hardly improve the certificate"
NOTHING = "no finite code"
ALONE = "no other image, or no finite embedding"
FOR_COMPARISON = Question(
    place=86,
    text="How similar are different images once noise is added?",
    quantities=("cosine_similarity_of_different_images",),
    meaning="cosine similarity of smoothed embeddings of different images, for comparison",
)
"""Curve to compare certified similarities with: only the excess over it means something."""


def to_another(anchors: Float[Tensor, "n d"]) -> Float[Tensor, "n"]:
    """Return the cosine of each image's unit embedding to that of the row before it; nan where there is none.

    Example:
        >>> to_another(torch.eye(2)), to_another(torch.ones(1, 1))
        (tensor([0., 0.]), tensor([nan]))
    """
    found = (anchors * anchors.roll(1, 0)).sum(1)
    zero = ~anchors.any(1)
    return found.masked_fill(zero | zero.roll(1) | (len(anchors) < 2), torch.nan)


@final
@dataclass(frozen=True)
class FeatureSmoothing(Evaluation):
    """How similar the smoothed embedding stays under perturbation: certified and attacked.

    Paper: https://arxiv.org/abs/2601.16200. Departure: the anchor is fixed before the copies that certify are drawn, so
    that nothing is assumed about it.
    """

    sigma: float = 0.25
    """Standard deviation of the noise, in pixel units; noisy pixels are not clipped."""
    selection: int = 1000
    """Noisy copies whose mean unit embedding is the anchor."""
    copies: int = 20_000
    """Largest number of noisy copies that certify one image."""
    samples: int = 50
    """Number of certified images."""
    radii: tuple[float, ...] = (0.25,)
    """ε in ℓ2 at which certificates are reported."""
    alpha: float = 0.001
    """Probability that one certificate is wrong."""
    precision: float = 0.05
    """Largest gain in certified cosine that more copies could bring when drawing stops."""
    attack: Attack = AdaptiveAttack(restarts=1)
    """Attack on the smoothed embedding."""
    sizes = Sizes(
        quick={"samples": 15, "selection": 250, "copies": 2000, "attack": "adaptive:restarts=1,steps=10"},
        full={"samples": 500, "precision": 0.02, "copies": 100_000},
        large={"samples": 4, "selection": 64, "copies": 512, "attack": "adaptive:restarts=1,steps=5"},
        heavy={"selection": 32, "copies": 128, "attack": "u-fgsm"},
    )
    name = "feature-smoothing"
    version = 2
    partial = True
    title = "Feature-space smoothing"
    meaning = (
        "With noise added to its input and the mean of the unit embeddings as its embedding, any encoder has a "
        "certificate: after any "
        "change of that size the cosine similarity to the code from before is at least this. It speaks of the smoothed "
        "encoder alone. The attack beside it shows from the other side how low the similarity can be made. The cosine "
        "similarity of different images puts both into proportion: an encoder that embeds all images alike certifies much."
    )
    headline = ("certified_cosine_similarity", "cosine_similarity_of_different_images")
    questions = (WITH_NOISE, FOR_COMPARISON)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self.name, Smoothing(self.sigma, self.selection, self.copies, self.samples, 0))
        check_alpha(self.name, self.alpha)
        check_radii(self.name, self.radii)
        if not 0 < self.precision < 1:
            raise HoldfastError(f"{self.name}.precision is a difference of cosines in (0, 1), got {self.precision}")

    @property
    def unit_codes(self) -> UnitCodes:
        """The one pass of noisy copies, drawn until it is precise enough at the largest radius."""
        return UnitCodes(self._noise())

    def observation(self) -> Joint:
        return Joint((self.unit_codes, *map(self._attacked, self.radii)))

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        joint = self.observation()
        noisy = joint.of(self.unit_codes, observed)
        case, copies = {"noise": f"{self.sigma:g}"}, noisy["copies"].double()
        drawn = series_of("noisy_copies_drawn", case, copies, "copies", Claim.ESTIMATE, DRAWN, NOTHING)
        order = population.order_of[list(rows)].argsort().to(noisy["anchor"].device)  # that of the rows says nothing
        similar = to_another(noisy["anchor"][order])[order.argsort()]
        of = "cosine similarity of the smoothed embeddings of an image and of another one"
        apart = series_of(FOR_COMPARISON.quantities[0], case, similar, "cosine", Claim.ESTIMATE, of, ALONE)
        series, warnings = [drawn, apart], [*population_warnings(population, (Cosine(),))]
        estimates = [summarise(drawn, "median", "lower"), summarise(apart, "median", "neither")]
        for radius in self.radii:
            certified = certified_cosine(noisy["low"], radius, self.sigma).clamp_min(-1.0)
            # No claim is left of a negative bound: the mean of unit codes may be as short as one likes.
            certified = torch.where(certified < 0, -1.0, certified)
            attacked = joint.of(self._attacked(radius), observed)["similarity"].double().cpu()
            some, numbers = self._case(radius, certified.cpu(), attacked)
            series += some
            estimates += numbers
            refuted, what = int((attacked < certified.cpu()).sum()), "made the smoothed embedding less similar"
            warnings += contradictions(refuted, len(rows), self.alpha, what, f"l2 radius {radius:g}")
        return findings_of(population, rows, series, estimates, warnings, radius_curves(estimates))

    def _case(self, radius: float, certified: Tensor, attacked: Tensor) -> tuple[list[Series], list[Estimate]]:
        """Return the certified and attacked values at one radius."""
        proved = self._conditions(radius, method="feature-space smoothing")
        attack_conditions = self._conditions(radius, attack=label(self.attack))
        records = [
            series_of(f"{kind}_cosine_similarity", case, values, "cosine", claim, SIMILAR, NOTHING)
            for kind, case, values, claim in (
                ("certified", proved, certified, Claim.LOWER),
                ("attacked", attack_conditions, attacked, Claim.UPPER),
            )
        ]
        numbers = [summarise(each, "median", "higher") for each in records]
        return records, [sure(numbers[0], self.alpha, len(certified)), numbers[1]]

    def _conditions(self, radius: float, **more: str) -> Conditions:
        return {"ball": str(L2(radius)), "noise": f"{self.sigma:g}", **more}

    def _noise(self) -> FeatureNoise:
        return FeatureNoise(
            self.sigma, self.selection, self.copies, self.samples, self.alpha, max(self.radii), self.precision
        )

    def _attacked(self, radius: float) -> AttackedUnitCodes:
        return AttackedUnitCodes(self._noise(), radius, self.attack)
