"""The built-in encoders load, match their cards, keep the promised order of robustness and can be made again."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import count
from pathlib import Path
from shutil import copytree
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import holdfast as hf
from holdfast.bounds import certified_radius
from holdfast.commands.train import PLACE
from holdfast.core.balls import Linf
from holdfast.core.encoder import Encoder
from holdfast.encoders import Options, builtin, load
from holdfast.encoders.architectures.plain import Digits
from holdfast.encoders.wrappers import seeded
from holdfast.training.recipe import Recipe, read_settings
from tests.facts import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def score() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return import_module("score_builtin")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("name", builtin.names())
def test_loading_twice_gives_the_same_encoder(name):
    encoder = load(f"builtin:{name}")
    assert encoder(torch.rand(3, 1, 8, 8)).shape == (3, 32)
    assert encoder.fingerprint == load(f"builtin:{name}").fingerprint
    assert (encoder.name, encoder.source) == (name, f"builtin:{name}")


def test_no_two_encoders_are_the_same():
    assert len({load(f"builtin:{name}").fingerprint for name in builtin.names()}) == len(builtin.names()) == 5


def test_parts_can_be_certified_completely():
    parts = [part for part in load("builtin:digits-robust").module.modules() if not isinstance(part, nn.Sequential)]
    assert {type(part) for part in parts} == {nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear}


@pytest.mark.parametrize("name", builtin.names())
def test_card_describes_its_folder(name):
    card, weights = builtin.card(name), (builtin.WEIGHTS / name / "encoder.safetensors").read_bytes()
    assert (card.name, card.architecture, card.domain) == (name, "digits", builtin.DOMAIN)
    assert card.weights_sha256 == sha256(weights).hexdigest()
    assert card.parameters == builtin.load(name).parameters


@pytest.mark.parametrize("name", builtin.NAMES[1:])
def test_card_says_what_the_recipe_of_its_name_does(name):
    values = {key: value for key, value in read_settings(name).items() if key not in PLACE}
    card = builtin.card(name)
    # Which mode was in force is written down since there is more than one.
    assert replace(Recipe.of(card.recipe), mode=None) == Recipe.of(values)
    assert (card.images.name, card.images.count) == ("builtin:digits-train", 1200)
    assert card.versions["dirty"] == "false"


def test_only_the_named_files_are_shipped_and_they_are_small():
    files = [file for file in builtin.WEIGHTS.rglob("*") if file.is_file()]
    shipped = {file.relative_to(builtin.WEIGHTS) for file in files}
    assert shipped == {Path(name, file) for name in builtin.names() for file in ("card.json", "encoder.safetensors")}
    assert sum(file.stat().st_size for file in files) < 1_000_000


def test_trained_encoders_are_accurate(score):
    least = {"digits-supervised": 0.95, "digits-contrastive": 0.93, "digits-robust": 0.9, "digits-certified": 0.85}
    untrained = score.accuracies(builtin.load("digits-random"))["neighbours_accuracy"]
    for name, accuracy in least.items():
        assert score.accuracies(builtin.load(name))["neighbours_accuracy"] >= accuracy > untrained


def test_adversarial_training_shows(score):
    scores = {name: score.robustness(builtin.load(name), Linf(0.1), steps=10) for name in builtin.TOUR}
    robust = scores.pop("digits-robust")
    for other in scores.values():
        assert robust["displacement"] < 0.6 * other["displacement"]
        assert robust["own_neighbour"] > other["own_neighbour"] + 0.4
        assert robust["attacked_neighbours_accuracy"] > other["attacked_neighbours_accuracy"]


@pytest.mark.slow
def test_documented_numbers_are_those_of_the_shipped_encoders(score):
    documented = _numbers((ROOT / "docs/encoders.md").read_text())
    measured = _numbers(score.table())
    assert documented.keys() == measured.keys() > set(builtin.names())
    for name, row in measured.items():
        assert documented[name] == pytest.approx(row, abs=0.01), name


def test_the_untrained_encoder_is_its_architecture_seeded():
    module = seeded(partial(Digits().build, builtin.DOMAIN), 0)
    assert Encoder(module, "untrained", builtin.DOMAIN).fingerprint == builtin.load("digits-random").fingerprint


def test_nearly_all_of_what_attacks_leave_of_the_certified_encoder_is_proved_in_one_pass():
    pixels = hf.load_images("builtin:digits", builtin.load("digits-certified"), limit=12).pixels(range(12))
    radii = {}
    for name in ("digits-robust", "digits-certified"):
        codes = normalize(builtin.load(name)(pixels).double(), dim=1)
        specifications = (codes - codes.roll(1, 0))[:, None]
        encoder = builtin.load(name)
        radii[name] = certified_radius(encoder, pixels, specifications, Linf(0.6), "interval", 1e-2).mean()
    assert radii["digits-certified"] > 2 * radii["digits-robust"]
    assert radii["digits-certified"] > 0.15


@pytest.mark.slow
def test_the_recipe_makes_the_shipped_encoder(score):
    pytest.importorskip("lightning_fabric")
    again, shipped = (
        score.accuracies(one) for one in (hf.train("digits-supervised"), builtin.load("digits-supervised"))
    )
    # Another processor may round differently, and training amplifies that.
    assert again == pytest.approx(shipped, abs=0.03)


class EnoughError(Exception):
    """Raised to end a training."""


@pytest.mark.slow
@pytest.mark.parametrize("name", builtin.NAMES[1:])
def test_each_recipe_lowers_the_loss_as_its_card_says(name, tmp_path):
    """Whole trainings would take two minutes, and amplify what another processor rounds."""
    pytest.importorskip("lightning_fabric")
    epochs, calls = 20, count()

    def watch(module):
        if next(calls) > epochs:
            raise EnoughError
        return {}

    with pytest.raises(EnoughError):
        hf.train(name, watch=watch, out=tmp_path)
    curve = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found, expected = ([epoch["loss"] for epoch in one[1 : epochs + 1]] for one in (curve, builtin.card(name).curve))
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    assert found[0] - found[-1] == pytest.approx(expected[0] - expected[-1], rel=0.1)


def test_damaged_weights_are_refused(monkeypatch, tmp_path):
    copytree(builtin.WEIGHTS, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "digits-robust" / "encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    monkeypatch.setattr(builtin, "WEIGHTS", tmp_path)
    with refused(ValueError, "digits-robust", "match"):
        builtin.load("digits-robust")


@pytest.mark.parametrize(
    ("reference", "options", "advice"),
    [
        ("builtin:digits-robst", None, "Did you mean 'digits-robust'"),
        ("builtin:digits-robust?eps=0.1", None, "settings of .*'eps'"),
        ("builtin:digits-robust", Options(size=224), "8 x 8 pixels, got size=224"),
    ],
)
def test_mistakes_are_explained(reference, options, advice):
    with pytest.raises(ValueError, match=advice):
        load(reference, options)


def _numbers(markdown: str) -> dict[str, list[float]]:
    """Return the rows of numbers of the tables in ``markdown``, by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if "| 0." in line]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows}
