"""``?pool=projected`` is what a model of images and text compares with texts, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.encoders import Options, load
from holdfast.encoders.loading.inputs import declare_missing_operators

declare_missing_operators()
transformers = pytest.importorskip("transformers")

TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SEEN = {**TINY, "image_size": 16, "patch_size": 8}
READ = {**TINY, "vocab_size": 50, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
CONVOLUTIONS: dict[str, Any] = {
    "image_size": 64,
    "width_coefficient": 0.1,
    "depth_coefficient": 0.1,
    "hidden_dim": 16,
    "num_channels": 3,
}
HIERARCHY = {**SEEN, "depths": [1, 1, 1], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 2]}
FOLLOWED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "CLIP": (READ, SEEN, {"projection_dim": 6}),
    "MetaClip2": (READ, SEEN, {"projection_dim": 6}),
    "Siglip": (READ, SEEN, {}),
    "Blip": ({**READ, "encoder_hidden_size": 16}, SEEN, {"projection_dim": 6}),
    "Align": (READ, CONVOLUTIONS, {"projection_dim": 16}),
    "AltCLIP": (READ, SEEN, {"projection_dim": 6}),
    "ChineseCLIP": (READ, SEEN, {"projection_dim": 6}),
    "CLIPSeg": (READ, SEEN, {"projection_dim": 6, "extract_layers": [0]}),
    "GroupViT": (READ, HIERARCHY, {"projection_dim": 6, "projection_intermediate_dim": 12}),
    "OwlViT": (READ, SEEN, {"projection_dim": 6}),
    "Aimv2": (READ, {**SEEN, "is_native": False}, {"projection_dim": 6}),
}
VIDEO = {f"mit_{key}": value for key, value in TINY.items()}
NOT_FOLLOWED = {"XCLIP": (READ, {**SEEN, **VIDEO}, {"projection_dim": 6, "prompt_num_attention_heads": 2})}


def built(name: str, texts: dict[str, Any], images: dict[str, Any], extra: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{name}Config")(text_config=texts, vision_config=images, **extra)
    return getattr(transformers, f"{name}Model")(config).eval()


def saved(model: Any, folder: Path, side: int = 16) -> Any:
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
    return model


def seen(encoder: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return ``pixels`` as the model gets them."""
    return (pixels - encoder.module.get_buffer("mean")) / encoder.module.get_buffer("std")


@pytest.mark.parametrize("name", FOLLOWED)
def test_projected_codes_are_the_models_own_features(name, tmp_path):
    side = FOLLOWED[name][1]["image_size"]
    model = saved(built(name, *FOLLOWED[name]), tmp_path, side)
    encoder, pixels = load(f"hf:{tmp_path}?pool=projected"), torch.rand(3, 3, side, side)
    with torch.no_grad():
        theirs = model.get_image_features(pixel_values=seen(encoder, pixels))
    theirs = theirs if isinstance(theirs, torch.Tensor) else theirs.pooler_output
    assert theirs.std() > 0
    assert torch.allclose(encoder(pixels), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_models_that_compare_no_single_images_are_refused(name, tmp_path):
    saved(built(name, *NOT_FOLLOWED[name]), tmp_path)
    with pytest.raises(HoldfastError, match="projection"):
        load(f"hf:{tmp_path}?pool=projected")


def test_blip_2_has_no_projection_without_its_retrieval_head(tmp_path):
    config = transformers.Blip2Config(
        vision_config=SEEN,
        qformer_config={**TINY, "vocab_size": 50, "encoder_hidden_size": 16},
        text_config={"model_type": "opt", **READ, "ffn_dim": 16, "word_embed_proj_dim": 16},
        num_query_tokens=2,
    )
    saved(transformers.Blip2Model(config), tmp_path)
    with pytest.raises(HoldfastError, match="projection"):
        load(f"hf:{tmp_path}?pool=projected")


@pytest.mark.parametrize("name", ["CLIP", "MetaClip2"])
def test_a_vision_model_with_its_projection_gives_image_embeddings(name, tmp_path):
    config = getattr(transformers, f"{name}VisionConfig")(**SEEN, projection_dim=6)
    model = saved(getattr(transformers, f"{name}VisionModelWithProjection")(config).eval(), tmp_path)
    encoder, pixels = load(f"hf:{tmp_path}?pool=projected"), torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(encoder(pixels), model(pixel_values=seen(encoder, pixels)).image_embeds, atol=1e-5)
    assert encoder.texts is None
    larger = load(f"hf:{tmp_path}?pool=projected", Options(size=24))
    assert larger(torch.rand(1, 3, 24, 24)).shape == (1, 6)


def test_a_vision_model_without_its_projection_is_refused(tmp_path):
    saved(transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SEEN)), tmp_path)
    with pytest.raises(HoldfastError, match="projection"):
        load(f"hf:{tmp_path}?pool=projected")
