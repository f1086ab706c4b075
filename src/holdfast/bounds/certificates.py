"""What ``holdfast certify`` observes, records and writes for each image.

Bounds and attacks are observed together. A counterexample counts only if it holds for every order of float32 sums.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import perf_counter
from typing import Literal, final

import torch
from jaxtyping import Bool, Float
from safetensors.torch import load, save
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import read_attack
from holdfast.bounds.bound_findings import replay
from holdfast.bounds.certified_pairs import AttackResult, PairAttack
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.bounds.methods.base import Method, read_method
from holdfast.bounds.pair_bounds import PairBounds, arithmetic_of
from holdfast.bounds.relaxations import Box
from holdfast.bounds.rounding.executed import executed_encoder
from holdfast.bounds.rounding.formats import Format, size
from holdfast.core.balls import Ball
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.errors import check_whole
from holdfast.core.files import hashed
from holdfast.core.pictures import draw
from holdfast.core.pictures import row as pictured
from holdfast.core.records import SCHEMA_VERSION, EncoderInfo, ImagesInfo, Number, Record
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import settings
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population, represent
from holdfast.measure.store import Store, provenance

Status = Literal["CERTIFIED", "FALSIFIED", "UNKNOWN"]


class PairValues(Record):
    """What is known of an image and one negative: ``W f`` over the ball, as figure 6 of RVCL draws it pair by pair."""

    negative: str
    bound: Number
    """Proved: ``W f`` is at least this."""
    attacked: Number
    """The least ``W f`` that attacks found."""


class Certificate(Record):
    """Status of one image: certified, falsified or unknown, with the numbers behind it."""

    id: str
    status: Status
    reason: str
    negative: str
    """Name of the negative with the smallest bound."""
    bound: Number
    """Smallest lower bound of ``W f`` over the ball; by smoothing, certified radius minus ε. Positive: certified."""
    attacked: Number
    """Smallest ``W f`` that attacks found; negative: falsified; nan without attacks."""
    contradictions: int
    """Number of pairs that are certified and falsified at once; not 0 means a bug in the bounds."""
    witness: str | None
    replayed: Number | None
    """``W f`` of the witness as read from its file, in the run's precision."""
    pixels: str = ""
    """Hash of the names and pixels in the proof; empty without a proof."""
    pairs: tuple[PairValues, ...] = ()
    """One entry per negative; empty for certificates by smoothing."""


class CertificateRecord(Record):
    """Record of a run of ``holdfast certify``, without pixels."""

    schema_version: int = SCHEMA_VERSION
    encoder: EncoderInfo
    images: ImagesInfo
    settings: dict[str, str]
    certificates: tuple[Certificate, ...]
    missing: int = 0
    """Number of images without a certificate, because the budget was spent."""
    provenance: dict[str, str]
    network: str = ""
    """Hash of the network's file that proofs refer to; empty without proofs."""

    @property
    def subject(self) -> dict[str, str]:
        """Encoder, images and settings of the certificates, repeated in each proof."""
        return {
            "encoder.name": self.encoder.name,
            "encoder.fingerprint": self.encoder.fingerprint,
            "images.name": self.images.name,
            "images.fingerprint": self.images.fingerprint,
            "images.count": str(self.images.count),
        } | {f"settings.{name}": value for name, value in self.settings.items()}

    @property
    def contradictions(self) -> int:
        """Number of pairs that are certified and falsified at once."""
        return sum(certificate.contradictions for certificate in self.certificates)

    def counted(self, status: str) -> int:
        """Return the number of images with this status."""
        return sum(certificate.status == status for certificate in self.certificates)


@final
@dataclass(frozen=True)
class Certificates(Observation):
    """Bounds and attacks of each image's pairs, and its weakest pair."""

    pairs: PairBounds
    name = "certificates"
    uses_groups = True
    version = PairBounds.version + 1
    """Versions of bounds and attacks are those of ``pairs``."""

    @classmethod
    def of(
        cls,
        ball: Ball,
        limit: int,
        negatives: int,
        method: str | Method,
        attack: str | Attack,
        neurons: int,
        arithmetic: str = "real",
    ) -> Certificates:
        """Return the observation of ``limit`` images against ``negatives`` others each, as in instance accuracy."""
        for name, value in (("limit", limit), ("negatives", negatives), ("neurons", neurons)):
            check_whole(value, name)
        evaluation = InstanceAccuracy(
            balls=(ball,),
            samples=limit,
            negatives=negatives,
            method=read_method(method) if isinstance(method, str) else method,
            attack=read_attack(attack) if isinstance(attack, str) else attack,
            neurons=neurons,
            arithmetic=arithmetic,
        )
        return cls(evaluation.pair_bounds(ball))

    def rows(self, population: Population) -> list[int]:
        return self.pairs.rows(population)

    def attack(self, pair_attack: PairAttack) -> AttackResult:
        """Return the lowest values that all attacks on the pairs find; deterministic."""
        return self.pairs.worst(pair_attack).or_better(self.pairs.close(pair_attack))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pair_attack = self.pairs.pair_attack(population, rows)
        two = pair_attack.pairs
        began = perf_counter()
        bound = self.pairs.bound(two).cpu()  # which waits for a device that is still computing
        seconds = (perf_counter() - began) / bound.numel()
        bound = bound.to(two.specifications.device)
        result = self.attack(pair_attack)
        attacked, points = result.values.reshape(two.shape), result.points.unflatten(0, two.shape)
        # The negative that the image is taken for, or else the one against which the bound is lowest.
        weakest = torch.where((attacked < 0).any(1), attacked.argmin(1), bound.argmin(1))
        each = torch.arange(len(rows), device=weakest.device)
        return {
            "bound": bound,
            "attacked": attacked,
            "defined": two.defined,
            "weakest": weakest,
            "point": points[each, weakest],
            "specification": two.specifications[each, weakest],
            "seconds": torch.full((len(rows),), seconds, dtype=torch.float64),
        }


# What ``holdfast certify`` leaves on disk: a verdict for every image, and a witness for every one that is refuted.
#
# certify.json           settings, and per image its status, the negative it is weakest against, and for each pair bound
# and attacked value; seconds per pair in its provenance
# witnesses/NAME.safetensors   pixels of the clean image, of the witness and of the negative, exactly
# witnesses/NAME.png           the same to look at (for inputs that are images)

SHOWN = ("clean", "witness", "other")


def write_certificates(
    population: Population,
    observation: Certificates,
    rows: Sequence[int],
    observed: Observed,
    store: Store,
    started: datetime,
) -> CertificateRecord:
    """Write the certificates of the images at ``rows``, with their witnesses, and return their record.

    Without rows nothing is written; ranks other than the first have none.

    Raises:
        StoreError: the folder cannot be written.
    """
    others = population.random_others(rows, observation.pairs.negatives)
    # One code tells how many features there are, all that a record needs of them.
    codes = represent(population.encoder, population.images, rows[:1], population.run) if rows else torch.empty(0, 0)
    certificates = [
        _certificate(population, row, others[k].tolist(), {name: values[k] for name, values in observed.items()}, store)
        for k, row in enumerate(rows)
    ]
    record = CertificateRecord(
        encoder=Population(population.encoder, population.images, population.run, codes).encoder_info,
        images=population.images_info,
        settings={name: str(value) for name, value in settings(observation.pairs).items()}
        | groups_of(population, observation.pairs.negatives)
        | {"seed": str(population.run.seed), "precision": population.run.precision}
        | arithmetic_of(population, observation.pairs.certification.arithmetic),
        certificates=tuple(certificates),
        missing=len(observation.rows(population)) - len(rows),
        provenance=provenance(population.run, started) | seconds_per_pair(observed),
    )
    if rows:
        write_record(record, store)
    return record


def seconds_per_pair(observed: Observed) -> dict[str, str]:
    """Return how long the bound of one pair took on average, as table E.3 of RVCL counts; nothing if none was computed."""
    return {"seconds_per_pair": f"{float(observed['seconds'].mean()):.3g}"} if len(observed.get("seconds", ())) else {}


def groups_of(population: Population, negatives: int) -> dict[str, str]:
    """Return the groups of a record, and the number of negatives of other groups per image."""
    if population.images.groups is None:
        return {}
    return {"groups": population.images.groups_fingerprint, "negatives": str(min(negatives, population.fewest_others))}


def write_record(record: CertificateRecord, store: Store) -> None:
    """Write ``certify.json``."""
    store.write_file("certify.json", record.model_dump_json(indent=1).encode())


def _certificate(
    population: Population, row: int, others: Sequence[int], values: Observed, store: Store
) -> Certificate:
    """Write the witness of the image at ``row`` and return its certificate; ``values`` are its observed tensors."""
    names, bound, attacked = population.images.ids, values["bound"], values["attacked"]
    weakest = int(values["weakest"])
    witness = replayed = None
    if attacked[weakest] < 0:
        clean, other = population.pixels([row, others[weakest]]).double().cpu()
        witness = _keep(names[row], dict(zip(SHOWN, (clean, values["point"], other), strict=True)), population, store)
        # Read as bytes, for safetensors opens no path that is not UTF-8.
        kept = load((store.folder / witness).read_bytes())["witness"]
        replayed = replay(population, kept, values["specification"])
    status, reason = _judged(bound, attacked, values["defined"], replayed)
    return Certificate(
        id=names[row],
        status=status,
        reason=reason,
        negative=names[others[weakest]],
        bound=float(bound[weakest]),
        attacked=float(attacked[weakest]),
        contradictions=int(((bound > 0) & (attacked <= 0)).sum()),
        witness=witness,
        replayed=replayed,
        pairs=tuple(
            PairValues(negative=names[other], bound=proved, attacked=reached)
            for other, proved, reached in zip(others, bound.tolist(), attacked.tolist(), strict=True)
        ),
    )


def _judged(
    bound: Float[Tensor, "k"], values: Float[Tensor, "k"], defined: Bool[Tensor, "k"], replayed: float | None
) -> tuple[Status, str]:
    """Return an image's status and the reason."""
    count = len(bound)
    if replayed is not None:
        again = "and again" if replayed < 0 else "but not any more, so nearly are they equal,"
        return "FALSIFIED", f"an attack made it more similar to another image, {again} when its file was read back"
    if not bool(defined.all()):
        return (
            "UNKNOWN",
            f"its embedding points where that of {int((~defined).sum())} of {count} negatives does, or is zero",
        )
    open_ = int((~(bound > 0)).sum())
    if open_:
        return "UNKNOWN", f"no bound proves {open_} of {count} negatives apart and no attack confuses them"
    return "CERTIFIED", f"no change in the ball makes it more similar to any of {count} other images"


def _keep(name: str, pixels: dict[str, Tensor], population: Population, store: Store) -> str:
    """Write the witness against the image called ``name`` and return its path below the folder."""
    stem = f"witnesses/{file_stem(name)}"
    store.write_file(f"{stem}.safetensors", save({label: image.clone() for label, image in pixels.items()}))
    picture = pictured(name, pixels, population.encoder.domain)
    if picture is not None:
        store.write_file(f"{stem}.png", draw([picture]))
    return f"{stem}.safetensors"


def file_stem(name: str) -> str:
    """Return the stem of the file names of the image called ``name``."""
    # The hash tells apart ids that differ in characters no file name holds.
    plain = re.sub(r"[^\w.]+", "_", name)[-60:]
    return f"{plain}-{hashed(name) % 2**32:08x}"


# Whether a counterexample is one in float32 for any order of summation, by any machine that rounds to nearest.
#
# The codes of an input, as executed in float32, lie in a box that holds whatever the order of sums is
# (``bounds/rounding``). A linear function of them is certainly below a number if it is so for all codes of that box.

UNCERTAIN = "an input refutes it as computed here, but perhaps not where sums are taken in another order"


def codes_in_float32(encoder: Encoder, points: Pixels) -> Box:
    """Return bounds of the embeddings of ``points`` in float32 for any order of summation, as float64.

    Raises:
        HoldfastError: the rounding of an operation is unknown or may lose all digits.
    """
    return executed_encoder(encoder, torch.float32, "cpu").codes(points.cpu())


def highest(
    specifications: Float[Tensor, "b m d"], codes: Box, products: torch.dtype, offset: Float[Tensor, "m"] | None = None
) -> Float[Tensor, "b m"]:
    """Return upper bounds of ``specifications @ codes + offset`` for all ``codes`` of a box (b, d), in ``products``."""
    lower, upper = (end[:, None] for end in codes)
    constant = specifications.new_zeros(()) if offset is None else offset
    ends = torch.where(specifications > 0, specifications * upper, specifications * lower).sum(2) + constant
    terms = (specifications.abs() * size(codes)[:, None]).sum(2) + constant.abs()
    # Twice as many roundings as there are: once for theirs, and once for those of this sum, which are of float64.
    kind, count = Format(products), specifications.shape[2] + 2
    return ends + kind.gamma(2 * count) * terms + count * kind.tiny
