"""What ``holdfast certify`` leaves on disk: a verdict for every image, and a witness for every one that is refuted.

certify.json           settings, and per image its status, the negative it is weakest against, bound and attacked value
witnesses/NAME.safetensors   pixels of the clean image, of the witness and of the negative, exactly
witnesses/NAME.png           the same to look at (for inputs that are images)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, final

import torch
from jaxtyping import Bool, Float
from safetensors.torch import load, save
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import read_attack
from holdfast.bounds import read_method
from holdfast.bounds.methods.base import Method
from holdfast.core.arguments import check_whole
from holdfast.core.balls import Ball
from holdfast.core.noise import hashed
from holdfast.core.pictures import row as pictured
from holdfast.core.records import SCHEMA_VERSION, EncoderInfo, ImagesInfo, Number, Record
from holdfast.core.run_settings import Observed
from holdfast.evaluations.certified.instance_accuracy import InstanceAccuracy
from holdfast.evaluations.certified.pair_bounds import PairBounds
from holdfast.evaluations.certified.witness import replay
from holdfast.protocol.evaluation import settings
from holdfast.protocol.observation import Observation
from holdfast.protocol.population import Population, represent
from holdfast.report.sheet import draw
from holdfast.store.provenance import provenance
from holdfast.store.store import Store

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
    """The least of the lower bounds of ``W f`` over the ball; by smoothing the certified radius less the ball's; positive:
    certified."""
    attacked: Number
    """The least ``W f`` that attacks found; negative: falsified; nan where none were run."""
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
    missing: int = 0
    """How many images have no certificate yet, because a budget was spent."""
    provenance: dict[str, str]

    @property
    def contradictions(self) -> int:
        """How many pairs are certified and falsified at once."""
        return sum(certificate.contradictions for certificate in self.certificates)

    def counted(self, status: str) -> int:
        """Return how many images have this status."""
        return sum(certificate.status == status for certificate in self.certificates)


@final
@dataclass(frozen=True)
class Certificates(Observation):
    """What a certificate is made of, image by image: the bounds and attacks of its pairs, and its weakest pair."""

    pairs: PairBounds
    name = "certificates"
    version = PairBounds.version
    """Bounds and attacks are those of ``pairs``, and change with them."""

    @classmethod
    def of(
        cls, ball: Ball, limit: int, negatives: int, method: str | Method, attack: str | Attack, neurons: int
    ) -> Certificates:
        """Return those of ``limit`` images against ``negatives`` others: the pairs are those of instance accuracy."""
        for name, value in (("limit", limit), ("negatives", negatives), ("neurons", neurons)):
            check_whole(value, name)
        evaluation = InstanceAccuracy(
            balls=(ball,),
            samples=limit,
            negatives=negatives,
            method=read_method(method) if isinstance(method, str) else method,
            attack=read_attack(attack) if isinstance(attack, str) else attack,
            neurons=neurons,
        )
        return cls(evaluation.pair_bounds(ball))

    def rows(self, population: Population) -> list[int]:
        return self.pairs.rows(population)

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        pair_attack = self.pairs.pair_attack(population, rows)
        two = pair_attack.pairs
        bound = self.pairs.bound(two)
        result = self.pairs.worst(pair_attack).or_better(self.pairs.close(pair_attack))
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
        }


def export(
    population: Population,
    observation: Certificates,
    rows: Sequence[int],
    observed: Observed,
    store: Store,
    started: datetime,
) -> CertificateRecord:
    """Write the certificates of the images at ``rows``, with their witnesses, and return their record.

    Nothing is written of no rows: those of several ranks that are not the first have none.

    Raises:
        StoreError: the folder cannot be written.
    """
    others = population.others(rows, observation.pairs.negatives)
    # One code tells how many features there are, all that a record needs of them.
    codes = represent(population.encoder, population.images, rows[:1], population.run) if rows else torch.empty(0, 0)
    made = [
        _certificate(population, row, others[k].tolist(), {name: values[k] for name, values in observed.items()}, store)
        for k, row in enumerate(rows)
    ]
    record = CertificateRecord(
        encoder=Population(population.encoder, population.images, population.run, codes).encoder_info,
        images=population.images_info,
        settings={name: str(value) for name, value in settings(observation.pairs).items()}
        | {"seed": str(population.run.seed), "precision": population.run.precision},
        certificates=tuple(made),
        missing=len(observation.rows(population)) - len(rows),
        provenance=provenance(population.run, started),
    )
    if rows:
        store.export("certify.json", record.model_dump_json(indent=1).encode())
    return record


def _certificate(
    population: Population, row: int, others: Sequence[int], values: Observed, store: Store
) -> Certificate:
    """Return the certificate of the image at ``row``, its witness written; ``values`` are what was observed of it."""
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
    )


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


def _keep(name: str, pixels: dict[str, Tensor], population: Population, store: Store) -> str:
    """Write the witness against the image called ``name`` and return its path below the folder."""
    # The hash tells apart ids that differ in characters no file name holds.
    plain = re.sub(r"[^\w.]+", "_", name)[-60:]
    stem = f"witnesses/{plain}-{hashed(name) % 2**32:08x}"
    store.export(f"{stem}.safetensors", save({label: image.clone() for label, image in pixels.items()}))
    picture = pictured(name, pixels, population.encoder.domain)
    if picture is not None:
        store.export(f"{stem}.png", draw([picture]))
    return f"{stem}.safetensors"
