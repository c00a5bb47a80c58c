"""Measure the engine beside torch: `python -m tests.bench [--threads N] [--kernels A,B] [table ...]`.

Machines are shared and clocks move, so competitors take turns within every round and medians are printed;
with one thread the processor time of this process counts, else time on the wall. GFLOP/s count 2 operations
for each multiply and add, unpacking and packing included. Compare rows, not days.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from pipeline import build, engine
from pipeline.engine import Model
from pipeline.sequence import pack, row_timesteps
from tests.pipeline.h3_files import big_matrices, community_names, random_model, write_gguf
from tests.pipeline.h3_files import pack as pack_weight
from tests.pipeline.h3_files import unpack as unpack_weight

FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0")
PRODUCT_ROWS = 2048  # of the weight: enough that it does not fit a cache
PRODUCT_COLUMNS = (5376, 14336)
TOKENS = (32, 160, 512)
HEAD_WIDTH, HEADS = 128, 4
ATTENTION_ROWS = (160, 1000, 3000)
FIREFLY = {
    "num_attention_heads": 3, "attention_head_dim": 64, "hidden_size": 192, "num_layers": 6,
    "num_refiner_layers": 1, "ffn_dim": 384, "in_channels": 64, "audio_in_channels": 32,
    "patch_size": (1, 1, 1), "text_dim": 192, "freq_dim": 64, "time_embed_hidden_dim": 192,
    "time_embed_dim": 64, "rope_freq_dim": 8, "rope_theta": 10000.0,
}  # fmt: skip
CANVASES = ((7, 7, 12), (7, 12, 20))  # 22 frames of 192x112 and 320x192


Competitors = dict[str, Callable[[], object]]


def medians(competitors: Competitors, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each, taking turns; a first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for round_number in range(rounds + 1):
        for name, run in competitors.items():
            start = clock()
            run()
            if round_number:
                seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    print(f"\n{title}")
    for row in [heads, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)), flush=True)


class Parts:
    """The engine's inner parts, compiled from tests/csrc/kernels.c with the flags of the library."""

    def __init__(self, library: ctypes.CDLL, kernels: str, threads: int) -> None:
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        library.bench_open.restype = pointer
        library.bench_open.argtypes = [ctypes.c_char_p, size, size]
        library.bench_close.argtypes = [pointer]
        library.bench_product.argtypes = [
            *(pointer, ctypes.c_uint32, pointer, size, size, pointer),
            *(pointer, size, pointer, pointer, ctypes.c_int),
        ]
        library.bench_attention.argtypes = [pointer, pointer, size, size, size, pointer]
        library.bench_round_inputs.argtypes = [pointer]
        self._library = library
        name, _, rounded = kernels.partition("+")
        self._handle = library.bench_open(name.encode(), threads, HEAD_WIDTH)
        if not self._handle:
            raise SystemExit(f"This processor has no {name} kernels.")
        if rounded:
            library.bench_round_inputs(self._handle)

    def product(self, type_name: str, weight: np.ndarray, rows: int, x: Tensor) -> Tensor:
        packed, result = torch.empty_like(x), torch.empty(len(x), rows)
        self._library.bench_product(
            *(self._handle, gguf.GGMLQuantizationType[type_name], weight.ctypes.data, rows, x.shape[1], None),
            *(x.data_ptr(), len(x), packed.data_ptr(), result.data_ptr(), 0),
        )
        return result

    def attention(self, heads: Tensor) -> Tensor:
        count, rows, width = heads.shape[0] // 3, *heads.shape[1:]
        result = torch.empty(rows, count * width)
        self._library.bench_attention(self._handle, heads.data_ptr(), count, rows, width, result.data_ptr())
        return result

    def close(self) -> None:
        self._library.bench_close(self._handle)


@contextmanager
def parts(kernels: list[str], threads: int) -> Iterator[dict[str, Parts]]:
    """Each set of kernels by its name."""
    source = build.ROOT / "tests" / "csrc" / "kernels.c"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels.so"
        command = [*build.find_compiler(), *build.FLAGS, "-o", str(target), str(source), *build.LIBRARIES]
        subprocess.run(command, check=True)
        opened = {name: Parts(ctypes.CDLL(str(target)), name, threads) for name in kernels}
        yield opened
        for one in opened.values():
            one.close()


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


def measure_products(sets: dict[str, Parts], rounds: int, clock: Callable[[], float]) -> None:
    torch.manual_seed(1)
    for columns in PRODUCT_COLUMNS:
        weight = torch.randn(PRODUCT_ROWS, columns) / columns**0.5
        stored = {name: pack_weight(weight, name) for name in FORMATS}
        speeds: dict[str, list[str]] = {"torch": ["F32"]}
        for tokens in TOKENS:
            x = torch.randn(tokens, columns)
            competitors: Competitors = {"torch": lambda x=x, w=weight: x @ w.T}
            for name, data in stored.items():
                for kernels, inner in sets.items():
                    competitors[f"{kernels} {name}"] = lambda x=x, n=name, s=data, inner=inner: inner.product(
                        n, s, PRODUCT_ROWS, x
                    )
            work = 2e-9 * tokens * PRODUCT_ROWS * columns
            for name, value in medians(competitors, rounds, clock).items():
                speeds.setdefault(name, name.split()[-1:]).append(f"{work / value:.0f}")
        for name, data in stored.items():
            exact = unpack_weight(data, name, tuple(weight.shape)).double()
            for kernels, inner in sets.items():
                error = relative_error(inner.product(name, data, PRODUCT_ROWS, x), x.double() @ exact.T)
                speeds[f"{kernels} {name}"].append(f"{error:.0e}")
        speeds["torch"].append("")
        table(
            f"Products, GFLOP/s: [tokens, {columns}] by a weight [{PRODUCT_ROWS}, {columns}]; "
            "error: relative L2 against float64 on the same stored weights",
            ["", "format", *(f"{tokens} tokens" for tokens in TOKENS), "error"],
            [[name.split()[0], *values] for name, values in speeds.items()],
        )


def measure_attention(sets: dict[str, Parts], rounds: int, clock: Callable[[], float]) -> None:
    torch.manual_seed(2)
    attend = torch.nn.functional.scaled_dot_product_attention
    rows = []
    for count in ATTENTION_ROWS:
        heads = torch.randn(3 * HEADS, count, HEAD_WIDTH)
        query, key, value = (part[None] for part in heads.chunk(3))
        competitors: Competitors = {"torch": lambda q=query, k=key, v=value: attend(q, k, v)}
        for kernels, inner in sets.items():
            competitors[kernels] = lambda heads=heads, inner=inner: inner.attention(heads)
        seconds = medians(competitors, rounds, clock)
        exact = attend(query.double(), key.double(), value.double())[0].transpose(0, 1).flatten(1)
        work = 4e-9 * count**2 * HEAD_WIDTH * HEADS
        error = max(relative_error(inner.attention(heads), exact) for inner in sets.values())
        rows.append([str(count), *(f"{work / value:.0f}" for value in seconds.values()), f"{error:.0e}"])
    table(f"Attention, GFLOP/s: {HEADS} heads of {HEAD_WIDTH}", ["rows", "torch", *sets, "error"], rows)


def measure_forward(threads: int, rounds: int, clock: Callable[[], float]) -> None:
    model = random_model(FIREFLY)
    tensors = community_names(model.state_dict())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "m.gguf", tensors, FIREFLY, big_matrices("F16"))
        for shape in CANVASES:
            layout = pack(torch.ones(20, dtype=torch.int64), shape, (1, 1, 1))
            video, text = torch.randn(layout.video_rows, 64), torch.randn(20, FIREFLY["text_dim"])
            audio, times = torch.zeros(0, 32), row_timesteps(layout, 0.3, 0.3)
            inputs = (video[None], audio[None], text[None], torch.tensor([0.3]))
            packed = (torch.zeros_like(layout.token_tags), layout.token_tags, layout.position_ids)
            places = (layout.video_indices, layout.audio_indices, layout.text_indices)
            with (
                torch.no_grad(),
                Model.open(path, threads) as opened,
                opened.prepare(layout, text, [0.3]) as run,
            ):
                competitors: Competitors = {
                    "torch": lambda arguments=(*inputs, *packed, *places): model(*arguments),
                    "engine": lambda v=video, a=audio, t=times, run=run: run.velocity(v, a, t),
                }
                seconds = medians(competitors, rounds, clock)
            label = f"{shape[2] * 16}x{shape[1] * 16}x22"
            rows.append([label, str(layout.rows), *(f"{1000 * value:.0f}" for value in seconds.values())])
    title = "One pass of a model of Firefly's size, milliseconds"
    table(title, ["canvas", "rows", "torch F32", "engine F16"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="table", help="products, attention, forward")
    parser.add_argument("--threads", type=int, default=1, help="for torch and for the engine (default: 1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", help="sets to compare in the first two tables, as in "
                        "avx2,avx512,avx512vnni+rounded: the last with inputs of 4-bit weights in 8 bits")
    arguments = parser.parse_args()
    known = ["products", "attention", "forward"]
    wanted = arguments.tables or known
    if unknown := set(wanted) - set(known):
        parser.error(f"there is no table {', '.join(sorted(unknown))}")
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    kernels = arguments.kernels or engine.describe()["kernels"]
    print(f"{kernels} kernels, {arguments.threads} threads, medians of {arguments.rounds} rounds")
    with parts(kernels.split(","), arguments.threads) as sets:
        if "products" in wanted:
            measure_products(sets, arguments.rounds, clock)
        if "attention" in wanted:
            measure_attention(sets, arguments.rounds, clock)
    if "forward" in wanted:
        measure_forward(arguments.threads, arguments.rounds, clock)


if __name__ == "__main__":
    main()
