"""References: their grammar, their settings, and how adapters are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.encoders import Options, load, sources
from holdfast.encoders.by_name import require, split
from holdfast.encoders.loading.inputs import numbers, sizes
from holdfast.encoders.loading.weights import WeightSettings, read_weights
from tests.facts import refused
from tests.outside import looked_anew


def test_every_adapter_is_found_by_its_source():
    named = "baseline builtin checkpoint exported hf onnx open_clip timm torchvision"
    assert set(named.split()) <= set(sources())


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("resnet50", "source:name"),
        ("timm:", "source:name"),
        ("tim:resnet50", "Did you mean 'timm'"),
        ("baseline:pixel", "Did you mean 'pixels'"),
        ("baseline:random", "random_init"),
        ("baseline:pixels?shap=1x8x8", "Did you mean 'shape'"),
        ("baseline:pixels?shape", "setting=value"),
        ("baseline:pixels?shape=1,8,8", "spelled like 3x224x224"),
        ("baseline:pixels?shape=0x8", "positive sizes"),
        ("onnx:missing.onnx", "there is no file"),
        ("exported:missing.pt2", "there is no file"),
        ("checkpoint:missing.pt", "there is no file"),
    ],
)
def test_wrong_references_say_what_to_do(reference, said):
    with pytest.raises(HoldfastError, match=said):
        load(reference)


@pytest.mark.parametrize("source", ["onnx", "exported", "checkpoint"])
def test_empty_files_and_folders_are_refused(source, tmp_path):
    empty = tmp_path / "empty.bin"
    empty.touch()
    with pytest.raises(HoldfastError, match="0 bytes"):
        load(f"{source}:{empty}")
    with pytest.raises(HoldfastError, match="is a folder"):
        load(f"{source}:{tmp_path}")


def test_name_and_source_identify_the_encoder():
    encoder = load("baseline:pixels?shape=1x8x8", Options(size=4))
    assert encoder.name == "pixels"
    assert encoder.source == "baseline:pixels?shape=1x8x8 --size 4"
    assert encoder.domain.shape == (1, 4, 4)


def test_raw_pixels_are_the_flattened_input():
    pixels = torch.rand(3, 1, 8, 8)
    assert torch.equal(load("baseline:pixels?shape=1x8x8")(pixels), pixels.flatten(1))


def test_raw_pixels_of_another_range_name_themselves():
    encoder = load("baseline:pixels?shape=5&low=-2&high=2")
    assert (encoder.domain.low, encoder.domain.high) == (-2, 2)


def test_missing_package_names_the_extra():
    with pytest.raises(HoldfastError, match=r"pip install holdfast_has_no_such_package .*vision"):
        require("holdfast_has_no_such_package", "vision")


def test_package_of_another_build_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "misfit.py").write_text("raise RuntimeError('operator misfit::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused(HoldfastError, "--force-reinstall", "another", "torchvision"):
        require("misfit", "vision")


def test_settings_keep_their_types():
    assert split("x?size=3&trust_remote_code=true", Options) == ("x", Options(size=3, trust_remote_code=True))
    with pytest.raises(HoldfastError, match="expected int"):
        split("x?size=large", Options)


def test_numbers_fit_the_channels():
    assert numbers("0.5,0.25", 2) == (0.5, 0.25)
    assert sizes("7") == (7,)
    with pytest.raises(HoldfastError, match="one per channel"):
        numbers("1,2", 3)
    with pytest.raises(HoldfastError, match="separated by commas"):
        numbers("half", 3)


def test_new_file_in_the_package_is_an_adapter(tmp_path, monkeypatch):
    from holdfast import encoders

    code = "from holdfast.encoders import load as _load\nSOURCE = 'mine'\n"
    code += "def load(name, options):\n    return _load('baseline:pixels?shape=1x2x2')\n"
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.setattr(encoders, "__path__", [*encoders.__path__, str(tmp_path)])
    with looked_anew():
        encoder = load("mine:anything")
    assert isinstance(encoder, Encoder)
    assert (encoder.name, encoder.source) == ("anything", "mine:anything")


def test_a_setting_is_given_once_unless_it_takes_several(tmp_path):
    with pytest.raises(HoldfastError, match="'shape' is given twice"):
        load("baseline:pixels?shape=1x8x8&shape=1x4x4")
    base, settings = split("file.pt?drop=fc.&drop=queue&key=model", WeightSettings)
    assert (base, settings.drop, settings.key) == ("file.pt", ("fc.", "queue"), "model")
    save_file({name: torch.zeros(1) for name in ("fc.w", "queue", "body.w")}, tmp_path / "weights.safetensors")
    assert [*read_weights(tmp_path / "weights.safetensors", replace(settings, key=None))] == ["body.w"]
