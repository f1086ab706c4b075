"""Files of prompts: what is said of the images of each class.

One prompt a line: ``cat: a photo of a cat`` for the class of that name, ``a photo of a {}`` for every class, with its name
in place of the braces. Empty lines and what follows a ``#`` at the beginning of a line are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError, did_you_mean
from holdfast.core.files import checksum

BRACES = "{}"
NAMED = 5


def content(path: str) -> tuple[list[str], str]:
    """Return the prompts in a file, one for each line, and a digest of them.

    Raises:
        HoldfastError: there is no such file, it cannot be read, has no prompts, has one twice, or one of no class.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise HoldfastError(
            f"there is no file of prompts {path!r}; check the path (relative to {Path.cwd()})"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"cannot read the prompts in {path!r} ({error}); name a text file in UTF-8") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        raise HoldfastError(
            f"{path!r} has no prompts; write one on each line, as in 'cat: a photo of a cat' or 'a photo of a {BRACES}'"
        )
    first: dict[str, int] = {}
    for number, line in lines:
        if line in first:
            raise HoldfastError(f"{path!r} has {line!r} twice, on lines {first[line]} and {number}; keep one")
        first[line] = number
        if BRACES not in line and not all(part.strip() for part in (line.partition(":")[::2])):
            raise HoldfastError(
                f"line {number} of {path!r}, {line!r}, is said of no class; write 'cat: {line.strip(' :')}', or {BRACES} "
                "where the name of each class belongs"
            )
    prompts = [line for _, line in lines]
    return prompts, checksum("\n".join(prompts).encode())[:8]


def by_class(prompts: Sequence[str], names: Sequence[str], shown: Sequence[str], path: str) -> dict[str, list[str]]:
    """Return what is said of each class that is spoken of, those of ``names`` first and in their order.

    Args:
        prompts: the lines of the file ``path``.
        names: the classes of the images.
        shown: those of them of which there are images.

    Raises:
        HoldfastError: nothing is said of a class that is shown, or two names differ in capitals alone.

    Example:
        >>> by_class(["a photo of a {}", "Cat: my pet", "fox: a fox"], ["cat", "dog"], ["cat"], "prompts.txt")
        {'cat': ['my pet', 'a photo of a cat'], 'dog': ['a photo of a dog'], 'fox': ['a fox', 'a photo of a fox']}
    """
    spelled = {name.strip().casefold(): name for name in names}
    if len(spelled) < len(names):
        raise HoldfastError(
            f"two classes of the images are called alike but for capitals ({', '.join(names)}); rename one"
        )
    texts_of: dict[str, list[str]] = {name: [] for name in names}
    for prompt in prompts:
        if BRACES not in prompt:
            name, _, text = (part.strip() for part in prompt.partition(":"))
            texts_of.setdefault(spelled.setdefault(name.casefold(), name), []).append(text)
    for name, texts in texts_of.items():
        texts += [prompt.replace(BRACES, name) for prompt in prompts if BRACES in prompt]
    spoken_of = {name: texts for name, texts in texts_of.items() if texts}
    if silent := [name for name in shown if name not in spoken_of]:
        listed = ", ".join(silent[:NAMED]) + (f" and {len(silent) - NAMED} more" if len(silent) > NAMED else "")
        raise HoldfastError(
            f"no prompt of {path!r} names {len(silent)} of the labels ({listed}); add lines such as "
            f"'{silent[0]}: a photo of ...', or one with {BRACES} for all; {did_you_mean(silent[0], list(spoken_of))}"
        )
    return spoken_of
