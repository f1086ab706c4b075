"""Fit a map from the reference's embeddings to the candidate's space, and measure searches through it."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.commands.parity_sides import Side, change, radii_of
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.points.counting import nearest_rows
from holdfast.core.records import Estimate, Failure, Result, Verdict
from holdfast.run.inputs import Inputs
from holdfast.run.run import Run
from holdfast.service.adapter import KINDS, Adapter, fitted, parts
from holdfast.service.parity import NEIGHBOURS, Pair, kept_estimate, shown
from holdfast.service.parity_maps import Kept, influences, shared

ADAPTER_VERSION = 1
"""Raised whenever the same embeddings give another map or other numbers."""
NAME = "adapter_neighbours_kept"
QUESTION = "Can an adapter stand in for encoding again?"


NONE = "none"
"""Name of the old index as it is, which every map must beat."""


@dataclass(frozen=True)
class Adapted:
    """The map that keeps most neighbours, and what it keeps on images that it was neither fitted to nor chosen by."""

    adapter: Adapter | None
    """None if no map keeps more than the old index as it is."""
    kept: Estimate
    """Neighbours kept through the map, or without one."""
    other: Estimate | None = None
    """Neighbours kept without a map or, if none is needed, through the best one; None if widths differ."""
    warning: str | None = None
    """Why the attack radius through the map is not known, if it was asked for."""

    def verdict(self, path: Path) -> Verdict:
        """Return whether the map, written to ``path``, keeps as many neighbours as the verdict *same neighbours* asks."""
        low, high = (0.0, 1.0) if self.kept.low != self.kept.low else (self.kept.low, self.kept.high)
        enough = low >= NEIGHBOURS
        kind = self.kept.conditions["map"]
        if self.adapter is None:
            assert self.other is not None
            who = "no map is needed: the old index as it is" if enough else "no map beats the old index as it is, which"
            beside = f"the best map, {self.other.conditions['map']}, keeps {self.other.value:.3g}; no file is written"
        else:
            who = f"the {kind} map in {path.name}"
            beside = "" if self.other is None else f"the old index as it is keeps {self.other.value:.3g}"
        advice = "keep the index" if self.adapter is None else "map the index with it"
        if not enough:
            advice = "encode the index again" if high < NEIGHBOURS else "add images, which would decide"
        return Verdict(
            question=QUESTION,
            status="no violation found" if enough else "refuted" if high < NEIGHBOURS else "unknown",
            reason=f"{who} keeps {shown(self.kept)} of the nearest images of held-out images, "
            f"and {NEIGHBOURS:g} is asked; {f'{beside}; ' if beside else ''}{advice}",
            witness={"map": kind, "images": str(0 if self.adapter is None else self.adapter.header.images)},
        )


def adapted(
    pair: Pair, k: int, old: Side, new: str, before: Result | Failure | None, inputs: Inputs, run: Run
) -> tuple[list[Estimate], Adapted]:
    """Return what searches keep without and through each map, on held-out images, and the best map if it beats none.

    Args:
        pair: embeddings by both encoders.
        k: neighbours that are compared.
        old: the reference.
        new: name of the candidate.
        before: attack radii of the reference, if they were asked for.
        inputs: images of the run.
        run: store, engine and deadline.

    Raises:
        HoldfastError: there are too few images.
    """
    seen = pair.embedded(pair.divergence)
    fit, choose, test = parts(pair.order, pair.groups)
    least = min(len(choose), len(test)) if not pair.gallery.is_bank else len(pair.gallery.reference)
    if least <= k or len(fit) < 10 or not len(choose) or not len(test):
        raise HoldfastError(
            f"adapter: too few images to fit, choose and judge a map by {k} neighbours, got {len(pair.ids)}. Name "
            f"{4 * (k + 2)} or more"
        )
    unit = pair.divergence.name == "cosine"
    maps = {
        kind: fitted(kind, seen.reference[fit].double(), seen.candidate[fit].double(), (old.name, new), unit)
        for kind in KINDS
    }
    compared: dict[str, Adapter | None] = {NONE: None, **maps} if seen.same_width else {**maps}
    chosen = {kind: float(searched(seen, choose, k, each).values.mean()) for kind, each in compared.items()}
    found = dict[str, Estimate]()
    for kind, each in compared.items():
        conditions = {"k": str(k), "among": pair.among, "map": kind}
        found[kind] = kept_estimate(NAME, conditions, searched(seen, test, k, each), pair.gallery.is_bank)
        if pair.groups:  # an interval would be too short
            without = {"low": nan, "high": nan, "method": "no interval: the images come in groups"}
            found[kind] = found[kind].model_copy(update=without)
    best = max(KINDS, key=chosen.__getitem__)
    estimates, unmapped = list(found.values()), found.get(NONE)
    # A map has a cost, so it must keep more on both: the images that choose and those that judge.
    if unmapped is not None and (chosen[best] <= chosen[NONE] or found[best].value <= unmapped.value):
        return estimates, Adapted(None, unmapped, found[best])
    moved = None if before is None else _radii(old, maps[best], before, inputs, run)
    if isinstance(moved, Estimate):
        return [*estimates, moved], Adapted(maps[best], found[best], unmapped)
    return estimates, Adapted(maps[best], found[best], unmapped, moved)


def searched(seen: Pair, rows: Tensor, k: int, adapter: Adapter | None) -> Kept:
    """Return what new queries keep of their nearest images when the index holds mapped old embeddings.

    The nearest images are those that an index encoded again would give.

    Args:
        seen: embeddings as the divergence sees them.
        rows: queries; without a bank also the index.
        k: neighbours that are compared.
        adapter: the map; None searches the old index as it is.
    """
    queries = seen.candidate[rows]
    old, new = (
        (seen.gallery.reference, seen.gallery.candidate) if seen.gallery.is_bank else (seen.reference[rows], queries)
    )
    if adapter is not None:
        mapped = seen.divergence.embed(torch.from_numpy(adapter(old.numpy())).to(new.dtype))
        assert mapped is not None
        old = mapped
    itself = [] if seen.gallery.is_bank else list(range(len(rows)))

    def found(index: Float[Tensor, "m d"]) -> Tensor:
        return nearest_rows(L2Distance(), queries, index, k + 1, exclude=itself)

    again, through = found(new), found(old)
    values = shared(again[:, :k], through[:, :k])
    return Kept(values, values if seen.gallery.is_bank else influences(again, through, k))


def _radii(old: Side, adapter: Adapter, before: Result | Failure, inputs: Inputs, run: Run) -> Estimate | str:
    encoder = Encoder(
        nn.Sequential(old.encoder.module, adapter.module),
        f"{old.name} through the map",
        old.encoder.domain,
        geometry=old.encoder.geometry,
        pooling=old.encoder.pooling,
        caution="",
    )
    count = len(before.findings.ids) if isinstance(before, Result) else 1
    after = radii_of(Side(encoder, old.settings, encoder.name), count, inputs, run)
    assert after is not None
    moved = change(before, after)
    if isinstance(moved, str):
        return moved
    of = "attack radius through the map less that of the reference"
    return moved.model_copy(update={"quantity": f"adapter_{moved.quantity}", "of": of})
