"""What ``holdfast certify`` leaves on disk: a verdict for every image, and a witness for every one that is refuted.

certify.json           settings, and per image its status, the negative it is weakest against, bound and attacked value
witnesses/NAME.safetensors   pixels of the clean image, of the witness and of the negative, exactly
witnesses/NAME.png           the same to look at (for inputs that are images)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float
from safetensors.torch import load_file, save
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.noise import hashed
from holdfast.core.pictures import row
from holdfast.core.records import SCHEMA_VERSION, EncoderInfo, ImagesInfo, Number, Record
from holdfast.core.run import Observed
from holdfast.evaluations.certified.pair_bounds import PairBounds
from holdfast.evaluations.certified.pairs import Pairs
from holdfast.execution.provenance import provenance
from holdfast.protocol.evaluation import settings
from holdfast.protocol.population import Population
from holdfast.report.sheet import draw

SHOWN = ("clean", "witness", "other")
Status = Literal["CERTIFIED", "FALSIFIED", "UNKNOWN"]


class Certificate(Record):
    """What is known of one image: no change in the ball makes it more similar to a negative, or one does, or neither."""

    id: str
    status: Status
    reason: str
    negative: str
    """The negative it is weakest against."""
    bound: Number
    """The least of the lower bounds of ``W f`` over the ball; positive: certified."""
    attacked: Number
    """The least ``W f`` that attacks found; negative: falsified."""
    contradictions: int
    """How many of its pairs are certified and falsified at once: 0, or the bounds are wrong."""
    witness: str | None
    replayed: Number | None
    """``W f`` of the witness, read back from its file, by the encoder in the run's precision."""


class CertificateRecord(Record):
    """Everything about a run of ``holdfast certify`` but the pixels."""

    schema_version: int = SCHEMA_VERSION
    encoder: EncoderInfo
    images: ImagesInfo
    settings: dict[str, str]
    certificates: tuple[Certificate, ...]
    provenance: dict[str, str]

    @property
    def contradictions(self) -> int:
        """How many pairs are certified and falsified at once."""
        return sum(certificate.contradictions for certificate in self.certificates)

    def counted(self, status: str) -> int:
        """Return how many images have this status."""
        return sum(certificate.status == status for certificate in self.certificates)


def certify(
    population: Population,
    told: PairBounds,
    folder: Path,
    started: datetime,
    progress: Callable[[float], None] | None = None,
) -> CertificateRecord:
    """Certify the images that ``told`` chooses, attack each, write both under ``folder`` and return the record.

    Raises:
        HoldfastError: the encoder cannot be bounded, or the folder cannot be written.
    """
    rows = told.rows(population)
    made: list[Certificate] = []

    def work(batch: Sequence[int]) -> Observed:
        # Written as it is found, so that an interruption leaves the witnesses of what was done.
        found = _certified(population, told, batch, folder)
        made.extend(found)
        if progress:
            progress(len(made) / len(rows))
        return {"done": torch.ones(len(batch))}

    try:
        folder.mkdir(parents=True, exist_ok=True)
        population.run.batches(rows, work)
        record = CertificateRecord(
            encoder=population.encoder_info,
            images=population.images_info,
            settings={name: str(value) for name, value in settings(told).items()}
            | {"seed": str(population.run.seed), "precision": population.run.precision},
            certificates=tuple(made),
            provenance=provenance(population.run, started),
        )
        (folder / "certify.json").write_text(record.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise HoldfastError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    return record


def _certified(population: Population, told: PairBounds, rows: Sequence[int], folder: Path) -> list[Certificate]:
    """Return the certificates of the images at ``rows``, their witnesses written."""
    pair_attack = told.pair_attack(population, rows)
    two = pair_attack.pairs
    bound = told.bound(two)
    found = told.worst(pair_attack).or_better(told.close(pair_attack))
    values, points = found.values.reshape(two.shape), found.points.unflatten(0, two.shape)
    made = []
    for place in range(len(rows)):
        weakest = _weakest(bound[place], values[place])
        witness = replayed = None
        if values[place, weakest] < 0:
            shown = (two.anchors[place], points[place, weakest], two.negatives[place, weakest])
            witness = _keep(dict(zip(SHOWN, shown, strict=True)), two, place, folder)
            replayed = _replay(population, two.specifications[place, weakest], folder / witness)
        status, reason = _judged(bound[place], values[place], two.defined[place], replayed)
        made.append(
            Certificate(
                id=two.ids[place][0],
                status=status,
                reason=reason,
                negative=two.ids[place][1 + weakest],
                bound=float(bound[place, weakest]),
                attacked=float(values[place, weakest]),
                contradictions=int(((bound[place] > 0) & (values[place] <= 0)).sum()),
                witness=witness,
                replayed=replayed,
            )
        )
    return made


def _weakest(bound: Float[Tensor, "k"], values: Float[Tensor, "k"]) -> int:
    """Return the negative that the image is taken for, or else the one against which the bound is lowest."""
    return int((values if bool((values < 0).any()) else bound).argmin())


def _judged(
    bound: Float[Tensor, "k"], values: Float[Tensor, "k"], defined: Bool[Tensor, "k"], replayed: float | None
) -> tuple[Status, str]:
    """Return an image's status and why."""
    count = len(bound)
    if replayed is not None:
        again = "and again" if replayed < 0 else "but not any more, so nearly are they equal,"
        return "FALSIFIED", f"an attack made it more similar to another image, {again} when its file was read back"
    if not bool(defined.all()):
        return "UNKNOWN", f"its code points where that of {int((~defined).sum())} of {count} negatives does, or is zero"
    open_ = int((~(bound > 0)).sum())
    if open_:
        return "UNKNOWN", f"no bound proves {open_} of {count} negatives apart and no attack confuses them"
    return "CERTIFIED", f"no change in the ball makes it more similar to any of {count} other images"


def _keep(pixels: dict[str, Tensor], two: Pairs, place: int, folder: Path) -> str:
    """Write the witness against the anchor at ``place`` and return its path below ``folder``."""
    name = two.ids[place][0]
    # The hash tells apart ids that differ in characters no file name holds.
    plain = re.sub(r"[^\w.]+", "_", name)[-60:]
    stem = f"witnesses/{plain}-{hashed(name) % 2**32:08x}"
    content = {label: image.contiguous().cpu() for label, image in pixels.items()}
    (folder / "witnesses").mkdir(exist_ok=True)
    (folder / f"{stem}.safetensors").write_bytes(save(content))
    picture = row(name, pixels, two.encoder.domain)
    if picture is not None:
        draw([picture], folder / f"{stem}.png")
    return f"{stem}.safetensors"


def _replay(population: Population, weights: Float[Tensor, "d"], path: Path) -> float:
    """Return ``W f`` of the witness saved at ``path``, by the encoder as users run it."""
    point = load_file(path)["witness"][None].to(population.run.device, population.run.dtype)
    return float((population.encode(point)[0].to(weights) * weights).sum())
