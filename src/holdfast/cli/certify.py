"""``holdfast certify``: a proof for every image, or a witness against it, or the reason for neither."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.cli.evaluate import STOPPED

if TYPE_CHECKING:
    from holdfast.commands.certify.record import CertificateRecord

__all__ = ["STOPPED", "command"]

HOW = "What is certified"


def command(
    encoder: flags.Encoder,
    images: flags.Images[str],
    out: Annotated[Path, typer.Option(help="Folder for certificates and witnesses; running again continues it.")],
    eps: Annotated[str | None, flags.like(flags.Eps, rich_help_panel=HOW)] = None,
    ball: Annotated[str | None, flags.like(flags.Ball, rich_help_panel=HOW)] = None,
    negatives: Annotated[
        int, typer.Option(help="How many of the other images each must stay apart from.", min=1, rich_help_panel=HOW)
    ] = 9,
    method: Annotated[
        str, typer.Option(help="interval, crown, alpha, branch, semidefinite, exact or smoothing.", rich_help_panel=HOW)
    ] = "crown",
    attack: Annotated[
        str, typer.Option(help="What tries to refute, as in adaptive:steps=100.", rich_help_panel=HOW)
    ] = "adaptive",
    limit: flags.Limit[int] = 64,
    neurons: Annotated[int, typer.Option(help="Refuse encoders with more nonlinear entries.", min=1)] = 50_000,
    seed: flags.Seed = 0,
    arch: flags.Arch = None,
    size: flags.Size = None,
    trust_remote_code: flags.TrustRemoteCode[bool] = False,
    device: Annotated[str, flags.like(flags.Device, help="cpu or cuda; bounds need float64.")] = "cpu",
    precision: Annotated[
        str, flags.like(flags.Precision, help="In which witnesses are replayed: float32, float64 ...")
    ] = "float32",
    batch_size: flags.BatchSize = 8,
    budget: flags.Budget = None,
    cluster: flags.Cluster = None,
    workers: flags.Workers = None,
) -> int:
    """Certify that no change of an image makes it more similar to other images, or show one that does."""
    from holdfast.commands.certify import certify  # loaded here, because it needs torch

    record = certify(
        encoder,
        images,
        ball,
        eps=eps,
        negatives=negatives,
        method=method,
        attack=attack,
        limit=limit,
        neurons=neurons,
        seed=seed,
        arch=arch,
        size=size,
        trust_remote_code=trust_remote_code,
        device=device,
        precision=precision,
        batch_size=batch_size,
        budget=budget,
        cluster=cluster_of(cluster, workers, out),
        workers=workers,
        out=out,
        progress=True,
    )
    if not record.certificates:  # another rank has them
        return 0
    _print(record)
    print(f"Certificates: {out / 'certify.json'}")
    return int(record.missing > 0 or record.contradictions > 0)


def _print(record: CertificateRecord) -> None:
    """Print each image's status, how many there are of each, and how sure that is."""
    for certificate in record.certificates:
        where = (
            f" ({certificate.witness})"
            if certificate.witness
            else f" ({certificate.reason})"
            if certificate.status == "UNKNOWN"
            else ""
        )
        print(f"{certificate.id}: {certificate.status}{where}")
    counts = ", ".join(f"{record.counted(status)} {status}" for status in ("CERTIFIED", "FALSIFIED", "UNKNOWN"))
    known = record.settings
    others = min(int(known["negatives"]), record.images.count - 1)
    how = f"in {known['ball']} by {known['method']}, each against {others} other images"
    print(f"{counts} {how}; contradictions: {record.contradictions}")
    if "alpha" in known:
        print(f"Each certificate holds for noisy copies, with confidence {1 - float(known['alpha']):g}.")
