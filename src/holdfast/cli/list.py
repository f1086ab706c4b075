"""``holdfast list``: everything there is."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    kind: Annotated[str | None, typer.Argument(help="encoders, images, attacks, bounds ...; none: all.")] = None,
) -> None:
    """List encoders, images, evaluations, attacks, presets, bounds, probes, transforms, objectives, balls, divergences,
    training objectives, adversaries, architectures, recipes and suites; or one of these kinds in full.
    """
    from rich.text import Text

    from holdfast.cli.terminal import console
    from holdfast.core.errors import HoldfastError, did_you_mean
    from holdfast.run.catalog import everything

    catalogue = everything()
    if kind is not None and kind not in catalogue:
        raise HoldfastError(f"cannot list {kind!r}; {did_you_mean(kind, list(catalogue))}")
    out = console()
    # Whoever asks for attacks wants those of the literature, too.
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
