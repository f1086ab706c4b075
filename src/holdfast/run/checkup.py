"""Preflight check of an encoder before anything is measured: can its numbers be trusted, and which evaluations apply?

``failed``: measurements of this encoder would be meaningless. ``warning``: they mean less than they seem to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from holdfast.bounds.certified_pairs import traced
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.core.encoder import Domain, Encoder, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.core.fingerprint import without_source
from holdfast.core.images import Images, random_images
from holdfast.core.noise import Noise
from holdfast.core.optimised import optimisation
from holdfast.core.records import Record
from holdfast.core.run_settings import RunSettings, without_tf32
from holdfast.run.health_checks import (
    COMPARING,
    CRITICAL,
    QUESTIONS,
    CheckedEncoder,
    Status,
    encoded,
    finite,
    reason,
    repeatable,
)

IMAGES = 4
"""Images whose embeddings are looked at."""
INSPECTED = 1000
"""Images whose pixels are looked at."""
BLOCK = 1 << 24
"""Pixels read together."""


class Check(Record):
    """One question about an encoder and its answer in a sentence."""

    name: str
    status: Status
    sentence: str


def image_checks(images: Images, domain: Domain) -> Check:
    """Return the number of ``images`` that were read and fit ``domain``.

    Raises:
        HoldfastError: one of them is not finite, out of range or of another shape.

    Example:
        >>> import torch
        >>> image_checks(Images(torch.tensor([[0.5], [float("nan")]])), Domain((1,)))
        Traceback (most recent call last):
        holdfast.core.errors.OutOfRange: images '1' ... must be finite and lie in [0, 1], got values from nan to nan. ...
    """
    step = max(1, BLOCK // prod(domain.shape))
    for start in range(0, len(images), step):
        rows = range(start, min(start + step, len(images)))
        try:
            images.pixels(rows, domain=domain)
        except HoldfastError:
            for row in rows:  # so that the first bad one is named
                images.pixels([row], domain=domain)
            raise
    sentence = (
        f"{len(images):,} images were read (at most {INSPECTED:,} are): all are finite and lie in [{domain.low:g}, "
        f"{domain.high:g}]; codes are computed of {min(IMAGES, len(images))}."
    )
    return Check(name="images", status="ok", sentence=sentence)


@without_tf32()
def essential_checks(
    encoder: Encoder, pixels: Pixels | None = None, run: RunSettings | None = None, critical: bool = False
) -> tuple[Check, ...]:
    """Return the preflight checks of ``encoder``; they stop early if embeddings are not finite.

    Args:
        encoder: to be examined.
        pixels: images (b, *domain.shape), of which the first few are used; seeded noise where there are none.
        run: device, precision and seed.
        critical: ask only what an encoder can fail, which takes a fraction of the time.

    Example:
        >>> from holdfast.encoders.by_name import load
        >>> checks = essential_checks(load("baseline:pixels?shape=1x8x8"))
        >>> {check.name: check.status for check in checks}["independent of the batch"]
        'ok'
    """
    run = run or RunSettings()
    encoder, real = encoder.to(run.device, run.dtype), pixels is not None
    if pixels is None:
        noise = Noise.of(run.seed, [f"doctor {row}" for row in range(IMAGES)], run.device)
        pixels = random_images(encoder.domain, noise, run.dtype)
    pixels = pixels[:IMAGES].to(run.device, run.dtype)
    encoder.domain.check(pixels)
    return tuple(_examination(encoder, pixels, real, critical))


def loading_checks(
    load: Callable[[], Encoder], pixels: Pixels | None = None, run: RunSettings | None = None
) -> list[Check]:
    """Return whether ``load`` gives one encoder twice, then ``all_health_checks`` of it."""
    first, again = load(), load()
    status: Status = "ok" if first.fingerprint == again.fingerprint else "failed"
    unseen = without_source(first.module)
    other = (
        f" No source was found of {unseen[0]}: another version of Python gives another fingerprint." if unseen else ""
    )
    sentence = (
        f"Both times its fingerprint is {first.fingerprint}.{other}"
        if status == "ok"
        else "Two loads give two encoders, so some weights are random: load them or fix their seed."
    )
    loads = Check(name="loads the same twice", status=status, sentence=sentence)
    examined = all_health_checks if status == "ok" else essential_checks
    return [loads, *examined(first, pixels, run)]


def all_health_checks(
    encoder: Encoder, pixels: Pixels | None = None, run: RunSettings | None = None
) -> tuple[Check, ...]:
    """Return ``examine`` of ``encoder`` and, if it is fit, how it is computed and whether bounds exist."""
    run = run or RunSettings()
    checks = essential_checks(encoder, pixels, run)
    unfit = any(check.status == "failed" for check in checks)
    if unfit:
        return checks
    words = optimisation(encoder.to(run.device, run.dtype))
    built = words if words == "as it was built" else f"with {words}"
    certified: Status = "ok"
    sentence = "All of its operations can be bounded, and they are few enough."
    try:
        traced(encoder, InstanceAccuracy.neurons, "cpu")
    except HoldfastError as error:
        certified, sentence = "warning", f"{error}."
    return (
        *checks,
        Check(name="arranged for speed", status="ok", sentence=f"It is computed {built}."),
        Check(name="can be certified", status=certified, sentence=sentence),
    )


def _examination(encoder: Encoder, pixels: Pixels, real: bool, critical: bool) -> Iterator[Check]:
    try:
        codes = encoded(encoder, pixels)
    except Exception as error:  # whatever a stranger's module raises is what the reader must hear
        yield Check(name="one vector per image", status="failed", sentence=reason(encoder, pixels, error))
        return
    checked = CheckedEncoder(encoder, pixels, codes, real)
    steady = True
    for name, question in (CRITICAL if critical else QUESTIONS).items():
        if question in COMPARING and not steady:
            continue
        try:
            status, sentence = question(checked)
        except Exception as error:  # as above
            yield Check(name=name, status="failed", sentence=reason(encoder, pixels, error))
            return
        yield Check(name=name, status=status, sentence=sentence)
        if question is finite and status == "failed":
            return
        if question is repeatable:
            steady = status == "ok"
