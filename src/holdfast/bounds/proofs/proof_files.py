"""Proofs of a certify run, from which anyone can check its certificates without the search that found them.

proofs/network.npz   the network as sparse matrices and ReLUs, in float64
proofs/NAME.npz      of each certified image: pixels, claimed intermediate bounds, slopes, splits and multipliers; and
                     hashes of the network and pixels, with what certify.json says of the run
proofs/index.json    which file belongs to which image, with checksums; or why an image has no proof
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.bounds.certificates import CertificateRecord, Certificates, file_stem, write_record
from holdfast.bounds.certified_pairs import Pairs, traced
from holdfast.bounds.proofs.checking import ProofError, check
from holdfast.bounds.proofs.making import check_plain, check_provable, choices, plain_network
from holdfast.bounds.proofs.proof import EncoderState, Proof
from holdfast.bounds.regions import region
from holdfast.core.balls import Ball, Linf
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.measure.population import Population
from holdfast.measure.store import Store

INDEX = "proofs/index.json"
NETWORK = "proofs/network.npz"


def check_proofs(proofs: bool, ball: Ball, smoothing: bool, out: str | Path | None) -> None:
    """Raise unless proofs of such a run can be kept, or no one asked for them."""
    if not proofs:
        return
    if smoothing:
        raise HoldfastError(
            "certificates by noisy copies rest on chance and have no proof to be kept; leave out --proofs"
        )
    if not isinstance(ball, Linf):
        raise HoldfastError(f"proofs are kept of certificates in linf balls, not in {ball}; leave out --proofs")
    if out is None:
        raise HoldfastError("proofs are files; name a folder as out")


def check_proofs_fit(observation: Certificates, population: Population) -> None:
    """Raise unless proofs can be kept of this network and method."""
    certification = observation.pairs.certification
    check_provable(certification.method)
    check_plain(traced(population.encoder, certification.neurons, population.run.device))


def write_proofs(
    population: Population, observation: Certificates, rows: Sequence[int], record: CertificateRecord, store: Store
) -> CertificateRecord:
    """Write the proof of each image at ``rows`` that ``record`` certifies, once it has passed its check.

    Returns:
        The record with the hashes of what the proofs are about, which is written as well.

    Raises:
        HoldfastError: no proofs of this network or method can be kept.
        StoreError: the folder cannot be written.
    """
    entries: dict[str, dict[str, str]] = {}
    certified = {each.id for each in record.certificates if each.status == "CERTIFIED"}
    network, known, pixels = None, "", dict[str, str]()
    for row in rows:
        name = population.images.ids[row]
        if name not in certified:
            continue
        pairs = observation.pairs.pair_attack(population, [row]).pairs
        if network is None:
            network = plain_network(pairs.graph, population.encoder.domain)
            content = packed(network.arrays())
            store.write_file(NETWORK, content)
            known = sha256(content).hexdigest()
        proof = proof_of(pairs, observation)
        try:
            check(network, proof)
        except ProofError as error:
            entries[name] = {"missing": f"the bounds found once more are not enough: {error}"}
            continue
        pixels[name] = proof.hashed_pixels()
        content = packed(replace(proof, subject=EncoderState(known, pixels[name], record.subject)).arrays())
        entries[name] = {"file": f"proofs/{file_stem(name)}.npz", "sha256": sha256(content).hexdigest()}
        store.write_file(entries[name]["file"], content)
    index: dict[str, Any] = {"images": entries}
    if network is not None:
        index["network"] = known
    store.write_file(INDEX, json.dumps(index, indent=1).encode())
    if missing := [name for name, entry in entries.items() if "missing" in entry]:
        warnings.warn(
            f"{len(missing)} of {len(entries)} certified images have no proof, {missing[0]!r} for one: "
            f"{entries[missing[0]]['missing']}",
            HoldfastWarning,
            stacklevel=4,
        )
    certificates = [each.model_copy(update={"pixels": pixels.get(each.id, "")}) for each in record.certificates]
    record = record.model_copy(update={"network": known, "certificates": tuple(certificates)})
    write_record(record, store)
    return record


def proof_of(pairs: Pairs, observation: Certificates) -> Proof:
    """Return the proof for the pairs of a single image, whether or not it holds."""
    ball = observation.pairs.ball
    eps = torch.full_like(pairs.specifications[:, 0, 0], ball.radius)
    around = region(pairs.anchors, type(ball), eps, pairs.encoder.domain)
    chosen = choices(pairs.graph, around, pairs.specifications, observation.pairs.certification.method)
    anchor, negatives = (pixels.flatten(1).cpu().numpy() for pixels in (pairs.anchors, pairs.negatives[0]))
    anchor_id, *negative_ids = pairs.ids[0]
    return Proof(
        anchor_id, tuple(negative_ids), ball.radius, anchor[0], negatives, chosen.claims, chosen.slopes, chosen.leaves
    )


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as the content of a file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # names are those of arrays alone
    return file.getvalue()


def unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file's content.

    Raises:
        ValueError: it holds none.
    """
    from zipfile import BadZipFile

    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (BadZipFile, OSError, EOFError, AttributeError) as error:
        raise ValueError("it is no file of arrays") from error
