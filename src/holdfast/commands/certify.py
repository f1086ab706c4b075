"""Certify images, one by one: prove that no perturbation makes one match another image, or find one that does.

Also here: the files of ``holdfast certify --method smoothing``, with the radius up to which noisy copies of each image keep
their match.

certify.json    settings, and per image its status, the certified radius minus that of the ball, and why it is unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from math import inf, nan
from time import monotonic
from typing import Unpack, final

import torch

from holdfast.attacks.base import Attack
from holdfast.bounds.certificates import Certificate, CertificateRecord, Certificates, groups_of, write_certificates
from holdfast.bounds.certified_pairs import check_few_neurons
from holdfast.bounds.lower_bounds import Method
from holdfast.bounds.pair_bounds import arithmetic_of
from holdfast.bounds.proofs.proof_files import check_proofs, check_proofs_fit, write_proofs
from holdfast.bounds.queries import check_queries, check_query_encoder, write_queries
from holdfast.bounds.rounding.executed import executes
from holdfast.commands.inputs import ball_of, for_each_encoder
from holdfast.core.balls import L2, Ball
from holdfast.core.errors import HoldfastError, OutOfRange, UnknownName, check_whole, warn
from holdfast.core.options import CertifyOptions, takes
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.settings import pairs
from holdfast.measure.evaluation import settings
from holdfast.measure.population import Population
from holdfast.measure.store import Store, provenance
from holdfast.report.text import about, listed
from holdfast.run.forecast import seconds_per_forward
from holdfast.run.inputs import NamedEncoder, NamedImages
from holdfast.run.progress import Display
from holdfast.run.request import build
from holdfast.run.run import Run
from holdfast.smoothing.copies import Stopping, least_share, listening, radius
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval
from holdfast.smoothing.index import told_apart
from holdfast.smoothing.noisy_codes import NoisyCodes
from holdfast.smoothing.plan import Plan

SMOOTHING = "smoothing"
SETTINGS = frozenset({"sigma", "selection", "copies", "alpha", "divergences"})
"""Settings of smoothing that a text may name."""
LEAST = 250
"""Copies that are drawn before anything is looked at."""
SELECTION = 1
"""Copies that choose a centre, by default: certificates are of votes for the image itself, which need none."""
DOING = "noisy copies of images"
ALMOST = 0.99
"""The share of all work that is shown as done within an image at most, however short the forecast was."""


def read_smoothing(method: str, ball: Ball, anchors: int, others: int) -> SmoothedRetrieval:
    """Return what ``method``, as in ``smoothing:sigma=0.25,copies=10000``, asks for in ``ball``.

    Raises:
        HoldfastError: it cannot certify anything there.

    Example:
        >>> read_smoothing("smoothing:copies=10000", L2(0.25), 50, 9).copies
        10000
    """
    if not isinstance(ball, L2):
        raise OutOfRange("ball of smoothing", ball, "an l2 ball", "give one as in --ball l2:0.25")
    form = f"smoothing takes {listed(sorted(SETTINGS))}, as in smoothing:sigma=0.25"
    settings_of_text = pairs([part for part in method.partition(":")[2].split(",") if part], form)
    if unknown := settings_of_text.keys() - SETTINGS:
        raise UnknownName("setting of smoothing", min(unknown), SETTINGS, "give some, as in smoothing:sigma=0.25")
    fixed = {"radii": ball.radius, "samples": anchors, "others": others}
    evaluation = build(SmoothedRetrieval, {"divergences": "l2", "selection": SELECTION, **settings_of_text, **fixed})
    assert isinstance(evaluation, SmoothedRetrieval)
    return evaluation


def noisy_codes(evaluation: SmoothedRetrieval) -> NoisyCodes:
    """Return what must be seen of each image."""
    return NoisyCodes(evaluation.smoothing, evaluation.divergences[:1], (), stopping(evaluation))


def stopping(evaluation: SmoothedRetrieval) -> Stopping:
    """Return when enough copies are drawn: as soon as it is decided whether most stay nearest to the image in the ball."""
    return Stopping(evaluation.radii, evaluation.alpha, LEAST, ("kept",))


def plan(evaluation: SmoothedRetrieval, pace: float) -> str:
    """Return what it will cost, at ``pace`` seconds for a copy, and can certify at best, as a sentence."""
    smoothing = evaluation.smoothing
    expected = Plan(smoothing, evaluation.slack, evaluation.alpha, stopping(evaluation))
    takes = f"an image takes {about(pace * smoothing.forward_passes)} here{' at most' if expected.ends_early else ''}"
    centre = (
        f"2 x {smoothing.selection:,} of the copies choose a centre, which no certificate needs: leave selection out"
    )
    return (
        f"{expected.drawn}; l2 radii up to {expected.farthest:.3g} can be certified, "
        f"each with confidence {1 - evaluation.alpha:g}"
        f"{f'; {takes}' if pace else ''}"
        f"{f'; {centre}' if smoothing.selection > SELECTION else ''}"
    )


@final
class CopiesShown:
    """Progress that goes on within an image, by its copies: those of one take minutes where the network is large."""

    def __init__(self, show: Display) -> None:
        self.show, self.copies, self.since, self.told = show, 0, monotonic(), ("", 0.0, inf)

    def __call__(self, doing: str, share: float, left: float) -> None:
        """Show the progress between images."""
        self.copies, self.since, self.told = 0, monotonic(), (doing, share, left)
        self.show(doing, share, left)

    def say(self, sentence: str) -> None:
        """Show one line of its own."""
        self.show.say(sentence)

    def heard(self, copies: int) -> None:
        """Show ``copies`` more encoded copies, and the time that is left."""
        doing, share, left = self.told
        passed = monotonic() - self.since
        self.copies += copies
        within = (1 - share) * passed / left if left else 0.0
        share = max(share, min(share + within, ALMOST))
        self.show(f"{doing}; {self.copies:,} copies of the next", share, max(left - passed, 0.0))


def write_smoothed_certificates(
    population: Population,
    evaluation: SmoothedRetrieval,
    rows: Sequence[int],
    observed: Observed,
    store: Store,
    started: datetime,
) -> CertificateRecord:
    """Write the certificates of the images at ``rows`` and return their record; of no rows nothing is written.

    Raises:
        StoreError: the folder cannot be written.
    """
    certificates: tuple[Certificate, ...] = ()
    (ball,) = evaluation.radii
    if rows:
        alpha = evaluation.alpha / len(stopping(evaluation).looks(evaluation.copies))
        reach = radius(least_share(observed["0.kept"], observed["copies"], alpha), evaluation.sigma).tolist()
        others = population.random_others(rows, evaluation.others)
        negatives = others[torch.arange(len(rows)), observed["0.nearer"].argmin(1).cpu()].tolist()
        each = zip(rows, negatives, reach, strict=True)
        certificates = tuple(_certificate(population, evaluation, *values) for values in each)
    else:
        population = Population(population.encoder, population.images, population.run, torch.empty(0, 0))
    record = CertificateRecord(
        encoder=population.encoder_info,
        images=population.images_info,
        settings={name: str(value) for name, value in settings(noisy_codes(evaluation)).items()}
        | {"method": SMOOTHING, "ball": str(L2(ball)), "alpha": f"{evaluation.alpha:g}"}
        | {"negatives": str(evaluation.others)}
        | groups_of(population, evaluation.others)
        | {"seed": str(population.run.seed), "precision": population.run.precision},
        certificates=certificates,
        missing=len(noisy_codes(evaluation).rows(population)) - len(rows),
        provenance=provenance(population.run, started),
    )
    if rows:
        store.write_file("certify.json", record.model_dump_json(indent=1).encode())
    return record


def _certificate(
    population: Population, evaluation: SmoothedRetrieval, row: int, negative: int, reach: float
) -> Certificate:
    """Return the certificate of the image at ``row``, whose noisy copies keep it up to ``reach``; nan: unsure."""
    (ball,) = evaluation.radii
    if not told_apart(population, row, evaluation.others).any():
        reach, reason = nan, "all other images are exact copies of it"
    elif reach > ball:
        reason = f"most of its noisy copies stay nearest to it after every change up to {reach:.3g}"
    elif reach > 0:
        reason = f"that most of its noisy copies stay nearest to it is certified up to {reach:.3g} alone"
    else:
        reason = "it is not sure that most of its noisy copies are nearest to it"
    return Certificate(
        id=population.images.ids[row],
        status="CERTIFIED" if reach > ball else "UNKNOWN",
        reason=reason,
        negative=population.images.ids[negative],
        bound=reach - ball,
        attacked=nan,
        contradictions=0,
        witness=None,
        replayed=None,
    )


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
        out: folder in which certificates and the pixels of witnesses are kept, and where an interrupted call goes on; by
            default they are not. Several encoders need one each.

    Raises:
        HoldfastError: the encoder cannot be bounded, or something that was named does not exist or does not fit.
        BudgetSpentError: the budget ended before any image was certified.
    """
    out = options["out"]
    if (chosen := ball_of(eps, ball)) is None:
        raise HoldfastError("give the size of changes either as --eps 8/255 or as --ball l2:0.5")
    by_copies = isinstance(method, str) and method.partition(":")[0] == SMOOTHING
    check_queries(export, chosen, by_copies, out)
    check_proofs(proofs, chosen, by_copies, out)
    if by_copies:
        for name, value in (("limit", limit), ("negatives", negatives), ("batch_size", options["batch_size"])):
            check_whole(value, name)
        asked: SmoothedRetrieval | Certificates = read_smoothing(str(method), chosen, limit, negatives)
        options["batch_size"] *= COPIES
    else:
        asked = Certificates.of(chosen, limit, negatives, method, attack, neurons, arithmetic)
    if (export is not None or proofs) and executes(arithmetic, RunSettings(precision=options["precision"]).dtype):
        raise HoldfastError(
            "queries and proofs are of real arithmetic, and these certificates of the encoder as executed; leave out "
            "--export and --proofs, or certify with --arithmetic real in float32"
        )
    with Run.open("certify", options) as run:
        loaded = run.encoder(encoder)
        if not by_copies:
            check_few_neurons(loaded, neurons)
        population = run.population(loaded, images)
        chosen.check(loaded.domain)
        if isinstance(asked, Certificates):
            record = _bounded(asked, population, run, export is not None, proofs)
        else:
            record = _smoothed(asked, population, run)
        run.warn_of(record.missing)
    if record.contradictions:
        warn("attacks succeed inside certified balls: trust no certificate of this encoder, and report this", 3)
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
