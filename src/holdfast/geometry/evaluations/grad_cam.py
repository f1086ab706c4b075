"""Grad-CAM: which part of an image an embedding depends on, and whether a transform of the image moves it.

``geometry/views.py`` explains the maps. The overlap of two maps, each divided by its sum, is the sum of the smaller
values: 1 if they are equal, 0 if they are disjoint. The map of a shuffled image is moved back first, so an encoder that
looks at the same parts wherever they lie has an overlap of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.core.encoder import Pixels
from holdfast.core.pictures import ends
from holdfast.core.records import Claim, Findings, Picture
from holdfast.core.run_settings import Observed
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.geometry.views import Map, Maps, changed
from holdfast.measure.evaluation import Evaluation, Sizes
from holdfast.measure.observation import findings_of, pictures_of
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform

NONE = "no place counts: the map is zero, or the encoder has no feature map with more than one position"


@final
@dataclass(frozen=True)
class GradCam(Evaluation):
    """Where in an image its embedding comes from, before and after an edit."""

    change: Transform = Transform.read("noise:0.1")
    """Edit whose effect on the map is measured."""
    samples: int = 100
    """Number of images."""
    sizes = Sizes(quick={"samples": 25}, full={"samples": 1000}, large={"samples": 10})
    name = "grad-cam"
    version = 3
    changes = "change"
    partial = True
    needs_gradients = True
    robustness = False
    title = "Where the embedding comes from (Grad-CAM)"
    meaning = (
        "Grad-CAM marks the places of an image that its embedding comes from; the pictures show them before and after "
        "an edit. The overlap of the two maps is 1 where the edit moves no weight and 0 where they do not meet; maps "
        "illustrate, they prove nothing."
    )
    headline = ("map_overlap",)

    def observation(self) -> Maps:
        return Maps(self.change, self.samples)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        values, case = overlap(observed["clean"], observed["changed"]), {"change": str(self.change)}
        of = "overlap of the maps of an image and of its changed version"
        series = series_of("map_overlap", case, values, "fraction of the map", Claim.ESTIMATE, of, NONE)
        return findings_of(population, rows, [series], [summarise(series, "mean", "higher")])

    def illustrate(
        self, population: Population, rows: Sequence[int], observed: Observed, findings: Findings
    ) -> tuple[Picture, ...]:
        values, domain = findings.series[0].values, population.encoder.domain
        positions = ends(values)
        if not positions:
            return ()
        shown = [rows[position] for position in positions]
        clean, moved = population.pixels(shown), changed(population, shown, self.change)
        maps = self.observation().observe(population, shown)
        parts = {"clean": clean, "its map": overlaid(clean, maps["clean"])}
        parts |= {"changed": moved, "its map after": overlaid(self.change.undone(moved), maps["changed"])}
        captions = [f"{findings.ids[place]}: overlap {values[place]:.3g} ({self.change})" for place in positions]
        return pictures_of(captions, parts, domain)


def overlap(a: Map, b: Map) -> Float[Tensor, "b"]:
    """Overlap of two maps, 0 to 1; nan where one is zero.

    Example:
        >>> overlap(torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[4.0, 0.0]]]))
        tensor([0.5000], dtype=torch.float64)
    """
    p, q = (part.double() / part.double().sum((1, 2), keepdim=True) for part in (a, b))
    return torch.minimum(p, q).sum((1, 2))


def overlaid(pixels: Pixels, maps: Map) -> Float[Tensor, "b c height width"]:
    """Images in gray with their maps in red above them."""
    size = (int(pixels.shape[2]), int(pixels.shape[3]))
    wide = nn.functional.interpolate(maps[:, None].to(pixels), size=size, mode="bilinear", align_corners=False)
    heat = wide / wide.amax((1, 2, 3), keepdim=True)
    grey = pixels.mean(1, keepdim=True) * (1 - heat / 2)
    return torch.cat([grey + heat / 2, grey, grey], dim=1).nan_to_num()
