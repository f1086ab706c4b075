"""Test whether new images differ from reference images: two sets, one encoder, no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from torch import Tensor

from holdfast.commands.evaluate import evaluate_one
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.core.divergences import DIVERGENCES, Divergence
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.options import LocalOptions, takes
from holdfast.core.records import Result
from holdfast.core.settings import read
from holdfast.encoders.by_name import load
from holdfast.encoders.embeddings import SOURCE, Embeddings
from holdfast.run.inputs import NamedEncoder, NamedImages
from holdfast.service.evaluations.drift import Drift
from holdfast.service.two_sets import divergences
from holdfast.transforms.severity import EDITS, FIFTEEN, edit_names


@dataclass(frozen=True, eq=False)
class Drifted:
    """What ``drift`` returns."""

    run: EvaluatedRun
    result: Result

    @property
    def moved(self) -> bool:
        """Return whether the images after were shown to come from elsewhere than those before."""
        return self.result.findings.verdicts[0].status == "refuted"


@takes(LocalOptions)
def drift(
    before: NamedImages | Embeddings,
    after: NamedImages | Embeddings,
    encoder: NamedEncoder | None = None,
    *,
    alpha: float = Drift.alpha,
    sequential: bool = False,
    divergence: str | Divergence = "l2",
    permutations: int = Drift.permutations,
    edits: str | Sequence[str] = EDITS + FIFTEEN,
    **options: Unpack[LocalOptions],
) -> Drifted:
    """Return whether the images ``after`` come from where those ``before`` came from, as ``holdfast drift`` does.

    Args:
        before: the images that are as they should be: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1].
        after: the images to test, as ``before``; images that are in both sets stay in both.
        encoder: its embeddings are compared; in memory or by name. None: both sets are stored embeddings (files,
            references ``embeddings:FILE``, ``Embeddings`` or tensors (n, d)), and no edit is tried.
        alpha: the share of false alarms among sets that are alike.
        sequential: let the test decide that may be looked at after every image, for a folder that grows: ``after`` is then
            read in the order of its names.
        divergence: the distance of codes: l2, unit_l2, cosine, rank, wasserstein or tokens.
        permutations: random divisions of all images into two sets; more are drawn where ``alpha`` needs more.
        edits: everyday edits and common corruptions that may explain the change, separated by commas.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or the sets are too small to ever
            show a change at ``alpha`` (4 and 4 images at 0.05).

    Example:
        >>> import torch
        >>> from holdfast.core.encoder import Domain, Encoder
        >>> encoder = Encoder(torch.nn.Flatten(), "pixels", Domain((1, 4, 4)))
        >>> images = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> drift(images[:30], images[30:] / 2, encoder, edits="brightness", progress=False).moved
        True
    """
    if encoder is None:
        measured: NamedImages | None = None
        encoder, bank = _stored(before, after)
    elif isinstance(before, Embeddings) or isinstance(after, Embeddings):
        raise HoldfastError("encoder: stored embeddings take none, got one. Leave it out")
    else:
        measured, bank = after, before
    if isinstance(divergence, str) and divergence.partition(":")[0] not in DIVERGENCES:
        divergence = read(divergence, divergences(), "divergence")  # which names those that drift can measure by
    asked = {"alpha": alpha, "sequential": sequential, "divergence": divergence, "permutations": permutations}
    settings = {Drift.name: {**asked, "edits": edit_names(edits)}}
    limit = options["limit"]
    run = evaluate_one(encoder, measured, bank=bank, only=Drift.name, settings=settings, bank_limit=limit, **options)
    return Drifted(run, run.results[0])


def _stored(before: NamedImages | Embeddings, after: NamedImages | Embeddings) -> tuple[Embeddings, NamedImages]:
    """Return embeddings after, and those before as the bank.

    Raises:
        HoldfastError: one cannot be read, or both are the same.
    """
    first, second = (_embeddings(each) for each in (before, after))
    if first.stored.fingerprint == second.stored.fingerprint:
        raise HoldfastError(f"before and after hold the same {len(first.stored)} embeddings. Name two different sets")
    # Rows of one name may be of different images, so those before get names of their own.
    named = replace(first.stored, ids=tuple(f"before:{name}" for name in first.stored.ids))
    return second, named.images()


def _embeddings(named: NamedImages | Embeddings) -> Embeddings:
    if isinstance(named, Embeddings):
        return named
    if isinstance(named, Tensor):
        return Embeddings(named)
    if isinstance(named, Images):
        raise HoldfastError("encoder: images need one, got none. Name it, as in builtin:digits-contrastive")
    loaded = load(f"{SOURCE}:{str(named).removeprefix(f'{SOURCE}:')}")
    assert isinstance(loaded, Embeddings)
    return loaded
