"""From a checkpoint to the GGUF file the engine maps: `python -m pipeline convert`.

Which tensor gets which format, by its role:

| tensors                                                          | q4   | q6   | q8   | f16  |
|------------------------------------------------------------------|------|------|------|------|
| blocks: attn.qkv_proj, attn.out_proj, mlp.fc1, mlp.fc2           | Q4_0 | Q6_K | Q8_0 | F16  |
| blocks: adaln_proj                                               | Q8_0 | Q8_0 | Q8_0 | F16  |
| condition_proj and the token refiner's matrices                  | 16 bits, all four           |
| patch projections, time embedder, final_layer, norms, all biases | F32, all four               |

AdaLN is 40 % of the weights and is read once a render, so its bytes cost disk and no time, while its errors
shift every block of every step: it is never coarser than Q8_0. "16 bits" is BF16 where the source is BF16,
which loses nothing, and F16 otherwise. Q6_K works on blocks of 256, the other formats on blocks of 32: rows
that 256 does not divide fall back to Q8_0, rows that 32 does not divide to F16. The released H3 becomes 26.5
(q4), 31.4 (q6), 36.1 (q8) or 66.3 GB (f16), of which AdaLN is 13.8 (f16: 26.0).

Tensors stream through in chunks of rows, so memory stays flat whatever the file size. The file appears under
its name when it is complete and on the disk, or not at all.

`firstlook.source_sha256` is the sha256 of a single source file; for shards it is that of the text that
`sha256sum *.safetensors` prints for the files used, in the order of their names.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType

from pipeline import __version__, engine
from pipeline.checkpoints import Checkpoint, QkvOrder, SourceTensor, open_checkpoint
from pipeline.errors import FirstlookError, ModelError
from pipeline.files import is_full_disk, replacing, require_space
from pipeline.meter import ByteMeter, readable

QUANTS = ("q4", "q6", "q8", "f16")
ARCHITECTURE = "minimax_h3"

_Type = GGMLQuantizationType
_BLOCK_TYPES = {"q4": _Type.Q4_0, "q6": _Type.Q6_K, "q8": _Type.Q8_0, "f16": _Type.F16}
_ADALN_TYPES = {"q4": _Type.Q8_0, "q6": _Type.Q8_0, "q8": _Type.Q8_0, "f16": _Type.F16}
_FALLBACK = {_Type.Q6_K: _Type.Q8_0, _Type.Q8_0: _Type.F16, _Type.Q4_0: _Type.F16}
_FILE_TYPES = {
    "q4": LlamaFileType.MOSTLY_Q4_0,
    "q6": LlamaFileType.MOSTLY_Q6_K,
    "q8": LlamaFileType.MOSTLY_Q8_0,
    "f16": LlamaFileType.MOSTLY_F16,
}
_ROLES = (
    ("block", re.compile(r"blocks\.\d+\.(attn\.(qkv|out)_proj|mlp\.fc[12])\.weight")),
    ("adaln", re.compile(r"blocks\.\d+\.adaln_proj\.linear\.weight")),
    ("text", re.compile(r"token_refiner\.blocks\.\d+\.(attn\.(qkv|out)_proj|mlp\.fc[12])\.weight")),
    ("text", re.compile(r"condition_proj\.weight")),
)
_HALF_LARGEST = 65504.0
_CHUNK_VALUES = 2 * 2**20
_HOLE_BYTES = 2**20  # downloaders fetch chunks of 5 to 10 MB; a missing one reads as zeros
_WORKERS = 2
_METADATA_BYTES = 2**20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Converted:
    """What was written: `types` counts tensors by GGUF format."""

    path: Path
    size: int
    types: dict[str, int]
    source_sha256: str


@dataclass(frozen=True)
class _Target:
    """One tensor to write."""

    source: SourceTensor
    type: GGMLQuantizationType
    whole: bool  # a matrix of zeros here means the download has holes

    @property
    def place(self) -> str:
        """Which tensor of which file, for messages."""
        return f"Tensor {self.source.name} of {self.source.pieces[0][0].path}"

    @property
    def size(self) -> int:
        """Bytes in the GGUF file."""
        block, size = GGML_QUANT_SIZES[self.type]
        return self.source.rows * (self.source.shape[-1] // block * size)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `convert`."""
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        help="a diffusers transformer folder, the original release's folder, or a ComfyUI .safetensors file",
    )
    parser.add_argument("--out", type=Path, required=True, help="the .gguf file to write")
    parser.add_argument("--quant", choices=QUANTS, default="q8", help="format of the block matrices")
    parser.add_argument(
        "--qkv",
        choices=("interleaved", "stacked"),
        help="order of the attn.qkv_proj rows, where the files do not tell",
    )
    parser.add_argument("--force", action="store_true", help="replace the output file if there is one")


def run(args: argparse.Namespace) -> int:
    """Convert as asked on the command line; writes the path to stdout, progress to stderr."""
    done = convert(args.input, args.out, args.quant, qkv=args.qkv, force=args.force)
    types = ", ".join(f"{count} {name}" for name, count in done.types.items())
    sys.stderr.write(f"{readable(done.size)}: {types}\n")
    sys.stdout.write(f"{done.path}\n")
    return 0


def convert(
    source: Path,
    out: Path,
    quant: str,
    qkv: QkvOrder | None = None,
    force: bool = False,
    meter: Callable[[str, int], ByteMeter] = ByteMeter,
) -> Converted:
    """Write the transformer at `source` to the GGUF file `out`.

    `quant`: one of QUANTS. `qkv`: see `pipeline.checkpoints`. `meter(label, bytes)` shows progress. Raises
    ModelError for a source that is incomplete, damaged or cannot be read correctly, FirstlookError when the
    output exists or does not fit the disk; then nothing was written.
    """
    checkpoint = open_checkpoint(source, qkv)
    targets = [_plan(tensor, quant) for tensor in checkpoint.tensors]
    _check_output(checkpoint, out, force, sum(target.size for target in targets))
    digest = _digest(checkpoint, meter)
    writer = _describe(checkpoint, quant, digest)
    for target in targets:
        # Only the name of the type matters to the writer: the shape given is in values, not in bytes.
        writer.add_tensor_info(
            target.source.name, target.source.shape, np.dtype(np.float32), target.size, raw_dtype=target.type
        )
    try:
        with replacing(out) as temporary:
            _write(writer, temporary, targets, checkpoint.stored_bytes, meter)
            size = temporary.stat().st_size
    except OSError as error:
        reason = "the disk is full; free some space" if is_full_disk(error) else error.strerror
        raise FirstlookError(f"{out} cannot be written: {reason}.") from error
    types: dict[str, int] = {}
    for target in targets:
        types[target.type.name] = types.get(target.type.name, 0) + 1
    return Converted(out, size, types, digest)


def choose_type(name: str, columns: int, dtype: str, quant: str) -> GGMLQuantizationType:
    """The GGUF format of tensor `name` with rows of `columns` values stored as `dtype`: the table above."""
    role = _role(name)
    if role is None:
        return _Type.F32
    if role == "text":
        return _Type.BF16 if dtype == "BF16" else _Type.F16
    wanted = (_BLOCK_TYPES if role == "block" else _ADALN_TYPES)[quant]
    while columns % GGML_QUANT_SIZES[wanted][0]:
        wanted = _FALLBACK[wanted]
    return wanted


def _role(name: str) -> str | None:
    return next((role for role, pattern in _ROLES if pattern.fullmatch(name)), None)


def _plan(tensor: SourceTensor, quant: str) -> _Target:
    chosen = choose_type(tensor.name, tensor.shape[-1], tensor.dtype, quant)
    return _Target(tensor, chosen, whole=_role(tensor.name) is not None)


def _check_output(checkpoint: Checkpoint, out: Path, force: bool, size: int) -> None:
    if out.is_dir():
        raise FirstlookError(f"{out} is a folder: give the name of the .gguf file to write.")
    if not out.parent.is_dir():
        raise FirstlookError(f"The folder {out.parent} does not exist: make it, or choose another place.")
    if out.exists() and not force:
        raise FirstlookError(f"{out} exists: pass --force to replace it.")
    if any(out.resolve() == file.resolve() for file in checkpoint.files):
        raise FirstlookError(f"{out} is the source itself: choose another name.")
    require_space(out.parent, size + _METADATA_BYTES)


def _digest(checkpoint: Checkpoint, meter: Callable[[str, int], ByteMeter]) -> str:
    lines = []
    with meter("Check  ", sum(file.stat().st_size for file in checkpoint.files)) as shown:
        for path in checkpoint.files:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(8 * 2**20):
                    digest.update(chunk)
                    shown.advance(len(chunk))
            lines.append(f"{digest.hexdigest()}  {path.name}\n")
    if len(lines) == 1:
        return lines[0].split()[0]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _describe(checkpoint: Checkpoint, quant: str, digest: str) -> GGUFWriter:
    dims, settings = checkpoint.dimensions, checkpoint.settings
    writer = GGUFWriter(None, ARCHITECTURE)
    writer.add_type("diffusion")
    writer.add_name(_source_name(checkpoint))
    writer.add_quantization_version(2)
    writer.add_file_type(_FILE_TYPES[quant])
    for key, count in {
        "block_count": dims.blocks,
        "refiner_block_count": dims.refiner_blocks,
        "embedding_length": dims.hidden,
        "feed_forward_length": dims.feed_forward,
        "attention.head_count": dims.heads,
        "attention.key_length": dims.head_dim,
        "rope.dimension_count": settings.rope_frequencies,
        "latent_channels": dims.video_width // (settings.patch[0] * settings.patch[1] * settings.patch[2]),
        "audio_channels": dims.audio_width,
    }.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", count)
    for key, value in {
        "rope.freq_base": settings.rope_theta,
        "attention.layer_norm_rms_epsilon": settings.norm_epsilon,
        "attention.qk_norm_epsilon": settings.qk_norm_epsilon,
        "final_norm_epsilon": settings.final_norm_epsilon,
    }.items():
        writer.add_float32(f"{ARCHITECTURE}.{key}", value)
    writer.add_array(f"{ARCHITECTURE}.patch_size", list(settings.patch))
    for key, text in {
        "source": _source_name(checkpoint),
        "source_sha256": digest,
        "source_dtype": ", ".join(f"{dtype} ({count})" for dtype, count in checkpoint.dtypes.items()),
        "source_qkv_order": checkpoint.order,
        "qkv_order": "stacked",
        "version": __version__,
        "quant": quant,
    }.items():
        writer.add_string(f"firstlook.{key}", text)
    return writer


def _source_name(checkpoint: Checkpoint) -> str:
    """The last two parts of the path: enough to tell a source, nothing about the person's folders."""
    return "/".join(checkpoint.path.absolute().parts[-2:])


# ---- streaming ----


class _Stream:
    """A tensor encoded while it is written: GGUFWriter asks an array only for `nbytes` and `tofile`."""

    def __init__(self, target: _Target, pool: ThreadPoolExecutor, meter: ByteMeter) -> None:
        self._target, self._pool, self._meter = target, pool, meter
        self.nbytes = target.size

    def tofile(self, file: BinaryIO) -> None:
        empty = self._target.whole
        for start, stop, data, zero in _chunks(self._target, self._pool):
            empty = empty and zero
            file.write(data)
            self._meter.advance((stop - start) * self._target.source.row_bytes)
        if empty:
            raise ModelError(f"{self._target.place} is all zeros: the download has holes, fetch it again.")


def _write(
    writer: GGUFWriter,
    path: Path,
    targets: list[_Target],
    stored_bytes: int,
    meter: Callable[[str, int], ByteMeter],
) -> None:
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        with meter("Convert", stored_bytes) as shown, ThreadPoolExecutor(_WORKERS) as pool:
            for target in targets:
                _log.debug("%s %s -> %s", target.source.name, target.source.shape, target.type.name)
                writer.write_tensor_data(_Stream(target, pool, shown))
        writer.flush()
    finally:
        writer.close()


def _chunks(target: _Target, pool: ThreadPoolExecutor) -> Iterator[tuple[int, int, np.ndarray, bool]]:
    """(start row, end row, encoded bytes, whether all its values are 0) in order, a few chunks ahead."""
    rows = max(1, _CHUNK_VALUES // target.source.shape[-1])
    starts = iter(range(0, target.source.rows, rows))
    ahead: deque[Future] = deque()
    try:
        while True:
            while len(ahead) <= _WORKERS and (start := next(starts, None)) is not None:
                ahead.append(pool.submit(_encode, target, start, min(start + rows, target.source.rows)))
            if not ahead:
                return
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()


def _encode(target: _Target, start: int, stop: int) -> tuple[int, int, np.ndarray, bool]:
    values = target.source.read_rows(start, stop)
    if not np.isfinite(values).all():
        raise ModelError(f"{target.place} holds values that are not finite: the file is damaged.")
    zero_rows = ~values.any(axis=1)
    if target.whole:
        _refuse_hole(target, start, zero_rows)
    return start, stop, _pack(target, values), bool(zero_rows.all())


def _refuse_hole(target: _Target, start: int, zero_rows: np.ndarray) -> None:
    if not zero_rows.any():
        return
    edges = np.flatnonzero(np.diff(np.concatenate([[False], zero_rows, [False]]).astype(np.int8)))
    first, last = max(edges.reshape(-1, 2), key=np.ptp)
    if (last - first) * target.source.row_bytes >= _HOLE_BYTES:
        raise ModelError(
            f"{target.place} is all zeros from row {start + first} to {start + last - 1}: the download has a "
            "hole, fetch it again."
        )


def _pack(target: _Target, values: np.ndarray) -> np.ndarray:
    if target.type == _Type.F32:
        return values.astype("<f4", copy=False)
    if target.type == _Type.BF16:
        # The source is BF16: the low half of each value is empty.
        return (values.view(np.uint32) >> 16).astype("<u2")
    if target.type == _Type.F16:
        if np.abs(values).max(initial=0.0) > _HALF_LARGEST:
            raise ModelError(f"{target.place} holds values above {_HALF_LARGEST:g}, too large for 16 bits.")
        return values.astype("<f2")
    try:
        return engine.quantize_rows(target.type.name, values)
    except FirstlookError as error:
        raise ModelError(f"{target.place} cannot be stored as {target.type.name}: {error}") from error
