"""What all evaluations of the smoothed encoder share: their settings, one pass of noisy copies, and how sure they are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from holdfast.core.balls import L2
from holdfast.core.divergences import Cosine, Divergence, L2Distance
from holdfast.core.records import Conditions
from holdfast.core.settings import require_positive
from holdfast.evaluations.smoothed.index import Smoothing
from holdfast.evaluations.smoothed.observations import NoisyCodes
from holdfast.evaluations.smoothed.plan import require_alpha, require_noise, require_radii
from holdfast.evaluations.smoothed.stopping import Stopping
from holdfast.probes.base import Probe
from holdfast.probes.neighbours import Knn
from holdfast.probes.noise import NoiseProbe
from holdfast.protocol.evaluation import Evaluation

MULTIPLES = (1, 2, 3)
"""Radii that are decided whether or not they are asked for, in deviations of the noise: those of mean radii and curves."""
CERTAINTY = 0.001
"""The chance of error with which copies decide at most, so that evaluations of different alpha share them."""
LEAST = 6000
"""Copies that are drawn before anything is looked at: center smoothing is tighter the more there are."""


@dataclass(frozen=True)
class SmoothedEvaluation(Evaluation):
    """An evaluation of the smoothed encoder. Those whose settings of this class are equal share one pass of noisy copies."""

    sigma: float = 0.25
    selection: int = 10_000
    copies: int = 100_000
    samples: int = 50
    others: int = 1000
    divergences: tuple[Divergence, ...] = (L2Distance(), Cosine())
    probes: tuple[Probe, ...] = (NoiseProbe(), Knn())
    radii: tuple[float, ...] = (0.25,)
    alpha: float = 0.001
    partial = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "others")
        require_noise(self.name, self.smoothing)
        require_alpha(self.name, self.alpha)
        require_radii(self.name, self.radii)

    @property
    def smoothing(self) -> Smoothing:
        """The settings that decide what the noisy copies are and what is seen of them."""
        return Smoothing(self.sigma, self.selection, self.copies, self.samples, self.others)

    @property
    def noisy_codes(self) -> NoisyCodes:
        """The one pass that every evaluation with these settings is concluded from."""
        return NoisyCodes(self.smoothing, self.divergences, self.probes, self.stopping)

    @property
    @abstractmethod
    def least_copies(self) -> int:
        """The fewest copies that certify, before anything is looked at."""

    @property
    def stopping(self) -> Stopping:
        """When enough copies are drawn: as soon as ``radii`` and one, two and three ``sigma`` are decided."""
        radii = {*self.radii, *(multiple * self.sigma for multiple in MULTIPLES)}
        return Stopping(tuple(sorted(radii)), min(self.alpha, CERTAINTY), self.least_copies)

    @property
    def looks(self) -> int:
        """At how many numbers of copies one may stop."""
        return len(self.stopping.looks(self.copies))

    @property
    def alpha_of_look(self) -> float:
        """The chance of error of a certificate at one number of copies; those of all looks add up to ``alpha``."""
        return self.alpha / self.looks

    def conditions(self, radius: float, divergence: Divergence, **more: str) -> Conditions:
        """Return how series and estimates name a case."""
        return {"ball": str(L2(radius)), "noise": f"{self.sigma:g}", "divergence": str(divergence), **more}
