"""``holdfast publish``: write stored results for a Hugging Face model page."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli import flags
from holdfast.cli.flags import flag
from holdfast.core.options import INPUT, MEASURED, OUTPUT
from holdfast.core.settings import names_of


def command(
    run: flags.StoredRun,
    dataset: str = flag(..., "Name the benchmark dataset on the hub.", INPUT, "OWNER/NAME"),
    out: Path = flag(..., "Write .eval_results/ into this folder, such as a clone.", OUTPUT, "DIR"),
    encoder: str | None = flag(None, "Publish this encoder (default: the only one).", MEASURED, "NAME"),
    only: flags.Only = None,
    where: flags.Where = None,
    push: str | None = flag(None, "Open a pull request at this model on the hub.", OUTPUT, "OWNER/NAME"),
) -> None:
    """Write metrics for a Hugging Face model page."""
    # Loaded here, because these need torch.
    from holdfast.commands.publish import publish
    from holdfast.report.text import counted

    chosen = names_of(only or (), "--only")
    published = publish(run, dataset, out, encoder=encoder, only=chosen, where=where or (), push=push)
    for path, count in published.numbers.items():
        print(f"{path}: {counted(count, 'number')}")
    if published.proposal:
        print(f"Proposed: {published.proposal}")
