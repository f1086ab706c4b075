"""Everyday edits: against a slow, obvious computation; laws of radii and of the search; bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.divergences import Cosine, L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.points.points import enclosing_balls
from holdfast.core.records import Claim, Result
from holdfast.core.run_settings import RunSettings
from holdfast.corruptions.edits import Edited, circumscribed, coordinates, divergence_radii, smallest
from holdfast.corruptions.evaluations.common_perturbations import CommonPerturbations
from holdfast.measure.population import Population
from holdfast.transforms.base import Transform, transforms
from tests.facts import refused, says
from tests.samples import builtin, digits

FEW = CommonPerturbations(edits=("brightness", "noise"), samples=12, k=3)
DOUBLE = RunSettings(precision="float64")


def under(result: Result, quantity: str, **conditions: str) -> tuple[float, ...]:
    (found,) = [
        one for one in result.series if one.quantity == quantity and conditions.items() <= one.conditions.items()
    ]
    return found.values


def slow(population: Population, edit: Transform, row: int, searched: Tensor, k: int) -> tuple[float, bool, float]:
    """Change under cosine, whether the original is nearest, and the Jaccard index, by the definitions."""
    pixels = population.images.pixels([row], dtype=torch.float64)
    moved = population.encode(edit(pixels, Noise.of(0, [population.images.ids[row]])))[0]
    unit = lambda code: code / code.norm()  # noqa: E731
    distance = lambda a, b: float(1 - unit(a) @ unit(b))  # noqa: E731
    clean = population.codes[row]
    mine = distance(moved, clean)
    after = sorted(range(len(searched)), key=lambda j: distance(moved, searched[j]))[:k]
    before = sorted(range(len(searched)), key=lambda j: distance(clean, searched[j]))[:k]
    kept = all(mine <= distance(moved, other) for other in searched)
    return mine, kept, len({*after} & {*before}) / len({*after} | {*before})


@pytest.mark.parametrize("with_bank", [False, True])
def test_numbers_are_those_of_the_definitions(with_bank: bool) -> None:
    images, bank = digits(14), digits(9, start=0) if with_bank else None
    held = None if bank is None else Population(builtin(), bank, DOUBLE)
    population = Population(builtin(), images, DOUBLE, bank=held)
    result = FEW(builtin(), images, DOUBLE, bank)
    seen = set[bool]()
    for edit in (transforms()["brightness"].family()[3], transforms()["noise"].family()[5]):
        name, rung = str(edit).split(":")
        of: dict[str, Any] = {"edit": name, "rung": rung, "divergence": "cosine"}
        for place, row in enumerate(population.choose(12)):
            others = population.codes[[j for j in range(14) if j != row]] if held is None else held.codes
            change, kept, overlap = slow(population, edit, row, others, 3)
            assert under(result, "code_change", **of)[place] == pytest.approx(change, abs=1e-9)
            assert under(result, "nearest_neighbour_kept", **of)[place] == kept
            assert under(result, "neighbour_overlap", **of)[place] == pytest.approx(overlap)
            seen.add(kept)
    assert seen == {True, False}, "vacuous"


def test_quantiles_are_shares_of_pairs() -> None:
    images = digits(14)
    codes = Population(builtin(), images, DOUBLE).codes
    result = FEW(builtin(), images, DOUBLE)
    pairs = torch.pdist(codes)
    moved = under(result, "code_change", edit="noise", rung="0.2", divergence="l2")
    expected = [float((pairs <= one).double().mean()) for one in moved]
    assert under(result, "universal_quantile", edit="noise", rung="0.2", divergence="l2") == pytest.approx(expected)
    assert 0 < max(expected) < 1, "vacuous"
    estimate = result.estimate("universal_quantile", edit="noise", rung="0.2", divergence="l2")
    assert (estimate.statistic, estimate.series) == ("mean", "universal_quantile_influence"), "compared image by image"
    moves = under(result, "universal_quantile_influence", edit="noise", rung="0.2", divergence="l2")
    assert float(torch.tensor(moves).mean()) == pytest.approx(estimate.value)
    assert max(moves) > min(moves), "vacuous"


def test_the_search_is_no_milder_than_what_it_starts_from() -> None:
    evaluation = replace(FEW, edits=("brightness", "noise", "rotation"), chained=3)
    result = evaluation(builtin(), digits(40))
    single = torch.tensor([one.values for one in result.series if one.quantity == "universal_quantile"
                           and one.conditions["divergence"] == "cosine"])  # fmt: skip
    one, two, three = (
        torch.tensor(under(result, "worst_edit_quantile", edits=str(count), rungs="up to 5")) for count in (1, 2, 3)
    )
    assert torch.equal(one, single.amax(0))
    assert bool((two >= one).all() and (three >= two).all())
    assert not torch.equal(two, one), "vacuous"
    kept = torch.tensor([one.values for one in result.series if one.quantity == "worst_edit_kept"])
    assert bool((kept.diff(dim=0) <= 0).all())
    all_single = torch.tensor([one.values for one in result.series if one.quantity == "nearest_neighbour_kept"])
    assert torch.equal(kept[4], all_single.amin(0))
    assert result.estimate("worst_edit_accuracy", edits="3").claim is Claim.UPPER
    assert result.estimate("worst_edit_quantile", edits="3").claim is Claim.LOWER


def test_the_worst_edits_can_be_applied_again() -> None:
    population = Population(builtin(), digits(20), DOUBLE)
    observation = replace(FEW, edits=("noise", "brightness", "crop")).observation()
    rows = observation.rows(population)
    seen = observation.observe(population, rows)
    codes = population.encode(observation.worst(population, rows, seen["worst_edits"]))
    assert torch.allclose(Cosine()(codes, population.codes[rows]), seen["worst"][:, -1])
    assert (seen["worst_edits"] >= 0).all(), "vacuous"


def test_survival_counts_families_alike_and_leaves_out_what_changes_nothing() -> None:
    evaluation = replace(FEW, edits=("brightness", "hue-saturation", "noise"))
    result = evaluation(builtin(), digits(14))
    assert says(result.findings.warnings[0], "hue-saturation", "changes")
    kept = [one for one in result.series if one.quantity == "nearest_neighbour_kept"]
    counted = torch.tensor([one.values for one in kept if one.conditions["edit"] != "hue-saturation"])
    assert under(result, "edits_survived") == pytest.approx(counted.mean(0).tolist())
    assert 0 < result.estimate("edits_survived").value < 1, "vacuous"


def test_divergence_radii_are_those_of_smallest_balls() -> None:
    codes = torch.randn(30, 6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    radii = divergence_radii([codes])[:, 0]
    unit = codes / codes.norm(dim=2, keepdim=True)
    apart = torch.cdist(unit, unit).flatten(1).amax(1)
    around = (unit - unit.mean(1, keepdim=True)).norm(dim=2).amax(1)
    assert bool((radii >= apart / 2 - 1e-9).all() and (radii <= around + 1e-9).all() and (radii <= 1).all())
    assert bool((divergence_radii([codes[:, :4], codes])[:, 0] <= radii * (1 + 1e-4)).all()), (
        "a larger family is no narrower"
    )
    assert torch.allclose(divergence_radii([codes * 7])[:, 0], radii)
    assert torch.allclose(torch.cdist(coordinates(unit), coordinates(unit)), torch.cdist(unit, unit))
    equator = torch.tensor([[[1.0, 0.0], [-0.5, 3**0.5 / 2], [-0.5, -(3**0.5) / 2]]])
    assert divergence_radii([equator]).item() == pytest.approx(1, abs=1e-6)
    assert divergence_radii([codes[:, :1].expand(-1, 3, -1)]).max() == 0
    assert divergence_radii([torch.zeros(1, 2, 3)]).isnan().all()


def test_balls_of_few_points_are_the_smallest_however_slow_steps_towards_them_are() -> None:
    """Among them points on a line, and some that occur twice."""
    points = torch.randn(60, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points[:20] *= torch.tensor([1.0, 1e-3, 1e-6, 0, 0]).double()
    points[20:30, 3:] = points[20:30, :3]
    points[30:40] = points[30:40, :1] * torch.arange(6).double()[:, None]
    best = enclosing_balls(points, 1e-6)
    for found in (circumscribed(points), smallest(points)):
        assert bool((found >= best.least * (1 - 1e-9)).all())
        assert bool((found <= best.radii * (1 + 1e-9)).all())


def test_numbers_where_codes_are_undefined_are_missing_for_a_reason() -> None:
    encoder = Encoder(nn.Flatten(), "pixels", Domain((1, 8, 8)))
    pixels = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels[2] = 0  # no direction
    result = replace(FEW, edits=("contrast",), samples=6)(encoder, Images(pixels))
    kept = result.estimate("nearest_neighbour_accuracy", edit="contrast", rung="0.4")
    assert kept.n == 5
    assert kept.reason is not None
    assert "no direction" in kept.reason
    assert result.estimate("universal_quantile", edit="contrast", rung="0.4", divergence="l2").n == 6
    assert result.estimate("divergence_radius").n == 5


def test_few_images_have_no_neighbourhoods_but_still_a_nearest() -> None:
    result = replace(FEW, k=10)(builtin(), digits(8))
    overlap = result.estimate("neighbour_overlap", edit="noise", rung="0.2")
    assert overlap.n == 0
    assert says(str(overlap.reason), "fewer", "neighbours")
    assert result.estimate("nearest_neighbour_accuracy", edit="noise", rung="0.2").n == 8


def test_a_collapsed_encoder_is_called_collapsed() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(len(x), 3)

    result = FEW(Encoder(Constant(), "constant", Domain((1, 8, 8))), digits(14))
    assert result.findings.collapsed
    assert result.estimate("edits_survived").value == 1


def test_edits_are_part_of_the_key_and_of_the_observation() -> None:
    observation = FEW.observation()
    assert [str(edit) for edit in observation.edits][:2] == ["brightness:0.05", "brightness:0.1"]
    assert len(observation.edits) == 10
    assert observation.inputs(Population(builtin(), digits(14), RunSettings())) == 12


def test_pictures_show_the_ladder_and_the_worst() -> None:
    result = FEW(builtin(), digits(14))
    picture = result.findings.pictures[0]
    assert len(picture.labels) == 7
    assert picture.labels[0] == "original"
    assert "as far as" in picture.labels[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"edits": ("jepg",)}, "Did you mean 'jpeg'"),
        ({"edits": ("gamma",)}, "edits.*'gamma'"),
        ({"edits": ("blur", "blur")}, "edits has blur twice; keep one"),
        ({"chained": 0}, "chained must be at least 1 edit, got 0"),
        ({"k": 0}, "k must be at least 1 neighbour, got 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        CommonPerturbations(**settings)


def test_what_cannot_be_measured_says_why() -> None:
    with refused(HoldfastError, "only one"):
        FEW(builtin(), digits(1))
    with refused(HoldfastError, "shifted", "[0, 1]", "[-1, 1]"):
        FEW(Encoder(nn.Flatten(), "shifted", Domain((1, 8, 8), -1.0, 1.0)), digits(14))
    flat = Encoder(nn.Linear(4, 2), "flat", Domain((4,)))
    with pytest.raises(HoldfastError, match="channels"):
        FEW(flat, Images(torch.rand(6, 4)))


def test_half_precision_edits_in_single_precision() -> None:
    observation = Edited(transforms()["resize"].family()[1:3], 1, (L2Distance(),), 2, 8)
    exact, half = (
        observation.observe(Population(builtin(), digits(8), RunSettings(precision=precision)), range(8))["0.change"]
        for precision in ("float32", "bfloat16")
    )
    assert torch.allclose(exact, half, rtol=0.2, atol=0.1)
