"""Small image files to load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Painter = Callable[..., Path]


@pytest.fixture
def paint(tmp_path: Path) -> Painter:
    """Write a random RGB image below a folder of this test: paint("cat/1.png", size=(12, 10)) -> its path."""

    def write(name: str, size: tuple[int, int] = (12, 10)) -> Path:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(len(name) + sum(map(ord, name))).integers(0, 256, (size[1], size[0], 3))
        Image.fromarray(values.astype(np.uint8)).save(path)
        return path

    return write
