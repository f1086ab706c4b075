"""Pictures of the samples that a reader would ask to see: the most and the least robust, before and after the attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.pictures import ends, row
from holdfast.core.points.counting import nearest_rows
from holdfast.core.records import Findings, Picture
from holdfast.evaluations.attacked.observations import Case
from holdfast.protocol.population import Population


def change(clean: Pixels, attacked: Pixels, domain: Domain, radius: float) -> Pixels:
    """Return the perturbation around mid-range, scaled so that a change by ``radius`` reaches the end of the range."""
    middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
    return domain.clip(middle + (attacked - clean) * (half / radius))


def nearest_image(population: Population, divergence: Divergence, moved: Codes, rows: Sequence[int]) -> Pixels:
    """Return the image of the gallery nearest to each moved code of ``rows``: its own, or one that is not of its group."""
    gallery, kin = population.gallery, population.kin(rows)
    if kin is None:
        return gallery.pixels(nearest_rows(divergence, moved, gallery.codes, 1)[:, 0].tolist())
    near = []
    for code, own, row_of in zip(moved, kin.mine, rows, strict=True):
        counted = kin.theirs != own
        if gallery is population:
            counted[row_of] = True
        (places,) = counted.nonzero(as_tuple=True)
        near.append(int(places[nearest_rows(divergence, code[None], gallery.codes[places], 1)[0, 0]]))
    return gallery.pixels(near)


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
