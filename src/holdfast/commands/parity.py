"""Whether another runtime, precision, export or version of an encoder keeps the embedding space of the first.

Also here: the result of one candidate, with its embeddings beside the reference, the cause of a difference, and worst
images.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from torch import Tensor

from holdfast.commands.evaluate import MissingResultsWarning
from holdfast.commands.parity_adapter import ADAPTER_VERSION, adapted
from holdfast.commands.parity_preprocessing import preprocessing
from holdfast.commands.parity_sides import (
    Coded,
    NamedSide,
    Side,
    change,
    check_time,
    coded,
    inputs_of,
    pair_of,
    radii_of,
    sides_of,
)
from holdfast.core.errors import BudgetSpentError, HoldfastError, OutOfRange, UnknownName, check_whole
from holdfast.core.options import LocalOptions, takes
from holdfast.core.pictures import SHOWN, row
from holdfast.core.records import Failure, Findings, Picture, Result
from holdfast.core.settings import listed
from holdfast.measure.observation import collapsed, population_warnings
from holdfast.measure.store import REQUEST, Cell, Key, StoreError, failure_of, provenance
from holdfast.report import write
from holdfast.run.inputs import Inputs, NamedImages, loading_of, named_images
from holdfast.run.run import Run
from holdfast.service.parity import (
    DIRECTIONS,
    DIVERGENCES,
    HEADLINE,
    MEANING,
    NAME,
    QUESTION,
    QUESTIONS,
    SAME,
    TITLE,
    VERSION,
    Pair,
    check_neighbours,
    findings,
    worst,
)
from holdfast.service.parity_maps import Answers, exchanged

UNMOVED = (SAME, DIRECTIONS)
"""Verdicts that leave nothing to explain."""
CODES_ALONE = "Whether robustness moved is not known: of the candidate there are codes alone, which cannot be attacked."


@dataclass(frozen=True, eq=False)
class Conclusion:
    """What every candidate is compared with, and how."""

    reference: Coded
    k: int
    divergence: str
    """What neighbours and distances go by, ``cosine`` or ``l2``."""
    inputs: Inputs
    run: Run
    adapter: Path | None = None
    """File of the map from the reference's embeddings to the candidate's space; None: fit none."""

    def check_sense(self) -> None:
        """Raise if nothing could be compared with the reference: too few images, or one code for all of them."""
        searched = self.reference.rows if self.reference.bank is None else self.reference.bank_ids
        check_neighbours(self.k, len(searched) - (self.reference.bank is None))
        if collapsed(self.reference.codes):
            raise HoldfastError(
                f"{self.reference.side.name} gives one embedding to all images, so there is no distance to compare "
                "with; name "
                "another reference"
            )

    def of(self, side: Side, before: Result | Failure | None, after: Result | Failure | None) -> Result:
        """Return the result of the candidate ``side``: what the store holds, or computed and kept there.

        Args:
            side: the candidate.
            before, after: attack radii of the reference and of the candidate, if they were asked for.

        Raises:
            HoldfastError: it cannot be compared with the reference.
            BudgetSpentError: the budget ended before anything of it was encoded.
        """
        key = self.key(side, before, after)
        known = self.run.store.result(key)
        # Results of older versions do not tell the low end of neighbours kept.
        low_end = known is not None and any(e.quantity == "neighbours_kept_at_80" for e in known.estimates)
        if known is not None and known.planned is None and self.adapter is None and low_end:
            return known
        self.run.store.expect([Cell(evaluation=NAME, encoder=side.name, result=key.stem, made_from=())])
        candidate = coded(side, self.inputs, self.run)
        pair = pair_of(self.reference, candidate, self.divergence)
        conclusion, answers = findings(pair, self.k)
        conclusion = self.explained(conclusion, pair, candidate)
        conclusion = _with_radii(conclusion, before, after)
        if self.adapter is not None:
            estimates, found = adapted(pair, self.k, self.reference.side, side.name, before, self.inputs, self.run)
            if found.adapter is not None:
                found.adapter.save(self.adapter)
            verdicts, warnings = [found.verdict(self.adapter)], [found.warning] if found.warning else []
            conclusion = _with(conclusion, estimates=estimates, verdicts=verdicts, warnings=warnings)
        conclusion = conclusion.model_copy(update={"pictures": self.pictures(conclusion, pair, answers)})
        result = self.record(candidate, conclusion)
        self.run.store.finish(key, result)
        return result

    def key(self, side: Side, before: Result | Failure | None, after: Result | Failure | None) -> Key:
        """Return what identifies the result: everything that it is made from."""
        images, bank = self.inputs.images(side.encoder), self.inputs.bank(side.encoder)
        measured, run = self.reference.population.images, side.settings
        settings = {
            **self.settings,
            "candidate_images": images.fingerprint,
            "bank": None if bank is None else bank.fingerprint,
            "groups": measured.groups_fingerprint,
            "radii": [_made_from(each) for each in (before, after)],
            **({} if self.adapter is None else {"adapter": ADAPTER_VERSION}),
        }
        prints = {"encoder": side.encoder.fingerprint, "images": measured.fingerprint, "precision": run.precision}
        return Key(kind=NAME, version=VERSION, settings=settings, seed=run.seed, name=side.name, **prints)

    @property
    def heading(self) -> str:
        """Return how a report on the candidates is headed."""
        return f"Parity of {{encoders}} with {self.reference.side.name} on {{images}}"

    @property
    def settings(self) -> dict[str, object]:
        """Return what must be equal for two candidates to be compared."""
        run, encoder = self.reference.side.settings, self.reference.side.encoder
        return {
            "reference": encoder.name,
            "reference_fingerprint": encoder.fingerprint,
            "k": self.k,
            "divergence": self.divergence,
            "seed": run.seed,
            "precision": run.precision,
        }

    def explained(self, conclusion: Findings, pair: Pair, candidate: Coded) -> Findings:
        """Return the ``conclusion`` with what other preprocessings make of the difference, if there is one."""
        if conclusion.verdicts[0].witness["verdict"] in UNMOVED:
            return conclusion
        divergence = pair.divergence
        if pair.same_width and pair.one_side_at_norm_1():  # as indexes store embeddings: norms tell nothing
            divergence = DIVERGENCES["cosine"]
        scale = pair.embedded(divergence).scale()
        explanation = preprocessing(self.reference, candidate, self.inputs, scale, divergence)
        if explanation is None:
            return conclusion
        estimates, verdict = explanation
        return _with(conclusion, estimates=estimates, verdicts=[verdict])

    def pictures(self, conclusion: Findings, pair: Pair, answers: Answers) -> tuple[Picture, ...]:
        """Return the images whose codes moved most, and those whose neighbours changed most, with these neighbours."""
        population = self.reference.population
        encoder, images = population.encoder, population.images
        if encoder.codes_only or len(encoder.domain.shape) != 3 or conclusion.verdicts[0].witness["verdict"] in UNMOVED:
            return ()
        row_of = places = {name: position for position, name in enumerate(images.ids)}
        gallery, names = population, pair.ids
        if pair.gallery.is_bank:
            bank = self.inputs.bank(encoder)
            assert bank is not None
            gallery, names = type(population)(encoder, bank, population.run), bank.ids
            places = {name: position for position, name in enumerate(bank.ids)}

        def image(position: int) -> Tensor:
            return population.pixels([row_of[pair.ids[position]]])[0]

        def found(position: int) -> Tensor:
            return gallery.pixels([places[names[position]]])[0]

        pictures = []
        for position in worst(conclusion, SHOWN):
            before, after = (found(int(answer[position])) for answer in (answers.before, answers.after))
            parts = {"image": image(position), "nearest by the reference": before, "nearest by the candidate": after}
            numbers = "; ".join(
                f"{each.quantity.replace('_', ' ')} {each.values[position]:.3g}"
                for each in conclusion.series
                if each.quantity in ("distance", "cosine", "neighbours_kept")
            )
            pictures.append(row(f"{pair.ids[position]}: {numbers}", parts, encoder.domain))
        kept = answers.neighbours
        for position in kept.values.argsort(stable=True)[:SHOWN].tolist():
            lists = exchanged(kept, position, self.k)
            parts = {"image": image(position)} | {
                f"{what} {place}": found(number)
                for what, near in zip(("lost", "new"), lists, strict=True)
                for place, number in enumerate(near[:SHOWN], start=1)
            }
            caption = f"{pair.ids[position]}: keeps {float(kept.values[position]):.3g} of its {self.k} neighbours"
            if lists[0]:
                pictures.append(row(caption, parts, encoder.domain))
        return tuple(filter(None, pictures))

    def record(self, candidate: Coded, conclusion: Findings) -> Result:
        """Return the result of ``candidate``."""
        reference = self.reference
        planned = max(len(each.population.images) for each in (reference, candidate))
        cut = any(len(each.rows) < len(each.population.images) for each in (reference, candidate))
        warnings = population_warnings(candidate.known)
        warnings += tuple(f"{each.side.name}: {each.problem}" for each in (reference, candidate) if each.problem)
        widths = reference.codes.shape[1], candidate.codes.shape[1]
        if widths[0] != widths[1]:
            warnings += (
                f"{candidate.side.name} has codes of {widths[1]} features and {reference.side.name} of {widths[0]}, so none "
                "is at a distance from another and the old index cannot be searched by new codes.",
            )
        if not cut:
            warnings += (*_lacking(reference, candidate), *_lacking(candidate, reference))
        return Result(
            evaluation=NAME,
            version=VERSION,
            title=TITLE,
            meaning=MEANING,
            headline=HEADLINE,
            questions=QUESTIONS,
            heading=self.heading,
            robustness=False,
            encoder=candidate.known.encoder_info,
            images=reference.known.images_info,
            settings=self.settings,
            findings=_with(conclusion, warnings=warnings),
            planned=planned if cut else None,
            provenance=provenance(candidate.side.settings, self.run.started),
        )


def _with(conclusion: Findings, **more: Iterable[object]) -> Findings:
    """Return the ``conclusion`` with more estimates, verdicts or warnings."""
    return conclusion.model_copy(update={name: (*getattr(conclusion, name), *each) for name, each in more.items()})


def _lacking(of: Coded, by: Coded) -> tuple[str, ...]:
    """Return a warning if images of one side have no code by the other."""
    known = set(by.ids)
    lacking = [name for name in of.ids if name not in known]
    if not lacking:
        return ()
    return (
        f"{len(lacking)} of {len(of.ids)} images of {of.side.name} have no code by {by.side.name}, {lacking[0]!r} the "
        "first; they are left out.",
    )


def _made_from(radii: Result | Failure | None) -> object:
    """Return what distinguishes these radii from others: how they were asked for, of which images, or why there are none."""
    if isinstance(radii, Result):
        return {"settings": radii.settings, "images": list(radii.findings.ids)}
    return None if radii is None else radii.reason


def _with_radii(conclusion: Findings, before: Result | Failure | None, after: Result | Failure | None) -> Findings:
    if before is None:
        return conclusion
    moved = CODES_ALONE if after is None else change(before, after)
    return _with(conclusion, **({"warnings": [moved]} if isinstance(moved, str) else {"estimates": [moved]}))


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
        raise UnknownName("candidate", candidate, self.verdicts)

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
        adapter: file for a map from the reference's embeddings to the space of the only candidate, for ``load_adapter``;
            not written if no map keeps more neighbours than the old index as it is.
        precision: float32, float64, bfloat16 or float16, of the reference and of candidates that name no other.

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
        raise OutOfRange("radii, the number of images to attack,", radii, "at least 0")
    if adapter is not None:
        adapter = Path(adapter)
        if adapter.suffix != ".safetensors":
            raise HoldfastError(f"adapter: a safetensors file, got {adapter}. Name one that ends in .safetensors")
        if len(listed(candidates)) != 1:
            raise HoldfastError(
                f"adapter: one candidate, got {len(listed(candidates))}. Name one, or leave adapter out"
            )
    named = named_images(images), named_images(bank)
    with Run.open("parity", options, mark=REQUEST) as run:
        first, *others = sides_of(reference, listed(candidates), run.settings, loading_of(options))
        inputs = inputs_of((first, *others), others, named, options, run, only=(NAME,), black_box=black_box)
        run.store.request(inputs.request.model_dump_json(indent=1))
        if radii and first.encoder.codes_only:
            raise HoldfastError(f"{first.name} holds embeddings alone, which cannot be attacked; leave radii out")
        conclusion = Conclusion(coded(first, inputs, run), k, divergence, inputs, run, adapter)
        conclusion.check_sense()
        results, failures = _compared(conclusion, first, others, radii)
        page = write(results, failures, run.store.folder)["report.html"] if run.kept else None
    answer = Parity(tuple(results), tuple(failures), page)
    if sentence := _missing(answer):
        warnings.warn(sentence, MissingResultsWarning, stacklevel=3)
    return answer


def _missing(answer: Parity) -> str:
    partial = [result.encoder.name for result in answer.results if result.planned is not None]
    if answer.failures:
        first = answer.failures[0]
        return f"{len(answer.failures)} candidates have no result; the first: {first.encoder}: {first.reason}"
    if partial:
        return f"{', '.join(partial)}: the budget ended before all images were encoded; the same call with out= goes on"
    return ""


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
            images = conclusion.reference.population.images.name
            failures.append(failure_of(NAME, side.name, images, error, side.settings, run.started))
            run.store.fail(failures[-1])
    results += [before] if isinstance(before, Result) else []
    return [result.model_copy(update={"heading": conclusion.heading}) for result in results], failures
