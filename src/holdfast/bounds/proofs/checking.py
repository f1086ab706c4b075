"""A second program that checks certificates: slow, in numpy, with every rounding counted, and without search.

It shares nothing with the program that found them. Boxes of inputs are made from the image, the radius and the range of
pixels; ``W`` from the embeddings of the images. Each claim on an intermediate value must follow, by intervals or by a linear
bound, from the claims before it. Each leaf must have a positive bound, and leaves must cover the ball.

A linear form of a step's values is bounded by one of the values ``x`` before it. If rounding makes its coefficients
inexact by ``error``, the bound loses ``error . |x|`` at once, because ``x`` is bounded already. From there on, the
rounded coefficients are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.bounds.proofs.proof import (
    SMALLEST,
    SPARE,
    UNIT,
    Array,
    Claim,
    PlainNetwork,
    Proof,
    Step,
    above,
    below,
    dot_below,
    gamma,
    size,
)

ROWS = 256
"""Linear forms that are bounded at a time."""

Boxes = dict[int, tuple[Array, Array]]


class ProofError(Exception):
    """A proof does not hold, with what is wrong."""


@dataclass(frozen=True)
class Choices:
    """For each of r linear forms and each ReLU: lower slopes, and signs with their multipliers if there are splits."""

    slopes: Mapping[int, Array]
    signs: Mapping[int, NDArray[np.int8]] | None = None
    multipliers: Mapping[int, Array] | None = None


def check(network: PlainNetwork, proof: Proof, eps: float | None = None) -> dict[str, float]:
    """Return for each negative a number below ``W f`` in the whole ball; all are positive.

    Args:
        network: the network that was certified.
        proof: the certificates of an image.
        eps: the radius that they must be of; by default the one that the proof names.

    Raises:
        ProofError: the proof does not hold.
    """
    _check_sound(network, proof)
    if eps is not None and proof.eps != eps:
        raise ProofError(f"it is for radius {proof.eps:.17g}, not for {eps:.17g}")
    boxes = verified_boxes(network, proof)
    specifications = _specifications(network, proof)
    leaves, output = proof.leaves, len(network.steps) - 1
    least: dict[str, float] = {}
    splits = np.concatenate([np.zeros((len(leaves.negatives), 1), np.int8), *leaves.signs.values()], axis=1)
    splits = splits[:, (splits != 0).any(0)]
    for k, name in enumerate(proof.negative_ids):
        mine = (leaves.negatives == k).nonzero()[0]
        if not covers(splits[mine]):
            raise ProofError(f"its subdomains against {name!r} do not cover the ball")
        bounds = []
        for rows in np.array_split(mine, range(ROWS, len(mine), ROWS)):
            kinds = (leaves.slopes, leaves.signs, leaves.multipliers)
            choices = Choices(*({relu: part[rows] for relu, part in kind.items()} for kind in kinds))
            forms = np.repeat(specifications[k : k + 1], len(rows), 0)
            by_lines, by_boxes = (bounded_below(network, boxes, output, forms, each) for each in (choices, None))
            bounds.append(np.maximum(by_lines, by_boxes))
        least[name] = float(np.concatenate(bounds).min())
        if not least[name] > 0:
            raise ProofError(f"its bound against {name!r} is {least[name]:.3g}, which is not positive")
    return least


def _check_sound(network: PlainNetwork, proof: Proof) -> None:
    """Raise unless all choices are among those for which the relaxation lines are valid."""
    relus, leaves = set(network.relus), proof.leaves
    kinds = (leaves.signs, leaves.slopes, leaves.multipliers)
    if any(set(kind) != relus for kind in (proof.slopes, *kinds)):
        raise ProofError("it names other ReLUs than the network has")
    n, count = network.steps[0].size, len(proof.negative_ids)
    if proof.anchor.shape != (n,) or proof.negatives.shape != (count, n) or not count:
        raise ProofError("its images do not fit the network")
    if len(set(proof.negative_ids)) != count or proof.anchor_id in proof.negative_ids:
        raise ProofError("it names a negative twice, or the image itself")
    pixels = np.concatenate([proof.anchor[None], proof.negatives])
    if not ((pixels >= network.low) & (pixels <= network.high)).all() or not 0 < proof.eps < np.inf:
        raise ProofError("its images lie outside of the range of pixels, or its radius is none")
    if leaves.negatives.ndim != 1 or not ((leaves.negatives >= 0) & (leaves.negatives < count)).all():
        raise ProofError("it has subdomains of no negative")
    for relu in network.relus:
        width = network.steps[relu].size
        rows = (len(leaves.negatives), width)
        if proof.slopes[relu].shape != (width,) or any(kind[relu].shape != rows for kind in kinds):
            raise ProofError("its slopes do not fit the network")
        of_claims = [claim.slopes[relu].data for claim in proof.claims.values() if relu in claim.slopes]
        for slopes in (proof.slopes[relu], leaves.slopes[relu], *of_claims):
            if not ((slopes >= 0) & (slopes <= 1)).all():
                raise ProofError("it has a lower slope outside of [0, 1], where the line is not below the ReLU")
        if not ((leaves.multipliers[relu] >= 0) & (leaves.multipliers[relu] < np.inf)).all():
            raise ProofError("it has a multiplier that is negative or not finite")
        if not np.isin(leaves.signs[relu], (-1, 0, 1)).all():
            raise ProofError("it has a sign that is none")


def _specifications(network: PlainNetwork, proof: Proof) -> Array:
    """Return ``W``, the difference of the unit embeddings of the image and of each negative, as float64 computes it."""
    codes = network.codes(np.concatenate([proof.anchor[None], proof.negatives]))
    lengths = np.linalg.norm(codes, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ProofError("one of its images has the embedding zero")
    codes = codes / lengths
    return codes[:1] - codes[1:]


def verified_boxes(network: PlainNetwork, proof: Proof) -> Boxes:
    """Return a box for every step in which its values are proved to lie."""
    low = np.maximum(below(proof.anchor - proof.eps), network.low)
    high = np.minimum(above(proof.anchor + proof.eps), network.high)
    boxes: Boxes = {0: (low, high)}
    for k, step in enumerate(network.steps):
        if not step.inputs:
            continue
        boxes[k] = _interval(step, boxes)
        if k in proof.claims:
            boxes[k] = _claimed(network, proof, k, boxes)
        if not all(np.isfinite(end).all() for end in boxes[k]):
            raise ProofError(f"its bounds of step {k} are not finite")
    return boxes


def _interval(step: Step, boxes: Boxes) -> tuple[Array, Array]:
    """Return the box of a step from those of its inputs."""
    inputs = [boxes[i] for i in step.inputs]
    if not step.matrices:
        low, high = inputs[0]
        return np.maximum(low, 0), np.maximum(high, 0)
    low, high, error = np.zeros(step.size), np.zeros(step.size), np.zeros(step.size)
    for matrix, sizes, (below_input, above_input) in zip(step.matrices, step.sizes, inputs, strict=True):
        positive, negative = (matrix + sizes) / 2, (matrix - sizes) / 2
        low = low + positive @ below_input + negative @ above_input
        high = high + positive @ above_input + negative @ below_input
        error = error + sizes @ size(below_input, above_input)
    if step.offset is not None:
        low, high, error = low + step.offset, high + step.offset, error + np.abs(step.offset)
    terms = 2 * sum(matrix.shape[1] for matrix in step.matrices) + 2
    error = gamma(terms) * error + terms * SMALLEST
    return below(low - error), above(high + error)


def _claimed(network: PlainNetwork, proof: Proof, target: int, boxes: Boxes) -> tuple[Array, Array]:
    """Return the box that the proof claims of a step, cut by the one from intervals, once it is proved."""
    claim, (low, high) = proof.claims[target], boxes[target]
    if claim.low.shape != low.shape or claim.high.shape != high.shape or not (claim.low <= claim.high).all():
        raise ProofError(f"its claim on step {target} is no box")
    for sign, known, wanted in ((1, low, claim.low), (-1, -high, -claim.high)):
        entries = (~(known >= wanted)).nonzero()[0]
        for some in np.array_split(entries, range(ROWS, len(entries), ROWS)):
            if not len(some):
                continue
            forms = np.zeros((len(some), len(low)))
            forms[np.arange(len(some)), some] = sign
            bounds = bounded_below(network, boxes, target, forms, _choices(proof, claim, some, sign))
            if not (bounds >= wanted[some]).all():
                raise ProofError(f"its claim on step {target} is not proved by its slopes")
    return np.maximum(low, claim.low), np.minimum(high, claim.high)


def _choices(proof: Proof, claim: Claim, entries: NDArray[np.int64], sign: int) -> Choices:
    """Return the slopes for the bounds of some entries of a claim: their own where they have any."""
    slopes = {relu: np.repeat(shared[None], len(entries), 0) for relu, shared in proof.slopes.items()}
    row_of = {int(entry): row for row, entry in enumerate(claim.entries) if claim.signs[row] == sign}
    for position, entry in enumerate(entries.tolist()):
        if entry in row_of:
            for relu, matrix in claim.slopes.items():
                slopes[relu][position] = matrix[[row_of[entry]]].toarray()[0]
    return Choices(slopes)


class Descent:
    """Linear forms on their way from a step back to the input, and what is already known of their least values."""

    def __init__(self, boxes: Boxes, target: int, forms: Array) -> None:
        self.boxes, self.pending, self.total = boxes, {target: forms}, np.zeros(len(forms))

    def add(self, numbers: Array) -> None:
        """Add ``numbers`` that are at or below a part of the forms."""
        self.total = below(self.total + numbers)

    def lose(self, error: Array, node: int) -> None:
        """Allow for an ``error`` of the coefficients of a step's values."""
        self.add(-(SPARE * (error @ size(*self.boxes[node])) + SMALLEST))

    def move(self, source: int, coef: Array) -> None:
        """Add ``coef`` to the form of the values of ``source``."""
        if source in self.pending:
            coef = self.pending[source] + coef
            self.lose(UNIT * np.abs(coef), source)
        self.pending[source] = coef

    def end(self, node: int, coef: Array) -> None:
        """Add the least values of forms over the box of a step."""
        low, high = self.boxes[node]
        self.add(dot_below(np.maximum(coef, 0), low))
        self.add(dot_below(np.minimum(coef, 0), high))


def bounded_below(network: PlainNetwork, boxes: Boxes, target: int, forms: Array, choices: Choices | None) -> Array:
    """Return numbers below the linear ``forms`` (r, n) of the values of a step, in the ball and in their subdomains.

    Without ``choices``, forms end at the boxes of the last ReLUs.
    """
    descent = Descent(boxes, target, forms)
    for k in range(target, -1, -1):
        if k not in descent.pending:
            continue
        coef, step = descent.pending.pop(k), network.steps[k]
        if step.matrices:
            _through_affine(descent, coef, step)
        elif step.inputs and choices is not None:
            _through_relu(descent, coef, k, step.inputs[0], choices)
        else:
            descent.end(k, coef)
    return descent.total


def _through_affine(descent: Descent, coef: Array, step: Step) -> None:
    if step.offset is not None:
        descent.add(dot_below(coef, step.offset))
    for matrix, sizes, source in zip(step.matrices, step.sizes, step.inputs, strict=True):
        descent.lose(gamma(step.size) * np.asarray(np.abs(coef) @ sizes) + step.size * SMALLEST, source)
        descent.move(source, np.asarray(coef @ matrix))


def _through_relu(descent: Descent, coef: Array, k: int, source: int, choices: Choices) -> None:
    """Replace each output by a line below it where its coefficient is positive, else by one above it.

    Over [l, u] with l < 0 < u any line through zero with a slope in [0, 1] lies below.
    """
    low, high = (np.broadcast_to(end, coef.shape) for end in descent.boxes[source])
    sign = np.zeros(coef.shape, np.int8) if choices.signs is None else choices.signs[k]
    low = np.where(sign > 0, np.maximum(low, 0), low)
    high = np.maximum(np.where(sign < 0, np.minimum(high, 0), high), low)  # an empty subdomain has any bound
    active, dead = low >= 0, high <= 0
    stable = np.where(active, 1.0, 0.0)
    above_slope = np.where(active | dead, stable, high / np.where(active | dead, 1.0, high - low))
    constant = np.where(active | dead, 0.0, constant_above(above_slope, low, high))
    below_slope = np.where(active | dead, stable, choices.slopes[k])
    positive, negative = np.maximum(coef, 0), np.minimum(coef, 0)
    moved = positive * below_slope + negative * above_slope
    descent.lose(UNIT * np.abs(moved) + SMALLEST, source)
    products = negative * constant
    descent.add(products.sum(1) - gamma(products.shape[1]) * np.abs(products).sum(1) - SMALLEST)
    if choices.multipliers is not None:
        # sign * z >= 0 in the subdomain, so that a multiple of it may be taken away.
        moved = moved - sign * choices.multipliers[k]
        descent.lose(UNIT * np.abs(moved), source)
    descent.move(source, moved)


def constant_above(slopes: Array, low: Array, high: Array) -> Array:
    """Return constants with which lines of any ``slopes`` lie above ReLUs from ``low`` < 0 to ``high`` > 0.

    ReLUs are convex, so that a line of slope s lies above if it does so at both ends: ``max(-s l, u - s u)``.
    """
    most = np.maximum(-slopes * low, high - slopes * high)
    return above(most + 4 * UNIT * (np.abs(slopes) * size(low, high) + np.abs(high)))


def covers(signs: NDArray[np.int8]) -> bool:
    """Return whether subdomains, each a row of signs of ReLUs (0: either), leave out no combination of signs.

    They must be the leaves of a tree: the ReLU that was split first has a sign in every one.

    Example:
        >>> signs = np.array([[1, 0], [-1, 1], [-1, -1]], np.int8)
        >>> covers(signs), covers(signs[:2])
        (True, False)
    """
    if not len(signs):
        return False
    if bool((signs == 0).all(1).any()):
        return True
    columns = (signs != 0).all(0)
    if not columns.any():
        return False
    first = int(columns.argmax())
    return all(covers(np.delete(signs[signs[:, first] == sign], first, 1)) for sign in (1, -1))
