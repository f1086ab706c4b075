"""Pictures of a ladder of edits or corruptions, and of the worst of them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.pictures import ends, row
from holdfast.core.records import Findings, Picture
from holdfast.core.run_settings import Observed
from holdfast.evaluations.corrupted.edits import Edited, ready
from holdfast.evaluations.corrupted.findings import Words, rung
from holdfast.protocol.population import Population


def pictures(
    observation: Edited,
    population: Population,
    rows: Sequence[int],
    observed: Observed,
    findings: Findings,
    words: Words,
) -> tuple[Picture, ...]:
    """Return the ladder of the family that carries an image farthest, and its worst changes in a row."""
    if len(population.encoder.domain.shape) != 3:
        return ()
    of = {
        (series.conditions[words.singular], series.conditions[words.strength]): series.values
        for series in findings.series
        if series.quantity == "universal_quantile"
        and series.conditions["divergence"] == str(observation.divergences[0])
    }
    worst = [series for series in findings.series if series.quantity == f"worst_{words.singular}_quantile"][-1]
    positions = ends(worst.values)
    shown = [rows[position] for position in positions]
    if not shown:
        return ()
    chains = observed["worst_edits"][positions]
    ends_up, (pixels, noise) = observation.worst(population, shown, chains), ready(population, shown)
    shown_pictures = []
    for place, position in enumerate(positions):
        farthest = max(of, key=lambda edit: of[edit][position])[0]
        parts, alone = {"original": pixels[place]}, slice(place, place + 1)
        for edit in observation.edits:
            if edit.name == farthest:
                quantile = of[edit.name, rung(edit)][position]
                parts[f"{rung(edit)}: as far as {quantile:.2g} of pairs"] = edit(pixels[alone], noise[alone])[0]
        chain = " + ".join(str(observation.edits[k]) for k in chains[place].tolist() if k >= 0)
        parts[f"{chain}: {worst.values[position]:.2g}"] = ends_up[place]
        caption = (
            f"{findings.ids[position]}: {farthest}, which carries its code farthest, and the worst {words.plural} found"
        )
        shown_pictures.append(row(caption, parts, population.encoder.domain))
    return tuple(picture for picture in shown_pictures if picture is not None)
