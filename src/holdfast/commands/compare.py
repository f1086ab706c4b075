"""Stored results of one or several runs side by side, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import PrivateAttr

from holdfast.commands.evaluated_run import StoredRun, folders_of
from holdfast.commands.runs import read_requested
from holdfast.core.errors import HoldfastError, check_no_blanks
from holdfast.core.files import write_whole
from holdfast.core.records import Failure, Result
from holdfast.core.settings import listed, names_of
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.report.comparison.compare import Comparison, incomparable
from holdfast.report.contents import Contents, select_results
from holdfast.report.page.page import render


class ComparedRuns(Comparison):
    """A comparison, with what was compared."""

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    folders: tuple[str, ...]
    _contents: Contents | None = PrivateAttr(None)

    @property
    def contents(self) -> Contents:
        """Return what every form of a report derives from these records."""
        return self._contents or Contents(self.results, self.failures)

    def page(self, path: str | Path) -> None:
        """Write the comparison as one page.

        Raises:
            HoldfastError: ``path`` cannot be written.
        """
        path = Path(path)
        if path.is_dir():
            raise HoldfastError(f"cannot write the page to the folder {path}; name a file in it with --html")
        content = render(self.contents, self.folders)
        try:
            write_whole(path, content.encode())
        except OSError as error:
            reason = error.strerror or error
            raise HoldfastError(f"cannot write {path}: {reason}; name another file with --html") from error


def compare(
    runs: StoredRun | Sequence[StoredRun],
    *,
    only: str | Sequence[str] = (),
    where: str | Sequence[str] = (),
    relative_to: str | None = None,
) -> ComparedRuns:
    """Return which encoders of one or several runs are better, image by image, with what could not be compared.

    Args:
        runs: one or several runs, or their folders.
        only: names of evaluations; all by default.
        where: conditions, as in ``"attack=adaptive"`` or ``"linf:8/255"``, that all must hold.
        relative_to: the encoder whose errors under common corruptions are 1; by default a baseline, or the first.

    Raises:
        HoldfastError: a folder holds no run, or one that cannot be read; nothing can be compared.
    """
    check_no_blanks(locals())
    folders, evaluations = folders_of(runs), names_of(only, "only")
    results, failures = read_requested(folders)
    if not results:
        raise HoldfastError(
            f"{', '.join(map(str, folders))}: no results to compare; repeat the run's holdfast evaluate"
        )
    failures = [failure for failure in failures if not evaluations or failure.evaluation in (*evaluations, "evaluate")]
    results = select_results(with_relative_errors(results, relative_to), evaluations, listed(where))
    contents = Contents(results, failures)
    comparison = contents.comparison
    refusals = incomparable(comparison.refusals)
    if refusals and not comparison.contests:
        raise HoldfastError(f"nothing can be compared: {refusals[0]}")
    records = {"results": tuple(results), "failures": tuple(failures), "folders": tuple(map(str, folders))}
    compared = ComparedRuns.model_validate({**dict(comparison), **records})
    compared._contents = contents
    return compared
