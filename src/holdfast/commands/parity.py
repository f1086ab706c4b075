"""Whether another runtime, precision, export or version of an encoder still has the space of the first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from holdfast.commands.evaluate import MissingResultsWarning
from holdfast.commands.parity_conclusion import Conclusion
from holdfast.commands.parity_sides import Coded, NamedSide, Side, check_time, coded, radii_of, sides_of
from holdfast.core.checks import check_whole
from holdfast.core.errors import BudgetSpentError, HoldfastError, UnknownName
from holdfast.core.options import LocalOptions, takes
from holdfast.core.records import Failure, Result
from holdfast.core.settings import listed
from holdfast.data.reading.scan_cache import FILE, ScanCache
from holdfast.measure.store import REQUEST, StoreError, provenance
from holdfast.report import write
from holdfast.run.inputs import Inputs, NamedImages, images_reference, loading_of, named_images
from holdfast.run.request import Request
from holdfast.run.run import Run
from holdfast.service.parity import DIVERGENCES, NAME, QUESTION

WHERE = ("limit", "seed", "size", "trust_remote_code", "device", "precision", "batch_size")
"""Options that the stored request of a run holds."""


@dataclass(frozen=True, eq=False)
class Parity:
    """What ``parity`` returns: a result for each candidate, and the attack radii if they were asked for."""

    results: tuple[Result, ...]
    """One result per candidate and evaluation."""
    failures: tuple[Failure, ...]
    """Evaluations that failed, each with the reason."""
    page: Path | None
    """The page of the report, where a folder was named for it."""

    @property
    def verdicts(self) -> dict[str, str]:
        """Return the verdict on each candidate, as in ``same to rounding`` or ``another space``."""
        return {
            result.encoder.name: verdict.witness["verdict"]
            for result in self.results
            for verdict in result.findings.verdicts
            if verdict.question == QUESTION
        }

    def __getitem__(self, candidate: str) -> Result:
        """Return the result of one candidate, by its name."""
        for result in self.results:
            if result.evaluation == NAME and result.encoder.name == candidate:
                return result
        for failure in self.failures:
            if failure.encoder == candidate:
                raise HoldfastError(f"{candidate} has no result: {failure.reason}")
        raise HoldfastError(f"no candidate is called {candidate!r}; there are: {', '.join(self.verdicts) or 'none'}")

    def report(self, folder: str | Path) -> Path:
        """Write the report into ``folder`` and return the path of its page."""
        return write(self.results, self.failures, Path(folder))["report.html"]


@takes(LocalOptions)
def parity(
    reference: NamedSide,
    candidates: NamedSide | Sequence[NamedSide],
    images: NamedImages | None = None,
    *,
    bank: NamedImages | None = None,
    k: int = 10,
    divergence: str = "cosine",
    radii: int = 0,
    black_box: bool = False,
    adapter: str | Path | None = None,
    **options: Unpack[LocalOptions],
) -> Parity:
    """Return whether each candidate still has the space of the reference, as ``holdfast parity`` does.

    Args:
        reference: an encoder, its reference, or a file of codes.
        candidates: one or several of these, or names of precisions: ``"float16"`` is the reference computed in it.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1]; files of codes alone need none.
        bank: other images, which are searched instead of the images themselves.
        k: nearest images that are compared.
        divergence: what neighbours and distances go by: ``cosine``, as most indexes and ``threshold`` do, or ``l2``.
        radii: number of images to attack on every encoder, to compare their attack radii; 0: none.
        black_box: attack without gradients, which quantised networks have none of.
        adapter: file for a map from the reference's embeddings to the space of the only candidate, for ``load_adapter``.
        precision: float32, float64, bfloat16 or float16, of the reference and of candidates that name no other.
        budget: seconds after which no new work begins; results are then of fewer images than planned.
        out: folder of the run; with the same folder an interrupted one continues, and ``check`` reads it. By default nothing
            is kept.
        **options: as other verbs take them.

    Raises:
        HoldfastError: something that was named does not exist or does not fit, or the reference cannot be measured.
        BudgetSpentError: the budget ended before any image was encoded by the reference.

    Example:
        >>> answer = parity("builtin:digits-contrastive", ["float16", "builtin:digits-random"], "builtin:digits", limit=100)
        >>> answer.verdicts
        {'digits-contrastive in float16': 'same to rounding', 'digits-random': 'another space'}
    """
    check_whole(k, "k")
    check_whole(radii, "radii")
    if divergence not in DIVERGENCES:
        raise UnknownName("divergence", divergence, DIVERGENCES)
    if radii < 0:
        raise HoldfastError(f"radii is how many images are attacked, 0 or more, got {radii}")
    if adapter is not None:
        adapter = Path(adapter)
        if adapter.suffix != ".safetensors":
            raise HoldfastError(f"adapter: a safetensors file, got {adapter}. Name one that ends in .safetensors")
        if len(listed(candidates)) != 1:
            raise HoldfastError(
                f"adapter: one candidate, got {len(listed(candidates))}. Name one, or leave adapter out"
            )
    (images_name, loaded), (bank_name, loaded_bank) = named_images(images), named_images(bank)
    with Run.open("parity", options, mark=REQUEST) as run:
        first, *others = sides_of(reference, listed(candidates), run.settings, loading_of(options))
        where: dict[str, Any] = {name: value for name, value in options.items() if name in WHERE}
        request = Request(
            **where,
            encoders=tuple(side.request for side in others),
            images=images_name,
            bank=bank_name,
            only=(NAME,),
            black_box=black_box,
            out=str(run.store.folder),
        )
        run.store.request(request.model_dump_json(indent=1))
        if radii and first.encoder.codes_only:
            raise HoldfastError(f"{first.name} holds embeddings alone, which cannot be attacked; leave radii out")
        encoders = [side.encoder for side in (first, *others)]
        named = images_reference(request, encoders) if loaded is None else loaded
        scan_cache = ScanCache.at(run.store.folder / FILE)
        inputs = Inputs(request, encoders, named, bank_name if loaded_bank is None else loaded_bank, scan_cache)
        conclusion = Conclusion(coded(first, inputs, run), k, divergence, inputs, run, adapter)
        conclusion.check_sense()
        results, failures = _compared(conclusion, first, others, radii)
        page = write(results, failures, run.store.folder)["report.html"] if run.kept else None
    answer = Parity(tuple(results), tuple(failures), page)
    if sentence := _missing(answer):
        warnings.warn(sentence, MissingResultsWarning, stacklevel=3)
    return answer


def _compared(
    conclusion: Conclusion, first: Side, others: Sequence[Side], radii: int
) -> tuple[list[Result], list[Failure]]:
    """Return the results of the candidates and of attacks on ``radii`` images of each side, and why others are missing."""
    inputs, run, results, failures = conclusion.inputs, conclusion.run, list[Result](), list[Failure]()
    before = radii_of(first, radii, inputs, run)
    for side in others:
        run.store.clear_failure(NAME, side.name)
        try:
            check_time(side, inputs, run)
            after = radii_of(side, radii, inputs, run)
            results.append(conclusion.of(side, before, after))
            results += [after] if isinstance(after, Result) else []
        except StoreError:
            raise
        except (HoldfastError, BudgetSpentError) as error:
            failures.append(_failed(side, error, run, conclusion.reference))
    results += [before] if isinstance(before, Result) else []
    return [result.model_copy(update={"heading": conclusion.heading}) for result in results], failures


def _failed(side: Side, error: HoldfastError | BudgetSpentError, run: Run, reference: Coded) -> Failure:
    """Return why there is no result of a candidate, and keep it."""
    failure = Failure(
        evaluation=NAME,
        encoder=side.name,
        images=reference.population.images.name,
        error=type(error).__name__,
        reason=str(error),
        provenance=provenance(side.settings, run.started),
    )
    run.store.fail(failure)
    return failure


def _missing(answer: Parity) -> str:
    """Return a sentence on candidates without a result, or with one of fewer images than planned."""
    partial = [result.encoder.name for result in answer.results if result.planned is not None]
    if answer.failures:
        first = answer.failures[0]
        return f"{len(answer.failures)} candidates have no result; the first: {first.encoder}: {first.reason}"
    if partial:
        return f"{', '.join(partial)}: the budget ended before all images were encoded; the same call with out= goes on"
    return ""
