"""Populations and encoders that once made a number mean something else, each held against a slow computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import L1, L2, Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance, Rank, Whitened
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.points.counting import _slow_crossings, closer_counts, nearest_rows, share_of_pairs_within
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests.samples import builtin, digits

ONE: dict[str, Any] = {"balls": (Linf(0.2),), "attacks": (AdaptiveAttack(restarts=1, steps=10),)}


def random_encoder(scale: float = 1.0) -> Encoder:
    torch.manual_seed(3)
    layer = nn.Linear(16, 8, bias=False)
    layer.weight.data *= scale
    return Encoder(nn.Sequential(nn.Flatten(), layer).eval(), "linear", Domain((1, 4, 4)))


def test_one_zero_code_changes_one_image_under_cosine() -> None:
    pixels = torch.rand(200, 1, 4, 4)
    spoilt = pixels.clone()
    spoilt[199] = 0
    evaluation = Breakaway(**ONE, divergences=(Cosine(),), pairwise=ONE["attacks"][0])
    clean, with_zero = (evaluation(random_encoder(), Images(x)) for x in (pixels, spoilt))
    for quantity in ("breakaway_risk", "nearest_neighbour_accuracy"):
        before, after = (result.estimate(quantity, attack=str(ONE["attacks"][0])) for result in (clean, with_zero))
        assert after.value == pytest.approx(before.value, abs=0.02)
        assert after.n == 199
        assert before.n == 200
    assert clean.estimate("breakaway_risk").value > 0.01, "vacuous"


@pytest.mark.parametrize("divergence", [L2Distance(), Cosine(), Rank(), Whitened()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_ties_are_no_victories(divergence: Divergence, dtype: torch.dtype) -> None:
    """Codes of signs: many distances are equal, and rounding must not break the ties."""
    generator = torch.Generator().manual_seed(0)
    clean = (torch.rand(120, 12, generator=generator) > 0.5).to(dtype) + 0.25
    moved, own = clean[torch.randperm(120, generator=generator)], torch.arange(120)
    divergence = divergence.fit(clean)
    counts = closer_counts(divergence, moved, own, clean)
    assert torch.equal(counts, _slow_crossings(divergence, moved.double(), clean[own].double(), clean.double())[0])
    thresholds = divergence(moved.double(), clean.double())
    pairs = torch.stack([divergence(code.expand_as(clean), clean.double()) for code in clean.double()])
    pairs = pairs[~torch.eye(120, dtype=torch.bool)]
    slow = torch.stack([(pairs * (1 - 1e-9) <= t).double().mean() for t in thresholds])
    assert torch.allclose(share_of_pairs_within(divergence, thresholds, clean), slow, atol=1e-12)


def test_pairs_at_distance_zero_are_found() -> None:
    clean = torch.tensor([[0.3, 1000.7], [0.9, 1000.1]]).repeat_interleave(50, 0)
    share = share_of_pairs_within(L2Distance(), torch.zeros(1), clean)
    assert share.item() == pytest.approx(2 * 50 * 49 / (100 * 99))


def test_rivals_are_the_nearest_whatever_the_offset() -> None:
    codes = builtin("digits-robust")(digits(100).pixels(range(100)))
    rows = list(range(100))
    there = nearest_rows(L2Distance(), codes, codes, 10, exclude=rows)
    moved = (codes.double() + 1000).float()
    slow = (moved.double()[:, None] - moved.double()).square().sum(2).fill_diagonal_(torch.inf)
    here = nearest_rows(L2Distance(), moved, moved, 10, exclude=rows)
    assert torch.equal(here.sort(1).values, slow.topk(10, largest=False).indices.sort(1).values)
    assert (here.sort(1).values == there.sort(1).values).float().mean() > 0.9


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_units_of_the_codes_do_not_matter(scale: float) -> None:
    images = Images(torch.rand(60, 1, 4, 4))
    evaluation = Breakaway(**ONE, divergences=(L2Distance(),), pairwise=ONE["attacks"][0])
    plain, scaled = (evaluation(random_encoder(size), images) for size in (1.0, scale))
    for one, other in zip(plain.estimates, scaled.estimates, strict=True):
        assert other.value == pytest.approx(one.value, abs=0.02), one.quantity


@pytest.mark.parametrize("scale", [1e-25, 1e20])
def test_codes_whose_squares_do_not_fit_are_refused(scale: float) -> None:
    with pytest.raises(HoldfastError, match="cannot hold"):
        Displacement(**ONE)(random_encoder(scale), Images(torch.rand(5, 1, 4, 4)))


def test_half_precision_counts_like_single() -> None:
    images = Images(torch.rand(80, 1, 4, 4))
    evaluation = Breakaway(**ONE, divergences=(L2Distance(),), pairwise=ONE["attacks"][0])
    single = evaluation(random_encoder(300.0), images)
    half = evaluation(random_encoder(300.0), images, RunSettings(precision="bfloat16"))
    for one, other in zip(single.estimates, half.estimates, strict=True):
        assert other.value == pytest.approx(one.value, abs=0.06), one.quantity


@pytest.mark.parametrize("ball", [Linf(0.01), L2(1.0), L1(1.0)], ids=str)
@pytest.mark.parametrize("width", [1e3, 1e6])
def test_tables_with_wide_ranges_can_be_attacked(ball: Linf | L2 | L1, width: float) -> None:
    encoder = Encoder(nn.Sequential(nn.Linear(10, 4)).eval(), "table", Domain((10,), -width, width))
    rows = Images(width * (2 * torch.rand(8, 10) - 1))
    result = Displacement(balls=(ball,), attacks=(GradientAttack(steps=3),))(encoder, rows)
    assert len(result.series[0].values) == 8


def test_the_ends_of_a_range_belong_to_it() -> None:
    domain = Domain((10,), -2.1179, 2.64)
    domain.check(torch.tensor([[-2.1179, 2.64] * 5]))
    with pytest.raises(HoldfastError, match="lie in"):
        domain.check(torch.tensor([[-2.118, 2.64] * 5]))


def test_bytes_are_not_taken_for_another_range() -> None:
    encoder = Encoder(nn.Flatten().eval(), "pixels", Domain((1, 4, 4), 0.0, 255.0))
    with pytest.raises(HoldfastError, match="uint8"):
        Displacement()(encoder, Images(torch.randint(0, 255, (6, 1, 4, 4), dtype=torch.uint8)))


@pytest.mark.parametrize("settings", [{"samples": 0}, {"samples": -1}, {"rivals": 0}])
def test_counts_below_one_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match="at least 1"):
        Breakaway(**ONE, **settings)(random_encoder(), Images(torch.rand(5, 1, 4, 4)))


def test_a_ball_that_holds_everything_is_refused() -> None:
    with pytest.raises(HoldfastError, match="8/255, not 8"):
        Displacement(balls=(Linf(8.0),))(random_encoder(), Images(torch.rand(5, 1, 4, 4)))


def test_settings_may_be_text(unchecked: None) -> None:
    text: dict[str, Any] = {"balls": ("linf:8/255",), "attacks": ["u-pgd"], "divergences": ("cosine",)}
    text["pairwise"] = "pgd:steps=3"
    read: Any = Breakaway(**text)
    assert read.balls == (Linf(8 / 255),)
    assert (read.attacks[0].steps, read.divergences[0].name, read.pairwise) == (50, "cosine", GradientAttack(steps=3))


def test_no_attack_waits_for_a_start_that_is_undefined() -> None:
    class Hole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(1)
            return torch.where(flat.mean(1, keepdim=True) > 0.501, torch.nan, flat)

    encoder = Encoder(Hole().eval(), "hole", Domain((1, 2, 2)))
    population = Population(encoder, Images(torch.full((1, 1, 2, 2), 0.5)), RunSettings())
    context = population.context([0])
    for seed in range(5):
        found = GradientAttack(steps=1, restarts=12)(
            encoder, context.pixels, lambda codes: codes.sum(1), Linf(0.1), RunSettings(seed=seed).noise(["0"])
        )
        assert torch.isfinite(encoder.forward(found)).all()
