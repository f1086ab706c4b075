"""Claims on trainings under change: what is compared with what, and the images that an autoencoder makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from studies.claims import pretraining, robust_probes
from studies.claims.generated import generated
from studies.claims.material import Material
from studies.claims.pretraining import Trainings
from studies.pretraining.cases import Case
from studies.pretraining.under_change import Study

import holdfast as hf
from holdfast.probes.linear import Linear, RobustProbe

MATERIAL = Material(Path("reference"), None, Path("work"))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervised encoders lose a quarter of 0.8 and contrastive ones half, a little more with each seed."""

    def right(self: Trainings, case: Case, seed: int, change: str = "") -> np.ndarray:
        if case.change or case.subset != "uniform":
            lost = (0.25 if case.objective == "supervised" else 0.5) + 0.01 * seed
            lost = 0.1 if case.order == "aug-corrupt" else lost
            assert change == case.change, "measured on images changed alike"
            return np.full(1000, 0.8 * (1 - lost))
        return np.full(1000, 0.8)

    monkeypatch.setattr(Trainings, "right", right)


@pytest.mark.usefixtures("answered")
def test_drops_are_relative_to_the_same_training_on_images_as_they_are() -> None:
    found = {(one.quantity, one.where): one for one in pretraining.corrupted(MATERIAL)}
    less = found["drop of contrastive less supervised", "MNIST, simclr"]
    assert less.value == pytest.approx(0.25)
    assert less.seeds == 10
    assert found["drop", "MNIST, supervised, gamma:0.2"].value == pytest.approx(0.295)
    assert found["accuracy", "MNIST, moco-v2, as they are"].value == pytest.approx(0.8)


@pytest.mark.usefixtures("answered")
def test_orders_and_subsets_are_compared_seed_by_seed() -> None:
    restored, *_ = pretraining.both_orders(MATERIAL)
    assert [row[0] for row in restored.columns[0]] == pytest.approx([0.4 + 0.01 * seed for seed in range(10)])
    less, *_ = pretraining.synthesised(MATERIAL)
    assert less.where == "MNIST, simclr"
    assert less.value == pytest.approx(-0.25)
    assert less.high < 0, "all seeds agree"


@pytest.mark.slow
def test_generated_images_look_like_their_class() -> None:
    labels = torch.arange(2).repeat(40)
    pixels = labels[:, None, None, None] * torch.ones(1, 4, 4) * 0.8 + 0.1
    images, made = generated(pixels, labels, count=5, epochs=150, seed=0)
    assert images.shape == (10, 1, 4, 4)
    assert made.tolist() == [0] * 5 + [1] * 5
    assert images[:5].mean() < 0.5 < images[5:].mean()
    again, _ = generated(pixels, labels, count=5, epochs=150, seed=1)
    assert not torch.equal(images, again)


def test_a_suggested_radius_of_zero_is_the_linear_probe() -> None:
    assert robust_probes.probe(0.0) == Linear()
    assert robust_probes.probe(0.2) == RobustProbe(hf.L2(0.2), epochs=3)


@pytest.mark.slow
def test_trainings_on_generated_images_run_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "SEEDS", range(1))
    shape = (8, 1, "base", "digits-view")
    study = Study("builtin:digits-train", "builtin:digits", tmp_path / "s", *shape, 1, 400, 60, 50, None)
    trainings = Trainings(Material(None, None, tmp_path), study)
    found = list(pretraining.less_by(trainings, "substituted", "generated images"))
    assert (tmp_path / "s" / "generated-0.npz").exists()
    assert all(0 <= one.value <= 1 for one in found if one.quantity == "accuracy")
    assert {"base, simclr, substituted, seed 0", "base, supervised, uniform, seed 0"} <= set(trainings.material.used)
