"""``holdfast certify``: a proof for every image, or a witness against it, or the reason for neither."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import cluster_of
from holdfast.cli.evaluate import STOPPED
from holdfast.cli.flags import Arch, Budget, Cluster, Images, Seed, Size, TrustRemoteCode, Workers
from holdfast.cli.subject import ball_of, left_over, population_of, require_fit
from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.commands.certify_bounds import CertificateRecord
    from holdfast.evaluations.smoothed.smoothed_retrieval import SmoothedRetrieval
    from holdfast.execution.engines.base import Engine
    from holdfast.protocol.population import Population

__all__ = ["STOPPED", "command"]

HOW = "What is certified"
COMPUTES = "How it is computed"


def command(
    encoder: Annotated[str, typer.Argument(help="source:name, as in builtin:digits-robust.")],
    images: Images[str],
    out: Annotated[Path, typer.Option(help="Folder for certificates and witnesses; running again continues it.")],
    eps: Annotated[str | None, typer.Option(help="Radius of a linf ball, as in 8/255.", rich_help_panel=HOW)] = None,
    ball: Annotated[str | None, typer.Option(help="Any ball, as in l2:0.5.", rich_help_panel=HOW)] = None,
    negatives: Annotated[
        int, typer.Option(help="How many of the other images each must stay apart from.", min=1, rich_help_panel=HOW)
    ] = 9,
    method: Annotated[
        str, typer.Option(help="interval, crown, alpha, branch, semidefinite, exact or smoothing.", rich_help_panel=HOW)
    ] = "crown",
    attack: Annotated[
        str, typer.Option(help="What tries to refute, as in adaptive:steps=100.", rich_help_panel=HOW)
    ] = "adaptive",
    limit: Annotated[int, typer.Option(help="Certify at most so many images, chosen by the seed.", min=1)] = 64,
    neurons: Annotated[int, typer.Option(help="Refuse encoders with more nonlinear entries.", min=1)] = 50_000,
    seed: Seed = 0,
    arch: Arch = None,
    size: Size = None,
    trust_remote_code: TrustRemoteCode[bool] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda; bounds need float64.", rich_help_panel=COMPUTES)] = "cpu",
    precision: Annotated[
        str, typer.Option(help="In which witnesses are replayed: float32, float64 ...", rich_help_panel=COMPUTES)
    ] = "float32",
    batch_size: Annotated[int, typer.Option(help="At most so many images at a time.", rich_help_panel=COMPUTES)] = 8,
    budget: Budget = None,
    cluster: Cluster = None,
    workers: Workers = None,
) -> int:
    """Certify that no change of an image makes it more similar to other images, or show one that does."""
    # Loaded here, because these need torch.
    from holdfast.commands.certify_bounds import Certificates, export
    from holdfast.commands.certify_smoothing import SMOOTHING, read_smoothing
    from holdfast.commands.output_folder import claim, require_free
    from holdfast.core.run_settings import RunSettings
    from holdfast.encoders import Options
    from holdfast.execution.engines.ranks import leads
    from holdfast.execution.progress import Shown
    from holdfast.execution.session import devices_of, engine
    from holdfast.execution.table import collect
    from holdfast.store.store import Store, key_of

    if (chosen := ball_of(eps, ball)) is None:
        raise HoldfastError("give the size of changes either as --eps 8/255 or as --ball l2:0.5")
    cluster = cluster_of(cluster, workers, out)
    devices, where = devices_of(cluster, device, workers), engine(cluster, device, workers, out)
    if method.partition(":")[0] == SMOOTHING:
        # Bounds hold dozens of times an image's memory; a noisy copy takes what an image does.
        run = RunSettings(seed, precision=precision, batch_size=32 * batch_size, **devices)
        population = population_of(encoder, Options(arch, size, trust_remote_code), images, run)
        chosen.check(population.encoder.domain)
        return _smoothed(read_smoothing(method, chosen, limit, negatives), population, out, budget, where)
    wanted = Certificates.of(chosen, limit, negatives, method, attack, neurons)
    run = RunSettings(seed, precision=precision, batch_size=batch_size, **devices)
    started, began = datetime.now(UTC), monotonic()
    require_free(out)
    options, store = Options(arch, size, trust_remote_code), Store(out)
    population = population_of(encoder, options, images, run, neurons=neurons)
    chosen.check(population.encoder.domain)
    claim(store, "certify", key_of(wanted, population.encoder, population.images, run))
    with Shown(quiet=not leads(where)) as shown:
        require_fit(population, "certified", where)
        _, rows, observed = collect(wanted, population, store, where, shown, budget, began, codes=False)
    if not leads(where):
        return 0
    if not rows:
        return left_over(shown, len(wanted.rows(population)))
    record = export(population, wanted, rows, observed, store, started)
    _print(record, f"in {chosen} by {method}, each against {min(negatives, len(population.images) - 1)} other images")
    print(f"Certificates: {out / 'certify.json'}")
    if record.contradictions:
        shown.say("attacks succeed inside certified balls: trust no certificate of this encoder, and report this")
    return max(left_over(shown, record.missing), int(record.contradictions > 0))


def _smoothed(
    smoothing: SmoothedRetrieval, population: Population, out: Path, budget: float | None, where: Engine
) -> int:
    """Certify by noisy copies, whatever the encoder is; return the exit status."""
    from holdfast.commands.certify_smoothing import export_smoothed, noisy_codes, plan
    from holdfast.commands.output_folder import claim, require_free
    from holdfast.execution.engines.ranks import leads
    from holdfast.execution.progress import Shown
    from holdfast.execution.table import collect
    from holdfast.store.store import Store, key_of

    started, began, run = datetime.now(UTC), monotonic(), population.run
    require_free(out)
    wanted, store = noisy_codes(smoothing), Store(out)
    claim(store, "certify", key_of(wanted, population.encoder, population.images, run))
    with Shown(quiet=not leads(where)) as shown:
        shown.say(plan(smoothing))
        require_fit(population, "certified", where)
        population, rows, observed = collect(wanted, population, store, where, shown, budget, began)
    if not leads(where):
        return 0
    if not rows:
        return left_over(shown, len(wanted.rows(population)))
    record = export_smoothed(population, smoothing, rows, observed, store, started)
    others = min(smoothing.others, len(population.images) - 1)
    _print(record, f"in l2:{smoothing.radii[0]:g} by smoothing, each against {others} other images")
    print(f"Each certificate holds for noisy copies, with confidence {1 - smoothing.alpha:g}.")
    print(f"Certificates: {out / 'certify.json'}")
    return left_over(shown, record.missing)


def _print(record: CertificateRecord, how: str) -> None:
    """Print each image's status and how many there are of each."""
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
    print(f"{counts} {how}; contradictions: {record.contradictions}")
