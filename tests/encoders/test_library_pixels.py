"""The law: embeddings of picture files equal the library's own pipeline, or the source is refused with a sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.geometry import Geometry
from holdfast.encoders import Options, load
from holdfast.encoders.huggingface.files import recipe_of_processor
from holdfast.encoders.loading.inputs import declare_missing_operators
from tests.encoders.pictures import distance, embeddings, opened, write_pictures

declare_missing_operators()
transformers = pytest.importorskip("transformers")

MAPPING = transformers.models.auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES
EQUAL = 1e-4
PROCESSORS = sorted({name for names in MAPPING.values() for name in names.values() if name})
SMALL = {"height": 48, "width": 48}
CONFIGURED: dict[str, tuple[str, dict[str, Any]]] = {
    "squash": ("ViTImageProcessor", {"size": SMALL}),
    "squash-bicubic": ("SiglipImageProcessor", {"size": SMALL}),
    "squash-pil": ("ViTImageProcessorPil", {"size": SMALL}),
    "unequal sides": ("ViTImageProcessor", {"size": {"height": 40, "width": 64}}),
    "crop": ("CLIPImageProcessor", {"size": {"shortest_edge": 50}, "crop_size": {"height": 47, "width": 47}}),
    "crop beyond the picture": ("BitImageProcessor", {"size": {"shortest_edge": 40}, "crop_size": SMALL}),
    "not resized": ("CLIPImageProcessor", {"do_resize": False, "crop_size": SMALL}),
    "blue first": ("MobileViTImageProcessor", {"size": {"shortest_edge": 50}, "crop_size": SMALL}),
    "blue first, normalised": (
        "MobileViTImageProcessor",
        {"size": {"shortest_edge": 50}, "crop_size": SMALL, "do_normalize": True, "image_mean": [0.1, 0.5, 0.7]},
    ),
    "normalised twice": ("EfficientNetImageProcessor", {"size": SMALL, "image_mean": [0.4, 0.5, 0.6]}),
    "offset": ("EfficientNetImageProcessor", {"size": SMALL, "rescale_offset": True, "rescale_factor": 1 / 127.5}),
    "not rescaled": ("ViTImageProcessor", {"size": SMALL, "do_rescale": False}),
    "bytes": ("ViTImageProcessor", {"size": SMALL, "do_rescale": False, "do_normalize": False}),
    "rescaled to 2": ("ViTImageProcessor", {"size": SMALL, "rescale_factor": 1 / 127.5}),
    "not normalised": ("ViTImageProcessor", {"size": SMALL, "do_normalize": False}),
    "own rule of LeViT": ("LevitImageProcessor", {"size": {"shortest_edge": 48}, "crop_size": SMALL}),
    "share of ConvNeXt": ("ConvNextImageProcessor", {"size": {"shortest_edge": 48}, "crop_pct": 0.875}),
    "floating point": ("DINOv3ViTImageProcessor", {"size": SMALL}),
    "lanczos": ("ViTImageProcessor", {"size": SMALL, "resample": 1}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "overshooting": ("DINOv3ViTImageProcessor", {"size": SMALL, "resample": 3}, "8-bit pixels"),
    "padded after normalisation": ("SamImageProcessor", {"size": {"longest_edge": 48}, "pad_size": SMALL}, "do_pad"),
    "own sizes": ("GLPNImageProcessor", {}, "differ in size"),
    "patches": ("Qwen2VLImageProcessor", {}, "patches"),
    "frames": ("VideoMAEImageProcessor", {}, "frames"),
    "grey": ("SuperPointImageProcessor", {"do_grayscale": True, "size": SMALL}, "mixes the colours"),
    "other outputs": ("FuyuImageProcessor", {}, "pixel_values"),
    "no picture alone": ("VitMatteImageProcessor", {}, "trimaps"),
}
FOLLOWED = (
    *("Beit", "Bit", "Blip", "CLIP", "ChineseCLIP", "ConvNext", "DPT", "DeiT", "EfficientNet", "Flava", "Levit"),
    *("MobileNetV1", "MobileNetV2", "MobileViT", "OwlViT", "Perceiver", "PoolFormer", "Pvt", "Sam2", "Sapiens2"),
    *("SegGpt", "Segformer", "Siglip", "Tipsv2", "ViT"),
)
"""Classes that are not refused: the law holds of a refused one as well, so it has to be awake."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures wider and taller, smaller and larger than most networks take, for classes one by one."""
    return write_pictures(tmp_path_factory.mktemp("few"), shapes=((97, 131), (224, 224), (500, 64), (225, 301)))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small network that takes images of any size."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        return transformers.ResNetModel(config).eval()


def made(name: str, settings: dict[str, Any]) -> Any:
    return getattr(transformers, name)(**settings)


def compared(processor: Any, network: Any, folder: Path, photos: Path) -> float:
    """Return how far the encoder of a ``folder`` with both is from the library's own pipeline."""
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    theirs = transformers.AutoImageProcessor.from_pretrained(folder)
    encoder = load(f"hf:{folder}")
    with torch.no_grad():
        pixels = [theirs(image, return_tensors="pt")["pixel_values"].float() for image in opened(photos)]
        hidden = [network(pixel_values=each).last_hidden_state for each in pixels]
    return distance(embeddings(encoder, photos), [each.mean((2, 3)) for each in hidden])


@pytest.mark.parametrize("case", CONFIGURED)
def test_every_kind_of_step_gives_the_librarys_embeddings(case, network, photos, tmp_path):
    assert compared(made(*CONFIGURED[case]), network, tmp_path, photos) <= EQUAL


@pytest.mark.parametrize("case", REFUSED)
def test_a_step_that_cannot_be_followed_is_refused_by_name(case, network, photos, tmp_path):
    name, settings, step = REFUSED[case]
    with pytest.raises(HoldfastError, match=step) as refused:
        compared(made(name, settings), network, tmp_path, photos)
    assert name in str(refused.value)


@pytest.mark.slow  # minutes: default sizes, up to 2,560 x 1,920 pixels
@pytest.mark.parametrize("name", PROCESSORS)
def test_every_image_processor_is_followed_or_refused(name, network, few, tmp_path, record_property):
    try:
        processor = made(name, {})
    except TypeError:  # timm's, which has a test of its own
        assert name == "TimmWrapperImageProcessor"
        return
    try:
        found: float | str = compared(processor, network, tmp_path, few)
    except HoldfastError as error:
        found = str(error)
    record_property("pixels", found)
    if isinstance(found, str):
        assert name.removesuffix("Pil").removesuffix("ImageProcessor") not in FOLLOWED
        assert "\n" not in found
    else:
        assert found <= EQUAL


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROCESSORS if name.endswith("Pil")][::3])
def test_processors_without_torchvision_are_followed_or_refused(name, few):
    """A folder names none of these: they are chosen where torchvision is not installed. A third of them, for time."""
    processor = made(name, {})
    try:
        recipe = recipe_of_processor("example", processor, 3, set(), None)
    except HoldfastError:
        return
    mean, std = torch.tensor(recipe.mean), torch.tensor(recipe.std)
    for image in opened(few):
        ours = (torch.from_numpy(recipe.geometry(image)) / (1 if recipe.geometry.floats else 255) - mean) / std
        theirs = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])[0]
        assert torch.allclose(ours[..., list(recipe.order)].permute(2, 0, 1), theirs, atol=1e-3)


def test_the_law_sees_another_resizing(network, few, tmp_path):
    processor = made(*CONFIGURED["squash"])
    network.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    encoder = load(f"hf:{tmp_path}")
    encoder.geometry = Geometry(48, (48, 48), "bilinear")
    with torch.no_grad():
        hidden = [network(**processor(image, return_tensors="pt")).last_hidden_state for image in opened(few)]
    assert distance(embeddings(encoder, few), [each.mean((2, 3)) for each in hidden]) > 10 * EQUAL


def test_grey_networks_get_grey_pictures(photos, tmp_path):
    settings = {"size": SMALL, "image_mean": [0.3], "image_std": [0.2], "do_convert_rgb": False}
    processor = made("ViTImageProcessor", settings)
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic"
    )
    network = transformers.ResNetModel(config).eval()
    grey = write_pictures(tmp_path / "grey", "L")
    assert compared(processor, network, tmp_path / "model", grey) <= EQUAL
    assert load(f"hf:{tmp_path / 'model'}").domain.shape == (1, 48, 48)


def test_a_size_scales_the_processors_own_configuration(network, photos, tmp_path):
    network.save_pretrained(tmp_path)
    made(
        "LevitImageProcessor", {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
    ).save_pretrained(tmp_path)
    encoder = load(f"hf:{tmp_path}", Options(size=32))
    processor = made("LevitImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}})
    with torch.no_grad():
        hidden = [network(**processor(image, return_tensors="pt")).last_hidden_state for image in opened(photos)]
    assert distance(embeddings(encoder, photos), [each.mean((2, 3)) for each in hidden]) <= EQUAL


def test_a_size_that_the_processor_cannot_make_is_refused(network, tmp_path):
    network.save_pretrained(tmp_path)
    made("ViTImageProcessor", {"size": {"height": 40, "width": 64}}).save_pretrained(tmp_path)
    assert load(f"hf:{tmp_path}", Options(size=32)).domain.shape == (3, 32, 32)
    made("SuperPointImageProcessor", {"do_resize": False}).save_pretrained(tmp_path)
    with pytest.raises(HoldfastError, match="differ in size"):
        load(f"hf:{tmp_path}", Options(size=32))


def test_a_librarys_transform_is_data(network, photos, tmp_path):
    network.save_pretrained(tmp_path)
    made(*CONFIGURED["squash"]).save_pretrained(tmp_path)
    first, second = load(f"hf:{tmp_path}"), load(f"hf:{tmp_path}")
    assert first.geometry == second.geometry
    assert hash(first.geometry) == hash(second.geometry)
    assert first.fingerprint == second.fingerprint
    copied = pickle.loads(pickle.dumps(first.geometry))
    image = opened(photos)[0]
    assert copied is not None
    assert (copied(image) == first.geometry(image)).all()  # type: ignore[misc]
    made("ViTImageProcessor", {"size": SMALL, "resample": 0}).save_pretrained(tmp_path)
    assert load(f"hf:{tmp_path}").fingerprint != first.fingerprint


def test_a_processor_of_the_repositorys_own_code_is_followed(network, photos, tmp_path, monkeypatch):
    folder, cache = tmp_path / "mine", tmp_path / "cache"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache))
    monkeypatch.syspath_prepend(str(cache))
    network.save_pretrained(folder)
    (folder / "own.py").write_text(
        "from transformers import ViTImageProcessor\n\n\nclass Own(ViTImageProcessor):\n    pass\n"
    )
    config = {"auto_map": {"AutoImageProcessor": "own.Own"}, "image_processor_type": "Own", "size": SMALL}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(HoldfastError, match="cannot be loaded"):
        load(f"hf:{folder}")
    encoder: Encoder = load(f"hf:{folder}", Options(trust_remote_code=True))
    processor = made("ViTImageProcessor", {"size": SMALL})
    with torch.no_grad():
        hidden = [network(**processor(image, return_tensors="pt")).last_hidden_state for image in opened(photos)]
    assert distance(embeddings(encoder, photos), [each.mean((2, 3)) for each in hidden]) <= EQUAL


def test_a_line_of_pixels_does_not_fill_the_memory(network, tmp_path):
    from PIL import Image

    network.save_pretrained(tmp_path)
    made("CLIPImageProcessor", {}).save_pretrained(tmp_path)
    geometry = load(f"hf:{tmp_path}").geometry
    assert geometry is not None
    assert geometry(Image.new("RGB", (1, 900))).shape == (224, 224, 3)
    with pytest.raises(HoldfastError, match="elongated"):
        geometry(Image.new("RGB", (1, 60_000)))
