"""The documentation's picture of the report shows what this version measures."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from holdfast import __version__

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"


def test_the_picture_was_made_with_this_version() -> None:
    with Image.open(PICTURE) as picture:
        assert picture.info.get("Software") == f"Holdfast {__version__}", "remake it: make picture"
        assert picture.size == (1280, 900)
