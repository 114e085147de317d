"""Bodies are decoded as Content-Encoding says, in bounded memory, and a missing end is told."""

from __future__ import annotations

import functools
import gzip
import os
import random
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import brotli
import pytest
import zstandard

from trawl.errors import DecodeError
from trawl.net import decoding
from trawl.net.decoding import BodyDecoder

CODINGS = ["gzip", "deflate", "raw-deflate", "br", "zstd", "identity"]
CAP = 10 * 2**20


def encode(coding: str, data: bytes) -> bytes:
    if coding == "gzip":
        return gzip.compress(data)
    if coding == "deflate":
        return zlib.compress(data)
    if coding == "raw-deflate":
        compressor = zlib.compressobj(wbits=-15)
        return compressor.compress(data) + compressor.flush()
    if coding == "br":
        return bytes(brotli.compress(data, quality=4))
    if coding == "zstd":
        return zstandard.compress(data)
    return data


def header(coding: str) -> str:
    return coding.removeprefix("raw-")


def decode(content_encoding: str | None, data: bytes, *, step: int = 16_384, cap: int = CAP) -> tuple[bytes, bool]:
    decoder = BodyDecoder(content_encoding, cap)
    for start in range(0, len(data), step):
        decoder.feed(data[start : start + step])
    return decoder.finish()


@functools.cache
def words(n: int) -> bytes:
    """Text that compresses like text, the same on every run."""
    rng = random.Random(7)
    return b" ".join(rng.choice([b"trawl", b"net", b"fish", b"sea", b"%d" % rng.randrange(10**6)]) for _ in range(n))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("step", [1, 3, 1000, 10**9])
@pytest.mark.parametrize("data", [b"", b"x", words(3_000), b"\0" * 300_000, os.urandom(5_000)])
def test_every_coding_gives_back_what_was_encoded_in_whatever_pieces_it_arrives(
    coding: str, step: int, data: bytes
) -> None:
    encoded = encode(coding, data)
    if step == 1 and len(encoded) > 20_000:
        encoded = encode(coding, data := data[:20_000])
    assert decode(header(coding), encoded, step=step) == (data, False)


@pytest.mark.parametrize("name", [None, "", " ", "identity", "Identity, identity"])
def test_no_coding_leaves_the_body_as_it_is(name: str | None) -> None:
    assert decode(name, b"\x1f\x8bplain") == (b"\x1f\x8bplain", False)


@pytest.mark.parametrize("name", ["GZIP", " x-gzip ", "gzip, identity"])
def test_coding_names_are_read_as_the_http_standard_says(name: str) -> None:
    assert decode(name, gzip.compress(b"abc")) == (b"abc", False)


@pytest.mark.parametrize(
    "name",
    ["gzip, gzip", "br,gzip", "identity, gzip, zstd", "compress", "gzipp", "bzip2", "gzip;q=1", "dcb", "\x1b[2J"],
)
def test_stacked_and_unasked_codings_are_refused_before_a_byte_is_read(name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        BodyDecoder(name, CAP, "https://example.com/a?secret=1")
    assert "Content-Encoding" in str(caught.value)
    assert "secret=1" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_body_of_exactly_the_cap_is_whole_and_one_byte_more_is_truncated(coding: str, extra: int) -> None:
    data = words(50_000)[: 200_000 + extra]
    assert decode(header(coding), encode(coding, data), cap=200_000) == (data[:200_000], extra > 0)


def test_a_full_decoder_says_so_and_takes_no_more() -> None:
    decoder = BodyDecoder("gzip", 10)
    decoder.feed(gzip.compress(b"0123456789ab"))
    assert decoder.full
    decoder.feed(b"not gzip at all")
    assert decoder.finish() == (b"0123456789", True)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw-deflate", "br", "zstd"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.9, 0.999])
def test_a_stream_cut_in_the_middle_keeps_what_came_and_is_told_as_truncated(coding: str, kept: float) -> None:
    data = words(200_000)
    encoded = encode(coding, data)
    body, truncated = decode(header(coding), encoded[: int(len(encoded) * kept)])
    assert truncated
    assert data.startswith(body)
    if kept >= 0.5:
        # A coder holds back one block at most (128 KB in zstd); what was decodable before it must be there.
        assert len(body) >= len(data) * kept * 0.5


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_garbage_is_a_decode_error_not_an_empty_page(coding: str) -> None:
    with pytest.raises(DecodeError):
        decode(coding, b"<!doctype html><p>this was never encoded</p>" * 50)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_damage_in_the_middle_is_a_decode_error(coding: str) -> None:
    encoded = bytearray(encode(coding, words(50_000)))
    middle = len(encoded) // 2
    encoded[middle : middle + 64] = b"\xff" * 64
    with pytest.raises(DecodeError):
        decode(coding, bytes(encoded))


@pytest.mark.parametrize("step", [1, 7, 10**6])
def test_gzip_members_and_zstd_frames_follow_each_other(step: int) -> None:
    parts = [words(100), b"", words(5_000)]
    skippable = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"
    assert decode("gzip", b"".join(map(gzip.compress, parts)), step=step) == (b"".join(parts), False)
    frames = skippable.join(zstandard.compress(part) for part in parts)
    assert decode("zstd", frames, step=step) == (b"".join(parts), False)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_cut_in_a_later_member_is_truncated(coding: str) -> None:
    encoded = encode(coding, b"first") + encode(coding, words(9_000))
    body, truncated = decode(coding, encoded[:-20])
    assert truncated
    assert body.startswith(b"first")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("padding", [b"\0" * 100, b"\r\n", b"<!-- cached -->", b"\n"])
def test_padding_after_the_end_is_ignored(coding: str, padding: bytes) -> None:
    body, _ = decode(coding, encode(coding, b"page") + padding, step=5)
    assert body == b"page"


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_endless_empty_members_are_stopped(coding: str) -> None:
    with pytest.raises(DecodeError, match="parts"):
        decode(coding, encode(coding, b"") * (decoding.MAX_MEMBERS + 1))


def test_zstd_windows_beyond_what_http_allows_are_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(DecodeError):
        decode("zstd", compressor.compress(b"a" * 1000) + compressor.flush())


# Deflated megabytes are flushed to a byte boundary and repeated: 1 GB without compressing 1 GB.
BOMBS = {
    "gzip": """
        c = zlib.compressobj(9, wbits=31)
        first, again = (c.compress(mega) + c.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        bomb = first + again * 1023
        bomb_coding = "gzip"
    """,
    "deflate": """
        c = zlib.compressobj(9)
        first, again = (c.compress(mega) + c.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        bomb = first + again * 1023
        bomb_coding = "deflate"
    """,
    "br": """
        c = brotli.Compressor(quality=5)
        bomb = b"".join(c.process(mega) for _ in range(1024)) + c.finish()
        bomb_coding = "br"
    """,
    "zstd": """
        c = zstandard.ZstdCompressor(level=3).compressobj()
        bomb = b"".join(c.compress(mega) for _ in range(1024)) + c.flush()
        bomb_coding = "zstd"
    """,
    # A frame of run-length blocks: 4 bytes stand for 128 KB, the densest zstd can be.
    "zstd-rle": """
        frame = b"\\x28\\xb5\\x2f\\xfd\\x00\\x58"
        block = ((2**17 << 3) | 2).to_bytes(3, "little") + b"a"
        bomb = frame + block * 8192
        bomb_coding = "zstd"
    """,
    "gzip-in-gzip": """
        c = zlib.compressobj(9, wbits=31)
        first, again = (c.compress(mega) + c.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        bomb = gzip.compress(first + again * 1023)
        bomb_coding = "gzip, gzip"
    """,
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_gigabyte_bomb_stops_at_the_cap_in_bounded_memory(name: str) -> None:
    """Growth of the resident set's high-water mark while decoding, in a process of its own."""
    script = f"""
        import gzip, re, zlib
        import brotli, psutil, zstandard
        from trawl.errors import DecodeError
        from trawl.net.decoding import BodyDecoder
        mega = bytes(2**20)
        {textwrap.indent(textwrap.dedent(BOMBS[name]), " " * 8).strip()}
        before = psutil.Process().memory_info().rss
        outcome = "whole"
        try:
            decoder = BodyDecoder(bomb_coding, {CAP})
            for start in range(0, len(bomb), 65536):
                if decoder.full:
                    break
                decoder.feed(bomb[start : start + 65536])
            body, truncated = decoder.finish()
            outcome = f"truncated {{len(body)}}" if truncated else "whole"
        except DecodeError:
            outcome = "error"
        peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
        print(len(bomb), outcome, (peak - before) // 2**20, sep="|")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    size, outcome, grown_mb = done.stdout.strip().split("|")
    assert int(size) < 3 * 2**20
    assert outcome == ("error" if name == "gzip-in-gzip" else f"truncated {CAP}")
    assert int(grown_mb) < 60, f"grew by {grown_mb} MB"
