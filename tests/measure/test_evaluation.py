"""What every evaluation builds on: populations, joint observations, results that say what they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.core.balls import Ball, Linf
from holdfast.core.divergences import Cosine, L2Distance, Whitened
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Result
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.measure.evaluation import plain, settings
from holdfast.measure.observation import Joint, Observation, joined
from holdfast.measure.population import Population, represent
from tests.facts import refused
from tests.tiny import Mean, encoder, images


def population(count: int = 20, **run: Any) -> Population:
    return Population(encoder(), images(count), RunSettings(**run))


def flipped(count: int = 20, **run: Any) -> Population:
    return Population(encoder(), images(count)[range(count - 1, -1, -1)], RunSettings(**run))


def names(of: Population, rows: Sequence[int]) -> list[str]:
    return [of.images.ids[row] for row in rows]


@given(count=st.integers(1, 30), chosen=st.integers(1, 40))
def test_the_same_samples_are_chosen_in_any_order(count: int, chosen: int):
    rows, mirrored = population(count).choose(chosen), flipped(count).choose(chosen)
    assert rows == sorted(set(rows))
    assert len(rows) == min(count, chosen)
    assert set(names(population(count), rows)) == set(names(flipped(count), mirrored))


def test_another_seed_chooses_other_samples_and_more_are_a_superset():
    chosen = population().choose(8)
    assert chosen != population(seed=1).choose(8)
    assert set(chosen) < set(population().choose(9))
    assert chosen != list(range(8)), "vacuous fixture"


@given(count=st.integers(2, 30))
def test_every_image_is_the_partner_of_one_other(count: int):
    partners = population(count).partners.tolist()
    assert sorted(partners) == list(range(count))
    assert all(partner != row for row, partner in enumerate(partners))


def test_partners_are_the_same_in_any_order_and_others_for_another_seed():
    def pairs(of: Population) -> dict[str, str]:
        return dict(zip(of.images.ids, names(of, of.partners.tolist()), strict=True))

    assert pairs(population()) == pairs(flipped())
    assert pairs(population()) != pairs(population(seed=1)), "vacuous fixture"


def test_one_image_has_no_partner():
    with refused(HoldfastError, "pairs", "one image"):
        _ = population(1).partners


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_codes_are_those_of_the_encoder_in_the_order_of_the_images(batch_size: int):
    found = population(batch_size=batch_size).codes
    torch.testing.assert_close(found, encoder()(images().pixels(range(20))))
    assert population(precision="float64").codes.dtype == torch.float64


def test_codes_that_are_given_are_not_computed_again():
    known = torch.ones(20, 2)
    assert torch.equal(Population(encoder(), images(), RunSettings(), known).codes, known)


class Fails(nn.Module):
    """Codes that are not finite for dark images."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat.where(flat.sum(1, keepdim=True) > 0, torch.nan)


def test_the_image_without_finite_codes_is_named():
    pixels = torch.rand(10, 1, 2, 2) + 0.1
    pixels[7] = 0
    dark = Images(pixels.clamp(0, 1), [f"photo-{k}" for k in range(10)])
    broken = Encoder(Fails(), "broken", Domain((1, 2, 2)))
    for batch_size in (3, 100):
        with refused(HoldfastError, "NaN", "'photo-7'", "embeddings"):
            _ = Population(broken, dark, RunSettings(batch_size=batch_size)).codes
    assert represent(broken, dark, [6, 8], RunSettings()).shape == (2, 4)


def test_images_out_of_range_or_of_another_shape_are_refused_by_name():
    wrong = Images(torch.full((4, 1, 2, 2), 7.0), ["a", "b", "c", "d"])
    with refused(HoldfastError, "[0, 1]", "7 to 7", "'a'", "finite"):
        _ = Population(encoder(), wrong, RunSettings()).codes
    large = Images(torch.zeros(4, 1, 3, 3), ["a", "b", "c", "d"])
    with refused(HoldfastError, "(batch, 1, 2, 2)", "(1, 1, 3, 3)", "'c'", "shape"):
        Population(encoder(), large, RunSettings()).pixels([2])


def test_a_scene_holds_its_rows_and_their_noise():
    seen = population(seed=4)
    context = seen.context([3, 1], targets=[0, 2])
    assert torch.equal(context.pixels, seen.images.pixels([3, 1]))
    assert context.target_pixels is not None
    assert torch.equal(context.target_pixels, seen.images.pixels([0, 2]))
    assert torch.equal(context.noise.keys, RunSettings(seed=4).noise(["image3", "image1"]).keys)
    torch.testing.assert_close(context.codes, seen.codes[[3, 1]])
    torch.testing.assert_close(context.targets, seen.codes[[0, 2]])
    with pytest.raises(HoldfastError, match="needs target images"):
        _ = seen.context([3]).targets


def test_divergences_learn_from_the_clean_codes_once():
    seen = population()
    fitted = seen.fitted(Whitened())
    assert seen.fitted(Whitened()) is fitted
    assert seen.fitted(Whitened(0.5)) is not fitted
    a, b = seen.codes[:5], seen.codes[5:10]
    torch.testing.assert_close(fitted(a, b), Whitened().fit(seen.codes)(a, b))
    assert seen.fitted(L2Distance()) == L2Distance()


@final
@dataclass(frozen=True)
class Power(Observation):
    """Sums of codes to a power."""

    exponent: float
    count: int = 6
    name = "power"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return population.choose(self.count)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {"sum": population.codes[list(rows)].sum(1) ** self.exponent}


def test_a_joint_observation_is_its_parts():
    seen, parts = population(), (Power(1.0), Power(2.0))
    joint = Joint(parts)
    rows = joint.rows(seen)
    assert rows == parts[0].rows(seen)
    found = joint.observe(seen, rows)
    assert set(found) == {"0.sum", "1.sum"}
    for k, part in enumerate(parts):
        assert torch.equal(found[f"{k}.sum"], part.observe(seen, rows)["sum"])
    assert not torch.equal(found["0.sum"], found["1.sum"]), "vacuous fixture"
    again = joined([part.observe(seen, rows) for part in parts])
    assert all(torch.equal(found[name], again[name]) for name in found)
    for part in (Power(2.0), Power(1.0)):
        assert torch.equal(joint.of(part, found)["sum"], part.observe(seen, rows)["sum"])
    with pytest.raises(AssertionError, match=r"has no part .*3\.0"):
        joint.of(Power(3.0), found)


def test_parts_that_look_at_different_samples_are_not_joined():
    with refused(AssertionError, "different rows"):
        Joint((Power(1.0), Power(1.0, count=7))).rows(population())


def values(result: Result) -> dict[str, float]:
    return dict(zip(result.findings.ids, result.series[0].values, strict=True))


def test_results_ignore_order_and_batches():
    measured = Mean()(encoder(), images())
    mirrored = Mean()(encoder(), images()[range(19, -1, -1)], RunSettings(batch_size=3))
    assert values(measured) != values(Mean()(encoder(), images(), RunSettings(seed=1))), "vacuous fixture"
    assert values(mirrored) == values(measured)


def test_a_result_says_what_it_measured():
    run = RunSettings(seed=5, precision="float64")
    found, on, of = Mean(factor=3.0)(encoder("net"), images(), run), images(), encoder("net")
    assert (found.evaluation, found.version, found.title, found.headline) == ("mean", 1, "Mean", ("mean",))
    assert found.encoder.model_dump() == {
        "name": "net",
        "source": "python",
        "fingerprint": of.fingerprint,
        "parameters": 1,
        "features": 4,
        "inputs": of.inputs,
        "warnings": (),
    }
    assert found.images.model_dump() == {
        "name": "tiny images",
        "fingerprint": on.fingerprint,
        "count": 20,
        "skipped": (),
    }
    assert found.settings["factor"] == 3
    assert (found.settings["seed"], found.settings["precision"]) == (5, "float64")
    assert found.findings.pictures == ()


@final
@dataclass(frozen=True)
class Many(Observation):
    """Settings of every kind."""

    balls: tuple[Ball, ...] = (Linf(8 / 255),)
    divergence: Cosine = Cosine()
    nested: tuple[tuple[int, ...], ...] = ((1, 2), ())
    limit: float | None = None
    exact: bool = True
    label: str = "x"
    name = "many"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return []

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return {}


def test_settings_are_json_values_in_their_text_form():
    assert settings(Many()) == {
        "balls": ["linf:8/255"], "divergence": "cosine", "nested": [[1, 2], []], "limit": None, "exact": True,
        "label": "x",
    }  # fmt: skip


def test_settings_of_numpy_are_json_values(unchecked: None):
    values = [np.int64(3), np.float32(0.5), np.bool_(True)]
    assert json.dumps([plain(value) for value in values]) == "[3, 0.5, true]"
