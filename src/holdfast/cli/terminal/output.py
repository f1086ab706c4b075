"""Standard output, whatever it leads to: a pipe that nobody reads, a full disk, a terminal that knows ASCII alone."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper
from typing import final

from holdfast.core.errors import HoldfastError

UNREAD = 141
"""The status of a command whose reader is gone, as shells call the end by the signal for that: 128 + 13."""
ERRORS = "holdfast"
"""The name under which Python finds ``writable``."""
ESCAPED = range(0xDC80, 0xDD00)
"""Characters that stand for bytes of paths that are no text."""


class UnreadError(HoldfastError):
    """Whoever read standard output has closed it, as ``head`` does: nothing went wrong."""


def writable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return how what an encoding lacks is written: bytes of paths as they are, anything else by its number.

    Example:
        >>> "±1".encode("ascii", ERRORS), "caf\\udce9".encode("ascii", ERRORS)
        (b'\\\\xb11', b'caf\\xe9')
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if ord(character) in ESCAPED:
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace"), error.start + 1


codecs.register_error(ERRORS, writable)


@final
class Output(TextIOWrapper):
    """A standard output that says what is wrong with it, once, instead of an error about any file."""

    broken = False

    def write(self, text: str) -> int:
        try:
            return len(text) if self.broken else super().write(text)
        except OSError as error:
            self.broken = True
            raise _refused(error) from error

    def flush(self) -> None:
        try:
            if not self.broken:
                super().flush()
        except OSError as error:
            self.broken = True
            raise _refused(error) from error


def prepare() -> None:
    """Make of standard output an ``Output``.

    Raises:
        HoldfastError: it is closed.
    """
    if sys.stdout is None:
        raise HoldfastError("standard output is closed; send it to a file or to /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        encoding, buffered = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = Output(sys.stdout.detach(), encoding, ERRORS, line_buffering=buffered)


def drop() -> None:
    """Send what is still to be written nowhere, or Python would try again at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _refused(error: OSError) -> HoldfastError:
    if isinstance(error, BrokenPipeError):
        return UnreadError("nobody reads standard output any more")
    return HoldfastError(f"cannot write to standard output: {error.strerror or error}; send it elsewhere or free space")
