"""Commands that take no empty text: an unset variable in a script must not become a default."""

from __future__ import annotations

from typing import Any, final

from typer.core import TyperCommand

from holdfast.core.errors import refuse_blank


@final
class Command(TyperCommand):
    """A command whose flags and arguments are refused where they are empty, before they are converted."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ``args`` as typer does.

        Raises:
            HoldfastError: one is empty. After conversion a path would no longer say so, for it is the current folder.
        """
        if not ctx.resilient_parsing:  # which completion asks for
            texts, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            for parameter in self.get_params(ctx):
                refuse_blank(max(parameter.opts, key=len), texts.get(parameter.name or ""))
        return super().parse_args(ctx, args)
