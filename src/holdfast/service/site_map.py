"""Maps that take the site out of embeddings: one affine map for each site, fitted without labels, and stored.

With the mean ``mu_s`` and covariance ``C_s`` of site ``s``, and ``mu`` and ``C`` of all images within their sites:

    centre   z - mu_s + mu
    whiten   (z - mu_s) C_s^(-1/2) C^(1/2) + mu
    combat   (z - alpha - sigma gamma*_s) / delta*_s + alpha, feature by feature

ComBat (Johnson, Li and Rabinovic 2007, https://doi.org/10.1093/biostatistics/kxj037, section 3) standardises each feature
by its mean ``alpha`` and pooled deviation ``sigma``, and shrinks each site's means ``gamma`` and variances ``delta^2``
towards a normal and an inverse gamma prior, whose parameters come from all features. Departure: no covariates, because
embeddings to map have no labels. ``C_s`` is shrunk towards ``C``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, final

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.core.errors import Described, HoldfastError, OutOfRange, UnknownName, check_no_blanks, check_not_blank
from holdfast.service.canary_file import Size, Text, check_finite, parsed, read, written

Kind = Literal["centre", "whiten", "combat"]
KINDS: tuple[Kind, ...] = ("centre", "whiten", "combat")
SHRUNK = 0.1
"""Weight of the pooled covariance in that of a site."""
RIDGE = 1e-6
"""Part of the mean variance that is added to all covariances, so that they can be inverted."""
FEWEST = 3
"""Images of a site."""
CONVERGED, ROUNDS = 1e-8, 10_000
"""Relative change at which ComBat's iteration ends, and its longest."""
Values = Float[np.ndarray, "n d"]


class Header(BaseModel):
    """What the file of a map states beside its arrays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    kind: Kind
    sites: Annotated[tuple[Text, ...], Field(min_length=2, max_length=10_000)]
    """Names of the sites, in the order of the arrays."""
    width: Size
    """Features of an embedding."""
    images: Size
    """Images that the map was fitted to."""
    unit: bool = False
    """True if embeddings are divided by their norm first."""


@final
@dataclass(frozen=True, eq=False)
class SiteMap:
    """Affine map of embeddings for each of some sites.

    Args:
        header: What is known of the map.
        shift: What is subtracted from embeddings of each site, shape (sites, d).
        factor: What they are multiplied by, shape (sites, d) feature by feature, or (sites, d, d).
        offset: What is added afterwards, shape (d,).
    """

    header: Header
    shift: Float[np.ndarray, "s d"] = field(repr=False)
    factor: Float[np.ndarray, "s d *e"] = field(repr=False)
    offset: Float[np.ndarray, "d"] = field(repr=False)

    def __call__(self, embeddings: object, sites: Sequence[str]) -> Float[np.ndarray, "n d"]:
        """Return ``embeddings``, an array of shape (n, d), without what is particular to their sites, as float32.

        Args:
            embeddings: Embeddings of the encoder that the map was fitted to, shape (n, d).
            sites: Name of the site of each embedding; each must be one that the map was fitted to.

        Raises:
            UnknownName: A site is new to the map.
            HoldfastError: Shapes do not fit, or values are not finite.
        """
        values = np.asarray(embeddings)
        if values.dtype.kind not in "fiu" or values.shape != (len(sites), self.header.width):
            raise HoldfastError(
                f"embeddings: this map takes numbers of shape ({len(sites)}, {self.header.width}), got {values.dtype} of "
                f"shape {values.shape}. Pass one row for each site"
            )
        if not np.isfinite(values).all():
            raise HoldfastError("embeddings: some are infinite or NaN, so they cannot be mapped. Leave them out")
        values = _unit(values) if self.header.unit else values
        known = {name: place for place, name in enumerate(self.header.sites)}
        if new := [site for site in sites if site not in known]:
            raise UnknownName("site", new[0], self.header.sites, fix="fit the map again with images of this site")
        result = np.empty(values.shape)
        for name in dict.fromkeys(sites):
            rows, place = np.array([site == name for site in sites]), known[name]
            moved, factor = values[rows] - self.shift[place].astype(np.float64), self.factor[place]
            result[rows] = moved * factor if factor.ndim == 1 else moved @ factor
        return np.asarray(result + self.offset, dtype=np.float32)

    def save(self, path: str | Path) -> Path:
        """Write the map to ``path``, a safetensors file, and return the path.

        Raises:
            HoldfastError: The file cannot be written.
        """
        arrays = {"shift": self.shift, "factor": self.factor, "offset": self.offset}
        return written(path, arrays, "site_map", self.header)


def fit_site_map(embeddings: object, sites: Sequence[str], kind: str = "combat", unit: bool = False) -> SiteMap:
    """Fit the map that takes the site out of embeddings.

    Args:
        embeddings: Embeddings of images of at least two sites, shape (n, d).
        sites: Name of the site of each embedding.
        kind: ``centre``, ``whiten`` or ``combat``.
        unit: True if the map divides embeddings by their norm first, as for search by cosine.

    Raises:
        UnknownName: There is no such kind.
        HoldfastError: There are fewer than two sites, a site has fewer than 3 images, or values are not finite.

    Example:
        >>> z = np.array([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
        >>> fit_site_map(z, ["a"] * 3 + ["b"] * 3, "centre")(z, ["a"] * 3 + ["b"] * 3).ravel().tolist()
        [5.0, 6.0, 7.0, 5.0, 6.0, 7.0]
    """
    check_no_blanks({"sites": sites, "kind": kind})
    if kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    values = np.asarray(embeddings)
    if values.dtype.kind not in "fiu":
        raise OutOfRange("embeddings", Described(f"an array of {values.dtype}"), "an array of numbers, shape (n, d)")
    values = values.astype(np.float64)
    if values.ndim != 2 or len(values) != len(sites) or not np.isfinite(values).all():
        raise HoldfastError(
            f"embeddings: a map is fitted to finite numbers of shape ({len(sites)}, d), got shape {values.shape}. Pass "
            "one row for each site"
        )
    values = _unit(values) if unit else values
    names, member = np.unique(np.array(sites, dtype=str), return_inverse=True)
    counts = np.bincount(member)
    if len(names) < 2 or counts.min() < FEWEST:
        raise HoldfastError(
            f"sites: a map takes two sites or more with {FEWEST} images each, got {len(names)}, the smallest with "
            f"{counts.min()}. Add images or leave the site out"
        )
    fitted = {"centre": _centre, "whiten": _whiten, "combat": _combat}[kind](values, member)
    stated = {"kind": kind, "sites": names.tolist(), "width": values.shape[1], "images": len(values), "unit": unit}
    try:
        header = Header.model_validate(stated)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        fix = "Name at most 10,000 sites, in printable characters, and at most 100,000 images"
        raise HoldfastError(f"sites: the map cannot be stored, because of its {where}. {fix}") from None
    return SiteMap(header, *(np.ascontiguousarray(part, dtype=np.float32) for part in fitted))


def _unit(values: Values) -> Values:
    norms = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(values / np.maximum(norms, np.finfo(float).tiny))


Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
Member = Int[np.ndarray, "n"]


def _means(values: Values, member: Member) -> Float[np.ndarray, "s d"]:
    return np.stack([values[member == site].mean(0) for site in range(member.max() + 1)])


def _centre(values: Values, member: Member) -> Parts:
    means = _means(values, member)
    return means, np.ones_like(means), values.mean(0)


def _whiten(values: Values, member: Member) -> Parts:
    means = _means(values, member)
    inside = values - means[member]
    pooled = inside.T @ inside / len(values)
    pooled += np.eye(len(pooled)) * (RIDGE * np.trace(pooled) / len(pooled) + np.finfo(float).tiny)
    root, factors = _power(pooled, 0.5), []
    for site in range(len(means)):
        own = inside[member == site]
        covariance = (1 - SHRUNK) * own.T @ own / len(own) + SHRUNK * pooled
        factors.append(_power(covariance, -0.5) @ root)
    return means, np.stack(factors), values.mean(0)


def _power(matrix: Float[np.ndarray, "d d"], exponent: float) -> Float[np.ndarray, "d d"]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, np.finfo(float).tiny) ** exponent) @ vectors.T)


def _combat(values: Values, member: Member) -> Parts:
    alpha = values.mean(0)
    sigma = np.sqrt(((values - _means(values, member)[member]) ** 2).mean(0))
    varies = sigma > 0  # a feature that is constant within all sites has no scale; it is left as it is
    z = (values[:, varies] - alpha[varies]) / sigma[varies]
    shift, factor = np.tile(alpha, (member.max() + 1, 1)), np.ones((member.max() + 1, len(alpha)))
    for site in range(member.max() + 1):
        gamma, variance = _shrunk(z[member == site])
        shift[site, varies] += sigma[varies] * gamma
        factor[site, varies] = 1 / np.sqrt(variance)
    return shift, factor, alpha


def _shrunk(z: Values) -> tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]]:
    """Return a site's means and variances after shrinking, from its standardised embeddings."""
    n, mean, variance = len(z), z.mean(0), z.var(0, ddof=1)
    if len(mean) < 2 or not variance.var(ddof=1) > 0 or not mean.var(ddof=1) > 0:
        return mean, np.maximum(variance, np.finfo(float).tiny)  # no prior can be learned from one feature
    towards, spread = mean.mean(), mean.var(ddof=1)
    m, s2 = variance.mean(), variance.var(ddof=1)
    a, b = (2 * s2 + m**2) / s2, (m * s2 + m**3) / s2
    gamma, delta = mean, variance
    for _ in range(ROUNDS):
        before = gamma, delta
        gamma = (n * spread * mean + delta * towards) / (n * spread + delta)
        delta = (0.5 * ((z - gamma) ** 2).sum(0) + b) / (n / 2 + a - 1)
        if max(np.abs(gamma - before[0]).max(), np.abs(delta - before[1]).max()) < CONVERGED:
            break
    return gamma, delta


def load_site_map(path: str | Path) -> SiteMap:
    """Load a map that ``SiteMap.save`` wrote.

    Args:
        path: The file, ending in .safetensors.

    Raises:
        HoldfastError: There is no such file, or it is damaged or holds no map.
    """
    check_not_blank("path", path)
    fix = "copy the file again, or fit a new map"
    header, arrays = parsed(str(path), read(Path(path)), "site map", Header, _check, fix)
    return SiteMap(header, arrays["shift"], arrays["factor"], arrays["offset"])


def _check(header: Header, arrays: dict[str, np.ndarray]) -> None:
    count, width = len(header.sites), header.width
    factor = (count, width, width) if header.kind == "whiten" else (count, width)
    expected = {"shift": (count, width), "factor": factor, "offset": (width,)}
    if {key: values.shape for key, values in arrays.items()} != expected:
        raise ValueError("its arrays do not fit its header")
    check_finite(arrays)
