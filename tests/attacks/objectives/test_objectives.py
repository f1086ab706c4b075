"""Objectives against their definitions, written out slowly."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from holdfast.attacks.objectives.contrast import Batch, Instance, Pair, Queue, Views
from holdfast.attacks.objectives.simple import Away, Crossing, Misretrieval, Toward, high_pass, margin, shifted
from holdfast.core.divergences import Cosine, Divergence, L1Distance, L2Distance
from holdfast.core.errors import HoldfastError
from holdfast.core.objective import AttackContext
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from tests.samples import DIGITS, builtin, digits


def context(count: int = 6, rivals: int = 0) -> AttackContext:
    population = Population(builtin(), digits(count), RunSettings(precision="float64"))
    others = population.codes[torch.randint(count, (count, rivals))] if rivals else None
    return population.context(range(count), population.partners.tolist(), others)


def moved(at: AttackContext) -> torch.Tensor:
    return at.codes + 0.3 * torch.randn_like(at.codes)


def test_away_and_toward_are_divergences() -> None:
    at = context()
    codes = moved(at)
    assert torch.equal(Away()(at)(codes), L2Distance()(codes, at.codes))
    assert torch.equal(Toward(Cosine())(at)(codes), -Cosine()(codes, at.targets))


@pytest.mark.parametrize("divergence", [L2Distance(), Cosine(), L1Distance()], ids=str)
def test_crossing_is_positive_exactly_where_the_other_is_closer(divergence: Divergence) -> None:
    own, other = torch.randn(4000, 5, dtype=torch.float64), torch.randn(4000, 5, dtype=torch.float64)
    codes = own + 1.2 * torch.randn(4000, 5, dtype=torch.float64)
    crossed = margin(divergence, codes, own, other) > 0
    assert torch.equal(crossed, divergence(codes, other) < divergence(codes, own))
    assert 0.05 < crossed.double().mean() < 0.95, "vacuous: one side only"


def test_l2_crossing_is_the_distance_to_the_bisector() -> None:
    own, other = torch.zeros(1, 2), torch.tensor([[4.0, 0.0]])
    assert margin(L2Distance(), torch.tensor([[3.5, 7.0]]), own, other).item() == pytest.approx(1.5)


def test_misretrieval_is_the_best_crossing() -> None:
    at = context(rivals=3)
    assert at.rivals is not None
    codes = moved(at)
    each = torch.stack([margin(L2Distance(), codes, at.codes, at.rivals[:, k]) for k in range(3)])
    assert torch.allclose(Misretrieval()(at)(codes), each.amax(0))


def test_instance_is_cross_entropy_with_the_positive_first() -> None:
    at = context()
    codes, view = moved(at), at.code(shifted(at.pixels, at.noise.fork("view")))
    u, v = normalize(codes, dim=1), normalize(view, dim=1)
    for i in range(len(codes)):
        logits = torch.cat([u[i] @ v[i : i + 1].T, torch.stack([u[i] @ v[k] for k in range(len(v)) if k != i])]) / 0.5
        slow = cross_entropy(logits[None], torch.tensor([0]))
        assert torch.allclose(Instance()(at)(codes)[i], slow)


def test_batch_moves_positives_and_negatives() -> None:
    at = context()
    codes = moved(at)
    u, v = normalize(at.codes, dim=1), normalize(codes, dim=1)
    slow = cross_entropy(u @ v.T / 0.5, torch.arange(len(u)), reduction="none")
    assert torch.allclose(Batch()(at)(codes), slow)


def test_pair_is_nt_xent_over_both_views() -> None:
    at = context()
    codes = moved(at)
    u, half = normalize(codes, dim=1), len(codes) // 2
    similarity = (u @ u.T / 0.5).fill_diagonal_(-torch.inf)
    slow = cross_entropy(similarity, torch.arange(len(u)).roll(-half), reduction="none")
    assert torch.allclose(Pair()(at)(codes), slow)


def test_queue_contrasts_with_rivals() -> None:
    at = context(rivals=4)
    assert at.rivals is not None
    codes = moved(at)
    key = normalize(at.code(shifted(at.pixels, at.noise.fork("view"))), dim=1)
    q, negatives = normalize(codes, dim=1), normalize(at.rivals, dim=2)
    logits = torch.stack([torch.cat([(q[i] @ key[i])[None], negatives[i] @ q[i]]) for i in range(len(q))]) / 0.2
    slow = cross_entropy(logits, torch.zeros(len(q), dtype=torch.int64), reduction="none")
    assert torch.allclose(Queue()(at)(codes), slow)


def test_views_average_three_losses() -> None:
    at = context()
    codes = moved(at)
    views = [shifted(at.pixels, at.noise.fork("view", k)) for k in range(2)] + [high_pass(at.pixels, 0.25, DIGITS)]
    slow = torch.stack([instance_loss(codes, at.code(view)) for view in views]).mean(0)
    assert torch.allclose(Views()(at)(codes), slow)


def instance_loss(codes: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return cross_entropy(
        normalize(codes, dim=1) @ normalize(view, dim=1).T / 0.5, torch.arange(len(codes)), reduction="none"
    )


def test_high_pass_removes_what_is_constant_and_keeps_what_alternates() -> None:
    flat = torch.full((1, 1, 8, 8), 0.7)
    assert torch.allclose(high_pass(flat, 0.25, DIGITS), torch.full_like(flat, 0.5), atol=1e-6)
    fine = 0.5 + 0.25 * torch.tensor([1.0, -1.0]).repeat(4).expand(1, 1, 8, 8)
    assert torch.allclose(high_pass(fine, 0.25, DIGITS), fine, atol=1e-6)


def test_shifted_moves_whole_images() -> None:
    at = context(12)
    view = shifted(at.pixels, at.noise.fork("view"))
    for before, after in zip(at.pixels[:, 0], view[:, 0], strict=True):
        inner = after[2:-2, 2:-2]
        places = [before[r : r + 4, c : c + 4] for r in range(5) for c in range(5)]
        assert any(torch.equal(inner, place) for place in places)
    assert not torch.equal(view, at.pixels), "vacuous: nothing moved"


@pytest.mark.parametrize("objective", [Toward(), Crossing(), Misretrieval(), Queue()], ids=str)
def test_missing_companions_are_asked_for(objective: Toward | Crossing | Misretrieval | Queue) -> None:
    alone = Population(builtin(), digits(4), RunSettings()).context(range(4))
    with pytest.raises(HoldfastError, match=r"target|rival"):
        objective(alone)


@pytest.mark.parametrize("kind", [Instance, Batch, Views, Pair, Queue])
@pytest.mark.parametrize("temperature", [0.0, -0.5])
def test_temperatures_are_positive(kind: type[Instance | Batch | Views | Pair | Queue], temperature: float) -> None:
    with pytest.raises(HoldfastError, match=f"^{kind.name}: temperature must be positive"):
        kind(temperature=temperature)


@pytest.mark.parametrize("objective", [Instance(), Batch(), Views()], ids=str)
def test_contrast_needs_two_images(objective: Instance | Batch | Views) -> None:
    with pytest.raises(HoldfastError, match="at least 2"):
        objective(Population(builtin(), digits(4), RunSettings()).context([0]))
