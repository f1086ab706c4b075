"""A bank: searched instead of the measured images, apart from them, part of keys and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.attacks.attacked_codes import Untargeted
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.core.divergences import Cosine, Divergence, L2Distance, Rank
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.core.points.counting import crossings, nearest_rows
from holdfast.core.run_settings import RunSettings
from holdfast.data import load
from holdfast.measure import bank as module
from holdfast.measure.bank import alongside, apart
from holdfast.measure.observation import Joint
from holdfast.measure.population import Population
from holdfast.run.request import Request, build, planned
from tests import tiny
from tests.facts import refused, warned

FEW = {"samples": 8, "divergences": "l2", "attacks": "pgd:steps=3", "pairwise": "adaptive:restarts=1,steps=3"}


def pixels(count: int, seed: int) -> Tensor:
    return torch.rand(count, 1, 2, 2, generator=torch.Generator().manual_seed(seed))


def bank(count: int = 50) -> Images:
    return Images(pixels(count, 9), [f"bank{k}" for k in range(count)], name="a bank")


@pytest.mark.parametrize("divergence", [L2Distance(), Cosine(), Rank()], ids=str)
def test_counts_in_a_bank_are_those_of_the_definition(divergence: Divergence) -> None:
    own, held = pixels(12, 1).flatten(1).double(), pixels(90, 2).flatten(1).double()
    moved = own + 0.3 * torch.randn(own.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    distance = torch.stack([divergence(code.expand_as(held), held) for code in moved])
    closer = distance < divergence(moved, own)[:, None] * (1 - 1e-10)
    counts, passed = crossings(divergence, moved, torch.full((12,), -1), held, own)
    assert torch.equal(counts, closer.sum(1))
    assert torch.equal(passed, closer.sum(0))
    assert 0 < counts.sum() < closer.numel(), "vacuous"


def test_breakaway_searches_the_bank_and_counts_its_copies_once() -> None:
    twice = Images(torch.cat([bank().source.read(range(50))] * 2), name="a bank twice")
    evaluation = build(Breakaway, {"balls": "linf:0.2", **FEW})
    once = evaluation(tiny.encoder(), tiny.images(), RunSettings(), bank())
    assert once.estimates == evaluation(tiny.encoder(), tiny.images(), RunSettings(), twice).estimates
    population = Population(tiny.encoder(), tiny.images(), RunSettings())
    joint = evaluation.observation()
    assert isinstance(joint, Joint)
    untargeted = joint.parts[0]
    assert isinstance(untargeted, Untargeted)
    rows = untargeted.rows(population)
    moved = untargeted.observe(population, rows)["0.codes"].double()
    held = population.encode(bank().pixels(range(50))).double()
    own = (moved - population.codes[rows].double()).norm(dim=1)
    expected = (torch.cdist(moved, held) < own[:, None]).double().mean()
    assert once.estimate("breakaway_risk").value == pytest.approx(float(expected))
    assert 0 < expected < 1, "vacuous"


def test_rivals_come_from_the_bank() -> None:
    codes, held = pixels(5, 1).flatten(1), pixels(3, 2).flatten(1)
    assert torch.equal(nearest_rows(L2Distance(), codes, held, 9).sort(1).values, torch.arange(3).expand(5, 3))
    assert torch.equal(nearest_rows(L2Distance(), codes, held, 1)[:, 0], torch.cdist(codes, held).argmin(1))


def test_the_bank_is_part_of_the_record_and_of_the_protocol() -> None:
    evaluation = build(Breakaway, {"balls": "linf:0.2", **FEW})
    without = evaluation(tiny.encoder(), tiny.images(), RunSettings())
    searched = evaluation(tiny.encoder(), tiny.images(), RunSettings(), bank())
    other = evaluation(tiny.encoder(), tiny.images(), RunSettings(), bank(49))
    assert without.bank is None
    assert "bank" not in without.settings
    assert searched.bank is not None
    assert (searched.bank.name, searched.bank.count) == ("a bank", 50)
    assert len({str(cell.settings) for cell in (without, searched, other)}) == 3


def test_copies_of_measured_images_leave_the_bank() -> None:
    images = tiny.images()
    held = Images(torch.cat([images.pixels([3]), pixels(4, 5), images.pixels([7])]), name="leaky")
    with warned(HoldfastWarning, "2 of 6", "leaky", "copies"):
        assert apart(held, images).ids == ("1", "2", "3", "4")
    with refused(HoldfastError, "20 images", "among"):
        apart(images, images)


def test_two_sets_to_compare_keep_their_copies() -> None:
    levels = torch.randint(0, 256, (5, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before, after = Images(levels[[0, 0, 1, 2]]), Images(levels[[0, 1, 1, 2]])
    assert alongside(before, after).ids == before.ids
    for same in (levels[[2, 0, 1, 0]], levels[[2, 0, 1, 0]] / 255):
        with pytest.raises(HoldfastError, match="the same 4 images"):
            alongside(before, Images(same))


def test_copies_stored_in_another_form_leave_the_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture is one picture as a file, in an array of bytes, and as floats."""
    from PIL import Image

    levels = torch.randint(0, 256, (5, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for place in (1, 3):
        Image.fromarray(levels[place].permute(1, 2, 0).numpy()).save(tmp_path / f"{place}.png")
    files = load(str(tmp_path), Domain((3, 6, 6)))
    for stored in (levels, levels / 255, (levels / 255).half()):
        with pytest.warns(HoldfastWarning, match="2 of 5 images of .* are copies"):
            assert apart(Images(stored), files).ids == ("0", "2", "4")
    with pytest.warns(HoldfastWarning, match="1 of 2 images"):
        assert apart(files, Images((levels / 255)[[3, 4]])).ids == ("1.png",)
    near = Images(levels / 255 + 0.001)  # floats beside floats say more than 8 bits, and are other pictures
    assert len(apart(near, Images(levels / 255))) == 5
    monkeypatch.setattr(module, "MOST_COMPARED", 100)  # of larger sets only what is stored alike is known
    assert len(apart(Images(levels), files)) == 5


def test_classes_of_one_name_have_one_number() -> None:
    images = Images(pixels(3, 0), labels=torch.tensor([0, 1, 1]), classes=["cat", "fox"])
    held = Images(pixels(4, 1), labels=torch.tensor([0, 1, 2, 2]), classes=["ant", "cat", "fox"])
    found = apart(held, images)
    assert found.labels is not None
    assert [found.classes[label] for label in found.labels.tolist()] == ["ant", "cat", "fox", "fox"]
    assert found.labels.tolist() == [2, 0, 1, 1]
    unknown = Images(held.pixels(range(4)), labels=torch.tensor([0, -1, 2, 2]), classes=held.classes)
    with pytest.raises(HoldfastError, match=r"must be in 0..2, .* got values from -1 to 2"):
        apart(unknown, images)  # -1 would be read as the last class


@pytest.mark.slow
def test_runs_with_a_bank_keep_it_apart_and_resume(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "only": "breakaway",
        "limit": 20,
        "eps": "0.1",
        "settings": {"breakaway": {**FEW, "samples": 6}},
    }
    images, train, out = "builtin:digits", "builtin:digits-train", tmp_path / "run"
    without = hf.evaluate("builtin:digits-random", images, **asked, out=out)
    searched = hf.evaluate("builtin:digits-random", images, bank=train, **asked, out=out)
    again = hf.evaluate("builtin:digits-random", images, bank=hf.load_images(train, tiny_digits()), **asked, out=out)
    assert searched["breakaway"].bank is not None
    assert searched["breakaway"].bank.count == 1200
    assert searched["breakaway"].findings != without["breakaway"].findings
    assert again["breakaway"].model_dump_json() == searched["breakaway"].model_dump_json()


def tiny_digits() -> hf.Encoder:
    return hf.load_encoder("builtin:digits-random")


def test_a_bank_that_nothing_uses_is_refused() -> None:
    with refused(HoldfastError, "changes", "displacement"):
        planned(Request(only=("displacement",), bank="builtin:digits-train"))
