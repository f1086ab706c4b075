"""Formulas of the documentation, blocks of ``math`` in LaTeX, as MathML: browsers draw it without any script."""

from __future__ import annotations

from functools import partial
from typing import Any

from latex2mathml.converter import convert


def formula(source: str, *_: object, **__: object) -> str:
    """Return the MathML of a block."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


def on_config(config: Any) -> Any:
    """Give mkdocs the block ``math``, beside those of code."""
    fence = {"name": "math", "class": "math", "format": partial(formula)}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config
