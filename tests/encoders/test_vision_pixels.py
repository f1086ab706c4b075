"""The law of pixels for timm, torchvision and open_clip: embeddings of files equal the library's own pipeline."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from holdfast.core.errors import Conflict, HoldfastError, HoldfastWarning
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import Options, load
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.run.checkup import essential_checks
from tests import facts
from tests.encoders.pictures import distance, embeddings, opened, write_pictures
from tests.marks import rest_slow

declare_missing_operators()
timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")
open_clip = pytest.importorskip("open_clip")

EQUAL = 1e-4
HUB = pytest.importorskip("timm.models._hub")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def seeded(build: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().eval()


def timms_codes(model: Any, photos: Path, config: dict[str, Any]) -> list[torch.Tensor]:
    """Return what timm's own pipeline makes of the pictures."""
    transform = timm.data.create_transform(**config, is_training=False)
    with torch.no_grad():
        return [model(transform(image)[None]) for image in opened(photos)]


CONFIGS = [
    {"crop_mode": mode, "crop_pct": share, "interpolation": filter_}
    for mode in ("center", "squash", "border")
    for share, filter_ in ((0.875, "bilinear"), (1.0, "bicubic"), (0.95, "lanczos"), (0.9, "nearest"))
]


@pytest.mark.parametrize("config", rest_slow(CONFIGS[::5] + CONFIGS, fast=3))
def test_a_folder_of_timms_is_prepared_as_its_config_says(config, photos, tmp_path):
    model = seeded(lambda: timm.create_model("resnet10t", num_classes=0))
    stated = {
        **model.pretrained_cfg,
        **config,
        "input_size": (3, 48, 48),
        "mean": (0.3, 0.4, 0.5),
        "std": (0.2, 0.3, 0.4),
    }
    model.pretrained_cfg = stated
    HUB.save_for_hf(model, tmp_path, safe_serialization=True)
    encoder = load(f"timm:local-dir:{tmp_path}")
    assert not encoder.caution
    own = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=0).eval()
    expected = timms_codes(own, photos, timm.data.resolve_model_data_config(own))
    assert distance(embeddings(encoder, photos), expected) <= EQUAL


MODELS = [
    "test_vit",
    "test_convnext",
    "test_efficientnet",
    "resnet10t",
    "test_nfnet",
    "test_mambaout",
    "levit_128s",
    "tf_efficientnet_lite0",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "mobilenetv3_small_050",
    "mixer_s32_224",
    "swin_tiny_patch4_window7_224",
    "inception_v3",
    "eva02_tiny_patch14_224",
    "dpn68",
    "pit_ti_224",
]


@pytest.mark.parametrize("name", rest_slow(MODELS, fast=3))
def test_families_of_timm_are_prepared_as_timm_does(name, photos):
    encoder = load(f"timm:{name}?pretrained=false")
    model = seeded(lambda: timm.create_model(name, pretrained=False, num_classes=0))
    assert (
        distance(embeddings(encoder, photos), timms_codes(model, photos, timm.data.resolve_model_data_config(model)))
        <= EQUAL
    )


@pytest.mark.slow  # every size, crop, filter and normalisation of all weights that timm lists
def test_every_configuration_that_timm_lists_is_followed_or_refused():
    from holdfast.encoders.timm import recipe_of

    configs: dict[str, Any] = {}
    for name in timm.list_pretrained():
        config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict(), verbose=False)
        configs.setdefault(json.dumps(config, sort_keys=True, default=str), config)
    assert len(configs) > 50
    # Colours are normalised alike at any size, and the filter does not change which pixels are cut out.
    parts = [("input_size", "crop_pct", "crop_mode"), ("crop_pct", "crop_mode", "interpolation"), ("mean", "std")]
    known: set[tuple[tuple[str, Any], ...]] = set()
    refused = tried = 0
    for config in configs.values():
        new = {tuple((key, config[key]) for key in keys) for keys in parts} - known
        if not new:
            continue
        known |= new
        tried += 1
        try:
            recipe_of("example", config, config["input_size"][0], None)
        except HoldfastError:
            refused += 1
    assert refused <= tried / 20


@pytest.mark.parametrize(
    "weights", rest_slow(["mobilenet_v3_small", "resnet18", "efficientnet_b1", "regnet_y_400mf", "swin_t"])
)
def test_torchvision_is_prepared_by_the_weights_transforms(weights, photos):
    encoder = load(f"torchvision:{weights}?pretrained=false")
    transforms = torchvision.models.get_model_weights(weights).DEFAULT.transforms()
    with torch.no_grad():
        theirs = [encoder.module.get_submodule("module")(transforms(image)[None]) for image in opened(photos)]
    assert distance(embeddings(encoder, photos), theirs) <= EQUAL


STATED = ("resize_size", "crop_size", "interpolation", "antialias", "mean", "std")


@pytest.mark.slow
def test_all_weights_of_torchvision_are_prepared_by_their_transforms():
    from holdfast.encoders.torchvision import recipe_of

    models, known = torchvision.models, set()
    for name in models.list_models(module=models):
        for weights in models.get_model_weights(name):
            transforms = weights.transforms()
            stated = str({key: getattr(transforms, key) for key in STATED})
            if stated not in known:  # of 115 weights some 30 differ in what they state
                recipe_of(name, transforms, None)
            known.add(stated)
    assert len(known) > 20


TEXT = {"context_length": 4, "vocab_size": 16, "width": 8, "heads": 2, "layers": 1}
VISION = {"image_size": 48, "layers": 1, "width": 8, "head_width": 4, "patch_size": 8}


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("models")
    (folder / "tiny-pixels.json").write_text(json.dumps({"embed_dim": 6, "vision_cfg": VISION, "text_cfg": TEXT}))
    open_clip.add_model_config(folder)


def open_clips(model: Any, photos: Path) -> list[torch.Tensor]:
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False
    )
    with torch.no_grad():
        return [model.encode_image(transform(image)[None]) for image in opened(photos)]


PREPARED: list[dict[str, Any]] = [
    {"resize_mode": mode, "interpolation": filter_}
    for mode in ("shortest", "squash", "longest")
    for filter_ in ("bicubic", "bilinear")
]


@pytest.mark.parametrize(
    "changes", [*PREPARED, {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "longest", "fill_color": 9}]
)
def test_a_folder_of_open_clips_is_prepared_as_its_config_says(changes, photos, tmp_path):
    model = seeded(lambda: open_clip.create_model("tiny-pixels"))
    config = {"model_cfg": open_clip.get_model_config("tiny-pixels"), "preprocess_cfg": changes}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    encoder = load(f"open_clip:local-dir:{tmp_path}")
    own = open_clip.create_model(f"local-dir:{tmp_path}").eval()
    assert own.visual.preprocess_cfg["resize_mode"] == changes["resize_mode"]
    assert not encoder.caution
    assert distance(embeddings(encoder, photos), open_clips(own, photos)) <= EQUAL


@pytest.mark.slow
def test_every_configuration_of_open_clips_weights_is_followed():
    from holdfast.encoders.open_clip import recipe_of

    configs: dict[str, Any] = {}
    for name, tag in open_clip.list_pretrained():
        stated = open_clip.get_pretrained_cfg(name, tag)
        size = open_clip.get_model_config(name)["vision_cfg"]["image_size"]
        config = open_clip.transform.merge_preprocess_dict(open_clip.transform.PreprocessCfg(size=size), stated)
        configs.setdefault(json.dumps(config, sort_keys=True), config)
    assert len(configs) > 10
    for config in configs.values():
        recipe_of(open_clip, "example", config)


# Weights that do not state their preprocessing.


@pytest.fixture(scope="module")
def clip_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "tiny.safetensors"
    save_file(seeded(lambda: open_clip.create_model("tiny-pixels")).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def timm_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "tiny.safetensors"
    save_file(seeded(lambda: timm.create_model("resnet10t", num_classes=0)).state_dict(), path)
    return path


@pytest.mark.parametrize("source", ["timm", "open_clip"])
def test_a_file_of_weights_that_states_nothing_is_told(source, timm_file, clip_file):
    reference = {
        "timm": f"timm:resnet10t?weights={timm_file}",
        "open_clip": f"open_clip:tiny-pixels?pretrained={clip_file}",
    }[source]
    with pytest.warns(HoldfastWarning, match="normalisation") as told:
        encoder = load(reference)
    assert len([each for each in told if issubclass(each.category, HoldfastWarning)]) == 1
    assert encoder.caution
    assert encoder.inputs["normalisation"].startswith("not stated")
    checks = {
        check.name: check for check in essential_checks(encoder, torch.rand(2, *encoder.domain.shape), RunSettings())
    }
    assert checks["normalisation"].status == "warning"
    assert "not stated" in checks["normalisation"].sentence.lower()
    with pytest.warns(HoldfastWarning, match="resize"):
        partly = load(f"{reference}&mean=0.5&std=0.25")
    assert "normalisation" not in partly.caution
    assert partly.inputs["normalisation"] == "mean 0.5 0.5 0.5, std 0.25 0.25 0.25"
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastWarning)
        stated = load(f"{reference}&mean=0.5&std=0.25&interpolation=bilinear&resize=squash")
    assert not stated.caution
    with facts.refused(Conflict, "mean", "std"):
        load(f"{reference}&mean=0.5")
    with pytest.raises(HoldfastError, match="resize must be"):
        load(f"{reference}&resize=stretch")
    with pytest.raises(HoldfastError, match="cubicish"):
        load(f"{reference}&interpolation=cubicish")


@pytest.mark.parametrize(
    ("stated", "config"),
    [
        ("resize=squash&interpolation=bilinear", {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bilinear"}),
        (
            "resize=longest&mean=0.4&std=0.3",
            {"crop_mode": "border", "crop_pct": 1.0, "mean": (0.4,) * 3, "std": (0.3,) * 3},
        ),
        ("resize=shortest", {"crop_mode": "center", "crop_pct": 1.0}),
        ("resize=200", {"crop_mode": "center", "crop_pct": 176 / 200.5}),
    ],
)
def test_stated_preprocessing_is_timms_own(stated, config, photos, timm_file):
    encoder = load(f"timm:resnet10t?weights={timm_file}&{stated}", Options(size=48))
    model = seeded(lambda: timm.create_model("resnet10t", num_classes=0))
    config = {**timm.data.resolve_model_data_config(model), "input_size": (3, 48, 48), **config}
    expected = timms_codes(model, photos, config)
    assert distance(embeddings(encoder, photos), expected) <= EQUAL


@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
def test_stated_preprocessing_is_open_clips_own(mode, photos, clip_file):
    encoder = load(
        f"open_clip:tiny-pixels?pretrained={clip_file}&resize={mode}&mean=0.4&std=0.3&interpolation=bilinear"
    )
    model = seeded(lambda: open_clip.create_model("tiny-pixels"))
    changes = {"resize_mode": mode, "mean": (0.4,) * 3, "std": (0.3,) * 3, "interpolation": "bilinear"}
    model.visual.preprocess_cfg = {**model.visual.preprocess_cfg, **changes}
    assert distance(embeddings(encoder, photos), open_clips(model, photos)) <= EQUAL


def test_a_folder_of_a_timm_transformer_takes_another_size(photos, tmp_path):
    model = seeded(lambda: timm.create_model("test_vit", num_classes=3))
    HUB.save_for_hf(model, tmp_path, safe_serialization=True)
    encoder = load(f"timm:local-dir:{tmp_path}", Options(size=96))
    own = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=0, img_size=96).eval()
    config = timm.data.resolve_data_config({"input_size": (3, 96, 96)}, model=own)
    assert encoder.domain.shape == (3, 96, 96)
    assert distance(embeddings(encoder, photos), timms_codes(own, photos, config)) <= EQUAL


def test_a_size_that_a_network_cannot_take_is_refused(tmp_path):
    model = seeded(lambda: timm.create_model("levit_128s", num_classes=0))
    HUB.save_for_hf(model, tmp_path, safe_serialization=True)
    with pytest.raises(HoldfastError, match="3 x 100 x 100"):
        load(f"timm:local-dir:{tmp_path}", Options(size=100))
