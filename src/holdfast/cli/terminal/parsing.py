"""Commands that take no empty text, since an unset variable must not become a default, and no flag twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from typer.core import TyperCommand

from holdfast.core.errors import HoldfastError, refuse_blank


@final
class Command(TyperCommand):
    """A command whose flags and arguments are refused where they are empty or repeated, before they are converted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args`` as typer does.

        Raises:
            HoldfastError: one is empty (after conversion a path would no longer say so, for it is the current folder), or
                a flag that takes one value is given twice.
        """
        if not ctx.resilient_parsing:  # which completion asks for
            texts, _, given = self.make_parser(ctx).parse_args(args=list(args))
            _refuse_repeated(given)
            for parameter in self.get_params(ctx):
                refuse_blank(max(parameter.opts, key=len), texts.get(parameter.name or ""))
        return super().parse_args(ctx, args)


def _refuse_repeated(given: Sequence[Any]) -> None:
    """Raise HoldfastError if a flag that takes one value is among what is ``given`` more than once."""
    for parameter, times in Counter(given).items():
        several = parameter.param_type_name == "argument" or parameter.multiple or parameter.is_flag or parameter.count
        if times > 1 and not several:
            commas = "; separate several by commas" if "separated by commas" in (parameter.help or "") else ""
            raise HoldfastError(f"{max(parameter.opts, key=len)} is given {times} times, and takes one value{commas}")
