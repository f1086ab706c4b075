"""A canary tells every change that parity tells, names the cause, and raises no alarm for honest restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load, save
from torch import nn

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands.canary import MARGIN_OF_OTHERS, PROBED, library_versions
from holdfast.commands.parity_trials import Attempt, of_pixels, usual_resizings
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange, UnknownName, Unreadable
from holdfast.core.geometry import Preprocessing
from holdfast.service.canary import ORDER, SCALED, SINGLE, UNIT, WEIGHTS
from tests import tiny
from tests.commands.parity_pairs import PAIRS, encoder, network, photographs
from tests.facts import says

pytest_plugins = ["pytester"]
CAUSES = {"wrong mean": "ImageNet normalisation", "BGR": "channels in the opposite order", "bilinear": "bilinear"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("canary") / "photos", 40)


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    path = folder.parent / "canary.safetensors"
    assert isinstance(hf.canary("make", encoder(network(), "reference"), images=str(folder), out=path), hf.Canary)
    return path


@pytest.fixture(scope="module")
def canary(file: Path) -> hf.Canary:
    return hf.Canary.load(file)


def check(canary: hf.Canary, candidate: Any, **options: Any) -> hf.CanaryCheck:
    answer = hf.canary("check", canary, candidate, **options)
    assert isinstance(answer, hf.CanaryCheck)
    return answer


def by(
    module: nn.Module, geometry: Preprocessing, attempt: Attempt | None = None
) -> Callable[[list[Image.Image]], Any]:
    """Return a service of the test's own: Pillow, numpy and the network."""

    def embed(images: list[Image.Image]) -> Any:
        assert all(image.mode == "RGB" for image in images)
        values = np.stack([np.asarray(geometry(image), np.float32) for image in images]) / 255
        pixels = torch.from_numpy(values).permute(0, 3, 1, 2)
        with torch.no_grad():
            return module(attempt(pixels) if attempt else pixels)

    return embed


@pytest.mark.parametrize("pair", PAIRS)
def test_every_change_that_parity_tells_is_told_and_its_cause_named(canary: hf.Canary, pair: str) -> None:
    make, verdict, _ = PAIRS[pair]
    made = make()
    answer = check(
        canary,
        encoder(network(), "fp16") if isinstance(made, str) else made,
        precision="float16" if pair == "fp16" else None,
    )
    assert answer.passed == (verdict == "same to rounding")
    assert (answer.cause == "") == answer.passed
    if pair in CAUSES:
        assert CAUSES[pair] in answer.cause
        assert says(answer.facts, "weights are", "same") or pair == "BGR"
    if pair == "another seed":
        assert answer.cause.startswith(WEIGHTS)
        assert "The weights differ" in answer.facts


def test_every_trial_of_parity_is_told_and_named_to_a_function(canary: hf.Canary) -> None:
    whole = encoder(network(), "reference")
    assert whole.geometry is not None
    assert canary.check(by(whole.module, whole.geometry)).passed
    tried = [*of_pixels(whole, whole), *usual_resizings(whole.geometry)]
    told = 0
    for attempt in tried:
        answer = canary.check(by(whole.module, attempt.geometry or whole.geometry, attempt))
        if answer.passed:  # a resizing that gives the same pixels
            assert answer.distances.max() <= answer.tolerance
            continue
        told += 1
        assert answer.left < 1e-3
        assert answer.cause == attempt.name or attempt.resizing, "resizings of one result have one name"
    assert told >= len(tried) - 2


def test_honest_restarts_raise_no_alarm(canary: hf.Canary) -> None:
    restarted, rng = encoder(network(), "restarted"), np.random.default_rng(0)
    before = torch.get_num_threads()
    try:
        for _ in range(50):
            torch.set_num_threads(int(rng.integers(1, 3)))
            assert check(canary, restarted, batch_size=int(rng.integers(1, 40))).passed
    finally:
        torch.set_num_threads(before)


def test_numpy_gives_the_same_distances_and_tolerances_hold_what_was_measured(canary: hf.Canary) -> None:
    r = canary.embeddings.astype(float)
    moved = r.copy()
    moved[3, 5] += 0.25
    apart = sorted(float(np.sqrt(((r[i] - r[j]) ** 2).sum())) for i in range(32) for j in range(i))
    median = (apart[(len(apart) - 1) // 2] + apart[len(apart) // 2]) / 2
    answer = canary.compare(moved)
    np.testing.assert_allclose(answer.distances[3], 0.25 / median, rtol=1e-9)
    assert answer.distances.sum() == answer.distances[3]
    assert answer.cause == SINGLE
    tolerances = canary.header.tolerances
    assert tolerances["float32"] <= tolerances["float16"] < tolerances["bfloat16"]
    for precision in ("float16", "bfloat16"):  # of all images, so that honest checks in it pass
        answer = check(canary, encoder(network(), "restarted"), precision=precision)
        assert answer.distances.max() == pytest.approx(tolerances[precision] / MARGIN_OF_OTHERS, rel=0.02) or (
            tolerances[precision] == tolerances["float32"]
        )
    assert "array(" not in repr(canary)
    assert canary.caused.shape == (len(canary.header.causes), PROBED, 24)


def test_what_services_do_to_vectors_is_named(canary: hf.Canary) -> None:
    r = canary.embeddings.astype(float)
    unit = r / np.linalg.norm(r, axis=1, keepdims=True)
    assert canary.compare(unit).cause == UNIT
    assert canary.compare(3 * r).cause.startswith(SCALED)
    assert canary.compare(r[::-1]).cause == ORDER
    reordered = canary.caused[canary.header.causes.index("channels in the opposite order")].astype(float)
    both = np.concatenate([reordered, r[PROBED:] + 5])
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    assert canary.compare(both).cause == f"channels in the opposite order, and {UNIT}"
    rough = canary.compare(torch.from_numpy(canary.embeddings).bfloat16())  # as an index may store them
    assert rough.cause.startswith("precision")
    with pytest.raises(HoldfastError, match="channels"):
        canary.compare(both).require()


def test_codes_in_files_are_matched_by_id(canary: hf.Canary, tmp_path: Path) -> None:
    np.save(tmp_path / "codes.npy", canary.embeddings)
    order = np.random.default_rng(0).permutation(32)
    np.savez(tmp_path / "codes.npz", codes=canary.embeddings[order], ids=np.array(canary.header.ids)[order])
    assert check(canary, tmp_path / "codes.npy").passed
    assert check(canary, str(tmp_path / "codes.npz")).passed
    np.savez(tmp_path / "others.npz", codes=canary.embeddings, ids=np.arange(32))
    with pytest.raises(HoldfastError, match="32 of 32"):
        check(canary, tmp_path / "others.npz")


def test_hashes_alone_need_the_original_images(folder: Path, tmp_path: Path) -> None:
    path, reference = tmp_path / "hashes.safetensors", encoder(network(), "reference")
    hf.canary("make", reference, images=str(folder), out=path, hashes=True)
    small = hf.Canary.load(path)
    assert not small.pictures
    assert check(small, reference, images=str(folder)).passed
    assert small.compare(small.embeddings).passed
    with pytest.raises(HoldfastError, match="hashes"):
        check(small, reference)
    other = photographs(tmp_path / "others", 41)
    values = np.asarray(Image.open(other / small.header.ids[0])).copy()
    values[0, 0] ^= 1
    Image.fromarray(values).save(other / small.header.ids[0])
    with pytest.raises(HoldfastError, match=small.header.ids[0]):
        check(small, reference, images=str(other))


@pytest.fixture
def service() -> Iterator[tuple[str, list[Any]]]:
    """A local service that embeds PNG images; ``answers`` wraps each vector."""
    whole = encoder(network(), "service")
    answers: list[Any] = [lambda vector: {"data": [{"embedding": vector}]}]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "image/png"
            image = Image.open(BytesIO(self.rfile.read(int(self.headers["Content-Length"]))))
            vector = by(whole.module, cast(Any, whole.geometry))([image])[0].tolist()
            content = json.dumps(answers[0](vector)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/embed", answers
    server.shutdown()
    server.server_close()


def test_a_service_is_checked_by_its_address(canary: hf.Canary, service: tuple[str, list[Any]]) -> None:
    url, answers = service
    for wrapped in (
        answers[0],
        lambda vector: vector,
        lambda vector: [vector],
        lambda vector: {"embeddings": [vector]},
    ):
        answers[0] = wrapped
        assert check(canary, None, url=url).passed
    for wrong in (lambda _: {"error": "busy"}, lambda _: "no", lambda _: [None, 1]):
        answers[0] = wrong
        with pytest.raises(HoldfastError, match="embedding"):
            check(canary, None, url=url)
    with pytest.raises(OutOfRange):
        check(canary, None, url="file:///etc/hostname")
    with pytest.raises(Unreadable):
        check(canary, None, url="http://127.0.0.1:9/")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda r: r[:5],
        lambda r: r[:, :5],
        lambda r: np.where(np.arange(24) == 3, np.nan, r),
        lambda r: r[0],
        lambda _: [[1.0], [2.0, 3.0]],
        lambda _: None,
        lambda _: "text",
    ],
)
def test_vectors_that_fit_no_canary_are_refused(canary: hf.Canary, wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(HoldfastError) as caught:
        canary.check(lambda _: wrong(canary.embeddings))
    assert len(str(caught.value)) < 240


def test_tensors_and_lists_are_vectors(canary: hf.Canary) -> None:
    codes = torch.from_numpy(canary.embeddings).requires_grad_()
    assert canary.check(lambda _: codes).passed
    assert canary.check(lambda _: list(codes)).passed
    assert canary.check(lambda _: codes.tolist()).passed
    assert canary.check(lambda _: codes.half(), precision="float16").passed


def hostile(content: bytes) -> dict[str, bytes]:
    """Return files that are no canary, by what is wrong with them."""
    arrays = load(content)
    length = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + length])["__metadata__"]["canary"]
    header = json.loads(text)

    def with_header(**changes: Any) -> bytes:
        return bytes(save(arrays, {"canary": json.dumps(header | changes)}))

    flipped = arrays | {"image.00000": arrays["image.00000"] ^ 1}
    return {
        "empty": b"",
        "short": content[:6],
        "header": content[:40],
        "truncated": content[:-100],
        "noise": bytes(range(256)) * 8,
        "huge header": (1 << 62).to_bytes(8, "little") + content[8:],
        "deep": (n := b"[" * 100_000) and len(n).to_bytes(8, "little") + n,
        "no metadata": bytes(save(arrays)),
        "more metadata": bytes(save(arrays, {"canary": text, "other": "1"})),
        "another tensor": bytes(save(arrays | {"weights": np.zeros(3)}, {"canary": text})),
        "no embeddings": bytes(save({k: v for k, v in arrays.items() if k != "embeddings"}, {"canary": text})),
        "fewer images": bytes(save({k: v for k, v in arrays.items() if k != "image.00003"}, {"canary": text})),
        "other pixels": bytes(save(flipped, {"canary": text})),
        "nan": bytes(save(arrays | {"embeddings": arrays["embeddings"] * np.float32("nan")}, {"canary": text})),
        "wrong type": bytes(save(arrays | {"embeddings": arrays["embeddings"].astype(np.float64)}, {"canary": text})),
        "unknown field": with_header(run="rm"),
        "escape sequence": with_header(encoder="\x1b[2J"),
        "tolerance": with_header(tolerances={"float32": -1}),
        "infinite": bytes(save(arrays, {"canary": text.replace('"float32":', '"float32":1e999,"x":', 1)})),
        "no tolerance": with_header(tolerances={"float64": 0.1}),
        "format": with_header(format=2),
        "long": with_header(encoder="x" * 5000),
        "twice": with_header(ids=["a"] * 32),
        "hash": with_header(hashes=["0" * 64] * 32),
    }


def test_damaged_and_hostile_files_are_refused_in_one_sentence(file: Path, tmp_path: Path) -> None:
    for name, content in hostile(file.read_bytes()).items():
        path = tmp_path / "bad.safetensors"
        path.write_bytes(content)
        with pytest.raises(Unreadable) as caught:
            hf.Canary.load(path)
        assert str(caught.value).isprintable(), name
        assert len(str(caught.value)) < 500, name
    with pytest.raises(Unreadable):
        hf.Canary.load(tmp_path / "missing.safetensors")
    with (tmp_path / "large.safetensors").open("wb") as large:
        large.truncate(1 << 29)
    with pytest.raises(OutOfRange):
        hf.Canary.load(tmp_path / "large.safetensors")


def test_a_file_is_its_content(canary: hf.Canary, file: Path) -> None:
    assert canary.to_bytes() == file.read_bytes()
    assert canary.header.versions == library_versions()
    assert len(canary.images) == 32
    assert np.array_equal(np.asarray(canary.images[5]), canary.pictures[5])


def test_arrays_of_pixels_in_grey_are_kept_as_they_are() -> None:
    made = hf.canary("make", tiny.encoder(), images=torch.rand(30, 1, 2, 2, generator=torch.Generator().manual_seed(0)))
    assert isinstance(made, hf.Canary)
    assert made.header.side == 0
    assert {image.mode for image in made.images} == {"L"}
    assert check(made, tiny.encoder()).passed
    assert check(made, tiny.encoder("double", 4.0)).cause.startswith(SCALED)


def test_the_command_exits_with_1_if_the_encoder_changed(
    file: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = hf.Canary.load(file)
    np.save(tmp_path / "same.npy", canary.embeddings)
    np.save(tmp_path / "other.npy", canary.embeddings[:, ::-1])
    assert run(["canary", "check", str(file), str(tmp_path / "same.npy")]) == 0
    assert run(["canary", "check", str(file), str(tmp_path / "other.npy")]) == 1
    assert WEIGHTS in capsys.readouterr().out
    assert run(["canary", "check", str(tmp_path / "none"), str(tmp_path / "same.npy")]) == 2
    assert run(["canary", "make", "builtin:digits-random", "--images", str(folder)]) == 2
    made = ["canary", "make", "builtin:digits-random", "--images", str(folder), "--limit", "9"]
    assert run([*made, "--out", str(tmp_path / "made.safetensors")]) == 0
    assert run(["canary", "check", str(tmp_path / "made.safetensors"), "builtin:digits-random"]) == 0


def test_what_does_not_fit_is_refused(canary: hf.Canary, folder: Path, tmp_path: Path) -> None:
    reference = encoder(network(), "reference")
    with pytest.raises(UnknownName):
        hf.canary("mend", reference)
    with pytest.raises(UnknownName):
        check(canary, reference, precision="int4")
    for arguments in ({"candidate": reference}, {"url": "http://x"}):
        with pytest.raises(Conflict):
            hf.canary("make", reference, images=str(folder), **arguments)
    with pytest.raises(Conflict):
        check(canary, None)
    with pytest.raises(HoldfastError, match=r"\.safetensors"):
        hf.canary("make", reference, images=str(folder), out=tmp_path / "canary.pt")
    with pytest.raises(OutOfRange):
        hf.canary("make", reference, images=str(folder), limit=1)
    with pytest.raises(OutOfRange):
        check(canary, tiny.encoder())
    with pytest.raises(HoldfastError, match="batches"):
        hf.canary("make", hf.Encoder(Batched(), "batched", reference.domain, caution=""), images=str(folder))


class Batched(nn.Module):
    """Gives every image an embedding that depends on the others of its batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) - x.flatten(1).mean(0)


def test_a_fixture_of_pytest_gives_the_canary(file: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_same(holdfast_canary):
            holdfast_canary.check(lambda images: holdfast_canary.embeddings).require()

        def test_other(holdfast_canary):
            holdfast_canary.check(lambda images: -holdfast_canary.embeddings).require()
        """
    )
    plugin = ("-p", "holdfast.integrations.pytest_canary", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*plugin, "--canary", str(file)).assert_outcomes(passed=1, failed=1)
    pytester.runpytest_subprocess(*plugin).assert_outcomes(skipped=2)
