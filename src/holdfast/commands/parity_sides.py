"""The two sides that ``parity`` compares, and the attack radii of both, paired by image."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError, HoldfastError, UnknownName
from holdfast.core.images import Images
from holdfast.core.noise import hashed_each
from holdfast.core.records import Claim, Estimate, Failure, Result, Series
from holdfast.core.run_settings import PRECISIONS, RunSettings
from holdfast.core.statistics.differences import paired
from holdfast.data.codes.forms import Form
from holdfast.data.reading.scan_cache import FILE, ScanCache
from holdfast.encoders import by_name as encoders
from holdfast.encoders.by_name import Options
from holdfast.encoders.by_name import named as short_name
from holdfast.encoders.embeddings import SOURCE
from holdfast.encoders.stored import SETTING, stored
from holdfast.measure.population import Population
from holdfast.measure.store import key_of
from holdfast.run.inputs import Inputs, NamedEncoder, checked, images_reference, reference_of
from holdfast.run.plan import plan_for_large_encoders
from holdfast.run.request import Request, planned
from holdfast.run.run import Run
from holdfast.run.shards import CleanCodes
from holdfast.run.table import fill_table, unfit
from holdfast.service.parity import DIVERGENCES, Pair
from holdfast.service.parity_maps import Gallery

ITSELF = "the other images"
NamedSide = NamedEncoder | Path
"""An encoder, its reference, a file of codes, or the reference in a precision (its name) or a form (``?stored=...``)."""


@dataclass(frozen=True, eq=False)
class Side:
    """An encoder, under a name of its own, and the precision that it is computed in."""

    encoder: Encoder
    settings: RunSettings
    request: str
    """What a request calls it."""

    @property
    def name(self) -> str:
        return self.encoder.name


@dataclass(frozen=True, eq=False)
class Coded:
    """A side with the codes of as many images as a budget allowed, and of the whole bank."""

    side: Side
    population: Population
    rows: list[int]
    codes: Float[Tensor, "n d"]
    """Of the images at ``rows``."""
    problem: str | None
    """Why other measurements of this encoder would be refused, if they would."""
    bank: Float[Tensor, "m d"] | None
    bank_ids: tuple[str, ...] = ()

    @cached_property
    def ids(self) -> list[str]:
        return [self.population.images.ids[row] for row in self.rows]

    @property
    def known(self) -> Population:
        """Return the images that have codes, with these."""
        images = self.population.images
        images = images if len(self.rows) == len(images) else images[self.rows]
        return Population(self.side.encoder, images, self.side.settings, self.codes)


def sides_of(
    reference: NamedSide, candidates: Sequence[NamedSide], settings: RunSettings, options: Options
) -> list[Side]:
    """Return the reference and the candidates, loaded, each under a name of its own.

    Raises:
        HoldfastError: one cannot be loaded, or there is no candidate.
    """
    if not candidates:
        raise HoldfastError("nothing to compare with the reference; name a candidate, as in float16 or embeddings.npz")
    first = side_of(reference, None, settings, options)
    sides, counts = list[Side](), Counter[str]()
    for side in (first, *(side_of(each, first, settings, options) for each in candidates)):
        counts[side.name] += 1
        name = side.name if counts[side.name] == 1 else f"{side.name} ({counts[side.name]})"
        sides.append(replace(side, encoder=_called(side.encoder, name, side.encoder.source)))
    return sides


def side_of(named: NamedSide, reference: Side | None, settings: RunSettings, options: Options) -> Side:
    """Return the side that ``named`` stands for; precisions and forms are those of ``reference``.

    Raises:
        HoldfastError: it cannot be loaded, or there is no reference for a precision or a form.
    """
    if isinstance(named, str) and named in PRECISIONS:
        if reference is None or reference.encoder.codes_only:
            raise HoldfastError(f"{named} stands for the reference computed in that precision; name an encoder first")
        encoder = _called(reference.encoder, f"{reference.name} in {named}", named)
        return Side(encoder, replace(settings, precision=named), named)
    if isinstance(named, str) and named.startswith(f"?{SETTING}"):
        if reference is None:
            raise HoldfastError(f"{named} stands for the reference in that form; name an encoder or a file first")
        form = Form.read(named.removeprefix(f"?{SETTING}"))
        encoder = stored(reference.encoder, form)
        encoder.source = f"{reference.encoder.source}{named}"
        return Side(encoder, settings, named)
    if isinstance(named, str) and re.fullmatch(r"(b?float|u?int|fp|bf)\d+", named):
        fix = "load a copy quantised otherwise as a candidate of its own, as in python:package.module:factory"
        raise UnknownName("precision", named, PRECISIONS, fix)
    named = f"{SOURCE}:{named}" if isinstance(named, Path) else named
    if isinstance(named, str) and short_name(named)[1].startswith(f"{SOURCE}:"):
        options = Options()
    named = checked(named)
    encoder = encoders.load(named, options) if isinstance(named, str) else named
    return Side(encoder, settings, reference_of(named))


def _called(encoder: Encoder, name: str, source: str) -> Encoder:
    """Return ``encoder`` under another name; the caller's own keeps its name.

    One that is called so already is itself, and stays arranged as it is.
    """
    if (encoder.name, encoder.source) == (name, source):
        return encoder
    renamed = copy(encoder)
    renamed.__dict__["fingerprint"] = encoder.fingerprint
    renamed.name, renamed.source = name, source
    return renamed


def check_time(side: Side, inputs: Inputs, run: Run) -> None:
    """Raise if the budget is over and the store holds no code of ``side``, before it is examined or timed.

    Raises:
        BudgetSpentError: nothing of it can be encoded any more.
    """
    images = inputs.images(side.encoder)
    if run.work.deadline.passed and not run.store.kept_ids(key_of(CleanCodes(), side.encoder, images, side.settings)):
        raise BudgetSpentError(run.left_over(len(images)))


def coded(side: Side, inputs: Inputs, run: Run) -> Coded:
    """Return ``side`` with its codes, computed where the store does not hold them.

    Raises:
        HoldfastError: it cannot be measured on these images.
        BudgetSpentError: the budget ended before anything was encoded.
    """
    population = Population(side.encoder, inputs.images(side.encoder), side.settings)
    # Said beside the numbers and no reason to refuse: int8 layers that are quantised as inputs come see whole batches.
    problem = unfit(population, run.engine)
    bank, bank_codes = inputs.bank(side.encoder), None
    if bank is not None:
        _, rows, observed = run.observe(CleanCodes(), Population(side.encoder, bank, side.settings), codes=False)
        bank_codes = observed["codes"].cpu()
        if len(rows) < len(bank):
            raise BudgetSpentError(run.left_over(len(bank) - len(rows)))
    _, rows, observed = run.observe(CleanCodes(), population, codes=False)
    return Coded(side, population, rows, observed["codes"].cpu(), problem, bank_codes, () if bank is None else bank.ids)


WHERE = ("limit", "seed", "size", "trust_remote_code", "device", "precision", "batch_size")
"""Options that the stored request of a run holds."""
InMemory = tuple[str | None, Images | None]
"""The reference of images, and the images themselves if they are in memory."""


def inputs_of(
    sides: Sequence[Side],
    requested: Sequence[Side],
    named: tuple[InMemory, InMemory],
    options: Mapping[str, Any],
    run: Run,
    **more: Any,
) -> Inputs:
    """Return the images and the bank that are ``named`` for ``sides``, with the request of a run of those ``requested``."""
    (images, loaded), (bank, loaded_bank) = named
    where = {name: value for name, value in options.items() if name in WHERE} | more
    names, encoders = tuple(side.request for side in requested), [side.encoder for side in sides]
    request = Request(**where, encoders=names, images=images, bank=bank, out=str(run.store.folder))
    images_named = images_reference(request, encoders) if loaded is None else loaded
    scan_cache = ScanCache.at(run.store.folder / FILE)
    return Inputs(request, encoders, images_named, bank if loaded_bank is None else loaded_bank, scan_cache)


def pair_of(reference: Coded, candidate: Coded, divergence: str) -> Pair:
    """Return the codes of the images that both have, each image once."""
    known = {name: position for position, name in enumerate(candidate.ids)}
    originals = reference.population.first_copies
    rows = [
        position
        for position, row in enumerate(reference.rows)
        if reference.ids[position] in known and int(originals[row]) == row
    ]
    ids = tuple(reference.ids[position] for position in rows)
    if not ids:
        raise HoldfastError(
            f"{candidate.side.name} has none of the images of {reference.side.name}: {candidate.ids[0]!r} ... and "
            f"{reference.ids[0]!r} ...; name images alike on both sides"
        )
    mine, theirs = reference.codes[rows], candidate.codes[[known[name] for name in ids]]
    order = np.argsort(hashed_each((reference.side.settings.seed, "order"), ids), kind="stable")
    groups = reference.population.images.groups
    return Pair(
        ids,
        mine,
        theirs,
        _gallery(reference, candidate) or Gallery(mine, theirs, False),
        torch.from_numpy(order),
        "the bank" if reference.bank is not None else ITSELF,
        () if groups is None else tuple(groups[reference.rows[position]] for position in rows),
        DIVERGENCES[divergence],
    )


def _gallery(reference: Coded, candidate: Coded) -> Gallery | None:
    """Return the codes of the bank, in the order of the reference, if there is one."""
    if reference.bank is None or candidate.bank is None:
        return None
    known = {name: position for position, name in enumerate(candidate.bank_ids)}
    both = [position for position, name in enumerate(reference.bank_ids) if name in known]
    theirs = candidate.bank[[known[reference.bank_ids[position]] for position in both]]
    return Gallery(reference.bank[both], theirs, True)


EVALUATION, QUANTITY = "attack-radius", "attack_radius"


def radii_of(side: Side, count: int, inputs: Inputs, run: Run) -> Result | Failure | None:
    """Return the attack radii of ``count`` images of one side, as ``evaluate`` finds them, or why there are none.

    None if no image is to be attacked, or the side holds embeddings alone.
    """
    if not count or side.encoder.codes_only:
        return None
    settings = {EVALUATION: {"samples": count, "events": ["retrieval"]}}
    radii_request = inputs.request.model_copy(update={"only": (EVALUATION,), "settings": settings, "bank": None})
    shown = [encoder for encoder in inputs.encoders if not encoder.codes_only]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how much quick asks of large encoders is said by evaluate, where it is chosen
        plan = plan_for_large_encoders(radii_request, shown) or planned(radii_request)
    alone = replace(inputs, encoders=[side.encoder], bank_named=None)
    results, failures = fill_table(alone, plan, side.settings, run.work)
    return results[0] if results else failures[0]


def change(reference: Result | Failure, candidate: Result | Failure) -> Estimate | str:
    """Return the change of the median attack radius (candidate minus reference), or the reason why it is unknown."""
    for outcome in (reference, candidate):
        if isinstance(outcome, Failure):
            return f"Whether robustness moved is not known: {outcome.encoder} could not be attacked ({outcome.reason})"
    assert isinstance(reference, Result)
    assert isinstance(candidate, Result)
    known = set(reference.findings.ids) & set(candidate.findings.ids)
    before, after = (_of(result, known) for result in (reference, candidate))
    moved = paired(after, before, "median", "higher")
    return Estimate(
        quantity=f"{QUANTITY}_change",
        conditions=before.conditions,
        value=moved.value,
        low=moved.low,
        high=moved.high,
        n=moved.n,
        method="paired bootstrap of the difference of medians",
        unit=before.unit,
        claim=Claim.ESTIMATE,
        of="attack radius of the candidate less that of the reference",
        better="higher",
        statistic="whole",
        reason="a median lies beyond the widest radius searched" if moved.value != moved.value else None,
    )


def _of(result: Result, ids: set[str]) -> Series:
    series = next(each for each in result.series if each.quantity == QUANTITY)
    values = dict(zip(result.findings.ids, series.values, strict=True))
    return series.model_copy(update={"values": tuple(values[name] for name in sorted(ids)), "reasons": {}})
