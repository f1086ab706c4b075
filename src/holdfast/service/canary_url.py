"""An embedding service as a function of images.

Each image is posted as PNG (``Content-Type: image/png``). The answer is JSON: a list of numbers, or an object that has it
under ``embedding``, or as the only entry of ``embeddings`` or ``data``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from PIL import Image

from holdfast.core.errors import HoldfastError, OutOfRange, Unreadable

SECONDS = 30
LARGEST = 1 << 24
"""Bytes of the longest answer that is read."""


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nothing: images go only where the caller sends them."""


def embed_by(url: str) -> Callable[[list[Image.Image]], list[list[float]]]:
    """Return a function that posts images to ``url`` and returns the vectors.

    Raises:
        OutOfRange: ``url`` is not http or https.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise OutOfRange("url", url, "an http or https address")

    def embed(images: list[Image.Image]) -> list[list[float]]:
        return [_vector(url, _post(url, image)) for image in images]

    return embed


def _post(url: str, image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG", compress_level=1)
    request = Request(url, file.getvalue(), {"Content-Type": "image/png", "Accept": "application/json"}, method="POST")
    try:
        with build_opener(_NoRedirect).open(request, timeout=SECONDS) as answer:
            content: bytes = answer.read(LARGEST + 1)
    except (URLError, OSError, ValueError) as error:
        raise Unreadable(
            url, getattr(error, "reason", None) or error, fix="check the address and the service"
        ) from error
    if len(content) > LARGEST:
        raise OutOfRange(f"answer of {url}", f"more than {LARGEST} bytes", "one embedding as JSON")
    return content


def _vector(url: str, content: bytes) -> list[float]:
    try:
        found = json.loads(content)
        while isinstance(found, dict) or (
            isinstance(found, list) and len(found) == 1 and isinstance(found[0], (dict, list))
        ):
            found = _inside(found) if isinstance(found, dict) else found[0]
        if not isinstance(found, list) or not all(isinstance(value, (int, float)) for value in found):
            raise ValueError("no list of numbers")
    except (ValueError, RecursionError) as error:
        raise HoldfastError(
            f"{url} answered no embedding ({error}); expected JSON, a list of numbers or one under 'embedding'"
        ) from error
    return found


def _inside(answer: dict[str, Any]) -> Any:
    for key in ("embedding", "embeddings", "data"):
        if key in answer:
            return answer[key]
    raise ValueError("no 'embedding'")
