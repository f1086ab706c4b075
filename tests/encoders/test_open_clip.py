"""OpenCLIP for real, with random weights of a tiny model: what comes out is what its image tower computes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders import Options, load
from holdfast.encoders.loading.inputs import declare_missing_operators
from tests.facts import refused

declare_missing_operators()
open_clip = pytest.importorskip("open_clip", reason="open_clip_torch is not installed (extra 'clip')")

TEXT = {"context_length": 4, "vocab_size": 16, "width": 8, "heads": 2, "layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "tiny-vit": {"image_size": 16, "layers": 1, "width": 8, "head_width": 4, "patch_size": 8},
    "tiny-resnet": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 4, "patch_size": None},
    "tiny-timm": {"image_size": 32, "timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear"},
}


@pytest.fixture(scope="module", autouse=True)
def tiny_models(tmp_path_factory):
    """Models of OpenCLIP's own kinds, small enough to be built in no time."""
    folder = tmp_path_factory.mktemp("models")
    for name, vision in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 6, "vision_cfg": vision, "text_cfg": TEXT}))
    open_clip.add_model_config(folder)


def pixels_of(encoder: Encoder, count: int = 2) -> torch.Tensor:
    return torch.rand(count, *encoder.domain.shape, generator=torch.Generator().manual_seed(0))


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor(open_clip.OPENAI_DATASET_MEAN), torch.tensor(open_clip.OPENAI_DATASET_STD)
    return (pixels - mean[:, None, None]) / std[:, None, None]


def saved(path: Path, seed: int = 3) -> Any:
    """Return a tiny model whose weights were saved to ``path``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = open_clip.create_model("tiny-vit").eval()
    save_file(model.state_dict(), path)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_untrained_towers_of_every_kind_give_one_vector_an_image(name):
    encoder = load(f"open_clip:{name}?pretrained=false")
    assert encoder(pixels_of(encoder)).shape == (2, 6)
    side = MODELS[name]["image_size"]
    assert encoder.geometry is not None
    assert encoder.geometry.crop == (side, side)


def test_codes_are_the_models_own_after_its_normalisation(tmp_path):
    model = saved(tmp_path / "weights.safetensors")
    encoder = load(f"open_clip:tiny-vit?pretrained={tmp_path / 'weights.safetensors'}")
    pixels = pixels_of(encoder)
    with torch.no_grad():
        assert torch.allclose(encoder(pixels), model.encode_image(normalised(pixels)), atol=1e-5)
    assert encoder.inputs["pooling"] == "by open_clip, projected"


def test_projection_can_be_left_out():
    encoder = load("open_clip:tiny-vit?pretrained=false&projection=false")
    assert encoder(pixels_of(encoder)).shape == (2, MODELS["tiny-vit"]["width"])
    wrapped = load("open_clip:tiny-timm?pretrained=false&projection=false")
    assert wrapped(pixels_of(wrapped)).shape == (2, 512)
    assert wrapped.fingerprint != load("open_clip:tiny-timm?pretrained=false").fingerprint
    with refused(HoldfastError, "projection"):
        load("open_clip:tiny-resnet?pretrained=false&projection=false")


def test_another_size_resamples_the_positions(tmp_path):
    saved(tmp_path / "weights.safetensors")
    encoder = load(f"open_clip:tiny-vit?pretrained={tmp_path / 'weights.safetensors'}", Options(size=32))
    assert encoder.domain.shape == (3, 32, 32)
    assert encoder(pixels_of(encoder)).shape == (2, 6)


def test_fingerprints_follow_the_weights(tmp_path):
    saved(tmp_path / "weights.safetensors")
    first = load("open_clip:tiny-vit?pretrained=false")
    assert load("open_clip:tiny-vit?pretrained=false").fingerprint == first.fingerprint
    assert load("open_clip:tiny-vit?pretrained=false&seed=1").fingerprint != first.fingerprint
    file = load(f"open_clip:tiny-vit?pretrained={tmp_path / 'weights.safetensors'}")
    assert file.fingerprint != first.fingerprint


def test_loading_leaves_no_handler_behind():
    before = list(logging.root.handlers)
    load("open_clip:tiny-vit?pretrained=false")
    assert logging.root.handlers == before


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a checkpoint was run')",))


def test_files_that_would_run_code_are_refused(tmp_path):
    torch.save({"state_dict": Payload()}, tmp_path / "bad.pt")
    with pytest.raises(HoldfastError, match="open_clip cannot load 'tiny-vit'"):
        load(f"open_clip:tiny-vit?pretrained={tmp_path / 'bad.pt'}")


def test_activation_follows_the_weights(monkeypatch):
    """OpenAI's weights were trained with another GELU than a model of that name has: numbers would be wrong."""
    asked: dict[str, Any] = {}

    def create(name: str, **settings: Any):
        asked.update(settings)
        raise OSError("no network here")

    monkeypatch.setattr(open_clip, "create_model", create)
    with refused(HoldfastError, "network", "weights"):
        load("open_clip:ViT-B-32?pretrained=openai")
    assert asked["force_quick_gelu"]
    with pytest.raises(HoldfastError, match="no network here"):
        load("open_clip:ViT-B-32?pretrained=laion2b_s34b_b79k")
    assert not asked["force_quick_gelu"]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("ViT-B-23", "Did you mean 'ViT-B-32'"),
        ("ViT-B-32", "one of openai, .*laion2b_s34b_b79k"),
        ("ViT-B/32?pretrained=nonsense", "'nonsense' is neither a file nor weights of it"),
        ("hf-hub:owner/name?pretrained=openai", "brings its own weights"),
    ],
)
def test_wrong_names_say_what_to_do(reference, said):
    with pytest.raises(HoldfastError, match=said):
        load(f"open_clip:{reference}")
