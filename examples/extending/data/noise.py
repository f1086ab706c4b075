"""``noise:100``: so many images of uniform noise, to see what an encoder does with nothing at all."""

from __future__ import annotations

from holdfast.extend import Images, Noise, Selection, check_settings, convert

SOURCE = "noise"


def load(name: str, settings: dict[str, str], selection: Selection) -> Images:
    """Return as many images as ``name`` says."""
    check_settings(settings, [], SOURCE)
    ids = [f"noise/{row}" for row in range(convert(name, int, SOURCE))]
    domain = selection.domain
    pixels = domain.low + (domain.high - domain.low) * Noise.of(0, ids).uniform(domain.shape)
    return Images(pixels, ids, name=f"noise:{name}")[selection.choose(ids)]
