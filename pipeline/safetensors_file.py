"""Safetensors files read a few rows at a time, without torch and without mapping them.

The layout is eight bytes of header length, a JSON header, then tensor data; offsets in the header count from
the end of the header (the safetensors format description). A file is trusted only when header length + 8 +
largest offset is exactly its size: a broken download fails here, before any work. Plain reads instead of a
mapping keep a 66 GB file out of the resident memory of the process.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import ModelError

_HEADER_LIMIT = 256 * 2**20
_ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
FLOAT_DTYPES = ("F32", "F16", "BF16")
"""The stored types `StoredTensor.read_rows` turns into float32."""


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: `offset` in bytes from the start of `path`; `dtype` as the header spells it."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def rows(self) -> int:
        """Rows of the tensor seen as a matrix; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.columns * _ITEM_BYTES[self.dtype]

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) as float32 [stop - start, columns]. ModelError when the file has shrunk."""
        size = (stop - start) * self.row_bytes
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + start * self.row_bytes)
                raw = file.read(size)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror}.") from error
        if len(raw) != size:
            raise ModelError(f"{self.path} changed while it was read: tensor {self.name} is cut short.")
        return _to_float32(raw, self.dtype).reshape(stop - start, self.columns)


@dataclass(frozen=True)
class SafetensorsFile:
    """One file's tensors by name, and the free-form `__metadata__` of its header."""

    path: Path
    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]


def read_header(path: Path) -> SafetensorsFile:
    """Read and check the header. Raises ModelError for what is not safetensors or is truncated."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _HEADER_LIMIT):
                raise ModelError(f"{path} is not a safetensors file or is truncated: download it again.")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ModelError(f"{path} is not a safetensors file: its header is not JSON.") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path} is not a safetensors file: its header is not a table of tensors.")
    metadata = header.pop("__metadata__", None) or {}
    try:
        spans = {name: _stored(path, name, entry, 8 + length) for name, entry in header.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} has a damaged header ({error}): download it again.") from error
    expected = max((end for _, end in spans.values()), default=8 + length)
    if expected != size:
        raise ModelError(
            f"{path} is truncated or damaged: its header promises {expected:,} bytes and it has {size:,}; "
            "download it again."
        )
    return SafetensorsFile(path, {name: tensor for name, (tensor, _) in spans.items()}, metadata)


def _stored(path: Path, name: str, entry: dict, data_start: int) -> tuple[StoredTensor, int]:
    """The tensor and the offset in the file at which it ends."""
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if begin < 0 or end < begin or any(size < 0 for size in shape):
        raise ValueError(f"tensor {name} has impossible offsets")
    if dtype in _ITEM_BYTES and end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise ValueError(f"tensor {name} does not have the size of its shape")
    return StoredTensor(path, name, dtype, shape, data_start + begin), data_start + end


def _to_float32(raw: bytes, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        bits = np.frombuffer(raw, "<u2").astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    if dtype == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    if dtype == "F32":
        return np.frombuffer(raw, "<f4")
    raise ValueError(f"{dtype} is not a floating-point type read here")
