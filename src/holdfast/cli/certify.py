"""``holdfast certify``: a proof, a counterexample or the reason for neither, for each image."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.core.errors import HoldfastError
from holdfast.core.options import ADVANCED, INPUT, MEASURED, OUTPUT, CertifyOptions, Limit

if TYPE_CHECKING:
    from holdfast.bounds.certificates import CertificateRecord

STOPPED = flags.CONTINUES

TAKEN = {
    "vnnlib": ("method", "attack", "neurons", "seed", "out"),
    "recheck": ("encoder", "images", "arch", "size", "trust_remote_code"),
}
"""Flags that ``--vnnlib`` and ``--recheck`` accept; other flags would have no effect."""


@flags.options(CertifyOptions, "certify")
def command(
    encoder: Annotated[
        str | None, typer.Argument(help="Encoder as source:name, such as builtin:digits-robust.", metavar="ENCODER")
    ] = None,
    images: flags.Images[str | None] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write certificates and witnesses here; rerun to continue.", metavar="DIR", rich_help_panel=OUTPUT
        ),
    ] = None,
    eps: Annotated[str | None, flags.like(flags.Eps)] = None,
    ball: Annotated[str | None, flags.like(flags.Ball)] = None,
    negatives: Annotated[
        int, typer.Option(help="Compare each image with N other images.", metavar="N", min=1, rich_help_panel=MEASURED)
    ] = 9,
    method: Annotated[
        str,
        typer.Option(
            help="Prove by this method (holdfast list bounds), or by smoothing.",
            metavar="METHOD",
            rich_help_panel=MEASURED,
        ),
    ] = "crown",
    attack: Annotated[
        str,
        typer.Option(
            help="Search counterexamples by this attack, as in adaptive:steps=100.",
            metavar="ATTACK",
            rich_help_panel=MEASURED,
        ),
    ] = "adaptive",
    limit: Annotated[int, flags.like(Limit, help="Use at most N images, sampled with --seed.")] = 64,
    neurons: Annotated[
        int,
        typer.Option(
            help="Refuse encoders with more than N nonlinear units.", metavar="N", min=1, rich_help_panel=ADVANCED
        ),
    ] = 50_000,
    arithmetic: Annotated[
        str,
        typer.Option(
            help="Prove for exact (real) or floating-point (executed) arithmetic.",
            metavar="NAME",
            rich_help_panel=MEASURED,
        ),
    ] = "real",
    *,
    options: CertifyOptions,
    export: Annotated[
        str | None,
        typer.Option(
            help="Also write queries for other verifiers; format: vnnlib.", metavar="FORMAT", rich_help_panel=OUTPUT
        ),
    ] = None,
    proofs: Annotated[
        bool,
        typer.Option("--proofs", help="Also write proofs that --recheck can check.", rich_help_panel=OUTPUT),
    ] = False,
    vnnlib: Annotated[
        Path | None,
        typer.Option(
            help="Answer VNN-LIB queries of this instance list instead.", metavar="CSV", rich_help_panel=INPUT
        ),
    ] = None,
    recheck: Annotated[
        Path | None,
        typer.Option(help="Check the stored proofs of a run instead.", metavar="DIR", rich_help_panel=INPUT),
    ] = None,
) -> int:
    """Prove for each image that no small change confuses it, or find one that does.

    holdfast certify builtin:digits-robust --images builtin:digits --eps 2/255 --out certified
    """
    values: dict[str, Any] = {**locals(), **options}
    from holdfast.commands.certify import certify  # loaded here, because it needs torch

    if vnnlib is not None:
        _check_no_idle("vnnlib", values)
        return _verify(vnnlib, method=method, attack=attack, neurons=neurons, seed=options["seed"], out=out)
    if recheck is not None:
        _check_no_idle("recheck", values)
        return _recheck(
            recheck,
            encoder,
            images,
            arch=options["arch"],
            size=options["size"],
            trust_remote_code=options["trust_remote_code"],
        )
    if encoder is None or images is None or out is None:
        raise typer.BadParameter("certify needs ENCODER, --images and --out, or --vnnlib, or --recheck")
    options["out"], options["cluster"] = out, cluster_of(options["cluster"], options["workers"], out)
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
        arithmetic=arithmetic,
        export=export,
        proofs=proofs,
        **options,
    )
    if not record.certificates:  # another rank has them
        return 0
    _print(record)
    print(f"Certificates: {out / 'certify.json'}")
    if export:
        print(f"Queries: {out / 'vnnlib' / 'instances.csv'}")
    if proofs:
        print(f"Proofs: {out / 'proofs'}; check them with holdfast certify --recheck {out}")
    return int(record.missing > 0 or record.contradictions > 0)


def _check_no_idle(instead: str, values: dict[str, Any]) -> None:
    """Raise if a flag was given, other than as its default, that changes nothing beside the flag ``instead``."""
    defaults = signature(command).parameters
    others = [name for name in defaults if name not in {instead, *TAKEN[instead]}]
    if idle := [_spelled(name) for name in others if values[name] != defaults[name].default]:
        taken = ", ".join(map(_spelled, TAKEN[instead]))
        raise HoldfastError(
            f"{_spelled(instead)}: {', '.join(idle)} would have no effect. Leave it out; only {taken} are allowed."
        )


def _spelled(name: str) -> str:
    return "ENCODER" if name == "encoder" else f"--{name.replace('_', '-')}"


def _verify(instances: Path, **settings: Any) -> int:
    """Print the answer to each query of a benchmark as it comes, and how many there are of each."""
    from holdfast.bounds.verify import answers

    counts = {"unsat": 0, "sat": 0, "unknown": 0}
    for answer in answers(instances, **settings):
        counts[answer.answer] += 1
        reason = f" ({answer.reason})" if answer.reason else ""
        print(f"{answer.network} {answer.query}: {answer.answer} in {answer.seconds:.2f} s{reason}")
        if answer.counterexample is not None and settings["out"] is None:
            print(" ".join(f"{value:.9g}" for value in answer.counterexample.flatten().tolist()))
    print(", ".join(f"{count} {answer}" for answer, count in counts.items()))
    return 0


def _recheck(folder: Path, encoder: str | None, images: str | None, **options: Any) -> int:
    """Print whether the proof of each certified image holds; 1 unless all do."""
    from holdfast.commands.recheck import recheck

    results = recheck(folder, encoder, images, **options)
    for result in results:
        print(f"{result.id}: {f'HOLDS with {result.bound:.6g}' if result.holds else f'REJECTED ({result.reason})'}")
    count = sum(result.holds for result in results)
    whose = f"{encoder} on {images}" if encoder else "the network and images in the folder"
    print(f"{count} of {len(results)} certificates hold, of {whose}")
    if not encoder:
        print(
            "Not checked without ENCODER and --images: that the network is the encoder's, that the pixels are those of the "
            "images, and that the seed draws these negatives."
        )
    return int(count < len(results))


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
    if known.get("arithmetic", "real") != "real":
        how += f", {known['arithmetic']}"
    print(f"{counts} {how}; contradictions: {record.contradictions}")
    if "alpha" in known:
        alpha, count = float(known["alpha"]), len(record.certificates)
        print(
            f"Each certificate holds for noisy copies, with confidence {1 - alpha:g} by itself; all {count} images hold "
            f"jointly with at least {max(0.0, 1 - count * alpha):g}."  # Bonferroni: however they depend on each other
        )
