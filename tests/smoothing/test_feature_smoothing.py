"""Feature-space smoothing: bounds that hold at any stopping time, and certificates that no change refutes."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

import holdfast as hf
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.smoothing.evaluations.feature_smoothing import FeatureSmoothing
from holdfast.smoothing.noisy_codes import certified_cosine, least_mean, predicted_bets, similarities, unit
from tests.facts import says
from tests.marks import rest_slow
from tests.samples import digits

ALPHA = 0.05
PIXELS = hf.Encoder(nn.Flatten(), "pixels", hf.Domain((1, 8, 8)))


def test_capital_is_a_fair_game() -> None:
    """Expected capital at the true mean is 1 after any number of draws, by enumeration of all of them."""
    values, chances, mean = torch.tensor([0.0, 0.6, 1.0]).double(), torch.tensor([0.2, 0.5, 0.3]).double(), 0.6
    draws = torch.cartesian_prod(*[torch.arange(3)] * 6)
    capital = [
        float((1 + predicted_bets(values[row], ALPHA) * (values[row] - mean)).prod() * chances[row].prod())
        for row in draws
    ]
    assert sum(capital) == pytest.approx(1.0)


def test_a_bet_depends_on_earlier_draws_alone() -> None:
    draws = torch.rand(400, generator=torch.Generator().manual_seed(0)).double()
    changed = draws.clone()
    changed[200] = 1 - changed[200]
    assert torch.equal(predicted_bets(draws, ALPHA)[:201], predicted_bets(changed, ALPHA)[:201])
    assert not torch.equal(predicted_bets(draws, ALPHA)[201:], predicted_bets(changed, ALPHA)[201:])


@pytest.mark.parametrize(("a", "b"), rest_slow([(0.5, 0.5), (8.0, 0.4), (50.0, 1.0), (1.0, 4.0)]))
def test_whoever_stops_at_the_worst_moment_errs_no_more_often_than_alpha(a: float, b: float) -> None:
    """The bound at each of many times, the largest of which anyone could have stopped at, over 400 trials."""
    generator, trials, wrong = torch.distributions.Beta(a, b), 400, 0
    torch.manual_seed(0)
    for _ in range(trials):
        # The bound of the whole sequence is the largest of all its beginnings, since capital is looked at at all times.
        wrong += least_mean(generator.sample((300,)).double(), ALPHA) > a / (a + b)
    # With an error of .05, more than 34 of 400 have a chance below .001.
    assert wrong <= 34


def test_the_bound_of_more_draws_is_no_lower_and_comes_near_the_mean() -> None:
    draws = torch.distributions.Beta(40.0, 2.0).sample((5000,)).double()
    bounds = [least_mean(draws[:count], 0.001) for count in (100, 1000, 5000)]
    assert bounds == sorted(bounds)
    assert draws.mean() - bounds[-1] < 0.006


def test_similarities_of_codes_without_a_direction_claim_nothing() -> None:
    codes = torch.tensor([[0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0], [0.0, 3.0]])
    assert similarities(unit(codes), torch.tensor([0.0, 1.0]).double()).tolist() == [0.5, 0.5, 0.5, 1.0]


def test_a_linear_encoder_keeps_the_similarity_it_is_certified() -> None:
    """Where everything is known: the mean unit code of normal codes, by quadrature, at the worst of many changes."""
    torch.manual_seed(0)
    sigma, eps, x, anchor = 0.5, 0.3, torch.tensor([0.9, 0.5]).double(), torch.tensor([1.0, 0.0]).double()
    noise = torch.randn(400_000, 2, dtype=torch.float64) * sigma
    share = float(similarities(unit(x + noise), anchor).mean())
    bound = float(certified_cosine(torch.tensor(share), eps, sigma))
    angles = torch.linspace(0, 2 * torch.pi, 60).double()
    moved = x + eps * torch.stack([angles.cos(), angles.sin()], 1)
    cosines = [float(torch.cosine_similarity(unit(point + noise).mean(0), anchor, dim=0)) for point in moved]
    assert 0 < bound <= min(cosines)


@pytest.fixture(scope="module")
def run() -> hf.Result:
    settings = {"feature-smoothing": {"samples": 6, "selection": 300, "copies": 3000, "radii": [0.1, 0.3]}}
    results = hf.evaluate(
        "builtin:digits-robust", digits(30), only="feature-smoothing", settings=settings, progress=False
    )
    return results["feature-smoothing"]


def test_attacks_do_not_enter_certificates(run: hf.Result) -> None:
    for radius in ("l2:0.1", "l2:0.3"):
        certified, attacked = (
            next(s for s in run.series if s.quantity == f"{kind}_cosine_similarity" and s.conditions["ball"] == radius)
            for kind in ("certified", "attacked")
        )
        assert all(low <= high for low, high in zip(certified.values, attacked.values, strict=True))
        assert all(-1 <= low < 1 for low in certified.values)
    assert not [warning for warning in run.findings.warnings if "CONTRADICTION" in warning]
    assert (
        run.estimate("certified_cosine_similarity", ball="l2:0.1").value
        > run.estimate("certified_cosine_similarity", ball="l2:0.3").value
        > 0
    )
    assert says(run.estimate("certified_cosine_similarity", ball="l2:0.1").method, "0.999", "certificate", "confidence")


def test_the_similarity_of_different_images_stands_beside_what_is_certified(run: hf.Result) -> None:
    """An untrained network embeds all images alike, so that any certificate of similarity says little."""
    apart = run.estimate("cosine_similarity_of_different_images")
    assert apart.quantity in run.headline
    assert apart.better == "neither"
    assert -1 <= apart.value < run.estimate("certified_cosine_similarity", ball="l2:0.1").value
    untrained = hf.evaluate(
        "builtin:digits-random", digits(30), only="feature-smoothing", progress=False,
        settings={"feature-smoothing": {"samples": 6, "selection": 60, "copies": 200}},
    )  # fmt: skip
    assert untrained["feature-smoothing"].estimate("cosine_similarity_of_different_images").value > apart.value


def test_most_images_need_a_part_of_the_copies(run: hf.Result) -> None:
    drawn = next(series for series in run.series if series.quantity == "noisy_copies_drawn")
    assert max(drawn.values) <= 3000
    assert min(drawn.values) < 3000


def test_the_copies_that_certify_are_none_of_those_that_chose_the_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The confidence bound takes the anchor as given: copies that it was made of would agree with it too well."""
    asked = FeatureSmoothing(selection=150, copies=400, samples=1, precision=1e-9)
    population = Population(PIXELS, digits(4), RunSettings())
    made: list[Tensor] = []
    encode = Population.encode

    def recorded(self: Population, pixels: Tensor) -> Tensor:
        made.append(pixels)
        return encode(self, pixels)

    monkeypatch.setattr(Population, "encode", recorded)
    observed = asked.unit_codes.observe(population, population.choose(1))
    assert observed["copies"].tolist() == [400], "vacuous: not all rounds were drawn"
    copies = torch.cat(made).flatten(1)
    assert len(copies) == len(copies.unique(dim=0)) == 150 + 400


def test_a_bound_below_zero_claims_nothing() -> None:
    """A mean of unit codes may be as short as one likes: of length 0.1 and turned round, its cosine is -1, not -0.1."""
    sigma, radius = 0.25, 0.1
    asked = FeatureSmoothing(sigma=sigma, samples=3, radii=(radius,), alpha=0.001)
    population = Population(PIXELS, digits(4), RunSettings())
    low = torch.tensor([norm.cdf(norm.ppf(share) + radius / sigma) for share in (0.45, 0.55, 0.9)]).double()
    observed = {
        "0.anchor": torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 0.0]]).double(),
        "0.low": low,
        "0.copies": torch.tensor([400, 400, 400]),
        "1.similarity": torch.tensor([-1.0, 0.2, 0.9]).double(),
    }
    found = asked.conclude(population, population.choose(3), observed)
    (certified,) = [series for series in found.series if series.quantity == "certified_cosine_similarity"]
    assert certified.values == pytest.approx([-1, 2 * 0.55 - 1, 2 * 0.9 - 1])
    (apart,) = [series for series in found.series if series.quantity == "cosine_similarity_of_different_images"]
    assert [value for value in apart.values if value == value] == pytest.approx([0.6]), "the zero embedding counts"
    assert not [warning for warning in found.warnings if "CONTRADICTION" in warning]


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"precision": 0.0}, {"sigma": 0.0}, {"radii": (-1.0,)}, {"alpha": 0.7}, {"copies": 0}):
        with pytest.raises(HoldfastError, match="feature-smoothing"):
            FeatureSmoothing(**settings)
