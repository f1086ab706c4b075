"""Parity of a real network with copies of itself: EfficientNet-Lite0 at 64 pixels, on photographs."""

from __future__ import annotations

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
