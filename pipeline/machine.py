"""What this computer is: processor, cores, memory. Read from the system, no package needed."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from pipeline.errors import FirstlookError

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
GIBIBYTE = 1 << 30


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once: the default number of threads."""
    allowed = _allowed_processors()
    cores = _linux_cores(allowed) or _mac_number("hw.physicalcpu") or len(allowed)
    return max(1, min(cores, len(allowed)))


def choose_threads(wished: int) -> int:
    """`wished`, or one thread for each physical core when it is 0."""
    return wished or physical_cores()


def processor_name() -> str:
    """The processor's own name, or its architecture."""
    for entry in _cpu_entries():
        name = entry.get("model name") or entry.get("Hardware")
        if name:
            return name
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def memory_bytes() -> tuple[int, int]:
    """(installed, available) bytes of memory; (0, 0) where the system does not say."""
    if MEMINFO.is_file():
        pairs = (line.split(":") for line in MEMINFO.read_text().splitlines() if ":" in line)
        kibibytes = {name: int(value.split()[0]) for name, value in pairs}
        return kibibytes.get("MemTotal", 0) * 1024, kibibytes.get("MemAvailable", 0) * 1024
    total = _mac_number("hw.memsize") or 0
    return total, total


def require_memory(needed: int, what: str) -> None:
    """Raise `FirstlookError` unless `needed` bytes are free now; `what` names what needs them.

    A process that takes more is ended by the system without a word, hours of work with it.
    """
    _, available = memory_bytes()
    if 0 < available < needed:
        wanted, free = needed / GIBIBYTE, available / GIBIBYTE
        raise FirstlookError(
            f"{what} needs {wanted:.1f} GiB of memory and {free:.1f} GiB are free: "
            "close other programs, or choose a smaller size or model."
        )


def _allowed_processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _cpu_entries() -> list[dict[str, str]]:
    if not CPUINFO.is_file():
        return []
    blocks = CPUINFO.read_text(errors="replace").split("\n\n")
    lines = [[line.split(":", 1) for line in block.splitlines() if ":" in line] for block in blocks]
    return [{name.strip(): value.strip() for name, value in block} for block in lines if block]


def _linux_cores(allowed: set[int]) -> int:
    """Distinct (socket, core) pairs among the allowed processors; 0 where /proc/cpuinfo lacks them."""
    pairs = {
        (entry["physical id"], entry["core id"])
        for entry in _cpu_entries()
        if "core id" in entry and "physical id" in entry and int(entry.get("processor", -1)) in allowed
    }
    return len(pairs)


def _mac_number(name: str) -> int:
    text = _sysctl(name)
    return int(text) if text.isdigit() else 0


def _sysctl(name: str) -> str:
    if platform.system() != "Darwin":
        return ""
    answer = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False)
    return answer.stdout.strip()
