"""The reference set (bank): a second set of images, which probes learn from and retrieval searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch

from holdfast.core.errors import Described, HoldfastError, OutOfRange, warn
from holdfast.core.images import Images

MOST_COMPARED = 2**27
"""Largest number of pixels compared between reference set and images; more would be decoded for nothing else."""
BLOCK = 2**24


def apart(bank: Images, images: Images) -> Images:
    """Reference set without copies of the measured images, with matching label numbers.

    A probe that has seen what it is asked, and a search that finds the question itself, measure nothing. Copies are
    equal as stored or, where one set has 8 bits and they are few enough, in 8 bits.

    Raises:
        HoldfastError: Nothing is left, or a label is the number of no class.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     apart(Images(torch.tensor([[0.1], [0.2]])), Images(torch.tensor([[0.2]]))).ids
        ('0',)
    """
    known = set(images.digests)
    kept = [row for row, digest in enumerate(bank.digests) if digest not in known]
    if kept and _in_levels(bank, images):
        known = set(_levels(images, range(len(images))))
        kept = [row for row, digest in zip(kept, _levels(bank, kept), strict=True) if digest not in known]
    copies = len(bank) - len(kept)
    if not kept:
        raise HoldfastError(
            f"all {len(bank)} images of {bank.name} are among those of {images.name}, so none is left to compare with; "
            "name others"
        )
    if copies:
        warn(f"{copies} of {len(bank)} images of {bank.name} are copies of images of {images.name}; they are left out")
    aligned = _aligned(bank, images)
    return aligned[kept] if copies else aligned


def alongside(bank: Images, images: Images) -> Images:
    """Reference set with its copies of the measured images, for tests that compare both sets.

    A permutation test is exact only if both sets are treated alike. Without the copies, an image that recurs, such as a
    blank frame, would be missing from one set alone.

    Raises:
        HoldfastError: Both sets hold the same images, each equally often, so no test could tell them apart.

    Example:
        >>> alongside(Images(torch.tensor([[0.1], [0.2]])), Images(torch.tensor([[0.2]]))).ids
        ('0', '1')
    """
    same = Counter(bank.digests) == Counter(images.digests)
    if not same and len(bank) == len(images) and _in_levels(bank, images):
        same = Counter(_levels(bank, range(len(bank)))) == Counter(_levels(images, range(len(images))))
    if same:
        raise HoldfastError(f"{bank.name} and {images.name} hold the same {len(bank)} images. Name two different sets")
    return _aligned(bank, images)


def _in_levels(bank: Images, images: Images) -> bool:
    """Return whether 8 bits decide: both hold pictures of one size, one of them in 8 bits and few enough to decode."""
    image, other = images.source.read([0]), bank.source.read([0])
    few = (len(bank) + len(images)) * image.numel() <= MOST_COMPARED
    return few and image.ndim == 4 and image.shape == other.shape and torch.uint8 in (image.dtype, other.dtype)


def _levels(images: Images, rows: Sequence[int]) -> Iterator[bytes]:
    width = max(1, BLOCK // images.pixels([0]).numel())
    for start in range(0, len(rows), width):
        for image in (images.pixels(rows[start : start + width]) * 255).round().to(torch.int32):
            yield blake2b(image.numpy().tobytes(), digest_size=16).digest()


def _aligned(bank: Images, images: Images) -> Images:
    """Return ``bank`` with the class numbers of ``images``, matched by class name."""
    if bank.labels is None or not bank.classes or not images.classes or bank.classes == images.classes:
        return bank
    labels = torch.as_tensor(bank.labels).long()
    if not 0 <= int(labels.min()) <= int(labels.max()) < len(bank.classes):
        raise OutOfRange(
            f"the labels of {bank.name}",
            Described(f"values from {int(labels.min())} to {int(labels.max())}"),
            f"in 0..{len(bank.classes) - 1}, one number for each class it names",
            fix="leave images without a class out",
        )
    classes = (*images.classes, *(name for name in bank.classes if name not in images.classes))
    numbers = torch.tensor([classes.index(name) for name in bank.classes])
    return Images(bank.source, bank.ids, numbers[labels], bank.name, classes, bank.groups)
