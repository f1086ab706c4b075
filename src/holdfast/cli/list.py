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
    from holdfast.run.catalog import everything

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
            if kind == "suites":
                _changes(name)


def _changes(suite: str) -> None:
    """Print what ``suite`` sets instead of the defaults, a line per evaluation."""
    from holdfast.report.text import setting
    from holdfast.run.catalog import evaluations, suite_settings

    for evaluation, changed in suite_settings(suite, evaluations().values()).items():
        print(f"    {evaluation}:", "; ".join(f"{name} = {setting(value)}" for name, value in changed.items()))
