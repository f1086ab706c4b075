"""Patch retrieval against a search written as loops, and what dense codes make of the other evaluations."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.attacks.evaluations.overlap import Overlap
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.divergences import Cosine, Divergence, L2Distance, Tokens, Whitened
from holdfast.core.encoder import Dense, Domain, Encoder
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.images import Images
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.groups import group_mean_interval
from holdfast.core.statistics.intervals import bounded_interval
from holdfast.encoders.architectures.vit import PatchTokens, SmallViT, VisionTransformer
from holdfast.encoders.wrappers import seeded
from holdfast.geometry.evaluations.patch_retrieval import ALL, IMAGE, Gallery, PatchRetrieval, faded_outside
from holdfast.measure.population import Population
from tests import samples
from tests.facts import refused

TOKENS = 16
DOUBLE = RunSettings(precision="float64")
ATTACK = AdaptiveAttack(restarts=1, steps=5)
SMALL = PatchRetrieval(
    balls=(Linf(0.02), Linf(0.2)), attacks=(ATTACK,), edits=("brightness", "noise"), searched=6, samples=8
)


def dense(seed: int = 0) -> Encoder:
    """An untrained vision transformer of 16 patches."""
    network = seeded(lambda: SmallViT(patch=2, width=12, depth=1, heads=2).build(Domain((1, 8, 8))), seed)
    assert isinstance(network, VisionTransformer)
    return Encoder(Dense(PatchTokens(network), TOKENS).eval(), "dense", samples.DIGITS).to("cpu", torch.float64)


def values(result: Result, quantity: str, **conditions: str) -> list[float]:
    (series,) = [s for s in result.series if s.quantity == quantity and conditions.items() <= s.conditions.items()]
    return list(series.values)


def searched_slowly(
    divergence: Divergence, moved: Tensor, clean: Tensor, row: int, gallery: list[int]
) -> tuple[float, float]:
    """The definition: each patch against every other, one at a time."""
    tokens = clean.unflatten(1, (TOKENS, -1))
    home = everywhere = 0
    for t, patch in enumerate(moved.unflatten(0, (TOKENS, -1))):
        own = divergence(patch[None], tokens[row, t][None]).item()
        others = {(image, s) for image in {row, *gallery} for s in range(TOKENS)} - {(row, t)}
        apart = {place: divergence(patch[None], tokens[place][None]).item() for place in others}
        home += all(own < distance for (image, _), distance in apart.items() if image == row)
        everywhere += all(own < distance for distance in apart.values())
    return home / TOKENS, everywhere / TOKENS


@pytest.mark.parametrize("divergence", [Cosine(), L2Distance()], ids=str)
def test_patches_found_are_those_of_a_search_by_loops(divergence: Divergence):
    population = Population(dense(), samples.digits(9), DOUBLE)
    gallery, rows = Gallery.of(population, divergence, 4), [0, 3, 5, 8]
    noise = torch.randn(4, population.codes.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = population.codes[rows] + 0.5 * noise
    found = gallery.shares_found(moved, rows)
    assert set(rows) - set(gallery.images), "vacuous: no image from elsewhere"
    assert set(rows) & set(gallery.images)
    slow = [
        searched_slowly(divergence, moved[k], population.codes, row, list(gallery.images)) for k, row in enumerate(rows)
    ]
    assert found["image"].tolist() == [home for home, _ in slow]
    assert found["all"].tolist() == [everywhere for _, everywhere in slow]
    assert 0 < found["all"].mean() < found["image"].mean() < 1, "vacuous fixture"


def test_a_bank_is_what_is_searched_beside_the_image():
    bank = Population(dense(), samples.digits(5, 1300), DOUBLE)
    population = Population(dense(), samples.digits(3), DOUBLE, bank=bank)
    gallery = Gallery.of(population, Cosine(), 5)
    moved = bank.codes[[0, 1, 2]]
    assert gallery.shares_found(moved, [0, 1, 2])["all"].tolist() == [0, 0, 0]  # each lies on an image of the bank
    assert gallery.shares_found(population.codes, [0, 1, 2])["all"].tolist() == [1, 1, 1]


def test_attacks_lose_patches_and_clean_ones_are_all_found():
    result = SMALL(dense(), samples.digits(12), DOUBLE)
    near, far = (values(result, "patches_found", ball=ball, among=ALL) for ball in ("linf:0.02", "linf:0.2"))
    assert values(result, "clean_patches_found", among=ALL) == [1] * 8
    assert np.mean(far) < np.mean(near) <= 1
    home = values(result, "patches_found", ball="linf:0.2", among=IMAGE)
    assert all(inside >= everywhere for inside, everywhere in zip(home, far, strict=True))
    assert 0 < np.mean(values(result, "edited_patches_found", edit="brightness", among=ALL)) <= 1
    assert not result.findings.warnings


def test_pictures_show_which_patches_were_lost():
    result = SMALL(dense(), samples.digits(12), DOUBLE)
    shares = dict(zip(result.findings.ids, values(result, "patches_found", ball="linf:0.2", among=ALL), strict=True))
    assert len({picture.caption for picture in result.findings.pictures}) == 6
    assert all(picture.labels[2] == "lost patches, others faded" for picture in result.findings.pictures)
    for picture in result.findings.pictures:
        clean, _, faded = (np.asarray(Image.open(BytesIO(b64decode(png))), dtype=float) for png in picture.pngs)
        patches = [part.reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(16, -1) for part in (clean, faded)]
        kept = sum((before != after).any() for before, after in zip(*patches, strict=True))
        # A patch in mid-grey is no paler when it is faded; digits have none.
        assert kept == round(TOKENS * shares[picture.caption.partition(":")[0]])


def test_patches_that_are_no_grid_are_not_faded():
    pixels = torch.rand(2, 1, 8, 8)
    assert faded_outside(pixels, torch.ones(2, 15, dtype=torch.bool), samples.DIGITS) is None
    assert faded_outside(pixels, torch.ones(2, 2, dtype=torch.bool), samples.DIGITS) is None
    everything = faded_outside(pixels, torch.ones(2, 16, dtype=torch.bool), samples.DIGITS)
    assert everything is not None
    assert torch.allclose(everything, pixels)


def test_intervals_are_those_of_images_not_of_patches():
    result = SMALL(dense(), samples.digits(12), DOUBLE)
    conditions = {"ball": "linf:0.2", "among": ALL}
    shares = np.array(values(result, "patches_found", **conditions))
    (estimate,) = [
        e for e in result.estimates if e.quantity == "patches_found" and conditions.items() <= e.conditions.items()
    ]
    patches = np.concatenate([np.arange(TOKENS) < round(share * TOKENS) for share in shares]).astype(float)
    images = np.repeat(np.arange(len(shares)), TOKENS)
    assert estimate.value == pytest.approx(patches.mean())
    clustered = group_mean_interval(patches, images, (0.0, 1.0))
    assert (estimate.low, estimate.high) == pytest.approx(clustered, abs=0.005)  # both are drawn
    alone = bounded_interval(patches, (0.0, 1.0))
    assert estimate.high - estimate.low > 1.3 * (alone[1] - alone[0]), "as if patches were independent"


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), 4, 3, dtype=x.dtype) + 0 * x.sum()


def test_a_constant_encoder_finds_nothing():
    result = SMALL(Encoder(Dense(Constant(), 4), "constant", samples.DIGITS), samples.digits(12), DOUBLE)
    assert {value for series in result.series for value in series.values} == {0.0}
    assert result.findings.collapsed


def test_a_pooled_code_is_one_patch_and_that_is_said():
    result = SMALL(samples.doubled(samples.builtin()), samples.digits(12), DOUBLE)
    assert {series.conditions["among"] for series in result.series} == {ALL}
    assert "its only patch" in result.findings.warnings[-1]


def test_one_image_alone_has_its_own_patches():
    one = SMALL(dense(), samples.digits(1), DOUBLE)
    assert values(one, "clean_patches_found", among=ALL) == [1]


def test_divergences_that_are_not_taken_token_by_token_are_refused():
    with refused(HoldfastError, "tokens", "whitened"):
        PatchRetrieval(divergence=Whitened())
    with pytest.raises(HoldfastError, match=r"patch-retrieval\.edits.*'jpg'.*Did you mean"):
        PatchRetrieval(edits=("jpg",))


@pytest.mark.parametrize("kind", [Breakaway, Displacement, Overlap])
def test_other_evaluations_take_the_mean_over_tokens(kind: type[Breakaway] | type[Displacement] | type[Overlap]):
    """Under the encoder's own count, whatever path counts: embedded for cosine, the definition for l2."""
    evaluation = kind(
        balls=(Linf(0.1),), attacks=(GradientAttack(steps=3), ATTACK), divergences=(Tokens(), Tokens(L2Distance()))
    )
    if isinstance(evaluation, Breakaway):
        evaluation = replace(evaluation, pairwise=ATTACK)
    result = evaluation(dense(), samples.digits(10), DOUBLE)
    stated = replace(evaluation, divergences=(Tokens(Cosine(), TOKENS), Tokens(L2Distance(), TOKENS)))
    again = stated(dense(), samples.digits(10), DOUBLE)
    first, second = (np.array([series.values for series in each.series]) for each in (result, again))
    np.testing.assert_array_equal(first, second)
    assert {e.conditions["divergence"] for e in result.estimates if "divergence" in e.conditions} == {
        "tokens", "tokens:divergence=l2",
    }  # fmt: skip
    worst = replace(evaluation, divergences=(Tokens(statistic="worst"),))(dense(), samples.digits(10), DOUBLE)
    assert all(series.values for series in worst.series)
    whole = replace(evaluation, divergences=(Cosine(), L2Distance()))(dense(), samples.digits(10), DOUBLE)
    assert not np.array_equal([series.values for series in whole.series], first, equal_nan=True), "vacuous"


def test_the_count_of_tokens_is_part_of_the_fingerprint():
    module, domain = nn.Flatten(2), Domain((1, 4, 4))
    some, others = (
        Encoder(Dense(nn.Sequential(nn.Unfold(k, stride=k), module), 16 // k**2), "x", domain) for k in (1, 2)
    )
    assert (some.tokens, others.tokens, samples.builtin().tokens) == (16, 4, 1)
    assert some.fingerprint != others.fingerprint


def test_dense_codes_are_refused_where_there_are_none():
    with refused(OutOfRange, argument="tokens", got=0):
        Dense(nn.Flatten(), 0)
    pooled = Encoder(Dense(nn.Flatten(), 4), "flat", Domain((1, 2, 2)))
    with refused(HoldfastError, "4 tokens", "(1, 4, d)", "(1, 4)", "expected"):
        pooled(torch.zeros(1, 1, 2, 2))


def test_images_in_groups_have_intervals_of_groups():
    plain = samples.digits(12)
    grouped = Images(plain.pixels(range(12)), plain.ids, name="pairs", groups=[f"g{k // 2}" for k in range(12)])
    result = SMALL(dense(), grouped, DOUBLE)
    assert all("groups of images" in e.method for e in result.estimates if e.quantity == "patches_found")
