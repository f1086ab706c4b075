"""The API reference shows the options of ``**options: Unpack[...]`` one by one, as ``help()`` does in Python."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from griffe import Extension, Function, Parameter, ParameterKind


class Options(Extension):
    """Gives functions that take options the signature and the docstring that they have once they are imported."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Replace ``**options`` of one function."""
        keywords = [each for each in func.parameters if each.kind is ParameterKind.var_keyword]
        if not keywords or "Unpack" not in str(keywords[0].annotation):
            return
        real = getattr(import_module(func.module.path), func.name)
        if func.docstring:
            func.docstring.value = inspect.getdoc(real) or ""
        del func.parameters[keywords[0].name]
        for name, each in inspect.signature(real).parameters.items():
            if name not in func.parameters:
                annotation = inspect.formatannotation(each.annotation)
                kind = ParameterKind.keyword_only
                func.parameters.add(Parameter(name, annotation=annotation, kind=kind, default=repr(each.default)))
