"""The file of a canary: safetensors, with a header that is checked field by field.

tensor ``embeddings``   (n, d) float32
tensor ``caused``       (t, m, d) float32, of the first m images under each of ``causes``
tensors ``image.00000`` (h, w, c) uint8, unless only hashes are kept
metadata ``canary``     ``Header`` as JSON
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
from PIL import Image
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from holdfast.core.errors import HoldfastError, OutOfRange, Unreadable
from holdfast.core.files import write_whole

LARGEST = 1 << 28
"""Bytes of the largest file that is read or written."""
LARGEST_HEADER = 1 << 20
"""Bytes of the largest header that is parsed."""
MOST_IMAGES = 1000


Stated = TypeVar("Stated", bound=BaseModel)


def _printable(text: str) -> str:
    # A hostile file must not steer a terminal.
    if not text.isprintable():
        raise ValueError("control characters")
    return text


Text = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, Field(gt=0, le=100_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Header(BaseModel):
    """Header of a canary file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    encoder: Text
    """Name of the encoder."""
    ids: Annotated[tuple[Text, ...], Field(min_length=2, max_length=MOST_IMAGES)]
    """Names of the images."""
    hashes: tuple[Hash, ...]
    """SHA-256 of each image."""
    shape: tuple[Size, Size, Size]
    """Channels, height and width of the encoder's inputs."""
    side: Annotated[int, Field(ge=0, le=100_000)]
    """Longest shorter side of an image, in pixels; 0 if images were inputs of the encoder already."""
    precision: Text
    """Precision of the embeddings."""
    tolerances: Annotated[dict[Text, Positive], Field(max_length=20)]
    """Largest distance that rounding explains, by precision, as a fraction of the median distance between images."""
    causes: Annotated[tuple[Text, ...], Field(max_length=500)]
    """Names of the mistakes whose embeddings are stored."""
    weights: Hash
    """SHA-256 of the weights."""
    inputs: Annotated[dict[Text, Text], Field(max_length=20)]
    """Preprocessing of an image: size, normalisation, resizing, pooling."""
    versions: Annotated[dict[Text, Text], Field(max_length=50)]
    """Versions of the libraries."""


def read(path: Path) -> bytes:
    """Return the content of a file that is small enough."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise OutOfRange(f"size of {path}", f"{size} bytes", f"at most {LARGEST}", fix="name a canary")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(str(path), error, fix="check the path") from error


def to_bytes(header: Header, arrays: dict[str, np.ndarray]) -> bytes:
    """Return the file of ``header`` and ``arrays``.

    Raises:
        OutOfRange: it would be larger than a canary may be.
    """
    from safetensors.numpy import save

    content: bytes = save(arrays, {"canary": header.model_dump_json()})
    if len(content) > LARGEST:
        raise OutOfRange("size of the canary", f"{len(content)} bytes", f"at most {LARGEST}", fix="lower --limit")
    header_length("canary", content)
    return content


def from_bytes(name: str, content: bytes) -> tuple[Header, dict[str, np.ndarray]]:
    """Return header and arrays of the file ``name`` after checking both.

    Raises:
        Unreadable: the content is no canary.
    """
    fix = "copy the file again, or make a new one with holdfast canary make"
    return parsed(name, content, "canary", Header, _check, fix)


def written(path: str | Path, arrays: dict[str, np.ndarray], kind: str, header: BaseModel) -> Path:
    """Write arrays with the header of a file of this kind.

    Raises:
        HoldfastError: It cannot be written.
    """
    from safetensors.numpy import save

    try:
        write_whole(Path(path), save(arrays, {kind: header.model_dump_json()}))
    except OSError as error:
        raise HoldfastError(f"cannot write {path}: {error.strerror or error}; name another file") from error
    return Path(path)


def check_finite(arrays: dict[str, np.ndarray]) -> None:
    """Check that all arrays are finite numbers of float32."""
    if any(values.dtype != np.float32 or not np.isfinite(values).all() for values in arrays.values()):
        raise ValueError("its arrays are not finite float32")


def parsed(
    name: str,
    content: bytes,
    kind: str,
    header: type[Stated],
    check: Callable[[Stated, dict[str, np.ndarray]], None],
    fix: str,
) -> tuple[Stated, dict[str, np.ndarray]]:
    """Return the checked header and arrays of a safetensors file.

    Args:
        name: Name of the file in errors.
        content: Its bytes.
        kind: What the file is; with ``_`` for spaces, the only key of its metadata.
        header: Model of the header, which is JSON under this key.
        check: Raises ValueError if the arrays do not fit the header.
        fix: What to do about a damaged file.

    Raises:
        Unreadable: The content is no such file.
    """
    from safetensors.numpy import load

    key = kind.replace(" ", "_")
    try:
        metadata = json.loads(content[8 : 8 + header_length(name, content)]).get("__metadata__", {})
        if not isinstance(metadata, dict) or set(metadata) != {key}:
            raise ValueError(f"its metadata are not those of a file of kind {key}")
        stated = header.model_validate_json(metadata[key])
        arrays = load(content)
        check(stated, arrays)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        reason = f"its {where:.60} is not what the header of a {kind} states ({first['type']})"
        raise Unreadable(name, reason, fix=fix) from None
    except HoldfastError:
        raise
    except Exception as error:  # parsers raise anything at all on damaged bytes
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(name, f"it is damaged or no {kind} ({reason:.100})", fix=fix) from None
    return stated, arrays


def header_length(name: str, content: bytes) -> int:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(LARGEST_HEADER, len(content) - 8):
        raise Unreadable(name, "it is truncated or no canary", fix="copy the file again")
    return length


def _is_image(key: str) -> bool:
    return key.startswith("image.") and len(key) == 11 and key[6:].isdigit()


def _check(header: Header, arrays: dict[str, np.ndarray]) -> None:
    if unknown := [key for key in arrays if key not in ("embeddings", "caused") and not _is_image(key)]:
        raise ValueError(f"it holds {unknown[0]!r:.40}, which no canary has")
    n, images = len(header.ids), [key for key in arrays if _is_image(key)]
    embeddings, caused = arrays["embeddings"], arrays["caused"]
    faults = {
        "embeddings": embeddings.dtype != np.float32 or embeddings.ndim != 2 or len(embeddings) != n,
        "hashes": len(header.hashes) != n or len({*header.ids}) != n,
        "number of images": bool(images) and len(images) != n,
        "images": any(arrays[key].dtype != np.uint8 or not _is_picture(arrays[key].shape) for key in images),
        "caused": caused.dtype != np.float32 or caused.ndim != 3 or len(caused) != len(header.causes),
        "tolerances": header.precision not in header.tolerances,
    }
    faults |= {} if any(faults.values()) else {"caused": caused.shape[2] != embeddings.shape[1] or caused.shape[1] > n}
    if wrong := [name for name, fault in faults.items() if fault]:
        raise ValueError(f"its {wrong[0]} do not fit")
    if not (np.isfinite(embeddings).all() and np.isfinite(caused).all()):
        raise ValueError("it holds NaN or infinity")


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] in (1, 3) and min(shape) > 0


# An embedding service as a function of images.
#
# Each image is posted as PNG (``Content-Type: image/png``). The answer is JSON: a list of numbers, or an object that has it
# under ``embedding``, or as the only entry of ``embeddings`` or ``data``.

SECONDS = 30
LONGEST_ANSWER = 1 << 24
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
            content: bytes = answer.read(LONGEST_ANSWER + 1)
    except (URLError, OSError, ValueError) as error:
        raise Unreadable(
            url, getattr(error, "reason", None) or error, fix="check the address and the service"
        ) from error
    if len(content) > LONGEST_ANSWER:
        raise OutOfRange(f"answer of {url}", f"more than {LONGEST_ANSWER} bytes", "one embedding as JSON")
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
