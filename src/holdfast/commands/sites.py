"""Fit the map that takes the site out of embeddings, and measure what it restores on held-out images."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Unpack

from holdfast.commands.evaluate import evaluate_one
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.commands.parity_sides import coded, inputs_of, side_of
from holdfast.core.errors import HoldfastError
from holdfast.core.options import LocalOptions, takes
from holdfast.core.records import Result
from holdfast.geometry.sphere import Tags
from holdfast.run.inputs import NamedEncoder, NamedImages, loading_of, named_images
from holdfast.run.run import Run
from holdfast.service.evaluations.sites import Sites
from holdfast.service.site_map import SiteMap


@dataclass(frozen=True, eq=False)
class Repaired:
    """What ``sites`` returns."""

    run: EvaluatedRun
    """The run that measured it."""
    result: Result
    """Numbers of the held-out images, by ``repair``: ``none`` and the fitted map."""
    map: SiteMap
    """The map, fitted to the other half of the images."""


@takes(LocalOptions)
def sites(
    encoder: NamedEncoder,
    images: NamedImages | None = None,
    *,
    tags: str | Path,
    repair: str = "combat",
    map: str | Path | None = None,
    samples: int = Sites.samples,
    **options: Unpack[LocalOptions],
) -> Repaired:
    """Return the map that takes the site out of embeddings, as ``holdfast sites`` does.

    Args:
        encoder: in memory or by name.
        images: labelled images: a reference such as ``photos?labels=folders``, or Images. None for stored embeddings.
        tags: CSV or JSON file with the site of each image, ``id,site``, or ``id,site,group``.
        repair: ``centre``, ``whiten`` or ``combat``.
        map: safetensors file to write the map to, for ``load_site_map``. By default none is written.
        samples: how many images are used; one half fits the map, the other half gives the numbers.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or a site has too few images.
    """
    if map is not None and Path(map).suffix != ".safetensors":
        raise HoldfastError(f"map: a safetensors file, got {map}. Name one that ends in .safetensors")
    measure = Sites(tags=Tags.read(str(tags)), repairs=(repair,), samples=samples)
    asked = {"tags": str(measure.tags), "repairs": [repair], "samples": samples}
    settings = {Sites.name: {**asked, "pairs": measure.pairs, "repeats": measure.repeats}}
    run = evaluate_one(encoder, images, only=Sites.name, settings=settings, **options)
    estimates = run.results[0].estimates
    if all(isnan(estimate.value) for estimate in estimates):
        raise HoldfastError(
            f"nothing was measured, so no map is written: {estimates[0].reason}. Add images of each class and site"
        )
    with Run.open("sites", {**options, "out": run.folder}, mark=None) as again:  # reads the embeddings that it keeps
        side = side_of(encoder, None, again.settings, loading_of(options))
        inputs = inputs_of([side], [side], (named_images(images), (None, None)), options, again)
        population = coded(side, inputs, again).known
    fitted = measure.map_of(population, repair)
    if map is not None:
        fitted.save(map)
    return Repaired(run, run.results[0], fitted)
