"""The tightness of certificates in one picture: certified against attacked radius, image by image."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO

from holdfast.core.records import Picture


def scatter(certified: Sequence[float], attacked: Sequence[float], unit: str) -> Picture:
    """Return one dot per image; where bounds and attacks leave nothing open, dots lie on the diagonal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.subplots()
    # A missing value is nan, which is not drawn.
    axes.scatter(attacked, certified, s=14, alpha=0.7)
    end = 1.05 * max((radius for radius in attacked if radius == radius), default=1.0)
    axes.plot([0, end], [0, end], linewidth=1, color="grey")
    axes.set(
        xlim=(0, end),
        ylim=(0, end),
        xlabel=f"attacked radius ({unit})",
        ylabel=f"certified radius ({unit})",
        aspect="equal",
    )
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    caption = "Certified against attacked radius, one dot per image; on the line nothing is left open."
    return Picture(caption=caption, labels=("tightness",), pngs=(b64encode(buffer.getvalue()).decode(),))
