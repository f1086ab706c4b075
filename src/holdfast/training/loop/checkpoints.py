"""The state of a training on disk: one file, written whole, read as data alone.

It holds weights, queues, momentum copies, the optimiser, what adversaries prepared, the position in the data and the curve
so far, so that a training that was killed goes on as if it had not been: on one CPU bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_whole
from holdfast.encoders.trained import ASKED, CHECKPOINT

FILE = CHECKPOINT


def save(folder: Path, recipe: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write ``state`` of the training by ``recipe``.

    Raises:
        HoldfastError: it cannot be written; the checkpoint before it stays.
    """
    content = BytesIO()
    torch.save({ASKED: json.dumps(recipe), **state}, content)
    try:
        write_whole(folder / FILE, content.getvalue())
    except OSError as error:
        raise HoldfastError(
            f"cannot write {folder / FILE}: {error.strerror or error}; free some space and run the same command again, "
            "which goes on from the checkpoint before it"
        ) from error


def load(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state that was saved, or None if there is none.

    Raises:
        HoldfastError: it is damaged, or of a training with other settings or images.
    """
    path = folder / FILE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        before = json.loads(state.pop(ASKED))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HoldfastError(f"cannot read {path}: {error.strerror or error}") from error
    except (RuntimeError, UnpicklingError, EOFError, KeyError, ValueError, AttributeError) as error:
        raise HoldfastError(
            f"{path} is damaged or no checkpoint of a training; delete it to begin again, or choose another --out"
        ) from error
    require_same(path.parent, before, recipe)
    return dict(state)


def require_same(folder: Path, before: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    """Raise unless the recipe ``before`` is the ``recipe`` now; the sentence names the differences."""
    other = [
        f"{name} was {before.get(name, 'not there')!r} and is {recipe.get(name, 'not there')!r}"
        for name in sorted({*before, *recipe})
        if before.get(name) != recipe.get(name)
    ]
    if other:
        raise HoldfastError(
            f"{folder} holds a training with other settings ({'; '.join(other)}); restore them to go on, or choose another "
            "--out"
        )
