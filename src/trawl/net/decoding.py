"""Content-Encoding undone in bounded memory: what a body decodes to never exceeds the cap, whatever the bytes claim.

Every codec writes its output in pieces and is stopped as soon as the cap is reached, so that 2 KB which stand for 1 GB
cost no more than the cap. One coding per body and only those of `ACCEPT_ENCODING`: stacked codings (`gzip, gzip`) exist
on the web only as bombs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from trawl.errors import DecodeError

if TYPE_CHECKING:
    import zstandard

ACCEPT_ENCODING: Final = "gzip, deflate, br, zstd"
"""What is asked for, and all that is decoded."""

PIECE_BYTES: Final = 65_536
MAX_MEMBERS: Final = 1_000
"""Members of gzip, or frames of zstd, in one body. Block gzip has one for every 64 KB; empty ones only cost time."""
ZSTD_MAX_WINDOW: Final = 8 * 2**20
"""The largest window a sender may use over HTTP (RFC 9659)."""
ZSTD_STEP_BYTES: Final = 256
"""Compressed bytes given to zstd at a time. Four of them can stand for a block of 128 KB (RFC 8878), and its Python
binding has no output limit: this one keeps a piece below 8 MB."""

Write = Callable[[bytes], None]


class _Codec(Protocol):
    @property
    def complete(self) -> bool:
        """Whether the stream is at a proper end."""

    def feed(self, data: bytes, write: Write) -> None:
        """Decodes `data` into `write`, in bounded pieces; ValueError when it cannot be."""


class _Full(Exception):
    """The cap is reached."""


class BodyDecoder:
    """Collects one body: fed as it arrives, decoded as it is fed, cut at `max_bytes`.

    Args:
        content_encoding: the header as received, several lines joined by commas; None or empty: not encoded.
        max_bytes: decoded bytes kept; what is beyond is dropped and told as truncated.
        url: for error messages.

    Raises:
        DecodeError: the coding is not one we asked for, or there are several.
    """

    def __init__(self, content_encoding: str | None, max_bytes: int, url: str | None = None) -> None:
        self._url = url
        self._codec = self._codec_for(content_encoding or "")
        self._room = max_bytes
        self._pieces: list[bytes] = []
        self._fed = False
        self.full = False
        """The cap is reached: nothing more need be read."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes as they came over the wire.

        Raises:
            DecodeError: they are not what Content-Encoding says.
        """
        if self.full or not data:
            return
        self._fed = True
        try:
            self._codec.feed(data, self._write)
        except _Full:
            self.full = True
        except ValueError as error:
            raise DecodeError(f"the body does not decode: {error}", url=self._url) from error

    def finish(self) -> tuple[bytes, bool]:
        """The body, and whether its end is missing: cut at the cap, or the encoded stream itself broke off."""
        broke_off = self._fed and not self._codec.complete
        return b"".join(self._pieces), self.full or broke_off

    def _write(self, piece: bytes) -> None:
        if len(piece) > self._room:
            self._pieces.append(piece[: self._room])
            self._room = 0
            raise _Full
        self._room -= len(piece)
        if piece:
            self._pieces.append(piece)

    def _codec_for(self, content_encoding: str) -> _Codec:
        named = (part.strip().lower() for part in content_encoding.split(","))
        codings = [coding for coding in named if coding not in ("", "identity")]
        if len(codings) > 1:
            raise DecodeError(
                f"the body is encoded {len(codings)} times over; only one Content-Encoding is accepted", url=self._url
            )
        if not codings:
            return _Identity()
        try:
            return _CODECS[codings[0]]()
        except KeyError:
            raise DecodeError(
                f"the server used a Content-Encoding that was not asked for ({ACCEPT_ENCODING} were)", url=self._url
            ) from None


class _Identity:
    complete = True

    def feed(self, data: bytes, write: Write) -> None:
        write(data)


class _Zlib:
    """gzip (RFC 1952) in one or more members; deflate as zlib (RFC 1950) or, as some servers do, bare (RFC 1951)."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._head = b""
        """Bytes seen of a member's first two, which say what it is."""
        self._stream: zlib._Decompress | None = None
        self._members = 0
        self._ignoring = False

    @property
    def complete(self) -> bool:
        return self._ignoring or (self._stream is None and self._members > 0 and not self._head)

    def feed(self, data: bytes, write: Write) -> None:
        while data and not self._ignoring:
            if self._stream is None:
                self._head += data
                if len(self._head) < 2:
                    return
                data, self._head = self._head, b""
                # Padding after the last member is ignored, as browsers do.
                if self._members and not (self._gzip and data.startswith(b"\x1f\x8b")):
                    self._ignoring = True
                    return
                self._stream = self._begin_member(data)
            data = self._decode(self._stream, data, write)

    def _begin_member(self, data: bytes) -> zlib._Decompress:
        self._members = _one_more(self._members)
        if self._gzip:
            bits = 16 + zlib.MAX_WBITS
        else:
            has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            bits = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
        return zlib.decompressobj(bits)

    def _decode(self, stream: zlib._Decompress, data: bytes, write: Write) -> bytes:
        """Decodes up to the end of the member or of `data`; what follows the member."""
        while True:
            try:
                piece = stream.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            write(piece)
            data = stream.unconsumed_tail
            if stream.eof:
                self._stream = None
                return stream.unused_data
            if len(piece) < PIECE_BYTES and not data:
                return b""


class _Brotli:
    """RFC 7932; its window is 16 MB at most."""

    def __init__(self) -> None:
        import brotli

        self._stream = brotli.Decompressor()
        self._error = brotli.error

    @property
    def complete(self) -> bool:
        return bool(self._stream.is_finished())

    def feed(self, data: bytes, write: Write) -> None:
        # Output may be waiting although the decoder takes more input: ask until there is none.
        while not self.complete:
            try:
                piece = self._stream.process(data, output_buffer_limit=PIECE_BYTES)
            except self._error as error:
                raise ValueError(str(error)) from error
            data = b""
            write(piece)
            if not piece and self._stream.can_accept_more_data():
                return


class _Zstd:
    """RFC 8878, one or more frames, skippable ones included."""

    def __init__(self) -> None:
        import zstandard

        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW)
        self._error = zstandard.ZstdError
        self._head = b""
        self._stream: zstandard.ZstdDecompressionObj | None = None
        self._frames = 0
        self._ignoring = False

    @property
    def complete(self) -> bool:
        return self._ignoring or (self._stream is None and self._frames > 0 and not self._head)

    def feed(self, data: bytes, write: Write) -> None:
        for start in range(0, len(data), ZSTD_STEP_BYTES):
            step = data[start : start + ZSTD_STEP_BYTES]
            while step and not self._ignoring:
                step = self._decode(step, write)

    def _decode(self, data: bytes, write: Write) -> bytes:
        """Decodes up to the end of the frame or of `data`; what follows the frame."""
        if self._stream is None:
            data = self._head + data
            if len(data) < 4:
                self._head = data
                return b""
            self._head = b""
            if self._frames and not _is_zstd_frame(data):
                self._ignoring = True
                return b""
            self._frames = _one_more(self._frames)
            self._stream = self._decompressor.decompressobj(write_size=PIECE_BYTES)
        try:
            piece = self._stream.decompress(data)
        except self._error as error:
            raise ValueError(str(error)) from error
        write(piece)
        if not self._stream.eof:
            return b""
        rest = self._stream.unused_data
        self._stream = None
        return rest


def _is_zstd_frame(head: bytes) -> bool:
    return head.startswith(b"\x28\xb5\x2f\xfd") or (head[0] & 0xF0 == 0x50 and head[1:4] == b"\x2a\x4d\x18")


def _one_more(members: int) -> int:
    if members >= MAX_MEMBERS:
        raise ValueError(f"it consists of more than {MAX_MEMBERS} parts")
    return members + 1


_CODECS: Final[dict[str, Callable[[], _Codec]]] = {
    "gzip": lambda: _Zlib(gzip=True),
    # RFC 9110, section 8.4.1.3: an old name of gzip.
    "x-gzip": lambda: _Zlib(gzip=True),
    "deflate": lambda: _Zlib(gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}
