"""Commands that take no empty text, since an unset variable must not become a default, and no list in two parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from typer.core import TyperCommand

from holdfast.core.errors import HoldfastError, refuse_blank


@final
class Command(TyperCommand):
    """A command whose flags and arguments are refused where they are empty or parts of a list, before they are converted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args`` as typer does.

        Raises:
            HoldfastError: one is empty (after conversion a path would no longer say so, for it is the current folder), or
                a flag whose values are separated by commas is given twice.
        """
        if not ctx.resilient_parsing:  # which completion asks for
            texts, _, given = self.make_parser(ctx).parse_args(args=list(args))
            _refuse_repeated(given)
            for parameter in self.get_params(ctx):
                refuse_blank(max(parameter.opts, key=len), texts.get(parameter.name or ""))
        return super().parse_args(ctx, args)


def _refuse_repeated(given: Sequence[Any]) -> None:
    """Raise HoldfastError if a flag with values separated by commas is ``given`` twice; of others the last one counts."""
    for parameter, times in Counter(given).items():
        if times > 1 and not getattr(parameter, "multiple", True) and "separated by commas" in (parameter.help or ""):
            raise HoldfastError(f"{max(parameter.opts, key=len)} is given {times} times; separate its values by commas")
