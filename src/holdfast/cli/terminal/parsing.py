"""Commands that take no empty text, since an unset variable must not become a default, and no value twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from typer.core import TyperCommand

from holdfast.core.errors import HoldfastError, refuse_blank


@final
class Command(TyperCommand):
    """A command whose flags and arguments are refused where they are empty or given twice, before they are converted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args`` as typer does.

        Raises:
            HoldfastError: one is empty (after conversion a path would no longer say so, for it is the current folder), or
                an option that takes one value is given twice.
        """
        if not ctx.resilient_parsing:  # which completion asks for
            texts, _, given = self.make_parser(ctx).parse_args(args=list(args))
            _refuse_repeated(given)
            for parameter in self.get_params(ctx):
                refuse_blank(max(parameter.opts, key=len), texts.get(parameter.name or ""))
        return super().parse_args(ctx, args)


def _refuse_repeated(given: Sequence[Any]) -> None:
    """Raise HoldfastError if an option with one value is ``given`` twice: the last one would win without a word."""
    for parameter, times in Counter(given).items():
        switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts  # says the same twice
        if times > 1 and parameter.param_type_name == "option" and not (parameter.multiple or switch):
            listed = "separated by commas" in (parameter.help or "")
            advice = "separate its values by commas" if listed else "it takes one value, so keep one"
            raise HoldfastError(f"{max(parameter.opts, key=len)} is given {times} times; {advice}")
