"""What five papers claim, as 42 claims with frozen rules and the functions that measure them: one file for each paper."""

from __future__ import annotations

from studies.claims import contrastive, rvcl, spade, synbench, unsupervised
from studies.claims.claim import Claim

CLAIMS: tuple[Claim, ...] = (
    *rvcl.CLAIMS,
    *synbench.CLAIMS,
    *unsupervised.CLAIMS,
    *contrastive.CLAIMS,
    *spade.CLAIMS,
)
