"""Check the certificates of a run again from its proofs: a slow program in numpy that counts every rounding and does not
search.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from holdfast.bounds.certificates import Certificate, CertificateRecord
from holdfast.bounds.certified_pairs import traced
from holdfast.bounds.proofs.checking import ProofError, check
from holdfast.bounds.proofs.making import plain_network
from holdfast.bounds.proofs.proof import Array, PlainNetwork, Proof
from holdfast.bounds.proofs.proof_files import INDEX, NETWORK, unpacked
from holdfast.bounds.rounding.executed import executes
from holdfast.core.balls import Ball, Linf
from holdfast.core.errors import HoldfastError, explained, first_line, readable, warn
from holdfast.core.images import Images
from holdfast.core.options import Loading, takes
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.by_name import Options
from holdfast.measure.population import Population
from holdfast.run.inputs import NamedEncoder, NamedImages, load_encoder, loading_of, select

SAME = 1e-9
"""Share of their size by which numbers of the network in the folder and of the encoder may differ, both in float64."""


@dataclass(frozen=True)
class Recheck:
    """What a proof is worth: whether it ``holds``, why not, and the least bound that it proves."""

    id: str
    holds: bool
    reason: str = ""
    bound: float = np.nan
    unchecked: tuple[str, ...] = ()
    """What was not compared: ``network``, ``pixels`` and ``negatives`` without the encoder and images, ``hashes`` where
    neither proof nor record has any."""


OUTSIDE = ("network", "pixels", "negatives")
"""What only the encoder and the images can tell."""


@takes(Loading)
def recheck(
    folder: str | Path,
    encoder: NamedEncoder | None = None,
    images: NamedImages | None = None,
    **options: Unpack[Loading],
) -> tuple[Recheck, ...]:
    """Return for each certified image of a run whether its proof holds, as ``holdfast certify --recheck`` does.

    Where ``encoder`` and ``images`` are given, proofs are checked against the network that is traced from the encoder once
    more, the pixels of these images, and the negatives that the seed of the run draws among them. Otherwise the network,
    the images and the negatives are those of the folder: its files must agree with each other, and ``unchecked`` names what
    a folder cannot show.

    Args:
        folder: of ``certify(..., proofs=True, out=folder)``.
        encoder: the encoder that was certified; what is in the folder must be its network.
        images: the images that were certified; those in the proofs must be the same.

    Raises:
        HoldfastError: the folder holds no proofs, damaged ones, or those of another encoder or of other images.
    """
    if (encoder is None) != (images is None):
        raise HoldfastError("give both the encoder and the images that were certified, or neither")
    loading = loading_of(options)
    if encoder is None and loading != Options():
        raise HoldfastError(
            "arch, size and trust_remote_code say how to load an encoder, and none is given; name it and the images, or "
            "leave them out"
        )
    folder = Path(folder)
    record, index = _stored(folder)
    ball = Ball.read(record.settings["ball"])
    if not isinstance(ball, Linf):
        raise HoldfastError(f"{folder} has certificates in {ball}, and proofs are of linf balls alone")
    certified = [each for each in record.certificates if each.status == "CERTIFIED"]
    if not any("file" in entry for entry in index["images"].values()):
        return tuple(Recheck(each.id, False, _missing(index, each.id)) for each in certified)
    content = _content(folder, NETWORK)
    known, population = sha256(content).hexdigest(), None
    if known != index["network"]:
        raise HoldfastError(f"{folder / NETWORK} is not the file that was written; certify again with --proofs")
    network = PlainNetwork.of_arrays(unpacked(content))
    if encoder is not None and images is not None:
        loaded = load_encoder(encoder, loading)
        drawn = Population(loaded, select(images, loaded.domain, loaded.geometry), _run(record))
        population = _as_drawn(drawn, record)
        network = _own(population, network, record)
    results = tuple(_rechecked(folder, index, record, each, network, known, population) for each in certified)
    if count := sum("hashes" in result.unchecked for result in results):
        warn(
            f"{count} of {len(results)} proofs hold no hashes of their network and images, so changed weights, names or "
            "fingerprints may pass; certify again with --proofs, or give the encoder and the images",
            2,
        )
    return results


def _stored(folder: Path) -> tuple[CertificateRecord, Any]:
    """Return the record, and the entry of each image with the checksum of the network where one has a proof."""
    content = _content(folder, "certify.json")
    with _sound(folder / "certify.json"):
        record = CertificateRecord.model_validate_json(content)
    content = _content(folder, INDEX)
    with _sound(folder / INDEX):
        index = json.loads(content)
        if "network" not in index and any(entry.get("file") for entry in index["images"].values()):
            raise ValueError("a proof of no network")
    return record, index


def _content(folder: Path, name: str) -> bytes:
    with readable(str(folder / name), "certify with --proofs into that folder first", OSError):
        return (folder / name).read_bytes()


def _sound(path: Path) -> AbstractContextManager[None]:
    again = "certify with --proofs into that folder again"
    return explained(f"{path} is damaged", again, ValueError, KeyError, TypeError, AttributeError)


def _missing(index: Any, name: str) -> str:
    return index["images"].get(name, {}).get("missing", "no proof of it was kept")


def _run(record: CertificateRecord) -> RunSettings:
    """Return the seed and precision of a run, which decide on its negatives and pixels."""
    with explained("certify.json names no seed or no precision", "certify again", KeyError, ValueError):
        run = RunSettings(seed=int(record.settings["seed"]), precision=record.settings["precision"])
    if executes("real", run.dtype):
        raise HoldfastError(f"proofs are of real arithmetic, and certify.json says that the run was in {run.precision}")
    return run


def _as_drawn(population: Population, record: CertificateRecord) -> Population:
    """Return the population with groups if the negatives of the record were drawn with groups, else without.

    Raises:
        HoldfastError: the images have other groups than those of the record, or none.
    """
    images, groups = population.images, record.settings.get("groups", "")
    if groups and groups != images.groups_fingerprint:
        raise HoldfastError(
            f"{images.name}: the certificates were made with other groups of images, got "
            f"{'other ones' if images.groups else 'none'}. Give the images with the same groups"
        )
    if groups or images.groups is None:
        return population
    alone = Images(images.source, images.ids, images.labels, images.name, images.classes)
    return Population(population.encoder, alone, population.run)


def _own(population: Population, network: PlainNetwork, record: CertificateRecord) -> PlainNetwork:
    name = population.encoder.name
    if population.encoder.fingerprint != record.encoder.fingerprint:
        raise HoldfastError(f"{name} is not the encoder that was certified, {record.encoder.name}")
    if population.images.fingerprint != record.images.fingerprint:
        raise HoldfastError(f"{population.images.name} are not the images that were certified, {record.images.name}")
    own = plain_network(
        traced(population.encoder, int(record.settings["neurons"]), population.run.device), population.encoder.domain
    )
    rows = range(min(len(population.images), 16))
    pixels = population.pixels(rows).double()
    with torch.no_grad():
        codes = population.double.forward(pixels).cpu().numpy()
    if not _alike(own.codes(pixels.flatten(1).cpu().numpy()), codes):
        raise HoldfastError(f"{name} computes other embeddings than the network that was traced from it")
    if not _same(own, network):
        raise HoldfastError(f"the network of the proofs computes something else than {name}")
    return own


def _same(one: PlainNetwork, two: PlainNetwork) -> bool:
    """Return whether two networks have the same steps, range and, up to rounding, weights."""
    if (one.low, one.high, len(one.steps)) != (two.low, two.high, len(two.steps)):
        return False
    for mine, other in zip(one.steps, two.steps, strict=True):
        if (mine.inputs, mine.size, len(mine.matrices)) != (other.inputs, other.size, len(other.matrices)):
            return False
        if mine.offset is None or other.offset is None:
            if mine.offset is not other.offset:
                return False
        elif not _alike(mine.offset, other.offset):
            return False
        for left, right in zip(mine.matrices, other.matrices, strict=True):
            if not abs(left - right).max() <= SAME * abs(left).max():
                return False
    return True


def _alike(one: Array, two: Array) -> bool:
    """Return whether two arrays are the same up to rounding; nothing is like a nan."""
    return bool(np.abs(one - two).max() <= SAME * np.abs(two).max())


def _rechecked(
    folder: Path,
    index: Any,
    record: CertificateRecord,
    certificate: Certificate,
    network: PlainNetwork,
    known: str,
    population: Population | None,
) -> Recheck:
    """Return whether the proof of one certificate holds; ``known`` is the hash of the network in the folder."""
    entry = index["images"].get(certificate.id, {})
    if "file" not in entry:
        return Recheck(certificate.id, False, _missing(index, certificate.id))
    try:
        content = _content(folder, entry["file"])
        if sha256(content).hexdigest() != entry.get("sha256"):
            raise ProofError("its file is not the one that was written")
        proof = Proof.of_arrays(unpacked(content))
        _check_about(proof, certificate, record, population)
        bound = min(check(network, proof, Ball.read(record.settings["ball"]).radius).values())
        hashed = _check_bound(proof, certificate, record, known)
    except (ProofError, HoldfastError, ValueError) as error:
        return Recheck(certificate.id, False, first_line(error))
    unchecked = () if population else (*OUTSIDE, *(() if hashed else ("hashes",)))
    return Recheck(certificate.id, True, bound=bound, unchecked=unchecked)


def _check_bound(proof: Proof, certificate: Certificate, record: CertificateRecord, known: str) -> bool:
    """Raise if the hashes in proof and record are not those of the arrays in the folder; return whether there are any."""
    subject = proof.subject
    if subject is None and not record.network and not certificate.pixels:
        return False
    if subject is None:
        raise ProofError("it holds no hashes, and certify.json does")
    if not subject.network == record.network == known:
        raise ProofError("its network is not the one in the folder or in certify.json")
    if not subject.pixels == certificate.pixels == proof.hashed_pixels():
        raise ProofError("its names and pixels are not those it was written with, or those of certify.json")
    if differing := sorted(
        name for name in {*subject.run, *record.subject} if subject.run.get(name) != record.subject.get(name)
    ):
        raise ProofError(f"it is of a run with another {differing[0]} than certify.json names")
    return True


def _check_about(
    proof: Proof, certificate: Certificate, record: CertificateRecord, population: Population | None
) -> None:
    """Raise unless the proof is of this certificate: its image, and the negatives that were drawn for it.

    Without a population, only how many there are is known.
    """
    count = min(int(record.settings["negatives"]), record.images.count - 1)
    if proof.anchor_id != certificate.id:
        raise ProofError(f"it is about {proof.anchor_id!r}")
    if len(proof.negative_ids) != count or certificate.negative not in proof.negative_ids:
        raise ProofError(f"it is about {len(proof.negative_ids)} negatives, not the {count} of the certificate")
    if population is None:
        return
    place = {name: row for row, name in enumerate(population.images.ids)}
    names = (proof.anchor_id, *proof.negative_ids)
    if not set(names) <= set(place):
        raise ProofError("it names images that are not there")
    drawn = population.random_others([place[proof.anchor_id]], count)[0].tolist()
    if proof.negative_ids != tuple(population.images.ids[row] for row in drawn):
        raise ProofError("its negatives are not those that the seed of the run draws")
    pixels = population.pixels([place[name] for name in names]).double().flatten(1).cpu().numpy()
    if not np.array_equal(pixels, np.concatenate([proof.anchor[None], proof.negatives])):
        raise ProofError("its pixels are not those of the images it names")
