"""Ranks, alignment, LiDAR, Grad-CAM and fluctuation: known answers, and slow definitions."""

from __future__ import annotations

from functools import partial
from math import exp, isnan, log

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import load
from holdfast.encoders.baseline import raw_pixels
from holdfast.geometry.evaluations.alignment import Alignment, relative_to_others
from holdfast.geometry.evaluations.grad_cam import GradCam, overlap
from holdfast.geometry.spectrum import RIDGE, entropy_rank, lidar, rankme, rankme_influence
from holdfast.geometry.sphere import semantic_fluctuation
from holdfast.geometry.views import gradcam
from holdfast.measure.evaluation import Evaluation
from holdfast.transforms.base import Transform
from tests.geometry.evaluations.known import EXACT, gaussian, population
from tests.samples import builtin, digits


@pytest.mark.parametrize(("n", "d"), [(200, 7), (20, 50), (10, 10)])
def test_rankme_is_that_of_the_singular_values(n, d):
    codes = gaussian(n, d) * torch.linspace(0.1, 3, d)
    values = np.linalg.svd(codes.numpy(), compute_uv=False)
    p = values / values.sum()
    (found, low, high), spectrum = rankme(codes.float())
    assert found == pytest.approx(exp(-(p * np.log(p)).sum()), rel=1e-5)
    assert spectrum[: min(n, d)].numpy() == pytest.approx(values, rel=1e-4)
    assert low <= found <= high


def test_an_image_moves_rankme_as_a_little_more_of_it_does():
    """An image that counts ``1 + step`` times has its code longer by the root of that."""
    codes, step = gaussian(80, 6) * torch.linspace(0.1, 3, 6), 1e-6
    moves = rankme_influence(codes)
    assert float(moves.mean()) == pytest.approx(0, abs=1e-9)
    for row in (0, 17, 53):
        more = codes.clone()
        more[row] *= (1 + step) ** 0.5
        slope = (rankme(more)[0][0] - rankme(codes)[0][0]) / step
        assert float(moves[row]) == pytest.approx(80 * slope, rel=1e-3)


def of_rows(codes, rows):
    return rankme(codes[rows])[0][0]


def test_rankme_left_out_by_subtraction_is_rankme_of_the_rest():
    from holdfast.core.statistics.intervals import jackknife

    for n, d in ((100, 6), (40, 60)):
        codes = gaussian(n, d)
        (value, low, high), _ = rankme(codes)
        order = torch.arange(n).reshape(10, -1).T.flatten()  # consecutive groups, as the function takes every tenth
        slow = jackknife(partial(of_rows, codes[order]), n)
        assert (low, high) == pytest.approx((min(slow[0], value), max(slow[1], value)), rel=1e-9)


def test_lidar_of_known_covariances():
    """Images differ along 4 of 12 directions by far more than their views do, evenly."""
    n, q, d = 4000, 6, 12
    wide = torch.diag(torch.tensor([30.0] * 4 + [1e-3] * 8).double())
    means, noise = gaussian(n, d) @ wide, gaussian(n * q, d, 1).reshape(n, q, d)
    value, low, high = lidar(means[:, None] + noise)
    assert value == pytest.approx(4, abs=0.05)
    assert low <= value <= high
    # The scale of the codes does not matter.
    assert lidar(100 * (means[:, None] + noise))[0] == pytest.approx(value, rel=1e-9)


def test_lidar_is_that_of_the_definition():
    views = gaussian(60 * 3, 5).reshape(60, 3, 5) + gaussian(60, 5, 1)[:, None] * torch.linspace(0.2, 3, 5)
    means = views.mean(1)
    within = sum((v - m).T @ (v - m) for v, m in zip(views, means, strict=True)).numpy() / (60 * 3)
    within += RIDGE * np.trace(within) / 5 * np.eye(5)
    between = np.cov(means.numpy().T, bias=True)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    shares = np.linalg.eigvalsh(root @ between @ root)
    shares /= shares.sum()
    assert lidar(views)[0] == pytest.approx(exp(-(shares * np.log(shares)).sum()), rel=1e-9)


def test_lidar_of_more_features_than_codes_is_that_of_the_space_they_span():
    views = gaussian(10 * 3, 5).reshape(10, 3, 5) + gaussian(10, 5, 1)[:, None] * torch.linspace(0.2, 3, 5)
    turn = torch.linalg.qr(gaussian(400, 400, 2)).Q[:5]
    wide = views @ turn + 1
    means = wide.mean(1)
    within = sum((v - m).T @ (v - m) for v, m in zip(wide, means, strict=True)) / (10 * 3)
    within = within + RIDGE * within.trace() / 400 * torch.eye(400)
    half = torch.linalg.solve(within, torch.cov(means.T, correction=0))
    shares = torch.linalg.eigvals(half).real.clamp(min=0)
    shares = shares[shares > 1e-12 * shares.max()] / shares.sum()
    assert lidar(wide)[0] == pytest.approx(float((-(shares * shares.log()).sum()).exp()), rel=1e-6)


def test_entropy_rank_of_nothing_is_zero():
    assert entropy_rank(torch.zeros(3)) == 0
    assert entropy_rank(torch.tensor([2.0, 2.0, 2.0, 2.0])) == pytest.approx(4)


@pytest.mark.slow
def test_the_interval_of_lidar_holds_the_population():
    def drawn(n, seed):
        means = gaussian(n, 16, seed) * torch.linspace(3, 0.2, 16)
        return means[:, None] + gaussian(n * 5, 16, seed + 10**6).reshape(n, 5, 16)

    truth, found = lidar(drawn(100_000, 1))[0], [lidar(drawn(500, seed)) for seed in range(2, 202)]
    assert np.mean([low <= truth <= high for _, low, high in found]) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)


def test_alignment_is_the_distance_to_each_view():
    """Codes are pixels: darker by a factor keeps the direction, and brightness does not."""
    images = Images(torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double() / 2)
    views = (Transform.read("brightness:0.3"), Transform.read("gamma:1"))
    found = Alignment(views)(raw_pixels(Domain((1, 4, 4))), images, EXACT)
    x = images.pixels(range(30), dtype=torch.float64).flatten(1)
    unit, moved = x / x.norm(dim=1, keepdim=True), (x + 0.3) / (x + 0.3).norm(dim=1, keepdim=True)
    expected = float((unit - moved).square().sum(1).mean())
    assert found.estimate("alignment_by_view", view="brightness:0.3").value == pytest.approx(expected)
    assert found.estimate("alignment_by_view", view="gamma:1.0").value == 0
    assert found.estimate("alignment").value == pytest.approx(expected / 2)
    apart = torch.cdist(unit, unit).square().sum() / (30 * 29)
    assert found.estimate("relative_alignment").value == pytest.approx(expected / 2 / float(apart))
    assert any("gamma:1.0 changes no" in warning for warning in found.findings.warnings)


def test_the_influence_on_relative_alignment_is_its_slope_by_the_weight_of_an_image():
    """Numerator and denominator are means under the same weights, the lower one over pairs of different images."""
    n, step = 40, 1e-5
    unit, squares = gaussian(n, 3) / gaussian(n, 3).norm(dim=1, keepdim=True), gaussian(n, 1, 5)[:, 0].square().numpy()
    apart = torch.cdist(unit, unit).square().numpy()

    def value(weights):
        pairs = np.outer(weights, weights) - np.diag(weights**2)
        return np.average(squares, weights=weights) / ((pairs * apart).sum() / pairs.sum())

    ours = relative_to_others(squares, unit)
    assert ours.mean() == pytest.approx(value(np.ones(n)))
    for image in range(0, n, 7):
        moved = n * np.eye(n)[image] - 1
        slope = (value(1 + step * moved) - value(1 - step * moved)) / (2 * step)
        assert ours[image] - ours.mean() == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_relative_alignment_of_one_code_is_undefined():
    assert np.isnan(relative_to_others(np.zeros(5), torch.ones(5, 1).double())).all()


def test_views_need_images():
    with pytest.raises(HoldfastError, match="shape"):
        Alignment()(*population(gaussian(20, 3)), EXACT)
    wide = Encoder(nn.Flatten(), "wide", Domain((1, 4, 4), -1.0, 1.0))
    with pytest.raises(HoldfastError, match=r"takes \[-1, 1\]"):
        Alignment()(wide, Images(torch.rand(20, 1, 4, 4)))


def located() -> Encoder:
    """An encoder whose only feature map copies the image, and whose code sums its left half."""

    class Left(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Conv2d(1, 1, 1, bias=False)
            nn.init.ones_(self.map.weight)

        def forward(self, x):
            return self.map(x)[:, :, :, :4].sum((2, 3)).expand(-1, 2)

    return Encoder(Left().eval(), "left", Domain((1, 8, 8)))


def test_the_map_lies_where_the_code_comes_from():
    encoder, images = located(), digits(6)
    pixels = images.pixels(range(6))
    found = gradcam(encoder, pixels, encoder(pixels))
    # One channel, whose weight is one number: the map is the image, for Grad-CAM weighs channels and not places.
    assert (found / found.amax((1, 2), keepdim=True)).flatten() == pytest.approx(
        (pixels[:, 0] / pixels[:, 0].amax((1, 2), keepdim=True)).flatten()
    )


def test_the_map_is_that_of_captum():
    captum = pytest.importorskip("captum.attr")
    encoder, images = builtin(), digits(8)
    pixels = images.pixels(range(8))
    codes = encoder(pixels).detach()
    towards = codes / codes.norm(dim=1, keepdim=True)
    layer = captum.LayerGradCam(lambda x: (encoder.module(x) * towards).sum(1), list(encoder.module.children())[3])
    expected = layer.attribute(pixels.requires_grad_(), relu_attributions=True)[:, 0].detach()
    assert gradcam(encoder, pixels, codes).flatten() == pytest.approx(expected.flatten(), abs=1e-6)


@pytest.mark.parametrize("change", ["global-shuffle:grid=4", "local-shuffle:grid=2", "gamma:1 + global-shuffle:grid=2"])
@pytest.mark.parametrize("stride", [1, 2])
def test_maps_of_shuffled_images_are_moved_back(change, stride):
    """Of a network that sees each block of pixels alone, the map of a shuffled image is the shuffled map."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, stride, stride), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    for weight in module.parameters():
        weight.data.abs_()  # so that no map is zero
    encoder = Encoder(module, "blocks", Domain((1, 8, 8)))
    result = GradCam(change=Transform.read(change), samples=6)(encoder, digits(6), RunSettings())
    (series,) = (each for each in result.series if each.quantity == "map_overlap")
    if stride == 1 or "local" not in change:  # which mixes the pixels of a block with those of others
        assert series.values == pytest.approx([1] * 6, abs=1e-5)
    else:
        assert max(series.values) < 0.99
    pixels = digits(6).pixels(range(6))
    moved = Transform.read(change)(pixels, Noise.of(0, [*"abcdef"]))
    unmoved = overlap(gradcam(encoder, pixels, encoder(pixels)), gradcam(encoder, moved, encoder(pixels)))
    assert float(unmoved.mean()) < 0.95


class Residual(nn.Module):
    """A small residual network whose last map is 2 x 2, with attention over its places at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 1, 1)
        self.norm, self.relu, self.pool = nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x):
        y = self.relu(self.first(x))
        y = self.pool(self.relu(y + self.norm(self.second(y))))
        tokens = y.flatten(2).transpose(1, 2)[:, None]
        weights = (tokens @ tokens.transpose(2, 3)).softmax(3)
        return (weights @ tokens).mean((1, 2))


@pytest.mark.parametrize("source", ["onnx", "exported"])
@pytest.mark.filterwarnings("ignore")
def test_a_graph_has_the_map_of_the_module_that_it_was_exported_from(source, tmp_path):
    torch.manual_seed(0)
    module, pixels = Residual().eval(), torch.rand(3, 1, 8, 8)
    encoder = Encoder(module, "residual", Domain((1, 8, 8)))
    if source == "onnx":
        pytest.importorskip("onnx")
        torch.onnx.export(
            module, (pixels,), str(tmp_path / "e.onnx"), dynamo=False, dynamic_axes={"x": [0]}, input_names=["x"]
        )
        graph = load(f"onnx:{tmp_path / 'e.onnx'}")
    else:
        program = torch.export.export(module, (pixels,), dynamic_shapes=({0: torch.export.Dim("b")},))
        torch.export.save(program, tmp_path / "e.pt2")
        graph = load(f"exported:{tmp_path / 'e.pt2'}?trust=yes")
    found, expected = (gradcam(each, pixels, encoder(pixels)) for each in (graph, encoder))
    assert expected.shape == (3, 2, 2)
    assert expected.abs().max() > 0, "vacuous fixture"
    assert torch.allclose(found, expected, atol=1e-6)


def test_an_edit_that_changes_nothing_keeps_the_map_and_another_moves_it():
    still = GradCam(change=Transform.read("gamma:1"))(builtin(), digits(30))
    assert still.estimate("map_overlap").value == pytest.approx(1)
    moved = GradCam(change=Transform.read("crop:-0.5"))(builtin(), digits(30))
    assert moved.estimate("map_overlap").value < 0.97
    assert moved.findings.pictures[0].labels == ("clean", "its map", "changed", "its map after")


def test_maps_that_do_not_meet_overlap_nowhere():
    assert overlap(torch.eye(2)[None], 1 - torch.eye(2)[None]).tolist() == [0]
    assert isnan(overlap(torch.zeros(1, 2, 2), torch.ones(1, 2, 2)))


def test_an_encoder_without_a_feature_map_has_no_grad_cam():
    found = GradCam()(raw_pixels(Domain((1, 8, 8))), digits(10))
    assert isnan(found.estimate("map_overlap").value)
    assert "no feature map" in (found.estimate("map_overlap").reason or "")


def test_transforms_are_known_by_their_versions(monkeypatch):
    from holdfast.measure.store import key_of
    from holdfast.transforms.everyday import Gamma

    evaluations: tuple[Evaluation, ...] = (
        Alignment(views=(Transform.read("gamma:2"),)),
        GradCam(change=Transform.read("gamma:2")),
    )
    for evaluation in evaluations:
        before = key_of(evaluation, builtin(), digits(5), RunSettings())
        with monkeypatch.context() as patch:
            patch.setattr(Gamma, "version", Gamma.version + 1)
            assert key_of(evaluation, builtin(), digits(5), RunSettings()) != before


def test_fluctuation_adds_up_steps_and_its_interval_allows_for_chance():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 400)
    accuracy = {0: (0.5, 0.9, 0.5, 0.9), 1: (0.7, 0.7, 0.7, 0.7)}
    right = np.array([[rng.random() < accuracy[c][t] for c in labels] for t in range(4)])
    steady, moving = sorted(semantic_fluctuation(np.where(right, labels, 2), labels), key=lambda e: e.value)
    assert (steady.conditions, moving.conditions) == ({"class": "1"}, {"class": "0"})
    assert steady.low == 0 < steady.value
    assert moving.low <= 0.4 <= moving.high
    assert moving.low > 0.25
    with pytest.raises(HoldfastError, match="checkpoints"):
        semantic_fluctuation(np.zeros((1, 800), dtype=int), labels)


def test_published_uniformity_of_ten_corners():
    assert -log(0.1 + 0.9 * exp(-2 * 20 / 9)) == pytest.approx(2.20, abs=0.01)
