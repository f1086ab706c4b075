"""Parity of a real network with copies of itself: EfficientNet-Lite0 at 64 pixels, on photographs."""

from __future__ import annotations

import warnings
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import holdfast as hf
from tests.commands.parity_pairs import Reordered
from tests.commands.test_harden_real import efficientnet_lite0


def varied(encoder: hf.Encoder, name: str, module: nn.Module | None = None, mean: float = 0.498) -> hf.Encoder:
    """Return the network under another name, reordered or normalised otherwise."""
    inner = encoder.module.module
    assert isinstance(inner, nn.Module)
    return hf.Encoder(module or inner, name, encoder.domain, mean=[mean] * 3, std=[0.502] * 3)


@pytest.mark.slow
def test_a_real_network_is_told_from_copies_of_itself(reference: Path, tmp_path: Path) -> None:
    lite0 = copy(efficientnet_lite0(reference))
    photos = hf.load_images(reference / "real" / "photos", lite0)
    inner = lite0.module.module
    assert isinstance(inner, nn.Module)
    candidates: list[str | hf.Encoder | Path] = [
        "bfloat16",
        varied(lite0, "BGR", Reordered(inner)),
        varied(lite0, "wrong mean", mean=0.3),
    ]
    answer = hf.parity(lite0, candidates, photos)
    assert answer.verdicts["lite0 in bfloat16"] == "same neighbours"
    assert answer.verdicts["BGR"] == answer.verdicts["wrong mean"] == "another space"
    causes = {name: answer[name].findings.verdicts[1].witness["preprocessing"] for name in ("BGR", "wrong mean")}
    assert causes == {"BGR": "channels in the opposite order", "wrong mean": "the normalisation of lite0"}


@pytest.mark.slow
def test_a_network_quantised_by_onnx_runtime_is_compared_as_a_file(tmp_path: Path) -> None:
    runtime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    quantization = pytest.importorskip("onnxruntime.quantization")
    pytest.importorskip("onnxscript")
    from tests.commands.parity_pairs import DOMAIN, network

    encoder = hf.Encoder(network(), "network", DOMAIN, mean=[0.5] * 3, std=[0.5] * 3)
    pixels = torch.rand(150, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(encoder.module, (pixels[:1],), tmp_path / "net.onnx", dynamo=True)
    quantization.quantize_dynamic(tmp_path / "net.onnx", tmp_path / "int8.onnx")
    session = runtime.InferenceSession(tmp_path / "int8.onnx", providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    codes = np.concatenate([session.run(None, {name: pixel[None].numpy()})[0] for pixel in pixels])
    images = hf.Images(pixels)
    np.savez(tmp_path / "int8.npz", codes=codes, ids=images.ids)
    answer = hf.parity(encoder, tmp_path / "int8.npz", images)
    distance = answer["int8.npz"].estimate("distance")
    assert 0 < distance.value < 0.3, "int8 moves codes, and not far"
    assert answer["int8.npz"].estimate("unexplained", map="rotation").value < 0.1


@pytest.mark.slow  # exporting takes seconds
def test_an_exported_program_is_the_same_and_static_int8_is_near(tmp_path: Path) -> None:
    import torch

    from tests.commands.parity_pairs import encoder, network, photographs

    photos = photographs(tmp_path / "photos")
    reference = encoder(network(), "reference")
    images = hf.load_images(str(photos), reference)
    normalised = (images.pixels(range(64)) - 0.498) / 0.502
    program = torch.export.export(network(), (normalised[:2],), dynamic_shapes=({0: torch.export.Dim("b")},))
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = hf.load_encoder(f"exported:{tmp_path / 'network.pt2'}?trust=yes&mean=0.498&std=0.502")
    inner = loaded.module.module
    assert isinstance(inner, nn.Module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = torch.ao.quantization.QuantWrapper(network()).eval()
        wrapped.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
        watched = torch.ao.quantization.prepare(wrapped)
        watched(normalised)  # the ranges of inputs and layers
        static = torch.ao.quantization.convert(watched)
    answer = hf.parity(reference, [encoder(inner, "pt2"), encoder(static, "static int8")], str(photos))
    assert answer.verdicts["pt2"] == "same to rounding"
    near = answer["static int8"]
    assert 0 < near.estimate("distance").value < 0.15
    assert near.estimate("cosine").value > 0.999
    assert near.estimate("neighbours_kept").value > 0.8
    causes = [v.witness["preprocessing"] for v in near.findings.verdicts if v.question == "Are images prepared alike?"]
    assert causes == ["as it is"]


@pytest.mark.slow  # two trainings take seconds
def test_another_seed_of_the_same_training_is_another_space() -> None:
    trained = [
        hf.train("digits-contrastive", "builtin:digits-train", limit=600, settings={"seed": seed, "epochs": 6})
        for seed in (0, 1)
    ]
    for seed, encoder in enumerate(trained):
        encoder.name = f"seed {seed}"
    answer = hf.parity(trained[0], trained[1], "builtin:digits", limit=200)
    assert answer.verdicts == {"seed 1": "another space"}
    kept = answer["seed 1"].estimate("neighbours_kept")
    assert 10 / 199 < kept.low < kept.high < 0.9, "both learned the same, and not the same space"
    causes = [verdict.witness.get("preprocessing") for verdict in answer["seed 1"].findings.verdicts]
    assert causes[1] == "as it is"
