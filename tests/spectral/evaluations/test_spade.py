"""The evaluation: what it says of real encoders, of collapsed ones, of graphs in pieces, of layers and labels."""

from __future__ import annotations

import re
from math import inf, isnan

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.points.points import points
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.report import write
from holdfast.report.comparison.compare import compare
from holdfast.report.text import interval
from holdfast.spectral import stability
from holdfast.spectral.analysis import spade
from holdfast.spectral.evaluations.spade import Spectral
from holdfast.spectral.fits import SpectralFit
from holdfast.spectral.graph_pair import KNN, PCA, checked, draw
from holdfast.spectral.stability import Subsets, baselines, coordinates, noise, numbers, projection, subsets
from tests.facts import refused, says
from tests.samples import DIGITS, builtin, digits, doubled, linear
from tests.spectral.graphs import folded

RUN = RunSettings(precision="float64")


def encoder(forward: nn.Module) -> Encoder:
    return Encoder(forward.eval(), "made", DIGITS)


class Halves(nn.Module):
    """Puts bright images far from dark ones."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat[:, :10] + 1000 * (flat.mean(1, keepdim=True) > 0.3)


@pytest.fixture(scope="module")
def result() -> Result:
    images = digits(120)
    labelled = Images(images.source, images.ids, torch.arange(120) % 3, "digits")
    return Spectral(subsets=4)(builtin(), labelled, RUN)


def test_the_score_is_that_of_the_arrays(result):
    pixels = digits(120).pixels(range(120), dtype=torch.float64)
    found = spade(pixels, doubled(builtin())(pixels))
    whole = {e.quantity: e for e in result.estimates if "outputs" not in e.conditions}
    assert whole["spade_score"].value == pytest.approx(found.score, rel=1e-6)
    assert whole["riemannian_distance"].value == pytest.approx(found.riemannian, rel=1e-6)
    assert whole["resistance_stretch"].value == pytest.approx(found.stretch, rel=1e-6)
    assert whole["resistance_stretch"].high >= found.score
    series = {(s.quantity, s.conditions.get("vectors")): s.values for s in result.series}
    assert series["node_score", "10"] == pytest.approx(found.node_scores(10).tolist(), rel=1e-4)
    assert series["hop_distortion", None] == pytest.approx(found.per_sample(found.hops).tolist())


def test_intervals_come_from_subsets(result):
    score = next(e for e in result.estimates if e.quantity == "spade_score" and "outputs" not in e.conditions)
    assert 0 <= score.low < score.value < score.high
    assert "4 random subsets of 60 samples" in score.method
    assert any(e.quantity == "subset_spade_score" and e.conditions["n"] == "60" for e in result.estimates)


def test_baselines_stand_at_the_same_n_and_k(result):
    for name in ("random projection", "noise"):
        rows = [e for e in result.estimates if e.conditions.get("outputs") == name]
        assert {e.quantity for e in rows} == {"spade_score", "riemannian_distance", "edge_hop_distortion"}
        assert all(e.conditions["n"] == "120" and e.conditions["k"] == "10" for e in rows)


def test_labels_have_scores_of_their_own(result):
    scores = next(s.values for s in result.series if s.conditions.get("vectors") == "10")
    for label in range(3):
        estimate = result.estimate("label_score", label=str(label))
        assert estimate.value == pytest.approx(np.mean(scores[label::3]))


def test_without_labels_inputs_are_clustered():
    found = Spectral(subsets=0)(builtin(), digits(60), RUN)
    clusters = [e for e in found.estimates if e.quantity == "cluster_score"]
    assert 2 <= len(clusters) <= 10
    assert all(e.conditions["cluster"].startswith("around digit-") for e in clusters)
    other = Spectral(subsets=0)(builtin("digits-random"), digits(60), RUN)
    assert {e.conditions["cluster"] for e in other.estimates if e.quantity == "cluster_score"} == {
        e.conditions["cluster"] for e in clusters
    }, "clusters must not depend on the encoder"


def test_pictures_show_images_and_worst_pairs(result):
    captions = [picture.caption for picture in result.findings.pictures]
    most, least = result.findings.pictures[:2]
    assert (most.caption, least.caption) == ("Least robust, by node score.", "Most robust, by node score.")
    scores = next(s.values for s in result.series if s.conditions.get("vectors") == "10")
    order = np.argsort(scores)
    assert [label.split(":")[0] for label in most.labels] == [result.findings.ids[k] for k in order[::-1][:4]]
    assert [label.split(":")[0] for label in least.labels] == [result.findings.ids[k] for k in order[:4]]
    assert sum(says(caption, "steps", "representation") for caption in captions) == 3


def test_the_embedding_is_stored_as_points_coloured_by_score_and_label(result):
    (cloud,) = (curve for curve in result.findings.curves if curve.colours)
    scores = next(s.values for s in result.series if s.conditions.get("vectors") == "10")
    assert cloud.colours["node score (log10)"] == pytest.approx(np.log10(scores), rel=1e-4)
    assert cloud.colours["label"] == tuple(k % 3 for k in range(120))
    values = next(curve.y for curve in result.findings.curves if curve.quantity == "spectrum")
    x, y = np.asarray(cloud.x), np.asarray(cloud.y)
    assert len(x) == 120
    # Eigenvectors are orthogonal with respect to the output graph, so that two axes never show the same thing.
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.9
    assert values[0] >= values[1]
    assert np.ptp(x) > 0
    assert np.ptp(y) > 0


def test_the_verdict_says_how_the_number_came_about(result):
    (verdict,) = result.findings.verdicts
    assert verdict.status == "proved"
    assert verdict.witness["neighbours"] == "exact"
    assert verdict.witness["components of inputs and outputs"] == "1 and 1"
    unproved = Spectral(subsets=0, certify=False)(builtin(), digits(60), RUN)
    assert unproved.findings.verdicts[0].status == "unknown"


def test_a_collapsed_encoder_has_no_score():
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(len(x), 4) + 0 * x.flatten(1)[:, :4]

    found = Spectral(k=5)(encoder(Constant()), digits(60))
    assert all(isnan(estimate.value) for estimate in found.estimates)
    assert found.findings.collapsed
    assert not found.findings.pictures


def test_an_encoder_that_tears_neighbours_apart_has_an_infinite_score():
    found = Spectral(k=5, subsets=4)(encoder(Halves()), digits(120))
    score = next(e for e in found.estimates if e.quantity == "spade_score" and "outputs" not in e.conditions)
    assert score.value == inf
    assert isnan(score.low)
    assert isnan(score.high)
    assert score.method.startswith("no interval: ")
    hops = found.estimate("hop_distortion")
    assert hops.value == inf
    assert interval(hops) == "no interval"
    assert found.findings.verdicts[0].status == "refuted"
    assert any("infinite" in warning for warning in found.findings.warnings)
    again = Result.model_validate_json(found.model_dump_json())
    assert (again.estimates[0].value, interval(again.estimates[0])) == (inf, "no interval")
    repaired = Spectral(k=5, subsets=0, repair="mst")(encoder(Halves()), digits(120))
    assert np.isfinite(repaired.estimates[0].value)
    assert any("spanning tree" in warning for warning in repaired.findings.warnings)


def test_layers_are_scored_on_the_same_samples():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))
    torch.manual_seed(0)
    made = encoder(module)
    found = Spectral(k=5, subsets=0, layers=("1", "3"))(made, digits(80), RUN)
    scores = {e.conditions.get("outputs"): e.value for e in found.estimates if e.quantity == "spade_score"}
    pixels = digits(80).pixels(range(80), dtype=torch.float64)
    middle = made.to("cpu", torch.float64).module.get_submodule("1")(pixels.flatten(1))
    assert scores["1"] == pytest.approx(spade(pixels, middle, k=5).score, rel=1e-6)
    assert scores["3"] == pytest.approx(scores[None], rel=1e-9)
    curve = next(c for c in found.findings.curves if c.quantity == "layer_scores")
    assert curve.y == pytest.approx((scores["1"], scores["3"], scores[None]))


def test_a_wrong_layer_is_named():
    with pytest.raises(HoldfastError, match=r"layer.*'heat'"):
        Spectral(layers=("heat",))(builtin(), digits(60))


def test_too_few_images_are_named():
    with refused(HoldfastError, "10 neighbours", "least 30", "(3 k)", "got 20", "samples"):
        Spectral()(builtin(), digits(20))


def test_scores_are_computed_once_per_population():
    population = Population(builtin(), digits(60), RunSettings())
    asked = SpectralFit(5, KNN(), "none", 60)
    assert population.learned(asked) is population.learned(asked)
    assert population.learned(asked) is not Population(builtin(), digits(60), RunSettings()).learned(asked)


@pytest.mark.slow
def test_bytes_stay_bytes():
    values = torch.randint(0, 256, (60, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    flat = Encoder(nn.Flatten(), "pixels", Domain((1, 2, 2)))
    as_bytes, as_floats = (Spectral(k=5, subsets=0)(flat, Images(pixels)) for pixels in (values, values.float() / 255))
    assert as_bytes.estimates[0].value == pytest.approx(as_floats.estimates[0].value, rel=1e-6)


def test_delete_half_intervals_cover():
    """Half-samples of a mean: the interval must have the width that theory gives it."""
    rng = np.random.default_rng(0)
    values = rng.normal(10, 1, 400)
    means = np.array([rng.choice(values, 200, replace=False).mean() for _ in range(400)])
    low, high = Subsets(400, 200, {"mean": means}).interval("mean", values.mean())
    assert (high - low) / 2 == pytest.approx(1.96 / np.sqrt(400), rel=0.15)


def test_subsets_without_a_finite_number_have_no_interval():
    made = Subsets(100, 50, {"spade_score": np.array([3.0, inf])})
    assert np.isnan(made.interval("spade_score", 4.0)).all()
    assert made.method == "no interval: the score of 1 of 2 random subsets of 50 samples is infinite"
    one = Subsets(100, 50, {"spade_score": np.array([3.0])})
    assert np.isnan(one.interval("spade_score", 4.0)).all()
    assert says(one.method, "interval", "random")


def test_an_interval_holds_only_what_can_be():
    far = np.array([1.0, 9.0])
    made = Subsets(100, 50, dict.fromkeys(("spade_score", "eigenvalue_gap", "edge_hop_distortion"), far))
    ends = {name: made.interval(name, 1.5)[0] for name in made.numbers}
    assert ends == {"spade_score": pytest.approx(0, abs=1e-6), "eigenvalue_gap": 1, "edge_hop_distortion": 1}
    assert ends["spade_score"] > 0
    assert np.isnan(made.interval("spade_score", 0.0)).all()


def test_a_number_that_depends_on_the_size_keeps_its_relative_spread():
    halves = np.random.default_rng(0).normal(10, 0.5, 8)
    plain, shrunk = Subsets(100, 50, {"a": halves}), Subsets(100, 50, {"a": 7 * halves})
    assert plain.interval("a", 3.0) == pytest.approx(shrunk.interval("a", 3.0))


def test_values_of_one_graph_are_no_independent_samples(result):
    """Intervals of means and medians over samples come from whole subsets, and no two encoders are paired by them."""
    for estimate in result.estimates:
        if estimate.quantity not in ("node_score", "hop_distortion"):
            continue
        assert estimate.series is None
        if estimate.conditions.get("vectors") in ("1", "2"):
            assert isnan(estimate.low)
            assert "first eigenvectors" in estimate.method
        else:
            assert estimate.statistic == "whole"
            assert estimate.low < estimate.value < estimate.high
            assert "4 random subsets of 60 samples" in estimate.method
    hops, edges = result.estimate("hop_distortion"), result.estimates
    edge = next(e for e in edges if e.quantity == "edge_hop_distortion" and "outputs" not in e.conditions)
    assert hops.high - hops.low == pytest.approx(edge.high - edge.low, rel=1), "hardly another number"
    label = result.estimate("label_score", label="0")
    assert isnan(label.low)
    assert label.method.startswith("no interval: ")


@pytest.mark.slow
def test_two_alike_projections_are_tied():
    """They differ on most samples in the same direction, for the graphs share their accidents; that decides nothing."""
    rng = np.random.default_rng(0)
    first = np.linalg.qr(rng.normal(size=(64, 12)))[0]
    second = np.linalg.qr(first + 0.03 * rng.normal(size=first.shape))[0]
    kept = [
        Spectral(k=5)(linear(torch.tensor(m.T, dtype=torch.float32), (1, 8, 8)), digits(200)) for m in (first, second)
    ]
    results = [
        result.model_copy(update={"encoder": result.encoder.model_copy(update={"name": name})})
        for name, result in zip("ab", kept, strict=True)
    ]
    outcomes = {(c.quantity, p.difference.outcome) for c in compare(results).contests for p in c.pairs}
    assert {quantity for quantity, _ in outcomes} >= {"node_score", "hop_distortion", "spade_score"}
    assert {outcome for _, outcome in outcomes} == {"tied"}


def test_missing_intervals_are_no_comparison(tmp_path):
    kept = [Spectral(k=5, subsets=0)(builtin(name), digits(60), RUN) for name in ("digits-robust", "digits-random")]
    found = compare(kept)
    assert not [c for c in found.contests if c.quantity == "spade_score"]
    assert [r for r in found.refusals if r.quantity == "spade_score"]
    written = {path.suffix: path.read_text() for path in write(kept, [], tmp_path).values() if path.is_file()}
    for suffix in (".html", ".md"):
        assert "no interval" in written[suffix]
        assert not re.search(r"\[0, (∞|inf)", written[suffix])
    assert "nan" not in written[".csv"]


@pytest.mark.slow
def test_a_projection_on_more_components_than_there_are_is_remarked():
    said = Spectral(k=5, subsets=0, graph=PCA(500))(builtin(), digits(60), RUN).findings.warnings
    assert any("pca:components=500: 60 inputs of 64 features" in warning for warning in said)
    quiet = Spectral(k=5, subsets=0, graph=PCA(20))(builtin(), digits(60), RUN).findings.warnings
    assert not any("pca" in warning for warning in quiet)


def test_few_samples_have_no_subsets(monkeypatch):
    x, y = checked(*folded(60))
    few, none = subsets(x, y, 10, KNN(), 8, 0), subsets(x, y, 5, KNN(), 0, 0)
    assert few.numbers == none.numbers == {}
    assert few.method.endswith("halves of 60 samples are too small (k = 10 needs 74 samples)")
    assert none.method.endswith("none was asked for")
    enough = checked(*folded(74))
    assert subsets(*enough, 10, KNN(), 2, 0).numbers
    assert not subsets(*checked(*folded(73)), 10, KNN(), 2, 0).numbers
    assert subsets(x, y, 5, KNN(), 8, 0).numbers["spade_score"].shape == (8,)
    monkeypatch.setattr(stability, "LARGEST", 25)
    assert subsets(x, y, 5, KNN(), 2, 0).size == 25


def test_projections_are_linear_and_noise_is_not():
    x = points(np.random.default_rng(0).normal(size=(50, 12)))
    y = projection(x, 3, seed=0)
    design = x.tile(slice(None), torch.float64).numpy()
    left = y.values.numpy() - design @ np.linalg.lstsq(design, y.values.numpy(), rcond=None)[0]
    assert np.abs(left).max() < 1e-5
    assert projection(x, 3, seed=1).values.numpy() != pytest.approx(y.values.numpy())
    assert noise(x, 3, 0).values.std() == pytest.approx(1, abs=0.2)


@pytest.mark.slow
def test_projections_of_few_points_have_the_law_of_those_of_all_their_features():
    """Squared distances after a projection are those before, times a chi-square of as many degrees as it has features."""
    x = points(torch.from_numpy(np.random.default_rng(0).integers(0, 255, (6, 700), dtype=np.uint8)))
    near = coordinates(x)
    before = torch.pdist(x.values.double())
    assert near.features == 6
    assert torch.allclose(torch.pdist(near.values), before)
    ways = {
        name: torch.stack([torch.pdist(projection(y, 5, seed).values) / (y.scale * before) for seed in range(200)])
        for name, y in (("all features", x), ("few points", near))
    }
    for ratios in ways.values():
        assert ratios.square().mean().item() == pytest.approx(5, rel=0.08)
        assert ratios.square().var().item() == pytest.approx(10, rel=0.25)
    assert torch.corrcoef(torch.stack([ways["all features"][:, 0], ways["few points"][:, 0]]))[0, 1].abs() < 0.3


def test_baselines_are_measured_like_the_encoder():
    x, y = checked(*folded(100))
    first = draw(x, y, 5, KNN())
    found = baselines(x, 3, first, KNN(), 0)
    again = draw(x, projection(x, 3, 0), 5, KNN())
    assert found["random projection"][0] == numbers(again)
    assert len({draw["spade_score"] for draw in found["noise"]}) == 3


def test_scores_are_restored_without_reading_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans ask for the worst images again and again; pixels are read by conclusions alone."""
    population, fit = Population(builtin("digits-random"), digits(40), RunSettings()), SpectralFit(3, KNN(), "none", 40)
    learned, reads = fit.learn(population), list[int]()
    monkeypatch.setattr("holdfast.spectral.fits.pixels_of", lambda images, rows: reads.append(len(rows)))
    scores = fit.restore(population, learned)
    assert (len(scores.spade.node_scores()), reads) == (40, [])
    with pytest.raises(HoldfastError):
        _ = scores.x
    assert reads == [40]


def test_comparisons_stand_beside_the_score():
    run = Spectral(subsets=0, sweep=(5, 10), normalised=True, planes=True)(builtin(), digits(120), RUN)
    names = {e.quantity for e in run.estimates}
    assert {"edge_hops", "reverse_spade_score"} <= names
    assert run.estimate("edge_hops", edges="100 highest").value > run.estimate("edge_hops", edges="100 random").value
    score = next(e.value for e in run.estimates if e.quantity == "spade_score" and set(e.conditions) == {"n", "k"})
    assert run.estimate("spade_score", outputs="sweep over k", k="10").value == pytest.approx(score, rel=1e-3)
    assert run.estimate("spade_score", laplacian="normalised").value > 0
    curves = {curve.quantity: curve for curve in run.findings.curves}
    assert curves["scores_by_k"].x == (5, 10)
    assert {"spectral_embedding", "input_embedding", "output_embedding"} <= curves.keys()
    assert len(curves["input_embedding"].x) == 120
    assert "node score (log10)" in curves["output_embedding"].colours


def test_a_k_that_is_no_number_of_neighbours_is_refused():
    with pytest.raises(HoldfastError, match=r"spade\.sweep"):
        Spectral(sweep=(5, 0))
