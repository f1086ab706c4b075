"""Hugging Face models built from a configuration in a local directory: pooling, recipe, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.bounds import certified_radius
from holdfast.bounds.network.tracing import trace
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import Options, load
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.run.checkup import essential_checks
from tests.facts import refused

declare_missing_operators()
transformers = pytest.importorskip("transformers")

TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGES = {
    "image_processor_type": "BitImageProcessor",
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.2, 0.25],
    "resample": 3,
    "size": {"shortest_edge": 18},
    "crop_size": {"height": 16, "width": 16},
    "do_center_crop": True,
}


def save(model, folder: Path) -> Any:
    """Save ``model`` with its recipe as a repository has them, and return it."""
    model.eval().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    return model


def vit(folder: Path, patch_size: int = 4, **extra: Any) -> Any:
    config = transformers.ViTConfig(**TINY, intermediate_size=32, image_size=16, patch_size=patch_size)
    return save(transformers.ViTModel(config, **extra), folder)


def hidden(model, pixels):
    mean, std = (torch.tensor(IMAGES[key])[:, None, None] for key in ("image_mean", "image_std"))
    with torch.no_grad():
        return model(pixel_values=(pixels - mean) / std)


@pytest.mark.slow  # half a minute: every product of attention is relaxed
def test_a_vision_transformer_can_be_certified(tmp_path):
    vit(tmp_path, patch_size=16)
    encoder, pixels = load(f"hf:{tmp_path}"), torch.rand(1, 3, 16, 16, dtype=torch.float64)
    graph, double = trace(encoder), encoder.to("cpu", torch.float64)
    assert torch.allclose(graph(pixels), double.forward(pixels), rtol=1e-9, atol=1e-9)
    row = double.forward(pixels)[:, None]
    radius = certified_radius(encoder, pixels, row, Linf(0.1), tolerance=5e-3)
    assert radius.min() > 0


def test_pooling_is_what_it_says(tmp_path):
    model, pixels = vit(tmp_path), torch.rand(3, 3, 16, 16)
    out = hidden(model, pixels)
    expected = {
        "cls": out.last_hidden_state[:, 0],
        "mean": out.last_hidden_state[:, 1:].mean(1),
        "pooler": out.pooler_output,
    }
    for how, codes in expected.items():
        assert torch.allclose(load(f"hf:{tmp_path}?pool={how}")(pixels), codes, atol=1e-5), how
    assert torch.equal(load(f"hf:{tmp_path}")(pixels), load(f"hf:{tmp_path}?pool=cls")(pixels))


def test_patch_tokens_are_the_models_own_one_after_another(tmp_path):
    model, pixels = vit(tmp_path), torch.rand(3, 3, 16, 16)
    encoder = load(f"hf:{tmp_path}?tokens=patch")
    tokens = hidden(model, pixels).last_hidden_state[:, 1:]
    assert (encoder.tokens, encoder.inputs["pooling"]) == (16, "none, all patch tokens")
    assert torch.allclose(encoder(pixels), tokens.flatten(1), atol=1e-5)
    assert load(f"hf:{tmp_path}").tokens == 1
    assert load(f"hf:{tmp_path}?tokens=patch", Options(size=24)).tokens == 36
    with refused(HoldfastError, "tokens=patch", "pool=cls", "vector"):
        load(f"hf:{tmp_path}?tokens=patch&pool=cls")
    with refused(HoldfastError, "'cls'", "tokens", "patch"):
        load(f"hf:{tmp_path}?tokens=cls")


@pytest.mark.slow
def test_a_fresh_process_loads_a_folder(tmp_path):
    """Beside whichever torchvision is installed: nothing was imported or declared before."""
    vit(tmp_path)
    loaded = f"import torch; from holdfast.encoders import load; load({f'hf:{tmp_path}'!r})(torch.rand(2, 3, 16, 16))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Loading weights" not in done.stderr


def test_loading_leaves_the_progress_bars_as_the_caller_set_them(tmp_path, monkeypatch):
    """Of downloads, by group too, and of transformers."""
    hub = pytest.importorskip("huggingface_hub").utils
    states = sys.modules[hub.disable_progress_bars.__module__].progress_bar_states
    vit(tmp_path)
    try:
        for downloads in (False, True):
            (hub.enable_progress_bars if downloads else hub.disable_progress_bars)()
            hub.disable_progress_bars("a group")
            for loading in (False, True):
                monkeypatch.setattr(transformers.utils.logging, "_tqdm_active", loading)
                load(f"hf:{tmp_path}")
                assert states == {"_global": downloads, "a group": False}
                assert transformers.utils.logging.is_progress_bar_enabled() == loading
    finally:
        hub.enable_progress_bars()


def test_the_processor_states_shape_normalisation_and_resizing(tmp_path):
    vit(tmp_path)
    encoder = load(f"hf:{tmp_path}")
    assert encoder.domain.shape == (3, 16, 16)
    assert encoder.inputs["normalisation"] == "mean 0.5 0.4 0.3, std 0.2 0.2 0.25"
    assert "BitImageProcessor" in encoder.inputs["resizing"]
    assert encoder.name == tmp_path.name


def test_a_real_image_processor_agrees_with_the_recipe(tmp_path):
    vit(tmp_path)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    encoder = load(f"hf:{tmp_path}")
    image = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    theirs = processor(image, return_tensors="pt")["pixel_values"]
    ours = (image[None] / 255 - encoder.module.get_buffer("mean")) / encoder.module.get_buffer("std")
    assert torch.allclose(theirs, ours, atol=1e-5)


def test_loading_twice_gives_equal_fingerprints_even_without_a_pooler(tmp_path):
    vit(tmp_path, add_pooling_layer=False)
    assert load(f"hf:{tmp_path}").fingerprint == load(f"hf:{tmp_path}").fingerprint
    with pytest.raises(HoldfastError, match=r"lacks or misfits 2 weights \(pooler"):
        load(f"hf:{tmp_path}?pool=pooler")


def test_register_tokens_stay_out_of_the_mean(tmp_path):
    config = transformers.Dinov2WithRegistersConfig(**TINY, image_size=16, patch_size=4, num_register_tokens=3)
    model = save(transformers.Dinov2WithRegistersModel(config), tmp_path)
    pixels = torch.rand(2, 3, 16, 16)
    expected = hidden(model, pixels).last_hidden_state[:, 4:].mean(1)
    assert torch.allclose(load(f"hf:{tmp_path}?pool=mean")(pixels), expected, atol=1e-5)
    assert load(f"hf:{tmp_path}?tokens=patch").tokens == 16


def test_dinov2_takes_another_size(tmp_path):
    save(transformers.Dinov2Model(transformers.Dinov2Config(**TINY, image_size=16, patch_size=4)), tmp_path)
    encoder = load(f"hf:{tmp_path}", Options(size=24))
    assert encoder(torch.rand(2, 3, 24, 24)).shape == (2, 16)
    assert "shortest_edge 27" in encoder.inputs["resizing"]


def test_vit_takes_another_size_by_resampling_its_positions(tmp_path):
    vit(tmp_path)
    assert load(f"hf:{tmp_path}", Options(size=24))(torch.rand(2, 3, 24, 24)).shape == (2, 16)


def test_convolutional_model_is_averaged_and_has_no_class_token(tmp_path):
    config = transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1])
    model = save(transformers.ConvNextModel(config), tmp_path)
    pixels = torch.rand(2, 3, 32, 32)
    encoder = load(f"hf:{tmp_path}", Options(size=32))
    assert torch.allclose(encoder(pixels), hidden(model, pixels).last_hidden_state.mean((2, 3)), atol=1e-5)
    places = load(f"hf:{tmp_path}?tokens=patch", Options(size=64))
    tokens = places(torch.rand(1, 3, 64, 64)).unflatten(1, (places.tokens, -1))
    assert tokens.shape == (1, 4, 8)
    with pytest.raises(HoldfastError, match=r"pool: .*mean, pooler"):
        load(f"hf:{tmp_path}?pool=cls")


def test_model_of_images_and_text_gives_its_vision_part(tmp_path):
    small = {**TINY, "intermediate_size": 16}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1},
        vision_config={**small, "image_size": 16, "patch_size": 4},
    )
    model = save(transformers.CLIPModel(config), tmp_path)
    pixels = torch.rand(2, 3, 16, 16)
    expected = hidden(model.vision_model, pixels).last_hidden_state[:, 0]
    assert torch.allclose(load(f"hf:{tmp_path}")(pixels), expected, atol=1e-5)


def test_missing_weights_are_never_drawn_at_random(tmp_path):
    from safetensors.torch import load_file, save_file

    vit(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    removed = next(name for name in weights if "layer" in name)
    del weights[removed]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HoldfastError, match="lacks or misfits 1 weights"):
        load(f"hf:{tmp_path}")


def test_pickled_weights_are_not_read(tmp_path):
    model = vit(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(HoldfastError, match=r"holds model\.safetensors"):
        load(f"hf:{tmp_path}")


def test_truncated_weights_are_refused(tmp_path):
    vit(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(HoldfastError, match="cannot load"):
        load(f"hf:{tmp_path}")


REMOTE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

class Config(PretrainedConfig):
    model_type = "mine"

class Model(PreTrainedModel):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        self.patches = torch.nn.Conv2d(3, 5, 4, 4)
        self.post_init()
    def forward(self, pixel_values):
        return BaseModelOutput(last_hidden_state=self.patches(pixel_values))
"""


def test_remote_code_needs_a_flag_which_is_stamped(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    folder, cache = tmp_path / "mine", tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache))
    monkeypatch.syspath_prepend(str(cache))
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    (folder / "mine.py").write_text(REMOTE)
    weights = {f"patches.{name}": value for name, value in torch.nn.Conv2d(3, 5, 4, 4).state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HoldfastError, match="--trust-remote-code"):
        load(f"hf:{folder}")
    assert not cache.exists(), "the code was copied, perhaps run, before anyone allowed it"
    encoder = load(f"hf:{folder}", Options(trust_remote_code=True))
    assert encoder.source.endswith("--trust-remote-code")
    assert encoder(torch.rand(1, 3, 16, 16)).shape == (1, 5)


def test_missing_processor_and_folder_are_told(tmp_path):
    with refused(HoldfastError, "no folder"):
        load(f"hf:{tmp_path / 'nowhere'}")
    vit(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(HoldfastError, match="normalisation is unknown"):
        load(f"hf:{tmp_path}")


class Masked(torch.nn.Module):
    """A masked autoencoder as published: even in evaluation it sees one patch in four, drawn anew each time."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixel_values=pixels).last_hidden_state[:, 0]


def test_a_masked_autoencoder_is_loaded_unmasked_and_caught_where_it_masks(tmp_path):
    config = transformers.ViTMAEConfig(**TINY, intermediate_size=32, image_size=16, patch_size=4)
    model, pixels = save(transformers.ViTMAEModel(config), tmp_path), torch.rand(3, 3, 16, 16)
    masked = Encoder(Masked(model).eval(), "masked", Domain((3, 16, 16)))
    failed = [check for check in essential_checks(masked, pixels, RunSettings()) if check.status == "failed"]
    assert any("twice" in check.sentence or "same" in check.sentence for check in failed), failed
    mean, std = (torch.tensor(IMAGES[key])[:, None, None] for key in ("image_mean", "image_std"))
    with torch.no_grad():
        model.config.mask_ratio = 0.0
        noise = torch.arange(16).expand(3, -1)
        whole = model(pixel_values=(pixels - mean) / std, noise=noise).last_hidden_state
        # In whatever order the patches come, the class token sees all of them.
        turned = model(pixel_values=(pixels - mean) / std, noise=noise.flip(1)).last_hidden_state
    assert torch.allclose(whole[:, 0], turned[:, 0], atol=1e-5)
    assert whole.shape[1] == 17
    for how, codes in {"cls": whole[:, 0], "mean": whole[:, 1:].mean(1)}.items():
        encoder = load(f"hf:{tmp_path}?pool={how}")
        assert torch.allclose(encoder(pixels), codes, atol=1e-5), how
        assert torch.equal(encoder(pixels), encoder(pixels))
        assert not [check for check in essential_checks(encoder, pixels, RunSettings()) if check.status == "failed"]


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "SiglipVision", "CLIPVision"])
def test_dense_codes_run_no_block_twice_and_none_in_vain(tmp_path, kind):
    """But for what pools the tokens in the end, a hundredth of the work of a large model."""
    sizes = {**TINY, "image_size": 16, "patch_size": 4, "intermediate_size": 16}
    save(getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes)), tmp_path)
    module = load(f"hf:{tmp_path}?tokens=patch").module.requires_grad_(True)
    kinds = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Conv2d)
    layers = {name: part for name, part in module.named_modules() if isinstance(part, kinds)}
    runs = dict.fromkeys(layers, 0)
    for name, part in layers.items():
        part.register_forward_hook(lambda *_, name=name: runs.update({name: runs[name] + 1}))
    module(torch.rand(1, 3, 16, 16)).square().sum().backward()
    assert max(runs.values()) == 1
    idle = [name for name, run in runs.items() if run and layers[name].weight.grad is None]
    assert len(idle) < len(layers) / 4, "vacuous fixture"
    assert all("pooler" in name or "head." in name or "post_layernorm" in name for name in idle)
