"""From image files to pixels, by hand and against torchvision's formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.core.geometry import Geometry, Interpolation
from holdfast.data.reading.decode import decode

AS_IT_IS = Geometry(2, (2, 2))


def _saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def test_pixels_are_channels_first_and_exact(tmp_path: Path) -> None:
    values = torch.arange(12, dtype=torch.uint8).reshape(2, 2, 3)
    path = _saved(tmp_path / "x.png", Image.fromarray(values.numpy()))
    assert torch.equal(decode(path, 3, AS_IT_IS), values.permute(2, 0, 1))
    assert torch.equal(decode(path.read_bytes(), 3, AS_IT_IS), values.permute(2, 0, 1))


def test_colour_becomes_grey_by_its_luma_and_grey_becomes_three_equal_channels(tmp_path: Path) -> None:
    red = decode(_saved(tmp_path / "red.png", Image.new("RGB", (2, 2), (255, 0, 0))), 1, AS_IT_IS)
    assert red.unique().tolist() == [76]  # 0.299 * 255
    grey = decode(_saved(tmp_path / "grey.png", Image.new("L", (2, 2), 100)), 3, AS_IT_IS)
    assert grey.shape == (3, 2, 2)
    assert grey.unique().tolist() == [100]


def test_exif_orientation_is_respected(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side: turn by 90 degrees clockwise to view
    stored = Image.fromarray(np.array([[10, 20], [30, 40]], dtype=np.uint8))
    path = _saved(tmp_path / "x.png", stored, exif=exif)
    assert decode(path, 1, AS_IT_IS)[0].tolist() == [[30, 10], [40, 20]]


@pytest.mark.parametrize("ending", ["png", "tif", "ppm"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, ending: str) -> None:
    values = np.array([[0, 257], [128 * 257, 65535]], dtype=np.uint16)
    path = tmp_path / f"x.{ending}"
    if ending == "ppm":
        path.write_bytes(b"P5 2 2 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(path)
    assert decode(path, 1, AS_IT_IS)[0].tolist() == [[0, 1], [128, 255]]


def test_pixels_without_a_stated_range_are_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path / "x.tif", Image.fromarray(np.zeros((2, 2), dtype=np.float32)))
    with pytest.raises(ValueError, match="mode F"):
        decode(path, 1, AS_IT_IS)


def test_transparent_pixels_show_a_white_page(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert decode(_saved(tmp_path / "clear.png", clear), 3, AS_IT_IS).unique().tolist() == [255]
    half = Image.new("LA", (2, 2), (0, 128))
    assert decode(_saved(tmp_path / "half.png", half), 1, AS_IT_IS).unique().tolist() == [127]
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    assert decode(_saved(tmp_path / "palette.png", palette), 3, AS_IT_IS)[:, 0, 0].tolist() == [9, 8, 7]
    see_through = _saved(tmp_path / "palette.gif", palette, transparency=1)
    assert decode(see_through, 3, AS_IT_IS)[:, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["1", "CMYK", "YCbCr"])
def test_other_colour_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGB", (2, 2), (255, 255, 255)).convert(mode)
    path = _saved(tmp_path / ("x.png" if mode == "1" else "x.jpg"), image)
    assert decode(path, 3, AS_IT_IS).min() >= 254


def test_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("L", (2, 2), shade) for shade in (10, 200)]
    path = _saved(tmp_path / "x.gif", frames[0], save_all=True, append_images=frames[1:])
    assert decode(path, 1, AS_IT_IS).unique().tolist() == [10]


def test_disguised_formats_are_not_opened(tmp_path: Path) -> None:
    path = _saved(tmp_path / "x.eps", Image.new("RGB", (2, 2)))
    with pytest.raises(OSError, match="cannot identify"):
        decode(path.rename(tmp_path / "x.png"), 3, AS_IT_IS)


@pytest.mark.parametrize("size", [(37, 53), (301, 224), (64, 64), (20, 90)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_geometry_is_resize_of_the_shorter_side_then_the_centre(
    size: tuple[int, int], interpolation: Interpolation
) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    width, height = size
    # torchvision's Resize(40) and CenterCrop((32, 24)), written out.
    short, long = min(size), max(size)
    longer = int(40 * long / short)
    whole = image.resize((40, longer) if width <= height else (longer, 40), Image.Resampling[interpolation.upper()])
    top, left = round((whole.height - 32) / 2.0), round((whole.width - 24) / 2.0)
    fitted = Geometry(40, (32, 24), interpolation).fit(image)
    assert np.array_equal(np.asarray(fitted), np.asarray(whole)[top : top + 32, left : left + 24])


@pytest.mark.parametrize("size", [(1, 30000), (30000, 1), (3, 50), (10, 10)])
def test_any_image_fills_the_crop_in_little_memory(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *rest: Any) -> Image.Image:
        sizes.append(size)
        return resize(self, size, *rest)

    monkeypatch.setattr(Image.Image, "resize", watched)
    assert Geometry(8, (8, 24)).fit(Image.new("RGB", size, "red")).getcolors() == [(192, (255, 0, 0))]
    assert max(sizes[0]) <= 24 * 16


def test_what_does_not_fill_the_crop_is_enlarged_and_not_stretched() -> None:
    flag = Image.new("RGB", (30, 30), "red")
    flag.paste("green", (0, 10, 30, 20))
    assert Geometry(8, (8, 24), "nearest").fit(flag).getcolors() == [(192, (0, 128, 0))]
