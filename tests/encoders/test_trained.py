"""Trained encoders: what was written loads again exactly, and everything else is refused in one sentence."""

from __future__ import annotations

import json
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Geometry
from holdfast.core.records import ImagesInfo
from holdfast.encoders.architectures.base import Architecture
from holdfast.encoders.by_name import Options, load, references
from holdfast.encoders.trained import Card, architecture_of, read_card, write, write_epoch
from tests import facts
from tests.encoders import factories

DOMAIN = Domain((1, 8, 8))
PIXELS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
FACTS: dict[str, Any] = {
    "recipe": {"objective": "simclr", "epochs": 2},
    "objective": "NT-Xent",
    "seed": 3,
    "epochs": 2,
    "images": ImagesInfo(name="digits", fingerprint="ab", count=60),
    "curve": ({"loss": 2.5, "accuracy": nan}, {"loss": 1.5, "accuracy": 0.5}),
    "versions": {"torch": torch.__version__},
    "started": "2026-01-01T00:00:00+00:00",
    "finished": "2026-01-01T00:01:00+00:00",
}


def encoder(text: str = "digits", **normalisation: Any) -> Encoder:
    module = Architecture.read(text).build(DOMAIN).eval()
    return Encoder(module, "mine", DOMAIN, geometry=Geometry(9, (8, 8), "bicubic"), **normalisation)


def written(folder: Path, made: Encoder | None = None, architecture: str | None = "digits") -> Encoder:
    made = made or encoder()
    write(folder, made, Card.of(made, architecture, **FACTS))
    return made


def arch(name: str) -> Options:
    return Options(arch=f"tests.encoders.factories:{name}")


def change(folder: Path, **fields: Any) -> None:
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, **fields}))


def refused(folder: Path, advice: str, settings: str = "", options: Options | None = None) -> None:
    with pytest.raises(HoldfastError, match=advice) as found:
        load(f"trained:{folder}{settings}", options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("normalisation", [{}, {"mean": (0.13,), "std": (0.3,)}])
def test_what_was_written_is_loaded_exactly(tmp_path: Path, normalisation: dict[str, Any]) -> None:
    made = written(tmp_path / "run", encoder(**normalisation))
    before = torch.random.get_rng_state()
    again = load(f"trained:{tmp_path}/run")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(again(PIXELS), made(PIXELS))
    assert (again.fingerprint, again.inputs) == (made.fingerprint, made.inputs)
    assert (again.name, again.source) == ("run", f"trained:{tmp_path}/run")


def test_the_card_says_how_it_was_trained(tmp_path: Path) -> None:
    written(tmp_path, encoder(mean=(0.13,), std=(0.3,)))
    card = read_card(tmp_path)
    assert (card.name, card.architecture, card.mean, card.std) == ("mine", "digits", (0.13,), (0.3,))
    assert (card.domain, card.geometry) == (DOMAIN, Geometry(9, (8, 8), "bicubic"))
    assert (card.recipe, card.images.count, card.parameters) == (FACTS["recipe"], 60, 3328)
    assert [epoch["loss"] for epoch in card.curve] == [2.5, 1.5]
    assert isnan(card.curve[0]["accuracy"])
    assert not list(tmp_path.glob(".*")), "something half written is left"


def test_weights_of_an_epoch(tmp_path: Path) -> None:
    first, last = encoder(), encoder()
    write_epoch(tmp_path, 1, first.module)
    write_epoch(tmp_path, 2, last.module)
    write_epoch(tmp_path, 7, first.module)  # of an earlier, longer training
    written(tmp_path, last)
    assert load(f"trained:{tmp_path}?epoch=1").fingerprint == first.fingerprint != last.fingerprint
    assert load(f"trained:{tmp_path}?epoch=2").fingerprint == last.fingerprint
    refused(tmp_path, "keeps no weights after 7 epochs; there are those after 1, 2$", "?epoch=7")


@pytest.mark.parametrize("normalisation", [{}, {"mean": (0.13,), "std": (0.3,)}])
def test_the_classifier_of_a_training_follows_the_embeddings(tmp_path: Path, normalisation: dict[str, Any]) -> None:
    made, linear = encoder(**normalisation), nn.Linear(32, 3)
    write(tmp_path, made, Card.of(made, "digits", **FACTS), linear)
    scores = load(f"trained:{tmp_path}?head=logits")
    assert torch.allclose(scores(PIXELS), linear(made(PIXELS)), atol=1e-6)
    assert scores.inputs["normalisation"] == made.inputs["normalisation"]
    assert scores.source == f"trained:{tmp_path}?head=logits"
    # A training that goes on from it has the module with its classifier.
    network = Architecture.read(str(architecture_of(scores))).build(DOMAIN)
    assert torch.allclose(network(PIXELS), scores(PIXELS), atol=1e-6)
    for setting in ("?head=logit", "?head=logits&epoch=2", "?head=logits&tokens=patch"):
        refused(tmp_path, "head", setting)
    (tmp_path / "head.safetensors").write_bytes(b"")
    refused(tmp_path, "sha256", "?head=logits")
    written(tmp_path)  # by a training without one: the file of before is not its own
    refused(tmp_path, "keeps no classifier", "?head=logits")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_vision_transformer_gives_its_patch_tokens(tmp_path: Path, pooling: str) -> None:
    text = f"small-vit:patch=4,width=8,depth=1,heads=2,pooling={pooling}"
    made = written(tmp_path, encoder(text, mean=(0.4,), std=(0.3,)), text)
    dense = load(f"trained:{tmp_path}?tokens=patch")
    network: Any = made.module.get_submodule("module")
    tokens = network.encode(network.embed((PIXELS - 0.4) / 0.3))[:, pooling == "cls" :]
    assert torch.equal(dense(PIXELS), tokens.flatten(1))
    assert (dense.tokens, dense.inputs["normalisation"]) == (4, "mean 0.4, std 0.3")
    assert dense.fingerprint != load(f"trained:{tmp_path}").fingerprint
    refused(tmp_path, "tokens must be patch, got 'all'", "?tokens=all")


def test_other_networks_have_no_patch_tokens(tmp_path: Path) -> None:
    written(tmp_path)
    refused(tmp_path, "is no small-vit, whose patch tokens are known; leave out tokens=patch", "?tokens=patch")


def test_a_module_of_python_needs_its_factory(tmp_path: Path) -> None:
    made = written(tmp_path, Encoder(factories.plain().eval(), "mine", DOMAIN, (0.1,), (0.2,)), None)
    refused(tmp_path, "made in Python; say which: --arch package.module:factory")
    for factory in ("plain", "encoder"):
        again = load(f"trained:{tmp_path}", arch(factory))
        assert again.fingerprint == made.fingerprint
    refused(tmp_path, "does not fit --arch .*: .*1.weight", options=arch("hidden_randomness"))


def test_arch_goes_to_those_that_need_it(tmp_path: Path) -> None:
    written(tmp_path / "own", Encoder(factories.plain().eval(), "mine", DOMAIN), None)
    written(tmp_path / "known")
    encoders = (f"short=trained:{tmp_path}/own?epoch=2", f"trained:{tmp_path}/known", f"trained:{tmp_path}/none")
    asked = references(encoders, ("tests.encoders.factories:plain",), Options())
    assert [options.arch is not None for _, options in asked] == [True, False, False]
    assert load(*asked[0]).name == "short"


@pytest.mark.parametrize(
    ("reference", "size", "architecture"),
    [
        ("builtin:digits-random", None, "encoder:builtin:digits-random"),
        pytest.param(
            "timm:resnet10t?seed=1&pretrained=false",
            64,
            "encoder:timm:resnet10t?seed=1&pretrained=false",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_network_of_another_source(tmp_path: Path, reference: str, size: int | None, architecture: str) -> None:
    made = load(reference, Options(size=size))
    with torch.no_grad():
        for weight in made.module.parameters():
            weight.add_(0.01)
    assert architecture_of(made) == architecture
    written(tmp_path, made, architecture)
    again = load(f"trained:{tmp_path}")
    assert (again.fingerprint, again.inputs) == (made.fingerprint, made.inputs)
    change(tmp_path, domain={"shape": [2, 8, 8]})
    refused(tmp_path, r"takes inputs of shape .* in \[0, 1\], got inputs of shape \(2, 8, 8\)")


def test_the_architecture_of_an_encoder(tmp_path: Path) -> None:
    written(tmp_path)
    assert architecture_of(load(f"trained:{tmp_path}")) == "digits"
    assert architecture_of(encoder()) is None
    named = encoder()
    for source, text in (
        ("timm:resnet18 --size 64", "encoder:timm:resnet18?pretrained=false"),
        ("torchvision:resnet18@X?seed=1", "encoder:torchvision:resnet18@X?seed=1&pretrained=false"),
        ("hf:a/b?pool=cls --trust-remote-code", "encoder:hf:a/b?pool=cls"),
        ("checkpoint:a.pt --arch a:b", None),
    ):
        named.source = source
        assert architecture_of(named) == text


def test_training_on_from_a_trained_encoder(tmp_path: Path) -> None:
    first = written(tmp_path / "first", encoder(mean=(0.13,), std=(0.3,)))
    start = Architecture.read(f"encoder:first=trained:{tmp_path}/first").build(DOMAIN)
    assert not start.training, "it is learned on in the mode it is used in"
    assert all(weight.requires_grad for weight in start.parameters())
    with torch.no_grad():
        for weight in start.parameters():
            weight.add_(0.01)
    second = written(tmp_path / "second", Encoder(start.eval(), "second", DOMAIN), f"encoder:trained:{tmp_path}/first")
    assert read_card(tmp_path / "second").architecture == "digits"
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    again = load(f"trained:{tmp_path}/second")
    assert again.fingerprint == second.fingerprint != first.fingerprint
    assert torch.equal(again(PIXELS), second(PIXELS))


def test_damage_is_explained(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "card.json.* a whole folder")
    written(tmp_path)
    weights, card = tmp_path / "encoder.safetensors", tmp_path / "card.json"
    whole, text = weights.read_bytes(), card.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(tmp_path, "does not match its card .* truncated")
    weights.unlink()
    refused(tmp_path, "encoder.safetensors.* a whole folder")
    weights.write_bytes(whole)
    for content in (text[:-50], b"[1]", b"{}"):
        card.write_bytes(content)
        refused(tmp_path, "is no whole card .*; copy the folder again")


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"schema_version": 9}, "has version 9, and this holdfast reads version 1"),
        ({"seed": "x"}, "is no card: seed: .*integer"),
        ({"architecture": "digit"}, "Did you mean 'digits'"),
        ({"architecture": "digits:features=8"}, "does not fit its architecture digits:features=8: .*5.weight"),
        ({"architecture": "encoder:builtin:nothing"}, "cannot be built: .*'nothing'"),
    ],
)
def test_cards_that_do_not_fit(tmp_path: Path, fields: dict[str, Any], advice: str) -> None:
    written(tmp_path)
    change(tmp_path, **fields)
    refused(tmp_path, advice)


def test_another_size_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    refused(tmp_path, "got size=16; leave it out", options=Options(size=16))
    refused(tmp_path, "Did you mean 'epoch'", "?epok=1")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with facts.refused(HoldfastError, "another", "folder"):
        written(tmp_path / "file" / "run")


def test_weights_that_share_memory_are_written(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64))
    tied[2].weight = tied[1].weight
    written(tmp_path, Encoder(tied, "tied", DOMAIN), None)
    assert (tmp_path / "encoder.safetensors").stat().st_size > 2 * 64 * 64 * 4
