"""Records that conclusions make by shared helpers, beside the same ones made by hand."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.core.encoder import Domain
from holdfast.core.records import Claim, Curve, Estimate, Findings
from holdfast.core.run_settings import RunSettings
from holdfast.measure.observation import curve_of, estimate_of, findings_of, line_of, pictures_of, to_transform
from holdfast.measure.population import Population
from holdfast.smoothing.noisy_codes import FeatureNoise, UnitCodes
from tests.samples import builtin, digits

BY_HAND = Estimate(
    quantity="risk",
    conditions={"k": "3"},
    value=0.5,
    low=0.25,
    high=0.75,
    n=8,
    method="mid-P",
    unit="fraction",
    claim=Claim.UPPER,
    of="risk",
    better="lower",
    reason="few",
)


def made(value: float = 0.5) -> Estimate:
    number, case = (value, 0.25, 0.75), {"k": "3"}
    return estimate_of("risk", number, 8, "mid-P", "fraction", "risk", "lower", case, Claim.UPPER, reason="few")


def test_an_estimate_has_what_it_was_given() -> None:
    assert made() == BY_HAND


def test_lines_take_numbers_and_arrays() -> None:
    by_hand = Curve(quantity="loss", x_label="step", y_label="loss", x=(1, 2), y=(4.0, 2.0), reference=(0.0, 0.0))
    for y in ([4.0, 2.0], torch.tensor([4.0, 2.0]), np.array([4.0, 2.0])):
        assert line_of("loss", {}, "step", "loss", range(1, 3), y, np.zeros(2)) == by_hand


def test_curves_through_estimates_have_their_intervals_for_a_band() -> None:
    curve = curve_of("risk", {"k": "3"}, "k", "risk", [1, 2], [made(0.5), made(0.6)])
    assert (curve.x, curve.y) == ((1.0, 2.0), (0.5, 0.6))
    assert (curve.low, curve.high) == ((0.25, 0.25), (0.75, 0.75))


def test_findings_are_about_the_images_of_their_rows() -> None:
    population = Population(builtin(), digits(4), RunSettings())
    ids = population.images.ids
    assert findings_of(population, [2, 0], (), [made()], ["odd"]) == Findings(
        ids=(ids[2], ids[0]), estimates=(BY_HAND,), warnings=("odd",)
    )


def test_pictures_show_one_image_of_each_part() -> None:
    dark, light = torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8)
    pictures = pictures_of(["first", "second"], {"dark": dark, "light": light}, Domain((1, 8, 8)))
    assert [picture.caption for picture in pictures] == ["first", "second"]
    assert {picture.labels for picture in pictures} == {("dark", "light")}
    assert pictures[0].pngs[0] != pictures[0].pngs[1]
    vectors = pictures_of(["none"], {"dark": torch.zeros(1, 8)}, Domain((8,)))
    assert vectors == (), "a vector is no picture"


def test_transforms_get_whole_pixels_of_half_precision_runs() -> None:
    population = Population(builtin(), digits(3), RunSettings(precision="float64"))
    pixels, noise = to_transform(population, [1])
    assert pixels.dtype == torch.float64
    assert torch.equal(pixels, population.pixels([1]))
    again = population.run.noise([population.images.ids[1]])
    assert torch.equal(noise.keys, again.keys)


def test_rows_are_as_many_as_shared_settings_say() -> None:
    population = Population(builtin(), digits(9), RunSettings())
    observation = UnitCodes(FeatureNoise(0.25, 4, 8, 5, 0.01, 0.25, 0.1))
    assert observation.rows(population) == population.choose(5)
