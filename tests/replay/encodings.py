"""Compressed bodies, and small ones that decode to something huge. Pure."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import brotli
import zstandard

Coding = Literal["gzip", "deflate", "raw-deflate", "br", "zstd"]
"""Content codings; `raw-deflate` is what some servers send as `deflate`: without the zlib wrapper."""

_BLOCK = 1 << 20


def encode(body: bytes, *codings: Coding) -> bytes:
    """`body` in these codings, applied from left to right."""
    for coding in codings:
        match coding:
            case "gzip":
                body = gzip.compress(body, mtime=0)
            case "deflate":
                body = zlib.compress(body)
            case "raw-deflate":
                body = zlib.compress(body, wbits=-15)
            case "br":
                body = brotli.compress(body)
            case "zstd":
                body = zstandard.compress(body)
    return body


def header_value(*codings: Coding) -> str:
    """The Content-Encoding that names these codings."""
    return ", ".join("deflate" if coding == "raw-deflate" else coding for coding in codings)


@lru_cache(maxsize=8)
def bomb(decoded_bytes: int, *codings: Coding) -> bytes:
    """`decoded_bytes` spaces in the first coding, wrapped in the others. Never held whole in memory.

    1 GiB becomes about 800 bytes of br, 32 KiB of zstd, 1 MiB of gzip and 2 KB of gzip in gzip.
    """
    first, *rest = codings
    return encode(b"".join(_bomb_pieces(decoded_bytes, first)), *rest)


def _bomb_pieces(decoded_bytes: int, coding: Coding) -> Iterator[bytes]:
    match coding:
        case "br":
            compressor = brotli.Compressor(quality=9, lgwin=24)
            compress, finish = compressor.process, compressor.finish
        case "zstd":
            compressor = zstandard.ZstdCompressor().compressobj()
            compress, finish = compressor.compress, compressor.flush
        case _:
            compressor = zlib.compressobj(9, wbits={"gzip": 31, "deflate": 15, "raw-deflate": -15}[coding])
            compress, finish = compressor.compress, compressor.flush
    block = b" " * _BLOCK
    for _ in range(decoded_bytes // _BLOCK):
        yield compress(block)
    yield compress(block[: decoded_bytes % _BLOCK])
    yield finish()
