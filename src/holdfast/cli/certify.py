"""``holdfast certify``: a proof, a counterexample or the reason for neither, for each image."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli import flags
from holdfast.cli.cluster import cluster_of
from holdfast.cli.flags import flag, like, switch
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
    encoder: str | None = typer.Argument(
        None, help="Encoder as source:name, such as builtin:digits-robust.", metavar="ENCODER"
    ),
    images: flags.Images[str | None] = None,
    out: Path | None = flag(None, "Write certificates and witnesses here; rerun to continue.", OUTPUT, "DIR"),
    eps: flags.Eps = None,
    ball: flags.Ball = None,
    negatives: int = flag(9, "Compare each image with N other images.", MEASURED, "N", min=1),
    method: str = flag("crown", "Prove by this method (holdfast list bounds), or by smoothing.", MEASURED, "METHOD"),
    attack: str = flag(
        "adaptive", "Search counterexamples by this attack, as in adaptive:steps=100.", MEASURED, "ATTACK"
    ),
    limit: int = like(Limit, default=64, help="Use at most N images, sampled with --seed."),
    neurons: int = flag(50_000, "Refuse encoders with more than N nonlinear units.", ADVANCED, "N", min=1),
    arithmetic: str = flag("real", "Prove for exact (real) or floating-point (executed) arithmetic.", MEASURED, "NAME"),
    *,
    options: CertifyOptions,
    export: str | None = flag(None, "Also write queries for other verifiers; format: vnnlib.", OUTPUT, "FORMAT"),
    proofs: bool = switch("--proofs", "Also write proofs that --recheck can check.", OUTPUT),
    vnnlib: Path | None = flag(None, "Answer VNN-LIB queries of this instance list instead.", INPUT, "CSV"),
    recheck: Path | None = flag(None, "Check the stored proofs of a run instead.", INPUT, "DIR"),
) -> int:
    """Prove for each image that no small change confuses it, or find one that does.

    holdfast certify builtin:digits-robust --images builtin:digits --eps 2/255 --out certified
    """
    given = flags.keywords(locals())
    from holdfast.commands.certify import certify  # loaded here, because it needs torch

    if vnnlib is not None:
        _check_no_idle("vnnlib", given)
        return _verify(vnnlib, method=method, attack=attack, neurons=neurons, seed=options["seed"], out=out)
    if recheck is not None:
        _check_no_idle("recheck", given)
        return _recheck(
            recheck, encoder, images, **{name: options[name] for name in ("arch", "size", "trust_remote_code")}
        )
    if encoder is None or images is None or out is None:
        raise typer.BadParameter("certify needs ENCODER, --images and --out, or --vnnlib, or --recheck")
    record = certify(**{**given, "cluster": cluster_of(options["cluster"], options["workers"], out)})
    if not record.certificates:  # another rank has them
        return 0
    _print(record)
    print(f"Certificates: {out / 'certify.json'}")
    if export:
        print(f"Queries: {out / 'vnnlib' / 'instances.csv'}")
    if proofs:
        print(f"Proofs: {out / 'proofs'}; check them with holdfast certify --recheck {out}")
    return int(record.missing > 0 or record.contradictions > 0)


def _check_no_idle(instead: str, given: dict[str, Any]) -> None:
    """Raise if a flag was given, other than as its default, that changes nothing beside the flag ``instead``."""
    defaults = {name: getattr(of.default, "default", of.default) for name, of in signature(command).parameters.items()}
    others = [name for name in defaults if name not in {instead, *TAKEN[instead]}]
    if idle := [_spelled(name) for name in others if given.get(name) != defaults[name]]:
        taken = ", ".join(map(_spelled, TAKEN[instead]))
        raise HoldfastError(
            f"{_spelled(instead)}: {', '.join(idle)} would have no effect. Leave it out; only {taken} are allowed."
        )


def _spelled(name: str) -> str:
    return "ENCODER" if name == "encoder" else f"--{name.replace('_', '-')}"


def _verify(instances: Path, **settings: Any) -> int:
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
