"""May this encoder's numbers be trusted?"""

from __future__ import annotations

from holdfast.commands.inputs import NamedEncoder, NamedImages, at_hand, checked
from holdfast.core.encoder import Encoder
from holdfast.core.errors import refuse_blanks
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.by_name import Options
from holdfast.run.examination import IMAGES, INSPECTED, Check, examine_images, examine_loading, examine_wholly
from holdfast.run.inputs import load_encoder, select


def doctor(
    encoder: NamedEncoder,
    images: NamedImages | None = None,
    *,
    arch: str | None = None,
    size: int | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
    precision: str = "float32",
) -> tuple[Check, ...]:
    """Return what speaks against an encoder: does it load the same twice, ignore the batch, pass gradients ...?

    Args:
        encoder: a reference, or one at hand, which is not loaded again.
        images: to look at: the pixels of up to 1,000, chosen by the seed 0, and the codes of 4; by default noise.
        arch: ``package.module:factory``, which builds the module of a checkpoint.
        size: height and width of the inputs, instead of the encoder's own.
        trust_remote_code: whether a model repository may run its own Python code here.
        device: where torch computes.
        precision: float32, float64, bfloat16 or float16.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or an image is not finite or out of range.
    """
    refuse_blanks(locals())
    run, options = RunSettings(device=device, precision=precision), Options(arch, size, trust_remote_code)
    named, pixels, checks = checked(encoder), None, list[Check]()
    if images is not None:
        first = load_encoder(named, options)
        chosen = select(at_hand(images), first.domain, first.geometry, limit=INSPECTED)
        checks.append(examine_images(chosen, first.domain))
        few = select(chosen, first.domain, limit=IMAGES)
        pixels = few.pixels(range(len(few)))
    if isinstance(named, Encoder):
        return (*checks, *examine_wholly(load_encoder(named, options), pixels, run))
    return (*checks, *examine_loading(lambda: load_encoder(named, options), pixels, run))
