"""``holdfast list``: names of everything that a command accepts."""

from __future__ import annotations

import typer


def command(
    kind: str | None = typer.Argument(
        None, help="Kind to list: encoders, attacks, suites ... (default: all).", metavar="KIND"
    ),
) -> None:
    """List encoders, evaluations, attacks, transforms and their settings.

    Kinds: encoders, images, evaluations, attacks, presets, bounds, probes, transforms, objectives, balls,
    divergences, training, adversaries, architectures, recipes, suites.
    """
    from rich.text import Text

    from holdfast.cli.terminal import console
    from holdfast.core.errors import UnknownName
    from holdfast.report.text import setting
    from holdfast.run.catalog import evaluations, everything, suite_settings

    catalogue = everything()
    if kind is not None and kind not in catalogue:
        raise UnknownName("KIND", kind, catalogue)
    out = console()
    # Presets are attacks too: those of published papers.
    titles = ["attacks", "presets"] if kind == "attacks" else [kind] if kind else list(catalogue)
    for title in titles:
        out.print(Text(title, style="bold"))
        width = max((len(name) for name in catalogue[title]), default=0)
        for name, meaning in catalogue[title].items():
            out.print(f"  {name:{width}}  {meaning.replace('``', '`')}")
            # What a suite sets instead of the defaults, a line per evaluation.
            changes = suite_settings(name, evaluations().values()) if kind == "suites" else {}
            for evaluation, changed in changes.items():
                print(f"    {evaluation}:", "; ".join(f"{key} = {setting(value)}" for key, value in changed.items()))
