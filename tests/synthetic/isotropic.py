"""Closed forms of the robust Bayes rule where every input value varies alike: ``N(+-mu, sigma^2 I)``, prior ``tau``.

With ``q = ln((1 - tau) / tau)`` for ``tau = P(y = +1)`` the rule is ``sign(w'x - q sigma^2 / 2)``, where ``w`` is what the
budget leaves of ``mu``: in l2 ``w = mu (1 - eps / ||mu||_2)_+``, in l_inf ``w = sign(mu) (|mu| - eps)_+``. The distance of
``x`` to the boundary is ``|w'x - q sigma^2 / 2|`` over the dual norm of ``w``. Dobriban et al. 2020,
https://arxiv.org/abs/2006.05161, theorems 4.1 and 6.3; SynBench, result 3.1 and appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class IsotropicRule:
    """The classifier ``sign(w'x - offset)`` and how far an input is from its boundary."""

    w: Float[Tensor, "d"]
    offset: float
    norm: Literal["l2", "linf"]

    def __call__(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
        """Return the predicted classes, +1 or -1 (0 on the boundary)."""
        return (x @ self.w - self.offset).sign()

    def margin(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
        """Return the smallest change of each input, in the rule's norm, that reaches the boundary."""
        dual = self.w.norm() if self.norm == "l2" else self.w.abs().sum()
        return (x @ self.w - self.offset).abs() / dual


def isotropic_rule(
    mu: Float[Tensor, "d"],
    budget: float,
    norm: Literal["l2", "linf"] = "l2",
    sigma: float = 1.0,
    prior: float = 0.5,
) -> IsotropicRule:
    """Return the robust Bayes rule for perturbations of at most ``budget`` in ``norm``, less than the mean's own size."""
    w = mu * (1 - budget / mu.norm()) if norm == "l2" else mu.sign() * (mu.abs() - budget).clamp_min(0)
    return IsotropicRule(w, log((1 - prior) / prior) * sigma**2 / 2, norm)
