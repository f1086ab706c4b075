"""Certify images, one by one: that no change makes one more similar to others, or a change that does."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Unpack

from holdfast.attacks.base import Attack
from holdfast.bounds.certificates import CertificateRecord, Certificates, write_certificates
from holdfast.bounds.lower_bounds import Method
from holdfast.bounds.pair_bounds import arithmetic_of
from holdfast.bounds.pairs import check_few_neurons
from holdfast.bounds.proofs.files import check_proofs, check_proofs_fit, write_proofs
from holdfast.bounds.queries import check_queries, check_query_encoder, write_queries
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
from holdfast.commands.inputs import ball_of, for_each_encoder
from holdfast.core.balls import Ball
from holdfast.core.checks import check_whole
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.options import CertifyOptions, takes
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.run.forecast import seconds_per_forward
from holdfast.run.inputs import NamedEncoder, NamedImages
from holdfast.run.run import Run
from holdfast.smoothing.copies import listening
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval

COPIES = 32
"""Ratio of batch sizes: bounds hold dozens of times an image's memory, a noisy copy only one image's."""


@for_each_encoder
@takes(CertifyOptions)
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
    export: str | None = None,
    proofs: bool = False,
    **options: Unpack[CertifyOptions],
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
        limit: largest number of images to certify, sampled by ``seed``.
        neurons: refuse encoders with more nonlinear entries.
        arithmetic: what is certified: real, the function of real numbers; or executed, whatever a machine may compute of it
            in ``precision``, rounding included. In half precision it is always the latter.
        export: ``"vnnlib"`` also writes every query as ONNX and VNN-LIB files, with our answer, for other verifiers.
        proofs: whether to keep what ``recheck`` needs to check each certificate again, without search.
        precision: of the encoder as it is executed, and in which witnesses are replayed.
        budget: seconds after which no new work begins; ``missing`` then says how many images are left.
        out: folder in which certificates and the pixels of witnesses are kept, and where an interrupted call goes on; by
            default they are not. Several encoders need one each.
        **options: as other verbs take them.

    Raises:
        HoldfastError: the encoder cannot be bounded, or something that was named does not exist or does not fit.
        BudgetSpentError: the budget ended before any image was certified.
    """
    out = options["out"]
    if (chosen := ball_of(eps, ball)) is None:
        raise HoldfastError("give the size of changes either as --eps 8/255 or as --ball l2:0.5")
    smoothing = certificates = None
    by_copies = isinstance(method, str) and method.partition(":")[0] == SMOOTHING
    check_queries(export, chosen, by_copies, out)
    check_proofs(proofs, chosen, by_copies, out)
    if by_copies:
        for name, value in (("limit", limit), ("negatives", negatives), ("batch_size", options["batch_size"])):
            check_whole(value, name)
        smoothing = read_smoothing(str(method), chosen, limit, negatives)
        options["batch_size"] *= COPIES
    else:
        certificates = Certificates.of(chosen, limit, negatives, method, attack, neurons, arithmetic)
    if (export is not None or proofs) and executes(arithmetic, RunSettings(precision=options["precision"]).dtype):
        raise HoldfastError(
            "queries and proofs are of real arithmetic, and these certificates of the encoder as executed; leave out "
            "--export and --proofs, or certify with --arithmetic real in float32"
        )
    with Run.open("certify", options) as run:
        loaded = run.encoder(encoder)
        if certificates:
            check_few_neurons(loaded, neurons)
        population = run.population(loaded, images)
        chosen.check(loaded.domain)
        if smoothing:
            record = _smoothed(smoothing, population, run)
        else:
            assert certificates is not None
            record = _bounded(certificates, population, run, export is not None, proofs)
        run.warn_of(record.missing)
    if record.contradictions:
        warnings.warn(
            "attacks succeed inside certified balls: trust no certificate of this encoder, and report this",
            HoldfastWarning,
            stacklevel=4,
        )
    if out is not None:
        return record
    lost = [certificate.model_copy(update={"witness": None}) for certificate in record.certificates]
    return record.model_copy(update={"certificates": tuple(lost)})


def _bounded(
    certificates: Certificates, population: Population, run: Run, queries: bool, proofs: bool
) -> CertificateRecord:
    """Return the record of bounds and attacks, which the first of several ranks alone writes and fills."""
    if (queries or proofs) and arithmetic_of(population, certificates.pairs.certification.arithmetic):
        raise HoldfastError(
            "queries for other verifiers and proofs are of real arithmetic; leave out --export and --proofs, or certify in "
            "float32 with --arithmetic real"
        )
    if queries:
        check_query_encoder(population.encoder)
    if proofs:
        check_proofs_fit(certificates, population)
    run.claim(certificates, population)
    _, rows, observed = run.observe(certificates, population, codes=False)
    rows = rows if run.is_main else []
    record = write_certificates(population, certificates, rows, observed, run.store, run.started)
    if queries and rows:
        write_queries(population, certificates, rows, observed, run.store)
    if proofs and rows:
        record = write_proofs(population, certificates, rows, record, run.store)
    return record


def _smoothed(smoothing: SmoothedRetrieval, population: Population, run: Run) -> CertificateRecord:
    """Return the record of noisy copies, of which the first of several ranks alone writes and fills one."""
    show, observation = None, noisy_codes(smoothing)
    if run.show:
        run.show.say(plan(smoothing, seconds_per_forward(population.encoder, attacked=False)))
        show = CopiesShown(run.show)
    run.claim(observation, population)
    with listening(show.heard) if show else nullcontext():
        population, rows, observed = replace(run, show=show).observe(observation, population, doing=DOING)
    return write_smoothed_certificates(
        population, smoothing, rows if run.is_main else (), observed, run.store, run.started
    )
