"""The geometry of known spaces, and each fast number against its slow definition."""

from __future__ import annotations

import json
from math import isnan, log
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.core.errors import HoldfastError
from holdfast.core.points.neighbours import nearest_neighbours
from holdfast.core.points.points import points
from holdfast.core.statistics.groups import group_mean_interval
from holdfast.core.statistics.intervals import skewed_interval
from holdfast.geometry import sphere as geometry_population
from holdfast.geometry import sphere as pairs
from holdfast.geometry.classes import (
    NEAREST,
    between,
    group_uniformity,
    margins,
    occurrences,
    robustness_index,
    skewness,
    top_share,
    uniformity,
    within,
)
from holdfast.geometry.evaluations.geometry import SpaceGeometry
from holdfast.geometry.sphere import Tags, potentials
from tests.facts import refused, says
from tests.geometry.evaluations.known import EXACT, gaussian, population, simplex


def unit(codes):
    return codes / codes.norm(dim=1, keepdim=True)


def slow_potentials(codes):
    """The definition, one image at a time."""
    found = []
    for i, code in enumerate(codes):
        others = torch.cat([codes[:i], codes[i + 1 :]])
        found.append(float(torch.exp(-2 * ((others - code) ** 2).sum(1)).mean()))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("rows", "columns"), [(1024, 2048), (7, 7), (5, 13)])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_potentials_are_those_of_the_definition(monkeypatch, rows, columns, offset):
    monkeypatch.setattr(pairs, "ROWS", rows)
    monkeypatch.setattr(pairs, "COLUMNS", columns)
    codes = unit(gaussian(61, 5) + offset)
    expected = slow_potentials(codes)
    assert potentials(points(codes)).tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    assert potentials(points(codes.float())).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_tiles_wider_than_the_rows_may_not_divide_them(monkeypatch):
    monkeypatch.setattr(pairs, "ROWS", 4)
    monkeypatch.setattr(pairs, "COLUMNS", 6)
    codes = unit(gaussian(23, 3))
    assert potentials(points(codes)).tolist() == pytest.approx(slow_potentials(codes).tolist(), rel=1e-12)


class Largest(TorchDispatchMode):
    """Notes how many bytes the largest array has that any operation returns."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.most = max(self.most, found.numel() * found.element_size())
        return found


def test_no_array_of_all_pairs_is_made():
    codes = points(unit(gaussian(6000, 8)).float())
    with Largest() as watched:
        potentials(codes)
    assert watched.most == pairs.ROWS * pairs.COLUMNS * 4


def test_collapsed_simplex_of_ten_classes():
    """Uniformity 2.20 is what a classifier's perfectly collapsed classes have, not what an even spread has."""
    codes, labels = simplex(10, 200)
    encoder, images = population(codes + 1e-9 * gaussian(*codes.shape), labels)
    found = SpaceGeometry()(encoder, images, EXACT)
    n, inside, apart = 2000, 199, np.exp(-2 * 2 * 10 / 9)
    expected = -log((inside + (n - 1 - inside) * apart) / (n - 1))
    assert found.estimate("uniformity").value == pytest.approx(expected, abs=1e-6)
    assert found.estimate("uniformity").value == pytest.approx(2.20, abs=0.01)
    assert found.estimate("rankme").value == pytest.approx(9, abs=1e-3)
    assert found.estimate("uniformity_within_classes").value == pytest.approx(0, abs=1e-6)
    assert found.estimate("distance_within_classes").value == pytest.approx(0, abs=1e-6)
    assert found.estimate("distance_between_classes").value == pytest.approx(20 / 9, abs=1e-6)
    assert found.estimate("anisotropy").value == pytest.approx((inside - (n - 1 - inside) / 9) / (n - 1), abs=1e-6)


def test_collapsed_encoder_is_flagged():
    encoder, images = population(torch.rand(30, 4, dtype=torch.float64))
    with torch.no_grad():
        for weight in encoder.module.parameters():
            weight.fill_(weight.ndim == 1)  # no weights, a bias
    found = SpaceGeometry()(encoder, images, EXACT)
    assert found.findings.collapsed
    assert found.estimate("uniformity").value == pytest.approx(0, abs=1e-9)
    assert found.estimate("anisotropy").value == pytest.approx(1)
    assert found.estimate("rankme").value == pytest.approx(1, abs=1e-6)
    hubs = found.estimate("hub_skewness")
    assert isnan(hubs.value)
    assert "are one" in (hubs.reason or "")


def test_even_gaussian_space():
    encoder, images = population(gaussian(3000, 40))
    found = SpaceGeometry(clusters=3)(encoder, images, EXACT)
    assert found.estimate("rankme").value == pytest.approx(40, abs=0.5)
    assert found.estimate("anisotropy").value == pytest.approx(0, abs=1e-3)
    length = found.estimate("norm_spread")  # of a chi distribution with 40 degrees of freedom
    assert length.low <= np.sqrt(40 / 39.5031 - 1) <= length.high
    assert not found.findings.collapsed


def test_low_rank_codes_fill_their_dimensions_alone():
    codes = gaussian(800, 3) @ torch.linalg.qr(gaussian(20, 3, 1)).Q.T
    found = SpaceGeometry()(*population(codes), EXACT)
    assert found.estimate("rankme").value == pytest.approx(3, abs=0.02)


def test_a_rank_at_an_end_of_its_interval_says_why():
    few, enough = (
        SpaceGeometry(k=3, clusters=1)(*population(gaussian(n, d)), EXACT).estimate("rankme")
        for n, d in ((30, 40), (3000, 2))
    )
    assert few.low == few.value < few.high, "vacuous fixture"
    assert says(few.method, "corrected", "value")
    assert enough.low < enough.value < enough.high, "vacuous fixture"
    assert enough.method == "delete-a-group jackknife, 10 groups"


def test_rankme_is_compared_image_by_image_where_that_says_enough():
    codes = gaussian(200, 8) * torch.linspace(0.5, 2, 8)
    lengths = torch.ones(200, 1, dtype=torch.float64)
    lengths[:2] = 20.0
    few, far = codes[:39], codes * lengths
    for case, paired in ((codes, True), (few, False), (far, False)):
        found = SpaceGeometry(k=3, clusters=1)(*population(case), EXACT)
        rank = found.estimate("rankme")
        assert (rank.statistic == "mean") == (rank.series == "rankme_influence") == paired
    series = next(
        one for one in SpaceGeometry()(*population(codes), EXACT).series if one.quantity == "rankme_influence"
    )
    assert np.mean(series.values) == pytest.approx(SpaceGeometry()(*population(codes), EXACT).estimate("rankme").value)


def test_series_average_to_their_estimates_and_lengths_are_norms():
    codes = gaussian(300, 6) * torch.linspace(1, 3, 300)[:, None]
    found = SpaceGeometry()(*population(codes, torch.arange(300) % 3), EXACT)
    for estimate in found.estimates:
        if estimate.series:
            (series,) = (s for s in found.series if s.quantity == estimate.series)
            assert np.mean(series.values) == pytest.approx(estimate.value, rel=1e-9)
    by_name = {series.quantity: series.values for series in found.series}
    assert by_name["code_length"] == pytest.approx(codes.norm(dim=1).tolist(), rel=1e-6)
    near = np.argsort(torch.cdist(unit(codes), unit(codes)).fill_diagonal_(np.inf).numpy(), axis=1)[:, :10]
    expected = np.array([(near == row).sum() for row in range(300)])
    assert list(by_name["occurrences"]) == expected.tolist()
    centred = expected - 10
    third = (centred**3).mean() / (centred**2).mean() ** 1.5
    assert found.estimate("hub_skewness").value == pytest.approx(third)
    assert found.estimate("hub_share").value == pytest.approx(np.sort(expected)[-3:].sum() / 3000)
    cosines = (unit(codes) @ unit(codes).T).numpy()
    assert found.estimate("anisotropy").value == pytest.approx((cosines.sum() - 300) / (300 * 299))


@pytest.mark.parametrize("statistic", ["uniformity", "within", "between", "robustness", "groups"])
def test_influences_are_those_of_leaving_an_image_out(statistic):
    """For a smooth statistic ``s`` of n images, (n - 1) (s - s without i) is the influence of image i, up to 1/n."""
    n = 400
    codes = unit(gaussian(n, 3) + torch.tensor([1.0, 0, 0]))
    labels = (codes[:, 1] > 0.2).long().numpy() + (codes[:, 2] > 0).long().numpy()
    tags = np.arange(n) % 2

    def value(rows):
        kept = torch.from_numpy(rows)
        return {
            "uniformity": lambda: uniformity(potentials(points(codes[kept])).numpy()),
            "within": lambda: within(codes[kept], labels[rows]),
            "between": lambda: between(codes[kept], labels[rows]),
            "groups": lambda: group_uniformity(codes[kept], labels[rows]).mean,
            "robustness": lambda: robustness_index(
                nearest_neighbours(points(codes[kept]), 5).index, labels[rows], tags[rows]
            ),
        }[statistic]()

    whole = value(np.arange(n))
    chosen = np.arange(0, n, 9)
    left = np.array([value(np.delete(np.arange(n), row)).mean() for row in chosen])
    jackknife, ours = (n - 1) * (whole.mean() - left), whole[chosen] - whole.mean()
    agree = np.corrcoef(jackknife, ours)[0, 1]
    # Neighbours that step in for one left out are not in the influence.
    assert agree > (0.75 if statistic == "robustness" else 0.99)
    if statistic != "robustness":
        assert np.polyfit(ours, jackknife, 1)[0] == pytest.approx(1, abs=0.05), "in size as in sign"


def weighted_skewness(near, weights):
    """The skewness of how often images are neighbours, each image's list and place counted by its weight."""
    counts = np.zeros(len(near))
    for own, row in zip(weights, near, strict=True):
        counts[row] += own
    centred = counts - np.average(counts, weights=weights)
    return np.average(centred**3, weights=weights) / np.average(centred**2, weights=weights) ** 1.5


def weighted_robustness(near, weights, labels, tags):
    """Of neighbours alike in label or tag alone, the share alike in the label, each pair by the product of its weights."""
    right = either = 0.0
    for i, row in enumerate(near):
        for j in row:
            label, tag = labels[i] == labels[j], tags[i] == tags[j]
            right += weights[i] * weights[j] * (label and not tag)
            either += weights[i] * weights[j] * (label != tag)
    return right / either


@pytest.mark.parametrize("statistic", ["skewness", "robustness"])
def test_influences_on_lists_of_neighbours_are_derivatives_by_the_weight_of_an_image(statistic):
    """Hampel 1974: the influence of image i is the slope of the statistic as some of the weight of all moves to i."""
    n, step = 60, 1e-5
    codes = unit(gaussian(n, 3) + torch.tensor([1.0, 0, 0]))
    near, labels, tags = (
        nearest_neighbours(points(codes), 5).index,
        (codes[:, 1] > 0.2).long().numpy(),
        np.arange(n) % 2,
    )

    def value(weights):
        return (
            weighted_skewness(near, weights)
            if statistic == "skewness"
            else weighted_robustness(near, weights, labels, tags)
        )

    ours = skewness(near) if statistic == "skewness" else robustness_index(near, labels, tags)
    assert ours.mean() == pytest.approx(value(np.ones(n)))
    for image in range(0, n, 7):
        moved = n * np.eye(n)[image] - 1
        slope = (value(1 + step * moved) - value(1 - step * moved)) / (2 * step)
        assert ours[image] - ours.mean() == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_the_top_percent_of_hubs_is_rounded_up():
    """Of 150 images, two: each is neighbour of half the others, and its place is shared with nobody."""
    near = np.array([[1] if k % 2 else [0] for k in range(150)])
    near[0], near[1] = [1], [0]
    assert top_share(near).mean() == pytest.approx(1)


def test_distances_within_and_between_classes_are_means_over_pairs():
    codes, labels = unit(gaussian(40, 4)), np.arange(40) % 3
    slow = [
        [float(torch.cdist(codes[labels == a], codes[labels == b]).square().mean()) for b in range(3)] for a in range(3)
    ]
    assert within(codes, labels).mean() == pytest.approx(np.diag(slow).mean())
    assert between(codes, labels).mean() == pytest.approx((np.sum(slow) - np.trace(slow)) / 6)


def test_hubs_are_found():
    """Codes around a centre that is itself among them: it is everybody's neighbour."""
    codes = torch.cat([torch.eye(60, dtype=torch.float64) + 0.01 * gaussian(60, 60), torch.ones(1, 60).double()])
    near = nearest_neighbours(points(unit(codes)), 3).index
    counts = occurrences(near)
    assert counts.argmax() == 60
    assert skewness(near).mean() > 5
    assert top_share(near).mean() == pytest.approx(60 / (61 * 3))


def test_copies_are_counted_once_and_zero_codes_left_out():
    codes = gaussian(40, 5).sigmoid()
    codes[7] = 0
    encoder, images = population(torch.cat([codes, codes[:4]]))
    found = SpaceGeometry(k=3)(encoder, images, EXACT)
    alone = SpaceGeometry(k=3)(*population(torch.cat([codes[:7], codes[8:]])), EXACT)
    assert len(found.findings.ids) == 40
    assert found.estimate("uniformity").n == 39
    assert found.estimate("uniformity").value == pytest.approx(alone.estimate("uniformity").value, rel=1e-6)
    assert any("exact copies" in warning for warning in found.findings.warnings)
    assert any("zero embedding" in warning for warning in found.findings.warnings)


def test_few_images_have_no_neighbours():
    found = SpaceGeometry(k=10)(*population(gaussian(8, 3)), EXACT)
    assert "too few for 10 neighbours" in (found.estimate("hub_skewness").reason or "")
    assert all("no interval" in one.method for one in found.estimates if not isnan(one.value))


@pytest.mark.parametrize(
    ("settings", "said"), [({"k": 0}, "k must"), ({"clusters": 0}, "clusters"), ({"samples": 1}, "samples")]
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(HoldfastError, match=said):
        SpaceGeometry(**settings)(*population(gaussian(20, 3)), EXACT)


def test_nuisance_that_rules_and_nuisance_that_does_not(tmp_path):
    """Codes of the label and noise alone, then of the tag: the index is near 1, then near 0."""
    labels, tags = torch.arange(200) % 2, torch.arange(200) // 2 % 2
    (tmp_path / "tags.json").write_text(json.dumps({str(k): f"scanner {tag}" for k, tag in enumerate(tags.tolist())}))
    for rules, low, high in ((labels, 0.95, 1.0), (tags, 0.0, 0.05)):
        codes = 0.1 * gaussian(200, 4)
        codes[:, 0] += 5 * (2 * rules - 1)
        found = SpaceGeometry(tags=Tags.read(str(tmp_path / "tags.json")))(*population(codes, labels), EXACT)
        assert low <= found.estimate("robustness_index").value <= high


def test_tags_are_known_by_their_content(tmp_path):
    file = tmp_path / "tags.csv"
    file.write_text("0,a\n1,b\n2,a\n")
    tags = Tags.read(str(file))
    assert Tags.read(str(tags)) == tags
    assert str(tags).startswith(f"{file}@")
    assert tags.of(["0", "1", "2"]).tolist() == [0, 1, 0]
    with pytest.raises(HoldfastError, match="no tag for 1 of 2 images, '5'"):
        tags.of(["0", "5"])
    with refused(HoldfastError, "'a'"):
        tags.of(["0", "2"])
    file.write_text("0,a\n1,b\n2,b\n")
    assert Tags.read(str(file)) != tags
    with pytest.raises(HoldfastError, match="no longer"):
        tags.of(["0", "1"])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "0,a,b,c", "two, id and tag"),
        ("a.json", "[1]", "object"),
        ("a.json", "{", "no JSON"),
        ("b.csv", None, "read"),
    ],
)
def test_files_that_hold_no_tags_are_refused(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(HoldfastError, match=said):
        Tags.read(str(tmp_path / name)).of(["0"])


def test_tags_without_labels_say_what_is_missing(tmp_path):
    (tmp_path / "tags.csv").write_text("\n".join(f"{k},{k % 2}" for k in range(20)))
    with pytest.raises(HoldfastError, match="labels"):
        SpaceGeometry(k=3, tags=Tags.read(str(tmp_path / "tags.csv")))(*population(gaussian(20, 3)), EXACT)


def law(n: int, seed: int):
    """Ten loose clusters of unequal lengths: hubs, anisotropy, and a spectrum that falls."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 48, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    drawn = torch.randn(n, 48, generator=generator, dtype=torch.float64)
    return 1 + 1.5 * centres[torch.randint(10, (n,), generator=generator)] + drawn * torch.linspace(1.5, 0.3, 48)


@pytest.mark.slow
def test_intervals_hold_the_truth():
    """Of numbers that the sample size biases the truth is that at this size; of RankMe it is the population's own."""
    n, replications = 1000, 120
    found = [SpaceGeometry(clusters=1)(*population(law(n, seed)), EXACT) for seed in range(replications)]
    spectrum = torch.linalg.svdvals(law(20_000, 10**6))
    whole = float(torch.special.entr(spectrum / spectrum.sum()).sum().exp())
    for quantity in ("uniformity", "anisotropy", "hub_skewness", "hub_share", "norm_spread", "rankme"):
        numbers = [one.estimate(quantity) for one in found]
        truth = whole if quantity == "rankme" else float(np.mean([number.value for number in numbers]))
        covered = np.mean([number.low <= truth <= number.high for number in numbers])
        assert covered >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / replications), (quantity, covered)


def slow_index(codes, labels, tags, groups, k):
    """PathoROB's robustness index from its definition, one image and one neighbour at a time."""
    same_label_alone = same_tag_alone = 0
    for i, code in enumerate(codes):
        others = [j for j in range(len(codes)) if groups[j] != groups[i]]
        cosines = {j: float(code @ codes[j] / (code.norm() * codes[j].norm())) for j in others}
        for j in sorted(others, key=cosines.__getitem__, reverse=True)[:k]:
            same_label_alone += labels[i] == labels[j] and tags[i] != tags[j]
            same_tag_alone += labels[i] != labels[j] and tags[i] == tags[j]
    return same_label_alone / (same_label_alone + same_tag_alone)


def grouped(seed=3):
    """Return codes of 24 slides of 1 to 9 tiles, each around its own place, with labels and centres of the slides."""
    rng = np.random.default_rng(seed)
    slides = np.repeat(np.arange(24), rng.integers(1, 10, 24))
    labels, centres = rng.integers(0, 2, 24)[slides], rng.integers(0, 2, 24)[slides]
    codes = gaussian(24, 8)[slides] + 0.3 * gaussian(len(slides), 8)
    codes[:, 0] += torch.from_numpy(labels * 1.5)
    codes[:, 1] += torch.from_numpy(centres * 1.0)
    return codes, labels, centres, slides


@pytest.mark.parametrize("stated", ["column", "json", "images"])
def test_the_robustness_index_leaves_out_the_images_of_an_images_own_group(tmp_path, stated):
    codes, labels, centres, slides = grouped()
    both = zip(centres, slides, strict=True)
    rows = [(str(row), f"centre {tag}", f"slide {group}") for row, (tag, group) in enumerate(both)]
    file = tmp_path / ("tags.json" if stated == "json" else "tags.csv")
    if stated == "json":
        file.write_text(json.dumps({name: [tag, group] for name, tag, group in rows}))
    else:
        file.write_text("\n".join(",".join(row[: 2 if stated == "images" else 3]) for row in rows))
    encoder, images = population(codes, torch.from_numpy(labels))
    if stated == "images":
        images.groups = tuple(row[2] for row in rows)
    measured = SpaceGeometry(k=5, tags=Tags.read(str(file)))(encoder, images, EXACT)
    index = measured.estimate("robustness_index")
    assert index.value == pytest.approx(slow_index(codes, labels, centres, slides, 5), abs=1e-12)
    alone = slow_index(codes, labels, centres, np.arange(len(slides)), 5)
    assert abs(index.value - alone) > 0.02, "vacuous: tiles of one slide are no neighbours"
    assert "over 24 groups of images" in index.method
    assert measured.findings.groups == tuple(row[2] for row in rows)


def test_groups_are_stated_once(tmp_path):
    (tmp_path / "tags.csv").write_text("\n".join(f"{k},{k % 2},{k // 2}" for k in range(20)))
    encoder, images = population(gaussian(20, 3), torch.arange(20) % 2)
    images.groups = tuple("ab" * 10)
    with pytest.raises(HoldfastError, match="stated twice"):
        SpaceGeometry(k=3, tags=Tags.read(str(tmp_path / "tags.csv")))(encoder, images, EXACT)


def test_a_group_that_leaves_no_neighbours_is_named(tmp_path):
    (tmp_path / "tags.csv").write_text("\n".join(f"{k},{k % 2},{'all' if k < 18 else k}" for k in range(20)))
    with pytest.raises(HoldfastError, match="one group holds 18 of 20 images"):
        SpaceGeometry(k=3, tags=Tags.read(str(tmp_path / "tags.csv")))(
            *population(gaussian(20, 3), torch.arange(20) % 2), EXACT
        )


@pytest.mark.parametrize("most", [1 << 22, 50])
def test_strangers_are_the_nearest_of_other_groups(monkeypatch, most):
    monkeypatch.setattr(geometry_population, "MOST", most)
    codes, _, _, slides = grouped()
    near = geometry_population.nearest_strangers(points(unit(codes)), 4, slides)
    distances = torch.cdist(unit(codes), unit(codes))
    distances[torch.from_numpy(slides[:, None] == slides)] = torch.inf
    assert near.tolist() == distances.argsort(1)[:, :4].tolist()


@pytest.mark.slow
def test_the_interval_of_the_robustness_index_covers_it_where_tiles_share_a_slide(tmp_path):
    """The truth is the mean over many draws of slides; as if tiles were independent, the interval holds it too rarely."""
    found, alone = [], []
    for seed in range(60):
        codes, labels, centres, slides = grouped(seed)
        generator = torch.Generator().manual_seed(seed)
        codes = codes + torch.randn(24, 8, generator=generator, dtype=torch.float64)[torch.from_numpy(slides)]
        near = geometry_population.nearest_strangers(points(unit(codes)), 5, slides)
        values = robustness_index(near, labels, centres)
        found.append((values.mean(), *group_mean_interval(values, slides, None)))
        alone.append(skewed_interval(values))
    truth = np.mean([value for value, _, _ in found])
    assert sum(low <= truth <= high for _, low, high in found) >= 52
    assert sum(low <= truth <= high for low, high in alone) < 50, "vacuous: tiles are as good as independent"


@pytest.mark.parametrize("per_group", [1, 4])
def test_margins_are_those_of_a_plain_search(per_group):
    rng = np.random.default_rng(per_group)
    groups = np.arange(120) // per_group
    labels, tags = rng.integers(0, 3, 120)[groups], rng.integers(0, 2, 120)[groups]
    codes = rng.normal(size=(3, 5))[labels] + rng.normal(size=(2, 5))[tags] + 0.5 * rng.normal(size=(120, 5))
    units = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    expected = np.full(120, np.nan)
    for i in range(120):
        near: dict[bool, list[float]] = {True: [], False: []}
        for j in range(120):
            if groups[i] != groups[j] and (labels[i] == labels[j]) != (tags[i] == tags[j]):
                near[bool(labels[i] == labels[j])].append(1 - units[i] @ units[j])
        if min(len(near[True]), len(near[False])) >= NEAREST:
            right, wrong = (np.mean(sorted(near[kind])[:NEAREST]) for kind in (True, False))
            expected[i] = (wrong - right) / (wrong + right)
    np.testing.assert_allclose(margins(torch.tensor(units), labels, tags, groups), expected, atol=1e-12)
    assert np.isfinite(expected).any(), "vacuous fixture"


def test_margins_tell_a_label_from_a_tag(tmp_path):
    rng = np.random.default_rng(0)
    labels, tags = np.arange(200) % 2, np.arange(200) // 2 % 2
    (tmp_path / "tags.csv").write_text("\n".join(f"{k},{tag}" for k, tag in enumerate(tags)))
    for leads, sign, share in ((labels, 1, 0.0), (tags, -1, 1.0)):
        codes = torch.tensor(4 * np.eye(6)[leads] + 0.1 * rng.normal(size=(200, 6)), dtype=torch.float32)
        found = SpaceGeometry(tags=Tags.read(str(tmp_path / "tags.csv")))(
            *population(codes, torch.tensor(labels)), EXACT
        )
        margin = found.estimate("tag_margin")
        assert min(margin.low * sign, margin.high * sign) > 0
        assert found.estimate("tag_led_share").value == share


def test_a_file_of_tags_may_have_an_at_in_its_path(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    file = tmp_path / "a@b" / "tags.csv"
    file.write_text("1,red\n2,blue\n")
    tags = Tags.read(str(file))
    assert tags.path == str(file)
    assert Tags.read(str(tags)) == tags
    file.write_text("1,red\n2,red\n")
    with pytest.raises(HoldfastError, match="no longer those"):
        Tags.read(str(tags))
