"""Drift and threshold of embeddings that were computed elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import holdfast as hf
from holdfast.cli.app import run
from holdfast.core.errors import HoldfastError

DRAWN = np.random.default_rng(0).normal(size=(120, 8))


def saved(folder: Path, name: str, codes: np.ndarray) -> str:
    np.savez(folder / name, codes=codes)
    return str(folder / name)


def test_drift_of_files(tmp_path: Path) -> None:
    before, alike = saved(tmp_path, "a.npz", DRAWN[:60]), saved(tmp_path, "b.npz", DRAWN[60:])
    moved = saved(tmp_path, "c.npz", DRAWN[60:] + 2)
    assert not hf.drift(before, alike, progress=False, workers=None).moved
    drifted = hf.drift(before, moved, progress=False, workers=None)
    assert drifted.moved
    assert not [each for each in drifted.result.estimates if each.quantity == "change_explained"]
    with pytest.raises(HoldfastError, match="the same 60 embeddings"):
        hf.drift(before, before, progress=False, workers=None)
    assert run(["drift", before, moved]) == 1


def test_threshold_of_a_file(tmp_path: Path) -> None:
    codes = saved(tmp_path, "a.npz", DRAWN)
    result = hf.threshold(f"embeddings:{codes}", rate=0.05, rates=[0.1], progress=False, workers=None).result
    recommended = result.estimate("recommended_threshold")
    assert recommended.low < recommended.value < recommended.high
    assert not [each for each in result.estimates if "attack" in each.quantity]
