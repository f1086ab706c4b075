"""Certify images, one by one: that no change makes one more similar to others, or a change that does."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path

from holdfast.attacks.base import Attack
from holdfast.bounds.certificates import CertificateRecord, Certificates, write_certificates
from holdfast.bounds.lower_bounds import Method
from holdfast.bounds.pair_bounds import arithmetic_of
from holdfast.bounds.proofs.files import check_proofs, require_proofs, write_proofs
from holdfast.bounds.queries import check_queries, require_queries, write_queries
from holdfast.bounds.rounding.executed import executes
from holdfast.commands.certify_by_copies import (
    DOING,
    SMOOTHING,
    CopiesShown,
    noisy_codes,
    plan,
    read_smoothing,
    write_smoothed_certificates,
)
from holdfast.commands.inputs import NamedEncoder, NamedImages, ball_of, for_each_encoder, population_of, refuse_jobs
from holdfast.commands.observing import Observer, observing
from holdfast.core.balls import Ball
from holdfast.core.checks import check_whole
from holdfast.core.errors import HoldfastError, HoldfastWarning, refuse_blanks
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.by_name import Options
from holdfast.measure.population import Population
from holdfast.run.engines.requested import Workers
from holdfast.run.forecast import pace
from holdfast.smoothing.copies import listening
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval

COPIES = 32
"""Bounds hold dozens of times an image's memory; a noisy copy takes what an image does, so a batch has so many more."""


@for_each_encoder
def certify(
    encoder: NamedEncoder,
    images: NamedImages,
    ball: str | Ball | None = None,
    *,
    eps: str | float | None = None,
    negatives: int = 9,
    method: str | Method = "crown",
    attack: str | Attack = "adaptive",
    limit: int = 64,
    neurons: int = 50_000,
    arithmetic: str = "real",
    seed: int = 0,
    arch: str | None = None,
    size: int | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    batch_size: int = 8,
    budget: float | None = None,
    cluster: str | None = None,
    workers: Workers = None,
    export: str | None = None,
    proofs: bool = False,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> CertificateRecord:
    """Return for each image whether no change makes it more similar to other images, as ``holdfast certify`` does.

    Args:
        encoder: one, or a list of them, for which a list of records is returned.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1].
        ball: the changes, as ``Linf(1 / 255)`` or ``"linf:1/255"``.
        eps: radius of a linf ball, instead of ``ball``.
        negatives: how many of the other images each must stay apart from.
        method: interval, crown, lipschitz, alpha, sdp-crown, branch, semidefinite or exact; or smoothing, as in
            ``"smoothing:sigma=0.25"``, which certifies noisy copies of any encoder in a l2 ball.
        attack: what tries to refute; smoothing runs none.
        limit: certify at most so many images, chosen by ``seed``.
        neurons: refuse encoders with more nonlinear entries.
        arithmetic: what is certified: real, the function of real numbers; or executed, whatever a machine may compute of it
            in ``precision``, rounding included. In half precision it is always the latter.
        seed: of what is random in attacks and chosen among images.
        arch: ``package.module:factory``, which builds the module of a checkpoint.
        size: height and width of the inputs of an encoder by reference, instead of its own.
        trust_remote_code: whether a model repository may run its own code.
        device: cpu or cuda; bounds need float64.
        precision: of the encoder as it is executed, and in which witnesses are replayed.
        batch_size: at most so many images at a time.
        budget: seconds after which no new work begins; ``missing`` then says how many images are left.
        cluster: compute on a Ray cluster: auto, local or its address.
        workers: compute in so many processes of this machine.
        export: ``"vnnlib"`` also writes every query as ONNX and VNN-LIB files, with our answer, for other verifiers.
        proofs: whether to keep what ``recheck`` needs to check each certificate again, without search.
        out: folder in which certificates and the pixels of witnesses are kept, and where an interrupted call goes on; by
            default they are not. Several encoders need one each.
        progress: show it on stderr; by default in terminals and notebooks.

    Raises:
        HoldfastError: the encoder cannot be bounded, or something that was named does not exist or does not fit.
        BudgetSpentError: the budget ended before any image was certified.
    """
    refuse_blanks(locals())
    refuse_jobs("certify", cluster)
    if (chosen := ball_of(eps, ball)) is None:
        raise HoldfastError("give the size of changes either as --eps 8/255 or as --ball l2:0.5")
    smoothing = certificates = None
    by_copies = isinstance(method, str) and method.partition(":")[0] == SMOOTHING
    check_queries(export, chosen, by_copies, out)
    check_proofs(proofs, chosen, by_copies, out)
    if by_copies:
        for name, value in (("limit", limit), ("negatives", negatives), ("batch_size", batch_size)):
            check_whole(value, name)
        smoothing, batch_size = read_smoothing(str(method), chosen, limit, negatives), COPIES * batch_size
    else:
        certificates = Certificates.of(chosen, limit, negatives, method, attack, neurons, arithmetic)
    run, options = RunSettings(seed, device, precision, batch_size), Options(arch, size, trust_remote_code)
    if (export is not None or proofs) and executes(arithmetic, run.dtype):
        raise HoldfastError(
            "queries and proofs are of real arithmetic, and these certificates of the encoder as executed; leave out "
            "--export and --proofs, or certify with --arithmetic real in float32"
        )
    with observing(run, out=out, cluster=cluster, workers=workers, budget=budget, progress=progress) as observer:
        population = population_of(encoder, images, observer.run, options, neurons=None if smoothing else neurons)
        chosen.check(population.encoder.domain)
        if smoothing:
            record = _smoothed(smoothing, population, observer)
        else:
            assert certificates is not None
            record = _bounded(certificates, population, observer, export is not None, proofs)
        observer.warn_of(record.missing)
    if record.contradictions:
        warnings.warn(
            "attacks succeed inside certified balls: trust no certificate of this encoder, and report this",
            HoldfastWarning,
            stacklevel=3,
        )
    if out is not None:
        return record
    lost = [certificate.model_copy(update={"witness": None}) for certificate in record.certificates]
    return record.model_copy(update={"certificates": tuple(lost)})


def _bounded(
    certificates: Certificates, population: Population, observer: Observer, queries: bool, proofs: bool
) -> CertificateRecord:
    """Return the record of bounds and attacks, which the first of several ranks alone writes and fills."""
    if (queries or proofs) and arithmetic_of(population, certificates.pairs.certification.arithmetic):
        raise HoldfastError(
            "queries for other verifiers and proofs are of real arithmetic; leave out --export and --proofs, or certify in "
            "float32 with --arithmetic real"
        )
    if queries:
        require_queries(population.encoder)
    if proofs:
        require_proofs(certificates, population)
    _, rows, observed = observer.observe("certify", certificates, population, codes=False)
    rows = rows if observer.leads else []
    record = write_certificates(population, certificates, rows, observed, observer.store, observer.started)
    if queries and rows:
        write_queries(population, certificates, rows, observed, observer.store)
    if proofs and rows:
        record = write_proofs(population, certificates, rows, record, observer.store)
    return record


def _smoothed(smoothing: SmoothedRetrieval, population: Population, observer: Observer) -> CertificateRecord:
    """Return the record of noisy copies, of which the first of several ranks alone writes and fills one."""
    show = None
    if observer.show:
        observer.show.say(plan(smoothing, pace(population.encoder, attacked=False)))
        show = CopiesShown(observer.show)
    with listening(show.heard) if show else nullcontext():
        population, rows, observed = observer.observe(
            "certify", noisy_codes(smoothing), population, doing=DOING, progress=show
        )
    return write_smoothed_certificates(
        population, smoothing, rows if observer.leads else (), observed, observer.store, observer.started
    )
