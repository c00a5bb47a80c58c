"""Files that must be refused: each with words of the sentence that refuses it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
from torch import Tensor

from tests.pipeline.h3_files import community_names, fixture_model, write_gguf

U32, F32, STRING, ARRAY, U64 = 4, 6, 8, 9, 10


@dataclass(frozen=True)
class Damaged:
    """`make(path)` writes the file; the error must hold every one of `words`, and the file's name."""

    name: str
    words: tuple[str, ...]
    make: Callable[[Path], object]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def raw(
    tensors: tuple[bytes, ...] = (),
    metadata: tuple[bytes, ...] = (),
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: bytes = b"",
) -> bytes:
    counts = counts or (len(tensors), len(metadata))
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(metadata) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


def _container(name: str, content: bytes, *words: str) -> Damaged:
    return Damaged(name, words, lambda path: path.write_bytes(content))


def _nested(depth: int) -> bytes:
    inner = struct.pack("<IQB", 0, 1, 7)
    for _ in range(depth):
        inner = struct.pack("<IQ", ARRAY, 1) + inner
    return inner


CONTAINERS = [
    _container("empty", b"", "empty"),
    _container("short", b"GG", "not a GGUF file"),
    _container("safetensors", b"\x08\0\0\0\0\0\0\0{}      ", "not a GGUF file"),
    _container("magic only", b"GGUF", "truncated"),
    _container("no counts", b"GGUF" + struct.pack("<IQ", 3, 0), "truncated"),
    _container("version 1", raw(version=1), "version 1"),
    _container("version 99", raw(version=99), "version 99"),
    _container("big-endian", raw(version=3 << 24), "big-endian"),
    _container("tensor count", raw(counts=(2**60, 0)), "more entries than the file can hold"),
    _container("metadata count", raw(counts=(0, 2**63)), "more entries than the file can hold"),
    _container("no tensors", raw(), "not a MiniMax-H3 transformer"),
    _container("long key", raw(metadata=(struct.pack("<Q", 2**64 - 1) + b"k" * 20,)), "truncated"),
    _container("metadata type", raw(metadata=(entry("k", 77, b"\0" * 8),)), "metadata k", "unknown type"),
    _container(
        "long text",
        raw(metadata=(entry("k", STRING, struct.pack("<Q", 2**62)),)),
        "metadata k",
        "does not fit",
    ),
    _container(
        "long array",
        raw(metadata=(entry("k", ARRAY, struct.pack("<IQ", U64, 2**61)),)),
        "metadata k",
        "does not fit",
    ),
    _container(
        "long text array",
        raw(metadata=(entry("k", ARRAY, struct.pack("<IQ", STRING, 2**61)),)),
        "metadata k",
        "does not fit",
    ),
    _container("deep array", raw(metadata=(entry("k", ARRAY, _nested(200)),)), "metadata k"),
    _container(
        "metadata twice",
        raw(
            metadata=(
                entry("k", U32, b"\1\0\0\0"),
                entry("a", U32, b"\1\0\0\0"),
                entry("k", U32, b"\2\0\0\0"),
            )
        ),
        "metadata k",
        "twice",
    ),
    *(
        _container(
            f"alignment {value}",
            raw(metadata=(entry("general.alignment", U32, struct.pack("<I", value)),)),
            "general.alignment",
        )
        for value in (0, 3, 4, 24, 2**31)
    ),
    _container(
        "alignment text",
        raw(metadata=(entry("general.alignment", STRING, text("32")),)),
        "general.alignment",
        "whole number",
    ),
    _container("no dimensions", raw((tensor("t", ()),)), "tensor t", "0 dimensions"),
    _container("many dimensions", raw((tensor("t", (1, 1, 1, 1, 1)),)), "tensor t", "5 dimensions"),
    _container("zero dimension", raw((tensor("t", (4, 0)),)), "tensor t", "impossible shape"),
    _container("huge product", raw((tensor("t", (2**40, 2**40)),)), "tensor t", "impossible shape"),
    _container("huge bytes", raw((tensor("t", (2**62,)),)), "tensor t", "F32"),
    _container("part of a block", raw((tensor("t", (33,), kind=8),)), "tensor t", "Q8_0"),
    _container("odd offset", raw((tensor("t", (4,), offset=4),), data=b"\0" * 64), "tensor t", "not aligned"),
    _container(
        "far offset", raw((tensor("t", (4,), offset=2**40),), data=b"\0" * 64), "tensor t", "end of the file"
    ),
    _container("too long", raw((tensor("t", (17,)),), data=b"\0" * 64), "tensor t", "end of the file"),
    _container("no data", raw((tensor("t", (4,)),)), "tensor t", "end of the file"),
    _container(
        "overlap",
        raw((tensor("t", (16,)), tensor("u", (4,), offset=32)), data=b"\0" * 64),
        "tensors t and u",
        "overlap",
    ),
    _container(
        "tensor twice",
        raw((tensor("t", (4,)), tensor("t", (4,), offset=32)), data=b"\0" * 64),
        "tensor t",
        "twice",
    ),
    _container(
        "control characters",
        raw((tensor("a\n\x1b[31m" + "x" * 200, (0,)),)),
        "tensor a??[31mxxx",
        "...",
        "impossible",
    ),
]


def _altered(
    name: str, change: Callable[[dict[str, Tensor]], object], *words: str, **options: object
) -> Damaged:
    def make(path: Path) -> None:
        state, config = fixture_model("a")
        tensors = community_names(state)
        change(tensors)
        write_gguf(path, tensors, config, **options)

    return Damaged(name, words, make)


def _described(name: str, describe: Callable[[gguf.GGUFWriter], object], *words: str) -> Damaged:
    """Fixture A with metadata of its own (and no other)."""

    def make(path: Path) -> None:
        state, _ = fixture_model("a")
        write_gguf(path, community_names(state), metadata=describe)

    return Damaged(name, words, make)


def _drop(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def _cut(name: str, rows: int) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensors[name][:rows].contiguous()})


def _add(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: torch.zeros(4)})


def _foreign_type(path: Path) -> None:
    """A tensor the model needs, in a format that only its name is known of."""
    write = tensor("video_patch_proj.weight", (256, 1), kind=23)
    path.write_bytes(raw((write,), data=b"\0" * 288))


MODELS = [
    _altered("no final norm", _drop("final_layer.norm.weight"), "final_layer.norm.weight", "missing"),
    _altered("no block 1 norm", _drop("blocks.1.norm2.weight"), "blocks.1.norm2.weight", "missing"),
    _altered("no bias", _drop("condition_proj.bias"), "condition_proj.bias", "missing"),
    _altered(
        "no adaln", _drop("blocks.2.adaln_proj.linear.weight"), "blocks.2.adaln_proj.linear.weight", "missing"
    ),
    _altered(
        "block gap",
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("blocks.1.")],
        "blocks.1.norm1.weight",
        "missing",
    ),
    _altered(
        "no blocks", lambda t: [t.pop(n) for n in list(t) if n.startswith("blocks.")], "blocks.0", "missing"
    ),
    _altered(
        "short fc2", _cut("blocks.0.mlp.fc2.weight", 63), "blocks.0.mlp.fc2.weight", "[63, 80]", "[64, 80]"
    ),
    _altered("short qkv", _cut("blocks.0.attn.qkv_proj.weight", 190), "blocks.0", "whole number of heads"),
    _altered(
        "other heads",
        _cut("blocks.1.attn.qkv_proj.weight", 144),
        "blocks.1.attn.qkv_proj.weight",
        "[144, 64]",
    ),
    _altered("odd fc1", _cut("blocks.0.mlp.fc1.weight", 159), "blocks.0", "odd number"),
    _altered("short bias", _cut("video_patch_proj.bias", 60), "video_patch_proj.bias", "[1, 60]", "[1, 64]"),
    _altered(
        "short adaln", _cut("blocks.0.adaln_proj.linear.weight", 384), "blocks.0.adaln_proj", "[1152, 16]"
    ),
    _altered(
        "extra", _add("blocks.0.attn.to_gate_compress.weight"), "to_gate_compress", "not part of the model"
    ),
    _altered("numbered too high", _add("blocks.5000000000.norm1.weight"), "blocks.5000000000", "damaged"),
    _altered("curve", _add("adaln_t_table"), "adaln_t_table", "pruned"),
    _altered("comfy", _add("blocks.0.mlp.fc1.comfy_quant"), "comfy_quant", "cannot compute correctly"),
    _altered("scaled", _add("blocks.0.mlp.fc1.weight_scale"), "weight_scale", "cannot compute correctly"),
    _altered("other model", _drop("video_patch_proj.weight"), "not a MiniMax-H3 transformer"),
    _altered(
        "half prefixed",
        _drop("audio_patch_proj.weight"),
        "model.diffusion_model.audio_patch_proj.weight",
        "missing",
        prefix="model.diffusion_model.",
    ),
    Damaged("IQ4_XS", ("video_patch_proj.weight", "IQ4_XS", "does not compute"), _foreign_type),
    _described(
        "interleaved", lambda w: w.add_string("firstlook.qkv_order", "interleaved"), "interleaved", "stacked"
    ),
    _described(
        "rope too wide", lambda w: w.add_uint32("minimax_h3.rope.dimension_count", 3), "rotary", "16 channels"
    ),
    _described("no rope", lambda w: None, "rope.dimension_count", "may be missing"),
    _described("no rope at all", lambda w: w.add_uint32("minimax_h3.rope.dimension_count", 0), "rotary"),
    _described("theta", lambda w: w.add_float32("minimax_h3.rope.freq_base", float("nan")), "freq_base"),
    _described(
        "epsilon", lambda w: w.add_float32("minimax_h3.final_norm_epsilon", 0.0), "final_norm_epsilon"
    ),
    _described("epsilon text", lambda w: w.add_string("minimax_h3.final_norm_epsilon", "x"), "not a number"),
    _described("patch", lambda w: w.add_array("minimax_h3.patch_size", [1, 5, 2]), "96", "1x5x2"),
    _described("patch zero", lambda w: w.add_array("minimax_h3.patch_size", [1, 0, 2]), "patch_size"),
    _described(
        "patch pair", lambda w: w.add_array("minimax_h3.patch_size", [2, 2]), "patch_size", "3 whole numbers"
    ),
    _described("patch text", lambda w: w.add_array("minimax_h3.patch_size", ["1", "2", "2"]), "patch_size"),
]


def _mismatch(key: str, value: int) -> Damaged:
    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("minimax_h3.rope.dimension_count", 2)
        writer.add_uint32(f"minimax_h3.{key}", value)

    return _described(key, describe, f"minimax_h3.{key}", "tensors say")


MODELS += [
    _mismatch(key, value)
    for key, value in (
        ("block_count", 2),
        ("embedding_length", 128),
        ("feed_forward_length", 81),
        ("attention.head_count", 5),
        ("attention.key_length", 128),
        ("latent_channels", 16),
        ("audio_channels", 64),
    )
]

DAMAGED = CONTAINERS + MODELS
