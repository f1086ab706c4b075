"""The cells of a table: what came of each, from now or from before, and why others have no result."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import final

from holdfast.core.encoder import Encoder
from holdfast.core.errors import BudgetSpentError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.execution.computing import Computing
from holdfast.execution.computing.shards import cell_of
from holdfast.execution.engines.ranks import leads
from holdfast.protocol.evaluation import Evaluation, pieces, with_bank
from holdfast.store.keys import key_of
from holdfast.store.provenance import provenance
from holdfast.store.store import StoreError

log = logging.getLogger("holdfast")


@final
@dataclass(frozen=True)
class MissingCells:
    """What is missing of one encoder."""

    encoder: Encoder
    images: Images
    bank: Images | None
    evaluations: Sequence[Evaluation]
    """Those whose results the store does not hold, or only of some of the samples."""

    @property
    def searched(self) -> Images | None:
        """The bank, if anything that is missing looks at one."""
        return self.bank if any(with_bank(evaluation) for evaluation in self.evaluations) else None


@final
@dataclass
class Cells:
    """The results and failures of a table; each cell ends up among one of them."""

    run: RunSettings
    work: Computing
    encoders: Sequence[Encoder]
    """All encoders of the table."""
    reason_for_radii: str = ""
    """Why attacks are measured at these radii."""
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    partial: dict[tuple[str, Evaluation], Result] = field(default_factory=dict)
    """Results of some of the samples that the store holds, by the encoder's name."""
    concluded: dict[tuple[str, Evaluation], Result] = field(default_factory=dict)
    """Full results that were concluded before the end of the run."""

    def look_up(
        self, encoder: Encoder, images: Images, bank: Images | None, evaluations: Sequence[Evaluation]
    ) -> MissingCells:
        """Take what the store holds of ``encoder``, and return what it does not, which is expected from now on."""
        store, forecast, missing = self.work.store, self.work.forecast, []
        for evaluation in evaluations:
            known = store.result(key_of(evaluation, encoder, images, self.run, bank))
            if known is not None and known.planned is None:
                self.results.append(known)
                continue
            missing.append(evaluation)
            if known is not None:
                self.partial[encoder.name, evaluation] = known
        store.expect([cell_of(evaluation, encoder, images, self.run, bank) for evaluation in evaluations])
        for evaluation in missing:
            for what in pieces(evaluation):
                forecast.expect((encoder.name, what))
        return MissingCells(encoder, images, bank, missing)

    def other_encoders(self, row: MissingCells) -> tuple[Encoder, ...]:
        """Return the encoders beside that of ``row``, if anything that is missing of it looks at them."""
        needs_others = any(evaluation.needs_others for evaluation in row.evaluations)
        return tuple(encoder for encoder in self.encoders if needs_others and encoder is not row.encoder)

    def forget_failures(self, encoder: Encoder, evaluations: Sequence[Evaluation]) -> None:
        """Remove what an earlier run noted of cells that are tried again."""
        for evaluation in evaluations if leads(self.work.engine) else ():
            self.work.store.clear_failure(evaluation.name, encoder.name)

    @contextmanager
    def failing(self, encoder: Encoder, images: str, evaluations: Sequence[Evaluation]) -> Iterator[None]:
        """Record whatever goes wrong inside as the failure of ``evaluations``, and go on; but a full disk ends all."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            log.debug("%s failed", encoder.name, exc_info=True)
            for evaluation in evaluations:
                self._give_up(encoder, images, evaluation, error)

    def _give_up(self, encoder: Encoder, images: str, evaluation: Evaluation, error: Exception) -> None:
        """Record why there is no new result; where a run ends early the one of some samples stays."""
        if (encoder.name, evaluation) in self.work.forecast.waiting:
            for what in pieces(evaluation):
                self.work.forecast.drop((encoder.name, what))
        known = self.partial.get((encoder.name, evaluation))
        if known is not None and isinstance(error, BudgetSpentError):
            self.results.append(known)  # it got no further than before
            return
        failure = Failure(
            evaluation=evaluation.name,
            encoder=encoder.name,
            images=images,
            error=type(error).__name__,
            reason=str(error) or type(error).__name__,
            provenance=provenance(self.run, datetime.now(UTC)),
        )
        if leads(self.work.engine):
            self.work.store.fail(failure)
        self.failures.append(failure)
