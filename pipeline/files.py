"""Writing files so that none is ever half written, and saying plainly when a disk is full.

Every file is written under a temporary name in its own folder, flushed to the disk, then renamed over the
final name; the folder is flushed too, so that the name survives a power cut on file systems that honour it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import FirstlookError

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
MEBIBYTE = 1 << 20


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` when the block ends without an error.

    The temporary file is removed when it does not.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` as the whole of `path`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))


def is_full_disk(error: OSError) -> bool:
    """True when the system refused a write for want of space or quota."""
    return error.errno in FULL_DISK


def free_bytes(folder: Path) -> int:
    """Bytes a person may still write below `folder`, which need not exist yet."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free


def require_space(folder: Path, needed: int) -> None:
    """Raise `FirstlookError` unless `needed` bytes fit below `folder`."""
    free = free_bytes(folder)
    if free < needed:
        raise FirstlookError(
            f"The disk of {folder} has {_mebibytes(free)} MiB left and this needs about "
            f"{_mebibytes(needed)} MiB: free some space or choose another outputs folder."
        )


def _mebibytes(count: int) -> int:
    return -(-count // MEBIBYTE)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder; the file itself must be flushed.
        if path.is_file() or is_full_disk(error):
            raise
    finally:
        os.close(descriptor)
