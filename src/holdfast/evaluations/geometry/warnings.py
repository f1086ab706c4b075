"""What a reader must see beside any number about codes on the sphere."""

from __future__ import annotations

from holdfast.core.records import COLLAPSED
from holdfast.evaluations.geometry.sphere import Sphere
from holdfast.protocol.population import Population


def sphere_warnings(population: Population, sphere: Sphere, looked_at: int) -> tuple[str, ...]:
    """Return what a reader must see beside any number about these codes."""
    warnings, digests = [], population.images.digests
    if sphere.constant:
        warnings.append(
            f"{COLLAPSED}: all codes point the same way up to rounding, so no two images can be told apart by cosine."
        )
    if sphere.ties:
        warnings.append(
            f"{sphere.ties} images share their code with {sphere.near.shape[1]} others or more, so which of these are their "
            "neighbours is arbitrary: read hubness with suspicion."
        )
    if twins := len(digests) - len(set(digests)):
        warnings.append(f"{twins} of {len(digests)} images are exact copies of others; each image is counted once.")
    if zero := looked_at - len(sphere.rows):
        warnings.append(f"{zero} of {looked_at} images have a zero code, which has no direction, and are left out.")
    if len(sphere.rows) < 2 * sphere.codes.shape[1]:
        warnings.append(
            f"RankMe of {len(sphere.rows)} images cannot exceed their number, and codes have {sphere.codes.shape[1]} "
            "features: use several times as many images before comparing it with other data."
        )
    return tuple(warnings)
