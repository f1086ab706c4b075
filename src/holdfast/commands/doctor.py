"""Check an encoder before its numbers are used."""

from __future__ import annotations

from typing import Unpack

from holdfast.core.encoder import Encoder
from holdfast.core.options import DoctorOptions, takes
from holdfast.core.run_settings import RunSettings
from holdfast.run.checkup import IMAGES, INSPECTED, Check, all_health_checks, image_checks, loading_checks
from holdfast.run.inputs import NamedEncoder, NamedImages, checked, load_encoder, loading_of, select


@takes(DoctorOptions)
def doctor(
    encoder: NamedEncoder, images: NamedImages | None = None, **options: Unpack[DoctorOptions]
) -> tuple[Check, ...]:
    """Return what speaks against an encoder: does it load the same twice, ignore the batch, pass gradients ...?

    Args:
        encoder: a name, or an encoder in memory, which is not loaded again.
        images: to look at: the pixels of up to 1,000, chosen by the seed 0, and the codes of 4; by default noise.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or an image is not finite or out of range.
    """
    run, loading = RunSettings(device=options["device"], precision=options["precision"]), loading_of(options)
    named, pixels, checks = checked(encoder), None, list[Check]()
    if images is not None:
        first = load_encoder(named, loading)
        chosen = select(images, first.domain, first.geometry, limit=INSPECTED)
        checks.append(image_checks(chosen, first.domain))
        few = select(chosen, first.domain, limit=IMAGES)
        pixels = few.pixels(range(len(few)))
    if isinstance(named, Encoder):
        return (*checks, *all_health_checks(load_encoder(named, loading), pixels, run))
    return (*checks, *loading_checks(lambda: load_encoder(named, loading), pixels, run))
