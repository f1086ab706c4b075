"""The flag of parity that writes a map from an old embedding space to the new one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import holdfast as hf
from holdfast.cli.app import run
from holdfast.encoders import load
from tests.samples import digits


def test_the_command_writes_a_map_that_python_applies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "map.safetensors"
    names = ["builtin:digits-contrastive", "builtin:digits-robust"]
    flags = ["--images", "builtin:digits", "--limit", "80", "--k", "3", "--adapter", str(file)]
    assert run(["parity", *names, *flags]) in (0, 1)
    said = capsys.readouterr().out
    assert str(file) in said or "map.safetensors" in said
    old, new = map(load, names)
    pixels = digits(10).pixels(range(10))
    mapped = hf.load_adapter(file)(old.forward(pixels).numpy())
    assert mapped.shape == new.forward(pixels).shape
    assert np.isfinite(mapped).all()


def test_a_map_of_two_candidates_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "map.safetensors"
    names = ["builtin:digits-contrastive", "builtin:digits-robust", "builtin:digits-random"]
    assert run(["parity", *names, "--images", "builtin:digits", "--limit", "40", "--adapter", str(file)]) == 2
    assert "adapter" in capsys.readouterr().err
    assert not file.exists()
