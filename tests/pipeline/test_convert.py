"""Checkpoints of every layout become the same GGUF file; what would be read wrongly does not become one."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file

from pipeline import convert as convert_module
from pipeline.checkpoints import open_checkpoint
from pipeline.convert import QUANTS, choose_type, convert
from pipeline.errors import FirstlookError, ModelError
from pipeline.layouts import Dimensions, diffusers_parts, shapes
from pipeline.meter import ByteMeter, describe

FIXTURES = Path(__file__).parents[1] / "fixtures" / "h3"
MODEL_B = FIXTURES / "model_b.safetensors"
ORIGINAL = FIXTURES / "model_b_original_layout.safetensors"
ROOT = Path(__file__).parents[2]
WIDE = Dimensions(
    hidden=256,
    heads=2,
    head_dim=128,
    feed_forward=512,
    blocks=2,
    refiner_blocks=1,
    video_width=96,
    audio_width=32,
    text_width=96,
    time_frequencies=64,
    time_hidden=128,
    time_width=96,
)

Change = Callable[[dict[str, torch.Tensor]], object]


def quiet(label: str, total: int) -> ByteMeter:
    return ByteMeter(label, total, io.StringIO())


def written(source: Path, folder: Path, quant: str = "q8", **options: object) -> GGUFReader:
    out = folder / f"{len(list(folder.iterdir()))}.gguf"
    convert(source, out, quant, meter=quiet, **options)
    return GGUFReader(out)


def same_tensors(first: GGUFReader, second: GGUFReader) -> bool:
    return len(first.tensors) == len(second.tensors) and all(
        a.name == b.name
        and a.tensor_type == b.tensor_type
        and list(a.shape) == list(b.shape)
        and np.array_equal(a.data, b.data)
        for a, b in zip(first.tensors, second.tensors, strict=True)
    )


def values(reader: GGUFReader, name: str) -> np.ndarray:
    tensor = next(tensor for tensor in reader.tensors if tensor.name == name)
    shape = [int(size) for size in reversed(tensor.shape)]
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)


def stacked_b() -> dict[str, torch.Tensor]:
    """Model B as ComfyUI has it, made here by the book: rows 3*d*g + c*d + j of each head, d = 128."""
    tensors = load_file(ORIGINAL)
    for name, tensor in tensors.items():
        if name.endswith("qkv_proj.weight"):
            heads = tensor.reshape(2, 3, 128, -1)
            tensors[name] = torch.cat([heads[:, which].flatten(0, 1) for which in range(3)]).contiguous()
    return tensors


def random_model(dims: Dimensions, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * 0.05 for name, shape in shapes(dims).items()}


def field(reader: GGUFReader, key: str) -> object:
    return reader.fields[key].contents()


def save(path: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    save_file(tensors, path, metadata=metadata or None)
    return path


def changed(path: Path, change: Change) -> Path:
    tensors = stacked_b()
    change(tensors)
    return save(path, tensors)


# ---- one model, many layouts ----


@pytest.mark.parametrize("quant", QUANTS)
def test_the_three_layouts_give_identical_tensors(quant: str, tmp_path: Path) -> None:
    split = written(MODEL_B, tmp_path, quant)
    interleaved = written(ORIGINAL, tmp_path, quant)
    comfy = save(tmp_path / "comfy.safetensors", stacked_b())
    prefixed = save(
        tmp_path / "prefixed.safetensors",
        {f"model.diffusion_model.{name}": tensor for name, tensor in stacked_b().items()},
    )
    assert same_tensors(split, interleaved)
    assert same_tensors(split, written(comfy, tmp_path, quant))
    assert same_tensors(split, written(prefixed, tmp_path, quant))
    assert [field(r, "firstlook.source_qkv_order") for r in (split, interleaved)] == ["split", "interleaved"]


def test_fused_projections_of_diffusers(tmp_path: Path) -> None:
    tensors = load_file(MODEL_B)
    for stem in {name.rsplit("to_q.", 1)[0] for name in tensors if ".to_q." in name}:
        rows = [tensors.pop(f"{stem}to_{which}.weight") for which in "qkv"]
        tensors[f"{stem}to_qkv.weight"] = torch.cat(rows)
    fused = save(tmp_path / "fused.safetensors", tensors)
    assert same_tensors(written(fused, tmp_path), written(MODEL_B, tmp_path))


def test_a_sharded_diffusers_folder_with_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "model" / "transformer"
    folder.mkdir(parents=True)
    tensors = load_file(FIXTURES / "model_a.safetensors")
    (folder / "config.json").write_text((FIXTURES / "model_a_config.json").read_text())
    names = sorted(tensors)
    shards = {"a-00001-of-00002.safetensors": names[::2], "a-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        save(folder / shard, {name: tensors[name] for name in held})
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / "a.safetensors.index.json").write_text(json.dumps(index))

    reader = written(tmp_path / "model", tmp_path, "f16")
    assert field(reader, "minimax_h3.rope.dimension_count") == 2
    assert field(reader, "minimax_h3.patch_size") == [1, 2, 2]
    fc1 = values(reader, "blocks.1.mlp.fc1.weight")
    value, gate = tensors["transformer_blocks.1.ff.net.0.proj.weight"].chunk(2)
    assert np.allclose(fc1, torch.cat([gate, value]).numpy(), rtol=1e-3, atol=1e-6)
    listing = "".join(
        f"{hashlib.sha256((folder / shard).read_bytes()).hexdigest()}  {shard}\n" for shard in sorted(shards)
    )
    assert field(reader, "firstlook.source_sha256") == hashlib.sha256(listing.encode()).hexdigest()

    (folder / "a-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks 1 of 2 shards: a-00002-of-00002\.safetensors"):
        open_checkpoint(folder)


def test_the_original_release_tree(tmp_path: Path) -> None:
    tree = tmp_path / "FL2VA"
    (tree / "transformer").mkdir(parents=True)
    save(tree / "transformer" / "model.safetensors", load_file(ORIGINAL))  # without its metadata
    with pytest.raises(ModelError, match="--qkv interleaved"):
        open_checkpoint(tree)
    (tree / "model_index.json").write_text('{"_minimax_h3": {"partition": "fl2va"}}')
    for source in (tree, tree / "transformer"):
        assert same_tensors(written(source, tmp_path), written(MODEL_B, tmp_path))


def test_order_flag_overrides_metadata_which_overrides_the_container(tmp_path: Path) -> None:
    assert open_checkpoint(ORIGINAL).order == "interleaved"  # its metadata; a single file would be stacked
    assert open_checkpoint(ORIGINAL, "stacked").order == "stacked"
    marked = save(tmp_path / "m.safetensors", stacked_b(), **{"firstlook.qkv_order": "interleaved"})
    assert open_checkpoint(marked).order == "interleaved"
    plain = save(tmp_path / "p.safetensors", stacked_b())
    assert open_checkpoint(plain).order == "stacked"
    assert not same_tensors(written(plain, tmp_path), written(plain, tmp_path, qkv="interleaved"))


def test_diffusers_parts_invert_the_map() -> None:
    """Gathering the stacked rows of every diffusers parameter gives model B's own tensors back."""
    checkpoint = open_checkpoint(ORIGINAL)
    stacked = {tensor.name: tensor for tensor in checkpoint.tensors}
    expected = load_file(MODEL_B)
    found = diffusers_parts(checkpoint.dimensions)
    assert found.keys() == expected.keys()
    for name, pieces in found.items():
        rows = np.concatenate([stacked[part.name].read_rows(part.start, part.stop) for part in pieces])
        assert np.array_equal(rows.reshape(expected[name].shape), expected[name].float().numpy()), name


# ---- what is written ----


@pytest.mark.parametrize(
    ("quant", "block", "wide"), [("q4", "Q4_0", "Q4_0"), ("q6", "Q6_K", "Q6_K"), ("q8", "Q8_0", "Q8_0")]
)
def test_formats_follow_the_table(quant: str, block: str, wide: str, tmp_path: Path) -> None:
    model = random_model(WIDE)
    reader = written(save(tmp_path / "wide.safetensors", model), tmp_path, quant)
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types.keys() == model.keys()
    for name in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"):
        assert types[f"blocks.1.{name}.weight"] == block
        assert types[f"token_refiner.blocks.0.{name}.weight"] == "F16"
    assert types["blocks.0.adaln_proj.linear.weight"] == "Q8_0"  # 96 columns: 32 divides, 256 does not
    assert types["condition_proj.weight"] == "F16"
    kept = ("patch_proj", "time_embedder", "final_layer", "norm", "bias")
    assert {types[name] for name in types if any(mark in name for mark in kept)} == {"F32"}
    for name, tensor in model.items():
        error = np.linalg.norm(values(reader, name) - tensor.numpy()) / np.linalg.norm(tensor.numpy())
        bound = {"F32": 0, "F16": 4e-4, "Q8_0": 0.006, "Q6_K": 0.018, "Q4_0": 0.084}[types[name]]
        assert error <= bound, f"{name}: {error}"


def test_the_released_model_is_counted_whole() -> None:
    """33 122 992 896 parameters; 535 tensors in the original layout, one of them rope.inv_freq."""
    dims = Dimensions(5376, 56, 128, 14336, 50, 2, 96, 32, 5120, 256, 5376, 2688)
    found = shapes(dims)
    assert len(found) == 534
    assert sum(int(np.prod(shape)) for shape in found.values()) == 33_122_992_896
    assert len(diffusers_parts(dims)) == 638


def test_types_of_the_released_dimensions() -> None:
    """The row lengths of H3: 5376, 7168 and 14336 are blocks of 256, AdaLN's 2688 is not."""

    def chosen(name: str, columns: int, quant: str) -> str:
        return choose_type(name, columns, "BF16", quant).name

    assert chosen("blocks.49.mlp.fc2.weight", 14336, "q6") == "Q6_K"
    assert chosen("blocks.49.adaln_proj.linear.weight", 2688, "q4") == "Q8_0"
    assert chosen("blocks.0.attn.qkv_proj.weight", 288, "q6") == "Q8_0"
    assert chosen("blocks.0.attn.qkv_proj.weight", 48, "q6") == "F16"
    assert chosen("token_refiner.blocks.1.mlp.fc1.weight", 5376, "q4") == "BF16"
    assert chosen("final_layer.adaln_proj.linear.weight", 2688, "q4") == "F32"
    assert chosen("blocks.0.adaln_proj.linear.bias", 96768, "q4") == "F32"


def test_bf16_is_kept_bit_for_bit_where_16_bits_are_kept(tmp_path: Path) -> None:
    source = load_file(ORIGINAL)["condition_proj.weight"]
    assert np.array_equal(
        values(written(ORIGINAL, tmp_path), "condition_proj.weight"), source.float().numpy()
    )


def test_metadata(tmp_path: Path) -> None:
    reader = written(ORIGINAL, tmp_path, "q6")
    found = {key: field(reader, key) for key in reader.fields}
    assert found["general.architecture"] == "minimax_h3"
    expected = {
        "block_count": 2, "embedding_length": 48, "feed_forward_length": 64, "attention.head_count": 2,
        "attention.key_length": 128, "rope.dimension_count": 16, "rope.freq_base": 10000.0,
        "latent_channels": 24, "audio_channels": 32, "patch_size": [1, 2, 2],
    }  # fmt: skip
    assert {key: found[f"minimax_h3.{key}"] for key in expected} == expected
    for key in ("attention.layer_norm_rms_epsilon", "attention.qk_norm_epsilon", "final_norm_epsilon"):
        assert found[f"minimax_h3.{key}"] == pytest.approx(1e-5)
    assert found["firstlook.source"].endswith("h3/model_b_original_layout.safetensors")
    assert found["firstlook.source_sha256"] == hashlib.sha256(ORIGINAL.read_bytes()).hexdigest()
    assert found["firstlook.source_dtype"] == "BF16 (34), F32 (12)"
    assert found["firstlook.qkv_order"] == "stacked"
    assert found["firstlook.quant"] == "q6"


def test_chunks_do_not_change_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path / "wide.safetensors", random_model(WIDE))
    whole = written(source, tmp_path, "q6")
    monkeypatch.setattr(convert_module, "_CHUNK_VALUES", 700)
    assert same_tensors(whole, written(source, tmp_path, "q6"))


# ---- what is refused ----


def refused(source: Path, folder: Path, match: str, **options: object) -> str:
    """Converting `source` fails with one sentence and leaves nothing behind."""
    out = folder / "refused.gguf"
    before = set(folder.iterdir())
    with pytest.raises(FirstlookError, match=match) as caught:
        convert(source, out, "q8", meter=quiet, **options)
    assert set(folder.iterdir()) == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("blocks.1.mlp.fc2.weight"), r"blocks\.1\.mlp\.fc2\.weight: missing"),
        (lambda t: t.pop("condition_proj.weight"), r"condition_proj\.weight: missing"),
        (
            lambda t: t.update({"blocks.0.attn.to_gate_compress.weight": torch.ones(2)}),
            "to_gate_compress.*unknown",
        ),
        (
            lambda t: t.update({"blocks.0.norm1.weight": torch.ones(47)}),
            r"blocks\.0\.norm1\.weight: shape \[47\] instead of \[48\]",
        ),
        (lambda t: t.update({"blocks.7.norm1.weight": torch.ones(48)}), r"blocks\.2\.norm1\.weight: missing"),
        (lambda t: t.update({"adaln_t_table": torch.ones(1025, 8)}), "pruned form"),
        (lambda t: t.update({"blocks.0.mlp.fc1.weight_scale": torch.ones(1)}), r"fc1\.weight_scale"),
        (lambda t: t.update({"a.lora_A.weight": torch.ones(2, 2)}), "LoRA"),
        (lambda t: t.update({"rope.inv_freq": torch.ones(16)}), "rotary frequencies"),
        (lambda t: t.update({"proj_in.weight": torch.ones(48, 96)}), "mixes"),
    ],
)
def test_incomplete_or_foreign_tensors_are_named(change: Change, match: str, tmp_path: Path) -> None:
    refused(changed(tmp_path / "bad.safetensors", change), tmp_path, match)


def test_every_problem_is_listed(tmp_path: Path) -> None:
    def break_three(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["blocks.1.attn.qkv_proj.weight"], tensors["final_layer.audio_out.bias"]
        tensors["extra.weight"] = torch.ones(3)

    message = refused(changed(tmp_path / "bad.safetensors", break_three), tmp_path, "not a complete")
    for line in (
        "blocks.1.attn.qkv_proj.weight: missing",
        "final_layer.audio_out.bias: missing",
        "extra.weight: unknown",
    ):
        assert line in message


def test_comfy_formats_are_refused_by_name(tmp_path: Path) -> None:
    def rotate(tensors: dict[str, torch.Tensor]) -> None:
        descriptor = b'{"format": "int8_convrot"}'
        tensors["blocks.0.mlp.fc1.comfy_quant"] = torch.frombuffer(bytearray(descriptor), dtype=torch.uint8)
        tensors["blocks.0.mlp.fc1.weight"] = tensors["blocks.0.mlp.fc1.weight"].to(torch.int8)

    refused(changed(tmp_path / "rotated.safetensors", rotate), tmp_path, "int8_convrot")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_plain_8_bit_weights_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors["blocks.0.mlp.fc1.weight"] = tensors["blocks.0.mlp.fc1.weight"].to(dtype)

    refused(
        changed(tmp_path / "narrow.safetensors", narrow), tmp_path, r"blocks\.0\.mlp\.fc1\.weight; only F32"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["blocks.1.norm2.weight"][5] = value

    refused(changed(tmp_path / "nan.safetensors", spoil), tmp_path, r"blocks\.1\.norm2\.weight .* not finite")


def test_holes_of_a_broken_download(tmp_path: Path) -> None:
    def empty(tensors: dict[str, torch.Tensor]) -> None:
        tensors["blocks.1.mlp.fc1.weight"].zero_()

    refused(changed(tmp_path / "zero.safetensors", empty), tmp_path, r"fc1\.weight .* is all zeros")

    model = random_model(WIDE)
    model["blocks.0.adaln_proj.linear.weight"][500:3700] = 0  # 3200 rows of 384 bytes: 1.2 MB
    holed = save(tmp_path / "hole.safetensors", model)
    refused(holed, tmp_path, r"adaln_proj\.linear\.weight .* from row 500 to 3699")
    model["blocks.0.adaln_proj.linear.weight"][600:3600] = 0.01  # a few empty rows are somebody's right
    written(save(tmp_path / "rows.safetensors", model), tmp_path)


def test_truncated_and_foreign_files(tmp_path: Path) -> None:
    whole = ORIGINAL.read_bytes()
    for name, data in {
        "cut": whole[:-100],
        "padded": whole + b"\0" * 100,
        "header": whole[:500],
        "empty": b"",
        "text": b"this is not a model at all, only some text",
        "wild": (2**62).to_bytes(8, "little") + whole[8:],
    }.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        refused(path, tmp_path, name)
    refused(FIXTURES / "scheduler.json", tmp_path, "not a .safetensors file")
    refused(FIXTURES / "patchify.safetensors", tmp_path, "not a MiniMax-H3 transformer")
    refused(tmp_path / "absent.safetensors", tmp_path, "does not exist")
    (tmp_path / "nothing").mkdir()
    refused(tmp_path / "nothing", tmp_path, r"no \.safetensors file")


def test_a_config_that_contradicts_the_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "transformer"
    folder.mkdir()
    save(folder / "model.safetensors", load_file(MODEL_B))
    config = json.loads((FIXTURES / "model_b_config.json").read_text())
    for change, match in (
        ({"num_layers": 3}, "num_layers is 3"),
        ({"patch_size": [1, 5, 2]}, "patches"),
        ({"rope_freq_dim": 30}, "rotary"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=match):
            open_checkpoint(folder)


# ---- the output file ----


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(FirstlookError, match="--force"):
        convert(MODEL_B, out, "q8", meter=quiet)
    assert out.read_bytes() == b"mine"
    convert(MODEL_B, out, "q8", force=True, meter=quiet)
    assert len(GGUFReader(out).tensors) == 46
    with pytest.raises(FirstlookError, match="does not exist"):
        convert(MODEL_B, tmp_path / "no" / "model.gguf", "q8", meter=quiet)


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    convert(MODEL_B, out, "q8", meter=quiet)
    before = out.read_bytes()
    bad = changed(tmp_path / "nan.safetensors", lambda t: t["final_layer.video_out.bias"].fill_(torch.nan))
    with pytest.raises(ModelError):
        convert(bad, out, "q8", force=True, meter=quiet)
    assert out.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", "nan.safetensors"}


def test_too_little_disk_is_noticed_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.files.free_bytes", lambda folder: 1000)
    refused(MODEL_B, tmp_path, "MiB left")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    convert_module.add_arguments(parser)
    out = tmp_path / "b.gguf"
    args = parser.parse_args(["--input", str(ORIGINAL), "--out", str(out), "--quant", "q4"])
    assert convert_module.run(args) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert "Convert [" in shown.err and "MB" in shown.err


def test_progress_line() -> None:
    line = describe("Convert", 15 * 10**8, 3 * 10**9, 12.5)
    assert line == "Convert [############------------] 1.50 of 3.00 GB, 120 MB/s, 0:12 left"
    assert describe("Convert", 10**9, 10**9, 3700).endswith("1.00 of 1.00 GB in 1:01:40")
    assert "left" not in describe("Convert", 0, 10**9, 0.0)


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "large.safetensors"
    write_repeated(source, Dimensions(**{**WIDE.__dict__, "hidden": 512, "blocks": 60}))
    folder = tmp_path / "out"
    folder.mkdir()
    command = [sys.executable, "-m", "pipeline", "convert", "--quant", "q6"]
    command += ["--input", str(source), "--out", str(folder / "model.gguf")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not any(folder.iterdir()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 130
    assert not any(folder.iterdir())


MEASURE = """
import io, resource, sys
from pathlib import Path
from pipeline.convert import convert
from pipeline.meter import ByteMeter
def peak():
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
before = peak()
source, out, quant = sys.argv[1:]
convert(Path(source), Path(out), quant, meter=lambda label, size: ByteMeter(label, size, io.StringIO()))
print(peak() - before)
"""


@pytest.mark.parametrize("quant", ["q6", "f16"])
def test_memory_stays_flat(quant: str, tmp_path: Path) -> None:
    """A 310 MB file grows the process by about 40 MB: the chunks in flight, however large the file."""
    dims = Dimensions(
        **{**WIDE.__dict__, "hidden": 512, "blocks": 45, "feed_forward": 1024, "time_width": 128}
    )
    source = tmp_path / "large.safetensors"
    write_repeated(source, dims)
    assert source.stat().st_size > 300e6
    command = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "large.gguf"), quant]
    grown = float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    assert grown < 80


def write_repeated(path: Path, dims: Dimensions) -> None:
    """A BF16 file of any size from one megabyte of random weights."""
    pool = (torch.randn(2**19, generator=torch.Generator().manual_seed(3)) * 0.02).to(torch.bfloat16)
    data = pool.view(torch.int16).numpy().tobytes()
    header, end = {}, 0
    for name, shape in shapes(dims).items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, len(data)):
            file.write(data[: min(len(data), end - start)])
