"""Files are written whole, whoever else writes and reads them; a sealed record tells when any byte of it is another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from holdfast.core.files import sealed, unsealed, write_whole

RECORD = json.dumps({"name": "rankme", "value": 17.65, "of": "größe"}, indent=1).encode()
WRITER = """
import sys
from pathlib import Path
from holdfast.core.files import write_whole
for letter in range(200):
    write_whole(Path(sys.argv[1]), sys.argv[2].encode() * 100_000)
"""


def test_a_sealed_record_is_json_and_comes_back():
    assert unsealed(sealed(RECORD)) == RECORD
    plain = json.loads(sealed(RECORD))
    assert plain.pop("checksum")
    assert plain == json.loads(RECORD)


def test_every_flipped_bit_of_a_sealed_record_is_noticed():
    content = sealed(RECORD)
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            with pytest.raises(ValueError, match="checksum"):
                unsealed(bytes(flipped))


@pytest.mark.parametrize(
    "content", [b"", b"{", RECORD, sealed(RECORD)[:-1], sealed(RECORD) + b" ", b" " + sealed(RECORD)]
)
def test_what_is_cut_longer_or_without_a_checksum_is_refused(content: bytes):
    with pytest.raises(ValueError, match="checksum"):
        unsealed(content)


@pytest.mark.slow
def test_two_processes_write_one_file_and_a_third_reads_it_whole(tmp_path: Path):
    path, wanted = tmp_path / "report.html", {letter.encode() * 100_000 for letter in "ab"}
    write_whole(path, min(wanted))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    read, until = list[bytes](), monotonic() + 60
    while any(writer.poll() is None for writer in writers) and monotonic() < until:
        read.append(path.read_bytes())
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert set(read) == wanted, "vacuous: both must be seen, and nothing else"
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]
