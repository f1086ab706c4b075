"""What ``holdfast certify`` leaves on disk: a verdict for every image, and a witness for every one that is refuted.

certify.json           settings, and per image its status, the negative it is weakest against, bound and attacked value
witnesses/NAME.safetensors   pixels of the clean image, of the witness and of the negative, exactly
witnesses/NAME.png           the same to look at (for inputs that are images)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import torch
from jaxtyping import Bool, Float
from safetensors.torch import load, save
from torch import Tensor

from holdfast.commands.certify.observation import Certificates
from holdfast.commands.certify.record import Certificate, CertificateRecord, Status
from holdfast.core.noise import hashed
from holdfast.core.pictures import row as pictured
from holdfast.core.run_settings import Observed
from holdfast.evaluations.certified.certification import arithmetic_of
from holdfast.evaluations.certified.witness import replay
from holdfast.protocol.evaluation import settings
from holdfast.protocol.population import Population, represent
from holdfast.report.figures.sheet import draw
from holdfast.store.provenance import provenance
from holdfast.store.store import Store

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

    Nothing is written of no rows: those of several ranks that are not the first have none.

    Raises:
        StoreError: the folder cannot be written.
    """
    others = population.others(rows, observation.pairs.negatives)
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
        provenance=provenance(population.run, started),
    )
    if rows:
        write_record(record, store)
    return record


def groups_of(population: Population, negatives: int) -> dict[str, str]:
    """Return what a record says of groups: which these are, and how many negatives of other groups each image has."""
    if population.images.groups is None:
        return {}
    return {
        "groups": population.images.groups_fingerprint,
        "negatives": str(min(negatives, population.fewest_others)),
    }


def write_record(record: CertificateRecord, store: Store) -> None:
    """Write ``certify.json``."""
    store.write_file("certify.json", record.model_dump_json(indent=1).encode())


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
    stem = f"witnesses/{file_stem(name)}"
    store.write_file(f"{stem}.safetensors", save({label: image.clone() for label, image in pixels.items()}))
    picture = pictured(name, pixels, population.encoder.domain)
    if picture is not None:
        store.write_file(f"{stem}.png", draw([picture]))
    return f"{stem}.safetensors"


def file_stem(name: str) -> str:
    """Return what the files of the image called ``name`` are called."""
    # The hash tells apart ids that differ in characters no file name holds.
    plain = re.sub(r"[^\w.]+", "_", name)[-60:]
    return f"{plain}-{hashed(name) % 2**32:08x}"
