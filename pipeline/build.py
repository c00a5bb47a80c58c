"""Compile the engine on first use.

The library is one compiler call on `csrc/h3.c`. What comes out is kept under a name that is a hash of the
sources, the compiler and the flags, so it is built once and again only when one of them changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import EngineError

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc"
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("-lm", "-lpthread")
_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")


def build_library(force: bool = False) -> Path:
    """The path of the compiled engine, compiling it where needed.

    Raises EngineError on a system the engine does not run on, where there is no compiler, and where
    compiling fails.
    """
    check_platform()
    compiler = find_compiler()
    folder = cache_folder()
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = folder / f"libh3-{_key(compiler)}.{suffix}"
    if library.exists() and not force:
        return library
    with _locked(folder / "build.lock"):
        # Another process may have built it while this one waited.
        if force or not library.exists():
            _compile(compiler, library)
    return library


def check_platform() -> None:
    """Raises EngineError unless this is Linux or macOS on x86-64 or arm64."""
    system, machine = platform.system(), platform.machine()
    if sys.platform not in ("linux", "darwin") or machine.lower() not in _MACHINES:
        raise EngineError(
            f"The engine runs on Linux and macOS, on x86-64 and arm64; this is {system} on {machine}."
        )


def find_compiler() -> tuple[str, ...]:
    """The C compiler as an argument list: $CC if set, else the first of cc, gcc and clang."""
    wanted = shlex.split(os.environ.get("CC", ""))
    if wanted:
        if shutil.which(wanted[0]) is None:
            raise EngineError(f"CC names {wanted[0]}, which was not found: install it, or unset CC.")
        return tuple(wanted)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    raise EngineError("No C compiler was found: install gcc or clang, or set CC.")


def cache_folder() -> Path:
    """`build/` in the project, or, where that cannot be written, `firstlook` in the person's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (ROOT / "build", cache / "firstlook"):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise EngineError(f"The engine cannot be built: neither {ROOT / 'build'} nor {cache} can be written.")


def _key(compiler: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    for part in (shlex.join(compiler).encode(), version, " ".join(FLAGS + LIBRARIES).encode()):
        digest.update(part + b"\0")
    for source in sorted(SOURCES.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it when that process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: tuple[str, ...], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="compiling-") as folder:
        built = Path(folder) / library.name
        command = [*compiler, *FLAGS, "-o", str(built), str(SOURCES / "h3.c"), *LIBRARIES]
        log.info("Compiling the engine: %s", shlex.join(command))
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0 or not built.exists():
            log.error("%s\n%s", shlex.join(command), result.stderr)
            lines = result.stderr.splitlines()
            reason = next((line.strip() for line in lines if "error" in line), "no reason given")
            raise EngineError(f"The engine could not be compiled with {shlex.join(compiler)}: {reason}")
        built.replace(library)
