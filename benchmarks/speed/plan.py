"""What measuring would cost, on paper: the tables of docs/scale.md, as ``python -m benchmarks.speed.plan`` prints them.

Nothing is timed here. The operations of ViT-B/16 at 224 pixels are 17.56e9 products and sums an image
(https://docs.pytorch.org/vision/stable/models.html), two operations each. Peak rates are those of the makers' data sheets,
dense: https://www.nvidia.com/en-us/data-center/a100/ and https://www.nvidia.com/en-us/data-center/h100/ (SXM).
"""

from __future__ import annotations

from math import sqrt

FORWARD = 2 * 17.56e9
"""Operations of a ViT-B/16 for one image of 224 pixels."""
FEATURES = 768
STEP = 3
"""Forward passes per gradient step: one forward, and a backward to the pixels, which counts twice."""
PEAK = {"A100, float32": 19.5e12, "A100, bfloat16": 312e12, "H100, bfloat16": 989e12}
"""Operations per second."""
UTILISATION = 0.4
"""Assumed fraction of the peak."""
DECODED = 400
"""JPEG files of 500 x 375 pixels that one core decodes and scales in a second."""
MILLION = 1_000_000
ENCODERS, IMAGES = 100, 100 * MILLION


def gpu_hours(forwards: float, peak: float) -> float:
    """Hours that forward passes take on a device of ``peak`` operations per second.

    Example:
        >>> round(gpu_hours(1e6, PEAK["A100, bfloat16"]), 4)
        0.0782
    """
    return forwards * FORWARD / (peak * UTILISATION) / 3600


def half_width(share: float, n: int) -> float:
    """Return half the 95% interval of a ``share`` read from ``n`` independent images.

    Example:
        >>> round(half_width(0.5, 10_000), 4)
        0.0098
    """
    return 1.96 * sqrt(share * (1 - share) / n)


def unseen(n: int) -> float:
    """Return the upper end of the two-sided 95% mid-P interval of a share of which none was seen in ``n``: (1 - p)^n = 0.05.

    Example:
        >>> round(unseen(1000), 5)
        0.00299
    """
    return 1 - 0.05 ** (1 / n)


OBSERVED = {
    "clean embeddings": 1,
    "PGD, 20 steps": 20 * STEP,
    "adaptive attack, 100 steps": 100 * STEP,
    "19 corruptions at 5 severities": 95,
    "smoothing, 10,000 copies": 10_000,
}
"""Forward passes per image."""
KEPT = {f"{name}, d = {d:,}": 4 * d for name, d in {"ViT-S": 384, "ViT-B": FEATURES, "ResNet-50": 2048}.items()}
"""Bytes per embedding, in float32 for every encoder that does not compute in float64."""
BREAKAWAY = 2 * 2 * (50 + 100) + 2 * 2 * 2 * 100
"""Gradient steps per attacked image: two balls, two divergences, two attacks, and two aims of the pairwise attack."""
PLAN = {
    "clean embeddings of all images": IMAGES,
    "clean embeddings of a random million": MILLION,
    "breakaway, 1,000 attacked images": 1000 * BREAKAWAY * STEP,
    "breakaway, 10,000 attacked images": 10_000 * BREAKAWAY * STEP,
    "smoothing, 50 images, 100,000 copies": 50 * 100_000,
    "19 corruptions at 5 severities, 1,000 images": 1000 * 95,
}
"""Forward passes per encoder."""


def table(*lines: tuple[str, ...]) -> str:
    """Return ``lines``, the head first, as a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], ("---",) * len(lines[0]), *lines[1:]))


def short(value: float) -> str:
    """Return a number with two digits, which is more than such a plan is worth.

    Example:
        >>> short(12_507), short(0.0247)
        ('13,000', '0.025')
    """
    return f"{float(f'{value:.2g}'):,.10g}"


def tables() -> dict[str, str]:
    """Return the tables of the page by what they answer."""
    counts = (300, 1000, 10_000, 100_000, MILLION)

    def hours(forwards: float) -> tuple[str, ...]:
        return tuple(short(gpu_hours(forwards, peak)) for peak in PEAK.values())

    return {
        "interval": table(
            ("images", "fraction around 5%", "fraction around 50%", "none seen: at most"),
            *(
                (f"{n:,}", *(f"± {short(100 * half_width(p, n))}%" for p in (0.05, 0.5)), f"{short(100 * unseen(n))}%")
                for n in counts
            ),
        ),
        "bytes": table(
            (
                "embeddings of",
                "bytes per image",
                "GB per million images",
                f"TB for {ENCODERS} encoders and 10^8 images",
            ),
            *(
                (name, f"{k:,}", short(k * MILLION / 1e9), short(k * ENCODERS * IMAGES / 1e12))
                for name, k in KEPT.items()
            ),
        ),
        "hours": table(
            ("per million images", "forward passes per image", *PEAK),
            *((name, f"{k:,}", *hours(MILLION * k)) for name, k in OBSERVED.items()),
        ),
        "plan": table(
            (f"{ENCODERS} encoders", "million forward passes each", *PEAK),
            *((name, f"{k / MILLION:g}", *hours(ENCODERS * k)) for name, k in PLAN.items()),
        ),
    }


def decoding_cores(peak: float) -> float:
    """Return how many cores must decode for a device of ``peak`` that computes clean codes.

    Example:
        >>> round(decoding_cores(PEAK["H100, bfloat16"]))
        28
    """
    return peak * UTILISATION / FORWARD / DECODED


if __name__ == "__main__":
    print("\n\n".join(f"{name}\n\n{said}" for name, said in tables().items()))
