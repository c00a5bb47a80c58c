"""`csrc/h3.h` in Python's terms: every structure and the signature of every function.

The one place that must change with the header. `pipeline.engine` is what the rest of the program uses.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from pathlib import Path
from typing import Any

PROGRESS = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_size_t)
DUMP = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(c_float), c_size_t, c_size_t)


class Options(ctypes.Structure):
    _fields_ = (("threads", c_int), ("kernels", c_char_p), ("round_inputs", c_int))


class Config(ctypes.Structure):
    _fields_ = (
        ("hidden", c_size_t),
        ("heads", c_size_t),
        ("head_width", c_size_t),
        ("feed_forward", c_size_t),
        ("blocks", c_size_t),
        ("refiner_blocks", c_size_t),
        ("text_width", c_size_t),
        ("video_width", c_size_t),
        ("audio_width", c_size_t),
        ("latent_channels", c_size_t),
        ("patch", c_size_t * 3),
        ("time_frequencies", c_size_t),
        ("time_hidden", c_size_t),
        ("time_width", c_size_t),
        ("rope_frequencies", c_size_t),
        ("weight_bytes", c_size_t),
        ("adaln_bytes", c_size_t),
        ("rope_theta", c_double),
        ("norm_epsilon", c_float),
        ("qk_norm_epsilon", c_float),
        ("final_norm_epsilon", c_float),
    )


class PackedSequence(ctypes.Structure):
    _fields_ = (
        ("rows", c_size_t),
        ("positions", POINTER(c_double)),
        ("tags", POINTER(c_int64)),
        ("video_indices", POINTER(c_int64)),
        ("video_rows", c_size_t),
        ("audio_indices", POINTER(c_int64)),
        ("audio_rows", c_size_t),
        ("text_indices", POINTER(c_int64)),
        ("text_rows", c_size_t),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("video", POINTER(c_float)),
        ("audio", POINTER(c_float)),
        ("row_timesteps", POINTER(c_float)),
        ("video_velocity", POINTER(c_float)),
        ("audio_velocity", POINTER(c_float)),
        ("progress", PROGRESS),
        ("progress_context", c_void_p),
        ("dump", DUMP),
        ("dump_context", c_void_p),
    )


_ERROR = (ctypes.c_char_p, c_size_t)
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "h3_open": (c_int, (c_char_p, POINTER(Options), POINTER(c_void_p), *_ERROR)),
    "h3_close": (None, (c_void_p,)),
    "h3_get_config": (None, (c_void_p, POINTER(Config))),
    "h3_threads": (c_size_t, (c_void_p,)),
    "h3_kernels": (c_char_p, (c_void_p,)),
    "h3_rounds_inputs": (c_int, (c_void_p,)),
    "h3_kernels_note": (c_char_p, (c_void_p,)),
    "h3_trusted_kernels": (c_char_p, (c_char_p, c_size_t)),
    "h3_processors": (c_size_t, ()),
    "h3_version": (c_char_p, ()),
    "h3_memory": (c_int, (c_void_p, c_size_t, c_size_t, c_size_t, POINTER(c_size_t), *_ERROR)),
    "h3_prepare": (
        c_int,
        (
            *(c_void_p, POINTER(PackedSequence), POINTER(c_float), POINTER(c_float), c_size_t),
            *(PROGRESS, c_void_p, POINTER(c_void_p), *_ERROR),
        ),
    ),
    "h3_velocity": (c_int, (c_void_p, POINTER(Step), *_ERROR)),
    "h3_release": (None, (c_void_p,)),
    "h3_format": (c_int, (c_char_p, POINTER(c_uint32), POINTER(c_size_t), POINTER(c_size_t))),
    "h3_dequantize": (c_int, (c_uint32, POINTER(c_uint8), c_size_t, c_size_t, POINTER(c_float), *_ERROR)),
    "h3_quantize_rows": (c_int, (c_int, POINTER(c_float), c_size_t, c_size_t, POINTER(c_uint8), *_ERROR)),
}


def load(path: Path) -> ctypes.CDLL:
    """The library at `path`, with every function typed. Raises OSError."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
