"""From a prompt to frames through the engine, beside diffusers on the same weights.

Once with a random model of the real classes, which moves every number but draws nothing, and once with
Firefly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from torch import Tensor

from pipeline import canvas, layouts, models, sampler, sequence
from pipeline.engine import Model
from pipeline.errors import Cancelled
from pipeline.text import Conditioning, TextEncoder
from pipeline.vae import VideoVae, fit
from tests.pipeline.h3_files import community_names, random_model, relative_l2
from tests.pipeline.h3_files import write_gguf as write_denoiser
from tests.pipeline.running import TRANSFORMER_CONFIG
from tests.pipeline.tiny import write_model
from tests.pipeline.torch_run import TorchRun

FIREFLY = Path(__file__).parents[2] / "presets" / "firefly"
PROMPT = "a red car drives to the left in a park at night"
SEED, STEPS, GUIDANCE = 2**63 + 20261201, 4, 1.5


@dataclass(frozen=True)
class Setup:
    """A model, a canvas for it, and diffusers' transformer with the weights of its GGUF file."""

    files: models.ModelFiles
    shape: canvas.Canvas
    captions: tuple[Conditioning, Conditioning]
    vae: VideoVae
    reference: MiniMaxH3Transformer3DModel

    @property
    def layouts(self) -> list[sequence.Sequence]:
        patch = self.files.geometry.patch
        return [sequence.pack(c.tags, self.shape.latent_shape, patch) for c in self.captions]

    def noise(self) -> Tensor:
        return sampler.noise(SEED, (self.files.geometry.latent_channels, *self.shape.latent_shape))

    def rows(self, latents: Tensor) -> Tensor:
        return sequence.patchify(latents, self.files.geometry.patch)

    def schedule(self, keep: float = 0.0) -> sampler.Schedule:
        return sampler.schedule(STEPS, self.files.shift, keep=keep)

    def by_torch(self, plan: sampler.Schedule, video: Tensor) -> list[sampler.Step]:
        pairs = zip(self.layouts, self.captions, strict=True)
        with_prompt, without = (
            sampler.Branch(TorchRun(self.reference, layout, caption.rows), layout)
            for layout, caption in pairs
        )
        return list(sampler.sample(with_prompt, plan, video, unconditional=without, guidance=GUIDANCE))

    def by_engine(
        self, plan: sampler.Schedule, video: Tensor, threads: int = 1, **more
    ) -> list[sampler.Step]:
        with Model.open(self.files.transformer, threads=threads) as model:
            with_prompt, without = (
                sampler.Branch(model.prepare(layout, caption.rows, plan.timesteps(layout)), layout)
                for layout, caption in zip(self.layouts, self.captions, strict=True)
            )
            with with_prompt.run, without.run:
                steps = sampler.sample(
                    with_prompt, plan, video, unconditional=without, guidance=GUIDANCE, **more
                )
                return list(steps)


@pytest.fixture(scope="module", params=["random", "firefly"])
def setup(request, tmp_path_factory) -> Iterator[Setup]:
    folder = FIREFLY
    if request.param == "random":
        folder = write_model(tmp_path_factory.mktemp("random") / "model")
        config = TRANSFORMER_CONFIG | {"patch_size": (1, 2, 2), "rope_theta": 10000.0}
        state = random_model(config).state_dict()
        write_denoiser(folder / "transformer" / "tiny.gguf", community_names(state), config)
    files = models.find(folder)
    assert files.missing == ()
    encoder = TextEncoder.open(files)
    yield Setup(
        files=files,
        shape=canvas.plan(96, 64, 22, files.geometry),
        captions=(encoder.encode(PROMPT), encoder.encode("")),
        vae=VideoVae.open(files),
        reference=read_reference(files),
    )


def read_reference(files: models.ModelFiles) -> MiniMaxH3Transformer3DModel:
    reader = gguf.GGUFReader(files.transformer)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    stored = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        stored[tensor.name] = torch.from_numpy(values.reshape([int(n) for n in reversed(tensor.shape)]))
    sizes, problems = layouts.measure(
        {name: tuple(tensor.shape) for name, tensor in stored.items()}, "stacked"
    )
    assert problems == []
    model = MiniMaxH3Transformer3DModel(
        num_attention_heads=sizes.heads,
        attention_head_dim=sizes.head_dim,
        hidden_size=sizes.hidden,
        num_layers=sizes.blocks,
        num_refiner_layers=sizes.refiner_blocks,
        ffn_dim=sizes.feed_forward,
        in_channels=files.geometry.latent_channels,
        audio_in_channels=sizes.audio_width,
        patch_size=files.geometry.patch,
        text_dim=sizes.text_width,
        freq_dim=sizes.time_frequencies,
        time_embed_hidden_dim=sizes.time_hidden,
        time_embed_dim=sizes.time_width,
        rope_freq_dim=facts["minimax_h3.rope.dimension_count"],
        rope_theta=facts["minimax_h3.rope.freq_base"],
    )
    own = model.state_dict()
    for name, pieces in layouts.diffusers_parts(sizes).items():
        rows = [torch.atleast_2d(stored[piece.name])[piece.start : piece.stop] for piece in pieces]
        own[name].copy_(torch.cat(rows).reshape(own[name].shape))
    return model.eval()


def test_engine_follows_diffusers_from_noise_to_frames(setup):
    plan, start = setup.schedule(), setup.rows(setup.noise())
    found, expected = setup.by_engine(plan, start), setup.by_torch(plan, start)
    assert [step.index for step in found] == list(range(STEPS))
    for ours, theirs in zip(found, expected, strict=True):
        assert relative_l2(ours.video, theirs.video) < 2e-4
        assert relative_l2(ours.estimate, theirs.estimate) < 2e-4
    frames = setup.vae.decode(found[-1].estimate)
    assert frames.shape == (22, 64, 96, 3)
    assert frames.std() > 5  # not a flat field
    difference = frames.astype(int) - setup.vae.decode(expected[-1].estimate)
    assert abs(difference).mean() < 0.05


def test_guidance_moves_the_result(setup):
    plan, start = setup.schedule(), setup.rows(setup.noise())
    with Model.open(setup.files.transformer, threads=1) as model:
        layout, caption = setup.layouts[0], setup.captions[0]
        with model.prepare(layout, caption.rows, plan.timesteps(layout)) as run:
            plain = list(sampler.sample(sampler.Branch(run, layout), plan, start))
    assert relative_l2(setup.by_engine(plan, start)[-1].video, plain[-1].video) > 1e-3


def test_a_kept_preview_is_continued_as_diffusers_would(setup):
    preview = np.zeros((22, 32, 48, 3), np.uint8)
    preview[:, :, 24:] = (200, 60, 40)
    width, height = setup.shape.gen_width, setup.shape.gen_height
    clean = setup.vae.encode(fit(preview, width, height, setup.shape.gen_frames))
    plan = setup.schedule(keep=0.9)
    start = setup.rows(sampler.noised(clean, setup.noise(), 0.9))
    found, expected = setup.by_engine(plan, start), setup.by_torch(plan, start)
    assert plan.steps == 1
    assert relative_l2(found[-1].video, expected[-1].video) < 2e-4


def test_a_resumed_render_ends_in_the_same_bytes_on_any_number_of_threads(setup):
    plan, start = setup.schedule(), setup.rows(setup.noise())
    whole = setup.by_engine(plan, start)
    resumed = setup.by_engine(plan, whole[1].video.clone(), threads=2, start=2)
    assert [step.index for step in resumed] == [2, 3]
    assert torch.equal(resumed[-1].video, whole[-1].video)


def test_cancelling_takes_effect_within_a_block(setup):
    seen = []

    def stop(step: int, block: int, blocks: int) -> bool:
        seen.append((step, block, blocks))
        return len(seen) == 3

    with pytest.raises(Cancelled):
        setup.by_engine(setup.schedule(), setup.rows(setup.noise()), progress=stop)
    blocks = 2 * len(setup.reference.transformer_blocks)
    assert seen == [(0, 0, blocks), (0, 1, blocks), (0, 2, blocks)]
