"""What one device computes another confirms: run with ``--device cuda`` where there is a GPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation
from holdfast.training.learner import training_objectives
from tests.test_laws import COUNT, builtin, digits, every, measure, same
from tests.training import tiny

VIEWS = "random-resized-crop:scale_min=0.25 + horizontal-flip"
ADVERSARIES = ["untargeted", "targeted", "loss", "noise:sigma=0.1", "certified:ball=linf:0.02,negatives=4",
               "spade-guided:ball=linf:0.05"]  # fmt: skip


@pytest.fixture(autouse=True)
def _present(device: str) -> None:
    if device == "cpu":
        pytest.skip("compares a GPU with the CPU: give --device cuda")


@every
def test_devices_agree(evaluation: Evaluation, device: str) -> None:
    here = measure(evaluation, builtin(), digits(COUNT), RunSettings(precision="float64"))
    there = measure(evaluation, builtin(), digits(COUNT), RunSettings(precision="float64", device=device))
    assert same(here, there, 1e-6)


@every
def test_batch_size_changes_nothing_there_either(evaluation: Evaluation, device: str) -> None:
    whole = measure(evaluation, builtin(), digits(COUNT), RunSettings(precision="float64", device=device))
    parts = measure(evaluation, builtin(), digits(COUNT), RunSettings(precision="float64", device=device, batch_size=3))
    assert same(whole, parts, 1e-6)


def test_memory_that_runs_out_halves_the_batch(device: str) -> None:
    """A batch that cannot fit is cut until it does, and every row comes back once."""
    limit = torch.cuda.get_device_properties(device).total_memory // 3

    def hungry(rows: Sequence[int]) -> dict[str, torch.Tensor]:
        chosen = list(rows)
        scratch = torch.empty(len(chosen) * limit, dtype=torch.uint8, device=device)
        return {"row": torch.tensor(chosen) + 0 * scratch[:1].long().cpu()}

    seen = RunSettings(device=device, batch_size=8).batches(range(8), hungry)
    assert seen["row"].tolist() == list(range(8))


def trained(device: str, **recipe: Any) -> dict[str, Tensor]:
    """The weights that a short training in float64 leaves."""
    torch.manual_seed(0)
    pixels = torch.rand(tiny.SAMPLES, 3, 16, 16)
    images = hf.Images(pixels, labels=torch.arange(tiny.SAMPLES) % tiny.CLASSES)
    common = {"batch": 8, "epochs": 2, "precision": "float64", "augmentation": VIEWS, "optimiser": "sgd:rate=0.01"}
    vit = recipe["objective"].startswith("mae")
    start = None if vit else hf.Encoder(tiny.Convolutions(), "tiny", hf.Domain((3, 16, 16)))
    shape = {"architecture": "small-vit:width=16,depth=1,heads=2" if vit else "encoder:tiny"}
    made = hf.train({**common, **shape, **recipe}, images, start=start, device=device, progress=False)
    return {name: value.cpu() for name, value in made.module.state_dict().items()}


@pytest.mark.parametrize("name", sorted(training_objectives()))
def test_training_takes_the_same_steps(name: str, device: str) -> None:
    objective = str(tiny.small(training_objectives()[name]()))
    here, there = (trained(each, objective=objective) for each in ("cpu", device))
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_adversaries_make_the_same_views(adversary: str, device: str) -> None:
    here, there = (trained(each, objective="simclr", adversary=adversary) for each in ("cpu", device))
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("how", [{"eps": 0.05}, {"noise": 0.1}, {"eps": 0.02, "certified": True}])
def test_hardening_ends_where_it_does_here(how: dict[str, Any], device: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    start = hf.Encoder(module.eval(), "start", hf.Domain((3, 32, 32)))
    generator = torch.Generator().manual_seed(0)
    images = hf.Images(
        (torch.rand(40, 3, 1, 1, generator=generator) + torch.rand(40, 3, 32, 32, generator=generator)) / 2
    )
    settings = {"precision": "float64", "epochs": 12}  # so many that images are cropped
    here, there = (
        hf.harden(start, images, **how, rate=1e-5, settings=settings, device=each, workers=1, progress=False)
        for each in ("cpu", device)
    )
    assert there.agreement == pytest.approx(here.agreement, rel=1e-4)
    assert {result.evaluation for result in there.run} == {result.evaluation for result in here.run}


def test_training_goes_on_from_its_checkpoint_there(device: str, tmp_path: Path) -> None:
    recipe = {
        "objective": "simclr",
        "architecture": "cnn-a",
        "augmentation": "rvcl-mnist-view",
        "batch": 8,
        "epochs": 1,
    }
    images = hf.Images(torch.rand(16, 1, 28, 28))
    hf.train(recipe, images, out=tmp_path / "made", device=device, progress=False)
    made = hf.train(recipe, images, out=tmp_path / "made", device=device, progress=False)
    assert made(torch.zeros(1, 1, 28, 28)).device.type == "cpu"


def test_attacked_images_are_the_same(device: str) -> None:
    here, there = (
        hf.attack(builtin(), digits(COUNT), hf.Linf(0.1), precision="float64", device=each, progress=False)
        for each in ("cpu", device)
    )
    torch.testing.assert_close(there.codes.cpu(), here.codes.cpu(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", ["crown", "alpha:steps=5", "branch:rounds=2"])
def test_certificates_are_the_same(method: str, device: str) -> None:
    how: dict[str, Any] = {"eps": 0.05, "limit": 2, "negatives": 3, "precision": "float64", "method": method}
    here, there = (hf.certify(builtin(), digits(COUNT), **how, device=each, progress=False) for each in ("cpu", device))
    for one, other in zip(here.certificates, there.certificates, strict=True):
        assert (one.id, one.status, one.negative) == (other.id, other.status, other.negative)
        assert one.bound == pytest.approx(other.bound, rel=1e-3, abs=1e-4)


def test_exact_radii_are_the_same(device: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3))
    encoder = hf.Encoder(module, "small", hf.Domain((1, 8, 8)))
    how: dict[str, Any] = {"eps": 0.05, "limit": 2, "negatives": 2, "precision": "float64", "method": "exact"}
    here, there = (hf.certify(encoder, digits(COUNT), **how, device=each, progress=False) for each in ("cpu", device))
    for one, other in zip(here.certificates, there.certificates, strict=True):
        assert (one.id, one.status) == (other.id, other.status)
        assert one.bound == pytest.approx(other.bound, rel=1e-4, abs=1e-6)


def test_an_encoder_that_lies_there_already_is_measured_there(device: str) -> None:
    """With its normalisation, and beside images that lie there, too."""
    module = tiny.Convolutions().eval()
    here, there = (
        hf.Encoder(part, "tiny", tiny.DOMAIN, mean=(0.5,) * 3, std=(0.2,) * 3)
        for part in (module, copy.deepcopy(module).to(device))
    )
    pixels = torch.rand(8, *tiny.DOMAIN.shape)
    torch.testing.assert_close(there(pixels.to(device)).cpu(), here(pixels), rtol=1e-4, atol=1e-5)
    made = hf.train(
        {"objective": "simclr", "architecture": "encoder:tiny", "batch": 4, "epochs": 1},
        hf.Images(pixels.to(device)),
        start=here,
        device=device,
        progress=False,
    )
    assert made(pixels).isfinite().all()


def test_smoothing_certifies_the_same(device: str) -> None:
    how: dict[str, Any] = {"method": "smoothing:sigma=0.25", "limit": 2, "negatives": 3, "precision": "float64"}
    here, there = (
        hf.certify(builtin(), digits(COUNT), hf.L2(0.2), **how, device=each, progress=False) for each in ("cpu", device)
    )
    for one, other in zip(here.certificates, there.certificates, strict=True):
        assert (one.id, one.status) == (other.id, other.status)
        assert one.bound == pytest.approx(other.bound, abs=0.02)  # noise is computed in float32


def test_what_looks_at_an_encoder_looks_there_too(device: str) -> None:
    assert all(check.status != "failed" for check in hf.doctor(builtin(), device=device))
    moved = digits(40)
    darker = hf.Images(moved.pixels(range(20, 40)) / 3, moved.ids[20:40])
    for after in (moved[range(20, 40)], darker):  # a change that is shown is explained by edits as well
        assert hf.drift(moved[range(20)], after, builtin(), device=device, progress=False).result.estimates
    assert hf.parity(builtin(), builtin(), moved, device=device, progress=False)
    assert hf.threshold(builtin(), moved, eps=0.05, device=device, progress=False)
