"""The bank: a second set of images, that probes learn from and retrieval searches, apart from those that are measured."""

from __future__ import annotations

import warnings

import torch

from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images


def apart(bank: Images, images: Images) -> Images:
    """Return ``bank`` without exact copies of ``images``, its labels numbered as theirs where both name their classes.

    A probe that has seen what it is asked, and a search that finds the question itself, measure nothing.

    Raises:
        HoldfastError: nothing is left, or a label is the number of no class.

    Example:
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     apart(Images(torch.tensor([[0.1], [0.2]])), Images(torch.tensor([[0.2]]))).ids
        ('0',)
    """
    measured = set(images.digests)
    kept = [row for row, digest in enumerate(bank.digests) if digest not in measured]
    copies = len(bank) - len(kept)
    if not kept:
        raise HoldfastError(
            f"all {len(bank)} images of the bank are measured too; name other images, such as the training images"
        )
    if copies:
        warnings.warn(
            f"{copies} of {len(bank)} images of the bank are exact copies of images that are measured; they are left out",
            HoldfastWarning,
            stacklevel=2,
        )
    aligned = _aligned(bank, images)
    return aligned[kept] if copies else aligned


def _aligned(bank: Images, images: Images) -> Images:
    """Return ``bank`` with the numbers that ``images`` give to classes of the same name."""
    if bank.labels is None or not bank.classes or not images.classes or bank.classes == images.classes:
        return bank
    labels = torch.as_tensor(bank.labels).long()
    if not 0 <= int(labels.min()) <= int(labels.max()) < len(bank.classes):
        raise HoldfastError(
            f"the labels of {bank.name} must lie in 0..{len(bank.classes) - 1}, one number for each class it names, got "
            f"values from {int(labels.min())} to {int(labels.max())}; leave images without a class out"
        )
    classes = (*images.classes, *(name for name in bank.classes if name not in images.classes))
    numbers = torch.tensor([classes.index(name) for name in bank.classes])
    return Images(bank.source, bank.ids, numbers[labels], bank.name, classes)
