"""Pictures of the samples that a reader would ask to see: the most and the least robust, before and after the attack."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from io import BytesIO

import numpy as np
from torch import Tensor

from holdfast.encoder import Domain, Pixels
from holdfast.evaluation import Population
from holdfast.measures.attacked import Case
from holdfast.result import Findings, Picture

SHOWN = 3


def png(pixels: Tensor, domain: Domain) -> str | None:
    """Return an image, shape (1 or 3, height, width), as a base64 PNG file; None for inputs that are no image."""
    from PIL import Image

    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        return None
    share = ((pixels.double().cpu() - domain.low) / (domain.high - domain.low)).clamp(0, 1)
    bytes_ = (share * 255).round().byte().permute(1, 2, 0).numpy()
    buffer = BytesIO()
    Image.fromarray(bytes_[:, :, 0] if bytes_.shape[2] == 1 else bytes_).save(buffer, format="PNG")
    return b64encode(buffer.getvalue()).decode()


def row(caption: str, parts: dict[str, Tensor], domain: Domain) -> Picture | None:
    """Return labelled images as one picture row, or None if they are no images."""
    files = {label: png(pixels, domain) for label, pixels in parts.items()}
    shown = {label: file for label, file in files.items() if file is not None}
    return Picture(caption=caption, labels=tuple(shown), pngs=tuple(shown.values())) if shown else None


def change(clean: Pixels, attacked: Pixels, domain: Domain, radius: float) -> Pixels:
    """Return the perturbation around mid-range, scaled so that a change by ``radius`` reaches the end of the range."""
    middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
    return domain.clip(middle + (attacked - clean) * (half / radius))


def ends(values: Sequence[float], count: int = SHOWN) -> list[int]:
    """Return the positions of the ``count`` largest and then the ``count`` smallest defined values."""
    defined = [position for position in np.argsort(values).tolist() if values[position] == values[position]]
    worst = defined[::-1][:count]
    return worst + [position for position in defined[:count][::-1] if position not in worst]


def extremes(
    population: Population,
    rows: Sequence[int],
    findings: Findings,
    quantity: str,
    case: Case,
    attack: Callable[[list[int]], dict[str, Pixels]],
) -> tuple[Picture, ...]:
    """Return the images whose ``quantity`` is largest and smallest: clean, attacked, and the change between.

    ``attack`` takes rows and returns the attacked images and any others to show beside them, by label.
    """
    values = next(s.values for s in findings.series if s.quantity == quantity and s.conditions == case.conditions)
    positions = ends(values)
    if not positions or len(population.encoder.domain.shape) != 3:
        return ()
    shown, domain = [rows[position] for position in positions], population.encoder.domain
    parts = {"clean": population.pixels(shown), **attack(shown)}
    parts["change"] = change(parts["clean"], parts["attacked"], domain, case.ball.radius)
    pictures = []
    for k, position in enumerate(positions):
        number = f"{quantity.replace('_', ' ')} {values[position]:.3g}"
        caption = f"{findings.ids[position]}: {number} ({', '.join(case.conditions.values())})"
        pictures.append(row(caption, {label: pixels[k] for label, pixels in parts.items()}, domain))
    return tuple(picture for picture in pictures if picture is not None)
