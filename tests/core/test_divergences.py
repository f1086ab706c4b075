"""What every divergence promises, then each against an independent computation."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from torch import Tensor, distributions

from holdfast.core.divergences import (
    DIVERGENCES,
    Cosine,
    Divergence,
    GaussianKL,
    L1Distance,
    L2Distance,
    LinfDistance,
    Rank,
    SoftmaxKL,
    Tokens,
    UnitL2,
    Wasserstein,
    Whitened,
)
from holdfast.core.errors import HoldfastError
from tests.facts import refused

D = 6
POPULATION = torch.randn(200, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
ALL = [kind().fit(POPULATION) for kind in DIVERGENCES.values()]
every = pytest.mark.parametrize("divergence", ALL, ids=str)
EMBEDDED = [divergence for divergence in ALL if divergence.embed(POPULATION) is not None]
SYMMETRIC = [divergence for divergence in ALL if divergence.name not in ("kl", "gaussian_kl")]
METRICS = [divergence for divergence in SYMMETRIC if divergence.name not in ("cosine", "rank", "tokens")]


def codes(count: int = 40, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def some_codes() -> st.SearchStrategy[Tensor]:
    numbers = st.floats(-5, 5).map(lambda x: round(x, 3))
    return hnp.arrays(np.float64, (4, D), elements=numbers).map(torch.from_numpy)


@every
@given(a=some_codes(), b=some_codes())
def test_nonnegative_one_per_row_and_undefined_only_without_a_direction(divergence: Divergence, a: Tensor, b: Tensor):
    value = divergence(a, b)
    assert value.shape == (4,)
    assert not (value < -1e-12).any()
    defined = torch.ones(4, dtype=torch.bool)
    if divergence.name in ("cosine", "unit_l2", "tokens"):
        defined = a.any(1) & b.any(1)
    elif divergence.name == "rank":
        defined = (a != a[:, :1]).any(1) & (b != b[:, :1]).any(1)
    assert torch.equal(torch.isfinite(value), defined)


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_is_any_distance_from_itself(divergence: Divergence, dtype: torch.dtype):
    a = codes(dtype=dtype)
    assert divergence(a, a).dtype == dtype
    assert (divergence(a, a).abs() <= torch.finfo(dtype).eps * D).all()
    assert (divergence(a, a.roll(1, 0)) > 1e-3).all(), "vacuous fixture"


@every
def test_each_row_ignores_the_others(divergence: Divergence):
    a, b = codes(), codes(seed=1)
    torch.testing.assert_close(divergence(a, b)[3:5], divergence(a[3:5], b[3:5]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("divergence", SYMMETRIC, ids=str)
def test_symmetry(divergence: Divergence):
    torch.testing.assert_close(divergence(codes(), codes(seed=1)), divergence(codes(seed=1), codes()))


@pytest.mark.parametrize("divergence", [SoftmaxKL(), GaussianKL()], ids=str)
def test_the_others_know_moved_from_reference(divergence: Divergence):
    assert not torch.allclose(divergence(codes(), codes(seed=1)), divergence(codes(seed=1), codes()))


@pytest.mark.parametrize("divergence", METRICS, ids=str)
def test_triangle_inequality(divergence: Divergence):
    a, b, c = codes(500), codes(500, seed=1), codes(500, seed=2)
    assert (divergence(a, c) <= divergence(a, b) + divergence(b, c) + 1e-12).all()


@pytest.mark.parametrize("divergence", EMBEDDED, ids=str)
def test_embedded_distances_are_the_divergence(divergence: Divergence):
    a, b = codes(), codes(seed=1)
    points, others = divergence.embed(a), divergence.embed(b)
    assert points is not None
    assert others is not None
    through = divergence.of_distance(torch.linalg.vector_norm(points - others, dim=1))
    torch.testing.assert_close(through, divergence(a, b), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("divergence", EMBEDDED, ids=str)
def test_divergences_grow_with_embedded_distance(divergence: Divergence):
    grid = torch.linspace(0, 2, 50, dtype=torch.float64)
    assert (divergence.of_distance(grid).diff() > 0).all()
    assert divergence.of_distance(grid)[0] == 0


def test_only_ranks_are_stepwise():
    assert [divergence.name for divergence in ALL if not divergence.smooth] == ["rank"]


def test_most_divergences_are_embedded():
    assert {divergence.name for divergence in EMBEDDED} == {
        "l2", "cosine", "unit_l2", "linear", "rank", "wasserstein", "tokens",
    }  # fmt: skip


@pytest.mark.parametrize("divergence", [divergence for divergence in ALL if divergence.smooth], ids=str)
def test_gradients_are_finite_where_nothing_has_moved_and_point_away_elsewhere(divergence: Divergence):
    a, b = codes(), codes(seed=1)
    a[:20] = b[:20]
    a.requires_grad_()
    before = divergence(a, b)
    (gradient,) = torch.autograd.grad(before.sum(), a)
    assert torch.isfinite(gradient).all()
    assert gradient[:20].abs().max() < 1e-12
    with torch.no_grad():
        assert (divergence(a + 1e-6 * gradient, b) > before)[20:].all()


@pytest.mark.parametrize("kind", [Cosine, UnitL2, Rank])
@pytest.mark.parametrize("scale", [1e-3, 7.0, 1e4])
def test_scale_free_divergences_ignore_scale(kind: type[Divergence], scale: float):
    a, b = codes(), codes(seed=1)
    torch.testing.assert_close(kind()(scale * a, b), kind()(a, b))
    assert not torch.allclose(L2Distance()(scale * a, b), L2Distance()(a, b)), "vacuous fixture"


@pytest.mark.parametrize("kind", [Cosine, UnitL2])
def test_a_zero_code_has_no_direction(kind: type[Divergence]):
    a, b = codes(2), codes(2, seed=1)
    a[0] = 0
    assert torch.isnan(kind()(a, b)).tolist() == [True, False]
    assert torch.isnan(kind()(b, a)).tolist() == [True, False]
    assert torch.isnan(kind()(a, a)).tolist() == [True, False]


def test_norms_by_hand():
    a, b = torch.tensor([[1.0, 5.0, -1.0]]), torch.tensor([[4.0, 1.0, -1.0]])
    assert [kind()(a, b).item() for kind in (L2Distance, L1Distance, LinfDistance)] == [5, 7, 4]


def test_angles_by_hand():
    degrees = torch.tensor([0.0, 60.0, 90.0, 180.0], dtype=torch.float64)
    a = 3 * torch.stack([(degrees * pi / 180).cos(), (degrees * pi / 180).sin()], dim=1)
    b = torch.tensor([[0.5, 0.0]], dtype=torch.float64).expand(4, 2)
    torch.testing.assert_close(Cosine()(a, b), torch.tensor([0, 0.5, 1, 2], dtype=torch.float64))
    torch.testing.assert_close(UnitL2()(a, b), torch.tensor([0, 1, sqrt(2), 2], dtype=torch.float64))
    near = torch.tensor([[1.0, 1e-4]]), torch.tensor([[1.0, 0.0]])
    assert Cosine()(*near).item() == pytest.approx(0.5e-8, rel=1e-4), "close codes lose their digits"


def test_whitening_ignores_invertible_linear_maps():
    mix = torch.randn(D, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert torch.linalg.cond(mix) < 1e3
    exact = Whitened(floor=1e-12)
    a, b = codes(), codes(seed=1)
    plain, mixed = exact.fit(POPULATION), exact.fit(POPULATION @ mix + 7)
    torch.testing.assert_close(mixed(a @ mix, b @ mix), plain(a, b), rtol=1e-6, atol=0)
    assert not torch.allclose(L2Distance()(a @ mix, b @ mix), L2Distance()(a, b), rtol=1e-2), "vacuous fixture"


def test_whitening_is_mahalanobis_distance():
    a, b = codes(), codes(seed=1)
    inverse = np.linalg.inv(np.cov(POPULATION.numpy().T))
    step = (a - b).numpy()
    expected = np.sqrt(np.einsum("nd,de,ne->n", step, inverse, step))
    np.testing.assert_allclose(Whitened(1e-12).fit(POPULATION)(a, b).numpy(), expected, rtol=1e-9)


def test_whitening_must_be_fitted_and_remembers_its_name():
    with refused(HoldfastError, "first", "fitted"):
        Whitened()(codes(), codes())
    assert str(Whitened(0.25).fit(POPULATION)) == "whitened:floor=0.25"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_whitening_survives_features_that_never_change(dtype: torch.dtype):
    still = POPULATION.clone().to(dtype)
    still[:, 0] = 2.0
    fitted = Whitened().fit(still)
    a = codes(dtype=dtype)
    assert torch.isfinite(fitted(a, a.roll(1, 0))).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_whitening_a_collapsed_population_is_finite(dtype: torch.dtype):
    fitted = Whitened().fit(torch.ones(50, D, dtype=dtype))
    a = torch.ones(3, D, dtype=dtype)
    assert fitted(a, a).tolist() == [0, 0, 0]
    assert torch.isfinite(fitted(a + 0.01, a)).all()


@given(a=some_codes(), b=some_codes())
def test_rank_is_one_minus_spearmans_correlation(a: Tensor, b: Tensor):
    for left, right, value in zip(a.numpy(), b.numpy(), Rank()(a, b).tolist(), strict=True):
        if np.ptp(left) and np.ptp(right):
            expected = 1 - np.corrcoef(stats.rankdata(left), stats.rankdata(right))[0, 1]
            assert value == pytest.approx(expected, abs=1e-12)
        else:
            assert np.isnan(value)


@pytest.mark.parametrize("bend", [torch.exp, torch.atan, lambda x: x**3], ids=["exp", "atan", "cube"])
def test_rank_ignores_monotone_maps_and_shares_ranks_between_ties(bend):
    a, b = codes().mul(2).round(), codes(seed=1)
    assert (a.sort(1).values.diff(dim=1) == 0).any(), "vacuous fixture"
    torch.testing.assert_close(Rank()(bend(a), bend(b)), Rank()(a, b), rtol=1e-12, atol=1e-14)
    tied = torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert Rank()(*tied).item() == pytest.approx(1 - sqrt(3) / 2)


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_kl_is_that_of_categorical_distributions(scale: float):
    a, b = scale * codes(), scale * codes(seed=1)
    expected = distributions.kl_divergence(distributions.Categorical(logits=b), distributions.Categorical(logits=a))
    torch.testing.assert_close(SoftmaxKL()(a, b), expected)


def test_kl_of_certain_distributions_is_finite():
    certain = torch.tensor([[1e4, 0.0, 0.0]])
    assert SoftmaxKL()(certain, certain.roll(1, 1)).item() == pytest.approx(1e4)
    assert SoftmaxKL()(certain, torch.zeros(1, 3)).item() == pytest.approx(2e4 / 3 - np.log(3))


def test_gaussian_kl_is_that_of_diagonal_normal_distributions():
    def normal(code: Tensor) -> distributions.Distribution:
        mean, log_variance = code.chunk(2, dim=1)
        return distributions.Independent(distributions.Normal(mean, (log_variance / 2).exp()), 1)

    a, b = codes(), codes(seed=1)
    expected = distributions.kl_divergence(normal(b), normal(a))
    torch.testing.assert_close(GaussianKL()(a, b), expected)


def test_wasserstein_by_hand():
    # Means 3 and 4 apart; deviations 1 and 13, 2 and 2: sqrt(9 + 16 + 144 + 0) = 13.
    a = torch.tensor([[0.0, 0.0, 0.0, 2 * np.log(2)]], dtype=torch.float64)
    b = torch.tensor([[3.0, -4.0, 2 * np.log(13), 2 * np.log(2)]], dtype=torch.float64)
    assert Wasserstein()(a, b).item() == pytest.approx(13)


@pytest.mark.parametrize("kind", [GaussianKL, Wasserstein])
def test_gaussian_codes_have_even_length(kind: type[Divergence]):
    with refused(HoldfastError, "got 3", "variance", "features"):
        kind()(torch.zeros(2, 3), torch.zeros(2, 3))


@pytest.mark.parametrize("kind", DIVERGENCES.values())
def test_text_is_read_back(kind: type[Divergence]):
    assert Divergence.read(str(kind())) == kind()
    assert Divergence.read(kind.name) == kind()


def test_settings_are_read_back_and_unknown_names_refused_with_a_suggestion():
    assert Divergence.read("whitened:floor=0.25") == Whitened(0.25) != Whitened()
    with pytest.raises(HoldfastError, match="Did you mean 'cosine'"):
        Divergence.read("cosin")
    with pytest.raises(HoldfastError, match="Did you mean 'floor'"):
        Divergence.read("whitened:flor=1")


@pytest.mark.parametrize(
    "inner", [L1Distance(), L2Distance(), LinfDistance(), Cosine(), UnitL2(), SoftmaxKL()], ids=str
)
def test_tokens_is_the_mean_over_tokens_taken_one_by_one_or_the_worst(inner: Divergence):
    a, b, whole = codes(), codes(seed=1), Tokens(inner).of_tokens(3)
    one_by_one = torch.stack([inner(a[:, 2 * t : 2 * t + 2], b[:, 2 * t : 2 * t + 2]) for t in range(3)])
    torch.testing.assert_close(whole(a, b), one_by_one.mean(0), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(whole(a, b), inner(a, b)), "vacuous fixture"
    assert (whole.embed(a) is not None) == (inner == Cosine())
    worst = Tokens(inner, statistic="worst").of_tokens(3)
    torch.testing.assert_close(worst(a, b), one_by_one.amax(0), rtol=1e-12, atol=1e-14)
    assert worst.embed(a) is None


def test_a_mean_of_cosines_is_embedded_as_itself():
    whole, a, b = Tokens(Cosine(), 3), codes(), codes(seed=1)
    points, others = whole.embed(a), whole.embed(b)
    assert points is not None
    assert others is not None
    through = whole.of_distance(torch.linalg.vector_norm(points - others, dim=1))
    torch.testing.assert_close(through, whole(a, b), rtol=1e-10, atol=1e-12)


def test_tokens_are_those_of_the_encoder_unless_a_count_is_stated():
    assert Divergence.read("tokens:divergence=l2") == Tokens(L2Distance())
    assert Divergence.read("tokens").of_tokens(4) == Tokens(Cosine(), 4)
    assert Divergence.read("tokens:count=3").of_tokens(4) == Tokens(Cosine(), 3)
    assert L2Distance().of_tokens(4) == L2Distance()
    assert Divergence.read("tokens:statistic=worst").of_tokens(4) == Tokens(Cosine(), 4, "worst")
    with pytest.raises(HoldfastError, match=r"statistic.*'median'.*mean, worst"):
        Divergence.read("tokens:statistic=median")
    with refused(HoldfastError, "6 features", "4 tokens", "embeddings"):
        Tokens(Cosine(), 4)(codes(), codes())
    for inner in ("whitened", "rank", "tokens"):
        with pytest.raises(HoldfastError, match=f"tokens: {inner} is not taken token by token; use one that is smooth"):
            Divergence.read(f"tokens:divergence={inner}")
    with refused(HoldfastError, "[1, inf)", "got 0", "count"):
        Tokens(Cosine(), 0)
