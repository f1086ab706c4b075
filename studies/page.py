"""The pages of the study and what reports quote of it: every sentence follows from stored numbers.

``docs/study.md`` is one screen, ``docs/study-results.md`` has all results and the ledger of claims.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.core.files import write_whole
from studies.agreement import sections as agreement_page
from studies.agreement.front import RESULTS, front
from studies.agreement.judged import judged, quoted
from studies.agreement.opening import opening
from studies.certified import frontier_page
from studies.claims import ledger

STORED = Path(__file__).parent / "stored"
QUOTED = "src/holdfast/report/overview/study.json"
"""Read by the library, which knows nothing else of the study."""
TITLE = "# Results of the study"
ORIGIN = """
This page has the results behind [the short page of the study](study.md). Each sentence follows from the numbers in
`studies/stored`; `python -m studies --page` writes both pages from these alone."""


def render(folder: Path) -> dict[str, str]:
    """Return the pages, their figures and what reports quote of it by their paths, from the results in ``folder``."""
    found = judged(folder)
    first, picture = opening(found)
    lines, figures = agreement_page.render(found)
    claims = ledger.ledger_section(ledger.stored(folder / "claims"))
    results = "\n".join([TITLE, *first, ORIGIN, *lines, "", *claims]) + "\n"
    docs = {"study.md": "\n".join(front(found)) + "\n", RESULTS: results, **picture, **figures}
    docs |= frontier_page.render(folder / "frontier")
    return {**{f"docs/{path}": text for path, text in docs.items()}, QUOTED: quoted(found)}


def write(folder: Path, out: Path) -> None:
    """Write all that follows from the results in ``folder`` below ``out``."""
    for path, text in render(folder).items():
        place = out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, text.encode())
