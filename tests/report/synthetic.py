"""Made-up records of the shape that evaluations store: four encoders, five evaluations, everything that can go wrong."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from io import BytesIO
from math import nan

import numpy as np
from PIL import Image

from holdfast.core.records import (
    Claim,
    Conditions,
    Curve,
    EncoderInfo,
    Estimate,
    Failure,
    Findings,
    ImagesInfo,
    Picture,
    Result,
    Series,
    Verdict,
)
from holdfast.core.statistics.summaries import summarise
from holdfast.run.catalog import evaluations

KNOWN = evaluations()
BALLS = ("linf:0.05", "linf:0.1")
ATTACKS = ("u-pgd", "adaptive")
DIVERGENCES = ("l2", "cosine")
STRENGTH = {"digits-random": 0.9, "digits-supervised": 1.0, "digits-contrastive": 0.75, "digits-robust": 0.12}


def cases(balls=BALLS, attacks=ATTACKS, divergences=DIVERGENCES) -> list[Conditions]:
    return [{"ball": b, "attack": a, "divergence": d} for b in balls for a in attacks for d in divergences]


def harm(encoder: str, case: Conditions, n: int) -> np.ndarray:
    """Return one number in [0, 1) per image, larger for weak encoders, large balls and strong attacks."""
    rng = np.random.default_rng(7)
    hard = rng.gamma(0.8, 0.05, n) * (1 + 0.05 * np.random.default_rng(len(encoder)).normal(size=n))
    radius = float(case["ball"].split(":")[1]) / 0.05
    scale = STRENGTH.get(encoder, 1.0) ** 2 * radius**1.3 * (2.4 if case["attack"] == "adaptive" else 1.0)
    return np.clip(hard * scale * (0.8 if case["divergence"] == "cosine" else 1.0), 0, 0.999)


def series(quantity: str, case: Conditions, values: np.ndarray, unit: str, claim: Claim, of: str) -> Series:
    missing = {int(k): "two images are equal" for k in np.flatnonzero(np.isnan(values))}
    return Series(
        quantity=quantity,
        conditions=case,
        values=tuple(values.tolist()),
        unit=unit,
        claim=claim,
        of=of,
        reasons=missing,
    )


def result(evaluation: str, encoder: str, findings: Findings, headline: tuple[str, ...], **changes) -> Result:
    rest = {
        "version": 1,
        "questions": KNOWN[evaluation].questions if evaluation in KNOWN else (),
        "title": evaluation.capitalize() + " under attack",
        "meaning": f"{evaluation.capitalize()} says how far an attack gets. The truth is worse.",
        "images": ImagesInfo(name="builtin:digits", fingerprint="6f1c0a2b9d3e4f55", count=597),
        "settings": {
            "balls": list(BALLS),
            "attacks": list(ATTACKS),
            "samples": 300,
            "seed": 0,
            "precision": "float32",
        },
        "provenance": {"holdfast": "0.1.0", "torch": "2.13", "device": "cpu", "started": "2026-03-01T10:00:00+00:00"},
        **changes,
    }
    info = EncoderInfo(
        name=encoder,
        source=f"builtin:{encoder}",
        fingerprint=f"{abs(sum(map(ord, encoder))):016x}",
        parameters=34_000,
        features=32,
    )
    return Result(evaluation=evaluation, encoder=info, headline=headline, findings=findings, **rest)


def warned(result: Result, *warnings: str) -> Result:
    """Return ``result`` with these warnings, whose causes are read as in stored results."""
    findings = Findings.model_validate(dict(result.findings) | {"warnings": warnings})
    return result.model_copy(update={"findings": findings})


def ids(n: int) -> tuple[str, ...]:
    return tuple(f"digits/{k:04d}" for k in range(n))


def breakaway(encoder: str, n: int = 300, **changes) -> Result:
    shares = [
        series("breakaway_risk", c, harm(encoder, c, n), "share of pairs", Claim.LOWER, "worst-case risk")
        for c in cases()
    ]
    kept = [
        series(
            "nearest_neighbour_accuracy",
            s.conditions,
            (np.asarray(s.values) < 0.05).astype(float),
            "share",
            Claim.UPPER,
            "robust accuracy",
        )
        for s in shares
    ]
    rank = Estimate(
        quantity="effective_rank",
        value=11.3,
        low=10.9,
        high=11.6,
        n=597,
        method="bootstrap over samples, 100 resamples",
        unit="dimensions",
        claim=Claim.ESTIMATE,
        of="effective rank of the clean representation",
        better="neither",
    )
    estimates = [summarise(s, "mean", "lower") for s in shares] + [summarise(s, "share", "higher") for s in kept]
    findings = Findings(
        ids=ids(n),
        series=(*shares, *kept),
        estimates=(*estimates, rank),
        pictures=pictures(encoder),
        curves=tuple(radius_curve(encoder, attack) for attack in ATTACKS),
    )
    return result("breakaway", encoder, findings, ("breakaway_risk", "nearest_neighbour_accuracy"), **changes)


def radius_curve(encoder: str, attack: str) -> Curve:
    x = np.linspace(0.01, 0.1, 10)
    y = np.array([harm(encoder, {"ball": f"linf:{r}", "attack": attack, "divergence": "l2"}, 300).mean() for r in x])
    return Curve(
        quantity="breakaway_risk",
        conditions={"ball": "linf", "attack": attack, "divergence": "l2"},
        x_label="linf radius",
        y_label="breakaway risk",
        x=tuple(x),
        y=tuple(y),
        low=tuple(y * 0.85),
        high=tuple(y * 1.15),
    )


def displacement(encoder: str, n: int = 120) -> Result:
    quantiles = [
        series("universal_quantile", c, np.sqrt(harm(encoder, c, n)), "share of pairs", Claim.LOWER, "largest quantile")
        for c in cases()
    ]
    moved = [
        series(
            "displacement", c, 40 * np.sqrt(harm(encoder, c, n)), c["divergence"], Claim.LOWER, "largest displacement"
        )
        for c in cases()
    ]
    return result(
        "displacement",
        encoder,
        Findings(
            ids=ids(n),
            series=(*quantiles, *moved),
            estimates=tuple(summarise(s, "median", "lower") for s in quantiles),
        ),
        ("universal_quantile",),
    )


def impersonation(encoder: str, n: int = 120) -> Result:
    """Some pairs are of equal images; one encoder's codes are zero under cosine."""
    found = []
    for case in cases():
        values = 1 - harm(encoder, case, n) ** 0.5
        values[:3] = nan
        if encoder == "digits-random" and case["divergence"] == "cosine":
            values[:] = nan
        found.append(series("relative_quantile", case, values, "", Claim.UPPER, "smallest relative distance"))
    return result(
        "impersonation",
        encoder,
        Findings(
            ids=ids(n),
            series=tuple(found),
            estimates=tuple(summarise(s, "median", "higher") for s in found),
            warnings=("DUPLICATES: 3 of 597 images are exact copies of others; remove duplicates for clean numbers.",),
        ),
        ("relative_quantile",),
    )


def overlap(encoder: str, n: int = 120) -> Result:
    risks = [
        series(
            "overlap_risk",
            c,
            (harm(encoder, c, n) > 0.08).astype(float),
            "share of pairs",
            Claim.LOWER,
            "worst-case overlap",
        )
        for c in cases()
    ]
    margins = [
        series(
            "adversarial_margin", c, 1 - 4 * harm(encoder, c, n), "relative distance", Claim.UPPER, "smallest margin"
        )
        for c in cases()
    ]
    return result(
        "overlap",
        encoder,
        Findings(
            ids=ids(n),
            series=(*risks, *margins),
            estimates=(
                *(summarise(s, "share", "lower") for s in risks),
                *(summarise(s, "median", "higher", "median_adversarial_margin") for s in margins),
            ),
        ),
        ("overlap_risk", "median_adversarial_margin"),
    )


def masking(encoder: str) -> Result:
    verdicts = [
        Verdict(question="Do gradients vanish?", status="refuted", reason="0 of 300 images have a zero gradient."),
        Verdict(
            question="Does a score-only attack beat the gradient attack?",
            status="proved" if encoder == "digits-random" else "unknown",
            reason="It found a larger displacement on 3.1% of images.",
            witness={"image": "digits/0042"},
        ),
    ]
    warnings = (
        ("Gradients may be masked: a score-only attack does better than gradients on 31% of images.",)
        if encoder == "digits-random"
        else ()
    )
    return result("masking", encoder, Findings(ids=ids(300), verdicts=tuple(verdicts), warnings=warnings), ())


def pictures(encoder: str) -> tuple[Picture, ...]:
    def png(seed: int) -> str:
        buffer = BytesIO()
        Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8), dtype=np.uint8)).save(buffer, format="PNG")
        return b64encode(buffer.getvalue()).decode()

    return tuple(
        Picture(
            caption=f"digits/{k:04d}: breakaway risk {0.3 - k / 20:.3g} (linf:0.1, adaptive, l2)",
            labels=("clean", "attacked", "change"),
            pngs=(png(k), png(k + 100), png(k + 200)),
        )
        for k in range(6)
    )


@cache
def everything() -> tuple[list[Result], list[Failure]]:
    results = [
        make(encoder) for encoder in STRENGTH for make in (displacement, impersonation, breakaway, overlap, masking)
    ]
    failure = Failure(
        evaluation="breakaway",
        encoder="timm:vit_tiny",
        images="builtin:digits",
        error="HoldfastError",
        reason="pixels must have shape (batch, 3, 224, 224), got (1, 1, 8, 8); resize them",
    )
    return results, [failure]
