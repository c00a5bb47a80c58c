"""The C engine, typed. With `pipeline.bindings` the only file with ctypes.

    with Model.open(path) as model, model.prepare(sequence, text, timesteps) as run:
        video, audio = run.velocity(video, audio, row_timesteps)

Tensors are float32, contiguous and on the CPU; they are handed over by pointer and never copied. The calls
give up the interpreter's lock while they compute, and take it back for callbacks. An exception in a callback
stops the call and is raised again from it. `python -m pipeline.engine` builds the library and says what it
will use. With the log level DEBUG every pointer that crosses the border is written down.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from ctypes import POINTER, c_double, c_float, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pipeline import bindings
from pipeline.build import build_library
from pipeline.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from typing_extensions import Self

    from pipeline.sequence import Sequence

log = logging.getLogger(__name__)

Progress = Callable[[int, int], bool | None]
"""Called with blocks done and blocks in all; a true return cancels."""
Dump = Callable[[str, Tensor], None]
"""Called with the name of an intermediate and a view of it, which is valid during the call only."""

_ERROR_SIZE = 1024


@functools.cache
def load_library() -> ctypes.CDLL:
    """The compiled engine, built where needed, once a process. Raises EngineError, see `build_library`."""
    path = build_library()
    try:
        return bindings.load(path)
    except OSError as error:
        raise EngineError(f"The engine {path} cannot be loaded: {error}.") from error


def _call(function: Any, *arguments: Any) -> None:
    """Call a function that takes an error buffer last; raises EngineError with its text."""
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    if not function(*arguments, error, _ERROR_SIZE):
        raise EngineError(error.value.decode("utf-8", "replace"))


# ---- handing over tensors -------------------------------------------------------------------------------

_C_TYPES = {torch.float32: c_float, torch.float64: c_double, torch.int64: c_int64}


def _pointer(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    """A typed pointer to the tensor's own memory, NULL when empty. The caller keeps the tensor alive."""
    fits = tensor.dtype == dtype and tuple(tensor.shape) == shape and tensor.device.type == "cpu"
    if not fits or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous {dtype} CPU tensor of shape {list(shape)}, "
            f"not {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            f"{'' if tensor.is_contiguous() else ', not contiguous'}"
        )
    address = tensor.data_ptr() if tensor.numel() else 0
    log.debug("%s at 0x%x, shape %s, %s", name, address, list(shape), dtype)
    return ctypes.cast(address or None, POINTER(_C_TYPES[dtype]))


class _Watcher:
    """Wraps a caller's callbacks for C and keeps what they raise."""

    def __init__(self, progress: Progress | None, dump: Dump | None = None) -> None:
        self._progress, self._dump = progress, dump
        self._raised: BaseException | None = None
        self._cancelled = False
        self.progress = bindings.PROGRESS(self._on_progress) if progress else bindings.PROGRESS()
        self.dump = bindings.DUMP(self._on_dump) if dump else bindings.DUMP()

    def call(self, function: Any, *arguments: Any) -> None:
        """As `_call`; raises what a callback raised, or Cancelled."""
        try:
            _call(function, *arguments)
        except EngineError:
            if self._raised is not None:
                raise self._raised from None
            if self._cancelled:
                raise Cancelled("The run was cancelled.") from None
            raise

    def _on_progress(self, _context: int | None, done: int, total: int) -> int:
        try:
            self._cancelled = bool(self._progress and self._progress(done, total))
        except BaseException as error:  # C cannot carry it: raised again by `call`
            self._raised = error
            return 1
        return int(self._cancelled)

    def _on_dump(self, _context: int | None, name: bytes, values: Any, rows: int, columns: int) -> int:
        try:
            # An empty array has no memory to look at.
            array = np.ctypeslib.as_array(values, (rows, columns)) if rows else np.zeros((0, columns), "f4")
            if self._dump:
                self._dump(name.decode(), torch.from_numpy(array))
        except BaseException as error:  # C cannot carry it: raised again by `call`
            self._raised = error
            return 1
        return 0


# ---- the model ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineConfig:
    """Every dimension of an opened model, as read from its file. Widths are in channels, sizes in bytes."""

    hidden: int
    heads: int
    head_width: int
    feed_forward: int
    blocks: int
    refiner_blocks: int
    text_dim: int
    video_width: int
    """Channels of a video row: latent_channels * the product of patch_size."""
    audio_channels: int
    latent_channels: int
    patch_size: tuple[int, int, int]
    time_frequencies: int
    time_hidden: int
    time_width: int
    rope_frequencies: int
    rope_theta: float
    norm_epsilon: float
    qk_norm_epsilon: float
    final_norm_epsilon: float
    weight_bytes: int
    adaln_bytes: int
    """The part of weight_bytes that only `Model.prepare` reads."""


_RENAMED = {"text_width": "text_dim", "audio_width": "audio_channels"}


def _read_config(library: ctypes.CDLL, handle: c_void_p) -> EngineConfig:
    config = bindings.Config()
    library.h3_get_config(handle, ctypes.byref(config))
    values = {name: getattr(config, name) for name, *_ in config._fields_ if name != "patch"}
    values = {_RENAMED.get(name, name): value for name, value in values.items()}
    return EngineConfig(**values, patch_size=tuple(config.patch))


class _Handle:
    """Something of the library's that is given back once: by `close`, by `with`, or when nobody holds it."""

    def __init__(self, library: ctypes.CDLL, handle: c_void_p, give_back: Any, name: str) -> None:
        self._library, self._address, self._name = library, handle, name
        self._close = weakref.finalize(self, give_back, handle)

    @property
    def _handle(self) -> c_void_p:
        if not self._close.alive:
            raise EngineError(f"{self._name} is closed.")
        return self._address

    def close(self) -> None:
        """Give it back. Calling this again does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Model(_Handle):
    """A transformer of a GGUF file, mapped and ready. Make one with `Model.open`; close it, or use `with`.

    It may be closed before its runs: they keep what they need. Calls may come from any thread; those that
    compute wait for each other.
    """

    def __init__(self, library: ctypes.CDLL, handle: c_void_p, path: Path) -> None:
        super().__init__(library, handle, library.h3_close, str(path))
        self.path, self.config = path, _read_config(library, handle)

    @classmethod
    def open(
        cls, path: Path, threads: int = 0, kernels: str | None = None, round_inputs: bool = False
    ) -> Model:
        """Map and check a file.

        `threads` 0 uses every processor this process may use. `kernels` ("plain", "avx2", "avx512",
        "avx512vnni", "neon") forces an instruction set, for diagnosis. `round_inputs` lets products with
        4-bit weights (Q4_0, Q4_1, Q4_K) round their inputs to 8 bits where that is faster (`describe` says
        whether): faster and not exact. Raises EngineError with the file's name and what is wrong with it.
        """
        library = load_library()
        options = bindings.Options(threads, kernels.encode() if kernels else None, round_inputs)
        handle = c_void_p()
        _call(library.h3_open, os.fsencode(path), ctypes.byref(options), ctypes.byref(handle))
        log.debug("model at 0x%x from %s", handle.value or 0, path)
        return cls(library, handle, Path(path))

    def describe(self) -> dict[str, Any]:
        """Kernels and threads in use, whether inputs of 4-bit weights are rounded, a note when the fastest
        kernels are not in use, and the engine's version."""
        handle = self._handle
        return {
            "kernels": self._library.h3_kernels(handle).decode(),
            "threads": self._library.h3_threads(handle),
            "rounds_inputs": bool(self._library.h3_rounds_inputs(handle)),
            "note": self._library.h3_kernels_note(handle).decode(),
            "version": self._library.h3_version().decode(),
        }

    def memory(self, rows: int, text_rows: int, timesteps: int) -> int:
        """Bytes that `prepare` allocates for so many packed rows, text rows and distinct timesteps."""
        size = c_size_t()
        _call(self._library.h3_memory, self._handle, rows, text_rows, timesteps, ctypes.byref(size))
        return size.value

    def prepare(
        self,
        sequence: Sequence,
        text: Tensor,
        timesteps: Iterable[float],
        progress: Progress | None = None,
    ) -> Run:
        """Refine the text and build the modulation of every timestep the run will ask for.

        `text` [n, text_dim] float32; `timesteps` in [0, 1], 1 = clean, taken as float32. Raises EngineError,
        Cancelled, or what `progress` raises.
        """
        rows, text_rows = sequence.position_ids.shape[0], sequence.text_indices.shape[0]
        video_rows, audio_rows = sequence.video_indices.shape[0], sequence.audio_indices.shape[0]
        times = torch.tensor([float(value) for value in timesteps], dtype=torch.float32)
        packed = bindings.PackedSequence(
            rows=rows,
            positions=_pointer("position_ids", sequence.position_ids, torch.float64, (rows, 3)),
            tags=_pointer("token_tags", sequence.token_tags, torch.int64, (rows,)),
            video_indices=_pointer("video_indices", sequence.video_indices, torch.int64, (video_rows,)),
            video_rows=video_rows,
            audio_indices=_pointer("audio_indices", sequence.audio_indices, torch.int64, (audio_rows,)),
            audio_rows=audio_rows,
            text_indices=_pointer("text_indices", sequence.text_indices, torch.int64, (text_rows,)),
            text_rows=text_rows,
        )
        watcher, handle = _Watcher(progress), c_void_p()
        watcher.call(
            self._library.h3_prepare,
            self._handle,
            ctypes.byref(packed),
            _pointer("text", text, torch.float32, (text_rows, self.config.text_dim)),
            _pointer("timesteps", times, torch.float32, tuple(times.shape)),
            times.shape[0],
            watcher.progress,
            None,
            ctypes.byref(handle),
        )
        log.debug("run at 0x%x of %d rows", handle.value or 0, rows)
        return Run(self, handle, (rows, video_rows, audio_rows))


class Run(_Handle):
    """One prompt and one shape, prepared. Made by `Model.prepare`; close it, or use `with`."""

    def __init__(self, model: Model, handle: c_void_p, rows: tuple[int, int, int]) -> None:
        super().__init__(model._library, handle, model._library.h3_release, "This run")
        self._config = model.config
        self._rows, self._video_rows, self._audio_rows = rows
        self._busy = threading.Lock()
        self._computing: int | None = None

    def close(self) -> None:
        """Give the memory back, after a call that is still computing. Calling it again does nothing."""
        if self._computing == threading.get_ident():
            raise RuntimeError("A run cannot be closed by its own callback.")
        with self._busy:
            super().close()

    def velocity(
        self,
        video: Tensor,
        audio: Tensor | None,
        row_timesteps: Tensor,
        progress: Progress | None = None,
        dump: Dump | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One forward pass: the velocity toward the data of every video and audio row.

        `video` [Nv, video_width] and `audio` [Na, audio_channels] (None where Na is 0) in the order of the
        sequence's index lists, `row_timesteps` [S], all float32; each timestep is one of those prepared.
        Returns tensors of the shapes of `video` and `audio`. Raises EngineError (also for a value that is
        not finite, naming the block), Cancelled within one block, or what a callback raises.
        """
        if audio is None:
            audio = torch.zeros(0, self._config.audio_channels)
        result = torch.empty_like(video), torch.empty_like(audio)
        with self._busy:
            self._computing = threading.get_ident()
            try:
                self._step((video, audio), row_timesteps, result, _Watcher(progress, dump))
            finally:
                self._computing = None
        return result

    def _step(
        self,
        rows: tuple[Tensor, Tensor],
        row_timesteps: Tensor,
        result: tuple[Tensor, Tensor],
        watcher: _Watcher,
    ) -> None:
        video = (self._video_rows, self._config.video_width)
        audio = (self._audio_rows, self._config.audio_channels)
        step = bindings.Step(
            video=_pointer("video", rows[0], torch.float32, video),
            audio=_pointer("audio", rows[1], torch.float32, audio),
            row_timesteps=_pointer("row_timesteps", row_timesteps, torch.float32, (self._rows,)),
            video_velocity=_pointer("video_velocity", result[0], torch.float32, video),
            audio_velocity=_pointer("audio_velocity", result[1], torch.float32, audio),
            progress=watcher.progress,
            dump=watcher.dump,
        )
        watcher.call(self._library.h3_velocity, self._handle, ctypes.byref(step))


# ---- formats and facts ----------------------------------------------------------------------------------


def describe() -> dict[str, Any]:
    """What a model would use if it were opened now: kernels, threads, a note ("" if all is well), version."""
    library = load_library()
    note = ctypes.create_string_buffer(_ERROR_SIZE)
    kernels = library.h3_trusted_kernels(note, _ERROR_SIZE)
    return {
        "kernels": os.environ.get("H3_KERNELS") or kernels.decode(),
        "threads": library.h3_processors(),
        "note": note.value.decode(),
        "version": library.h3_version().decode(),
    }


def _format(library: ctypes.CDLL, type_name: str) -> tuple[int, int, int]:
    """GGML type number, values and bytes of a block."""
    number, elements, size = c_uint32(), c_size_t(), c_size_t()
    facts = (ctypes.byref(number), ctypes.byref(elements), ctypes.byref(size))
    if not library.h3_format(type_name.encode(), *facts):
        raise EngineError(f"The engine does not compute the format {type_name}.")
    return number.value, elements.value, size.value


def quantize_rows(type_name: str, source: Tensor | np.ndarray) -> np.ndarray:
    """Rows of float32 [rows, columns] in a block format such as "Q6_K", as uint8 [rows, bytes of a row].

    Raises EngineError when the columns are not whole blocks or the engine does not write the format.
    """
    library = load_library()
    values = np.ascontiguousarray(source, dtype=np.float32)
    rows, columns = values.shape
    number, elements, size = _format(library, type_name)
    result = np.empty((rows, columns // elements * size), dtype=np.uint8)
    pointers = values.ctypes.data_as(POINTER(c_float)), result.ctypes.data_as(POINTER(c_uint8))
    _call(library.h3_quantize_rows, number, pointers[0], rows, columns, pointers[1])
    return result


def dequantize(type_name: str, data: np.ndarray, count: int) -> np.ndarray:
    """`count` values of tensor data (uint8) in a format, float32 [count], bit for bit as `gguf` reads it."""
    library = load_library()
    source = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
    result = np.empty(count, dtype=np.float32)
    number = _format(library, type_name)[0]
    pointers = source.ctypes.data_as(POINTER(c_uint8)), result.ctypes.data_as(POINTER(c_float))
    _call(library.h3_dequantize, number, pointers[0], source.size, count, pointers[1])
    return result


def main() -> None:
    """Build the library and say what it will use."""
    try:
        facts = describe()
    except EngineError as error:
        sys.exit(str(error))
    summary = "Engine {version}: {kernels} kernels, {threads} threads. {note}".format(**facts)
    sys.stdout.write(summary.rstrip() + "\n")


if __name__ == "__main__":
    main()
