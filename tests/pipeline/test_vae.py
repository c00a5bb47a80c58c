"""Decoding, encoding and live frames against diffusers' class, on a tiny random VAE."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline import models
from pipeline.errors import Cancelled, ModelError
from pipeline.vae import PIXEL_MEAN, PIXEL_STD, VideoVae, fit
from tests.pipeline.tiny import LATENT_CHANNELS, make_vae, write_model

BLOCKS = 2


@pytest.fixture(scope="module")
def vae() -> VideoVae:
    return VideoVae(make_vae())


def latents(frames: int, height: int = 2, width: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(LATENT_CHANNELS, frames, height, width, generator=torch.Generator().manual_seed(seed))


def reference(vae: VideoVae, normalised: torch.Tensor) -> np.ndarray:
    """What diffusers' decode step makes of normalised latents."""
    config = vae.model.config
    mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(config.latents_std).view(1, -1, 1, 1, 1)
    with torch.no_grad():
        video = vae.model.decode(normalised[None] * std + mean, return_dict=False)[0]
    video = video * torch.tensor(PIXEL_STD).view(1, 3, 1, 1, 1) + torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1, 1)
    return (video.clamp(0, 1) * 255).round().to(torch.uint8)[0].permute(1, 2, 3, 0).numpy()


@pytest.mark.parametrize("frames", [3, 7, 9, 12, 17])
def test_decode_equals_diffusers(vae, frames):
    decoded = vae.decode(latents(frames))
    assert decoded.dtype == np.uint8
    assert decoded.shape[0] == vae.frame_count(frames)
    assert np.array_equal(decoded, reference(vae, latents(frames)))


def test_decode_equals_diffusers_where_tiles_overlap(vae):
    wide = latents(7, 2, 18)  # 288 pixels: two tiles
    assert np.array_equal(vae.decode(wide), reference(vae, wide))


@pytest.mark.parametrize(("latent_frames", "frames"), [(1, 1), (2, 5), (5, 17), (6, 18), (7, 22), (12, 39)])
def test_frame_counts(vae, latent_frames, frames):
    assert vae.frame_count(latent_frames) == frames


@pytest.mark.parametrize("frames", [1, 2])
def test_clips_too_short_for_the_decoder_are_padded_and_cut(vae, frames):
    with pytest.raises(ValueError):
        reference(vae, latents(2))
    short = latents(frames)
    padded = torch.cat([short, short[:, -1:].repeat(1, 7 - frames, 1, 1)], dim=1)
    assert np.array_equal(vae.decode(short), reference(vae, padded)[: vae.frame_count(frames)])


def test_pieces_come_one_chunk_at_a_time(vae):
    pieces = list(vae.pieces(latents(12)))
    assert [len(piece) for piece in pieces] == [17, 22]
    assert np.array_equal(np.concatenate(pieces), vae.decode(latents(12)))


def test_progress_counts_decoder_blocks_over_tiles_and_chunks(vae):
    seen = []
    vae.decode(latents(12, 2, 18), lambda done, total: seen.append((done, total)))
    total = 2 * 2 * BLOCKS  # chunks, tiles, blocks
    assert seen == [(done, total) for done in range(total + 1)]


@pytest.mark.parametrize("call", ["decode", "live", "encode"])
def test_cancel_takes_effect_at_the_next_block_and_leaves_nothing_behind(vae, call):
    arguments = {
        "decode": (latents(12),),
        "live": (latents(12), 4),
        "encode": (np.zeros((22, 32, 32, 3), np.uint8),),
    }[call]
    calls = []

    def stop(done: int, total: int) -> bool:
        calls.append(done)
        return done == 2

    with pytest.raises(Cancelled):
        getattr(vae, call)(*arguments, progress=stop)
    assert calls == [0, 1, 2]
    modules = [*vae.model.decoder.transformer_blocks, *vae.model.encoder.down_blocks]
    assert not any(module._forward_pre_hooks for module in modules)


def test_a_number_that_is_not_finite_is_an_error(vae):
    broken = latents(7)
    broken[0, 3, 1, 1] = float("nan")
    with pytest.raises(ModelError, match="Decoding"):
        vae.decode(broken)
    with pytest.raises(ModelError, match="Decoding"):
        vae.live(broken, 2)


def test_live_frames_of_one_chunk_are_the_decoded_ones(vae):
    live = vae.live(latents(7), 4)
    assert np.array_equal(live, vae.decode(latents(7))[[0, 7, 14, 21]])
    assert np.array_equal(vae.live(latents(7), 3, frames=16), vae.decode(latents(7))[[0, 8, 15]])


def test_live_frames_decode_only_the_chunks_they_lie_in(vae):
    seen = []
    live = vae.live(latents(17), 2, progress=lambda done, total: seen.append(total))
    assert seen[0] == 2 * BLOCKS  # the first and the last of three chunks
    assert np.array_equal(live, vae.decode(latents(17))[[0, 55]])
    middle = vae.live(latents(17), 5)  # 0, 14, 28, 41, 55: outside the cross-fades
    assert np.array_equal(middle, vae.decode(latents(17))[[0, 14, 28, 41, 55]])


def test_live_frames_in_a_cross_fade_are_their_chunks_own(vae):
    live, full = vae.live(latents(12), 3), vae.decode(latents(12))
    assert np.array_equal(live[[0, 2]], full[[0, 38]])
    assert live[1].shape == full[19].shape


def test_encode_equals_diffusers_and_is_normalised(vae):
    frames = np.random.default_rng(0).integers(0, 256, (39, 32, 48, 3), dtype=np.uint8)
    encoded = vae.encode(frames)
    assert encoded.shape == (LATENT_CHANNELS, 12, 2, 3)
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 255
    pixels = (pixels - torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1, 1)) / torch.tensor(PIXEL_STD).view(
        1, 3, 1, 1, 1
    )
    with torch.no_grad():
        expected = vae.model.encode(pixels).latent_dist.mode()[0]
    mean = torch.tensor(vae.model.config.latents_mean).view(-1, 1, 1, 1)
    std = torch.tensor(vae.model.config.latents_std).view(-1, 1, 1, 1)
    torch.testing.assert_close(encoded * std + mean, expected, rtol=1e-5, atol=1e-5)


def test_other_temporal_geometry_decodes_as_diffusers_does():
    other = VideoVae(make_vae(clip_length=9, token_drop=2, temporal_downsample_factors=(1, 2, 1, 1)))
    assert other.frame_count(8) == 14
    assert np.array_equal(other.decode(latents(13)), reference(other, latents(13)))


def test_open_loads_what_was_saved(tmp_path):
    files = models.find(write_model(tmp_path / "model"))
    opened = VideoVae.open(files)
    assert np.array_equal(opened.decode(latents(7)), VideoVae(make_vae()).decode(latents(7)))
    assert {parameter.dtype for parameter in opened.model.parameters()} == {torch.float32}


def test_idle_branches_of_the_encoder_are_left_out_without_a_trace(tmp_path):
    plain = make_vae(block_out_channels=(8, 8, 12, 8))
    idle = [plain.encoder.down_blocks[i].resnets[0].conv2 for i in (0, 2)]
    with torch.no_grad():
        for convolution in idle:
            convolution.weight.zero_()
            convolution.bias.zero_()
    folder = write_model(tmp_path / "model")
    plain.save_pretrained(folder / "vae")
    opened = VideoVae.open(models.find(folder))
    kinds = [type(block.resnets[0]).__name__ for block in opened.model.encoder.down_blocks]
    resnet = "MiniMaxH3VideoResnetBlock3d"
    assert kinds == ["Identity", resnet, "MiniMaxH3VideoCausalConv3d", resnet]
    frames = np.random.default_rng(2).integers(0, 256, (22, 32, 32, 3), dtype=np.uint8)
    assert torch.equal(opened.encode(frames), VideoVae(plain).encode(frames))


def test_half_precision_files_compute_in_float32(tmp_path):
    folder = write_model(tmp_path / "model")
    make_vae().half().save_pretrained(folder / "vae")
    opened = VideoVae.open(models.find(folder))
    assert {tensor.dtype for tensor in opened.model.state_dict().values()} == {torch.float32}
    difference = opened.decode(latents(7)).astype(int) - VideoVae(make_vae()).decode(latents(7))
    assert abs(difference).max() <= 2


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path):
    folder = write_model(tmp_path / "model")
    make_vae(decoder_num_layers=1).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "diffusion_pytorch_model.safetensors").replace(
        folder / "vae" / "diffusion_pytorch_model.safetensors"
    )
    with pytest.raises(ModelError, match=r"transformer_blocks\.1"):
        VideoVae.open(models.find(folder))


def test_fit_covers_the_canvas_without_squeezing():
    frames = np.zeros((2, 8, 16, 3), np.uint8)
    frames[:, :, :8] = 200  # left half bright
    fitted = fit(frames, 32, 16, 2)
    assert fitted.shape == (2, 16, 32, 3)
    assert (fitted[:, :, :12] > 190).all() and (fitted[:, :, 20:] < 10).all()
    square = fit(frames, 16, 16, 2)  # the outer quarters fall away
    assert (square[:, :, :4] > 190).all() and (square[:, :, 12:] < 10).all()


def test_fit_stretches_time_linearly():
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    frames[1] = 90
    assert fit(frames, 4, 4, 4)[:, 0, 0, 0].tolist() == [0, 30, 60, 90]
    assert fit(frames, 4, 4, 2)[:, 0, 0, 0].tolist() == [0, 90]
    assert fit(frames[:1], 4, 4, 3).shape == (3, 4, 4, 3)


def test_fit_of_the_same_shape_changes_nothing():
    frames = np.random.default_rng(1).integers(0, 256, (3, 16, 24, 3), dtype=np.uint8)
    assert np.array_equal(fit(frames, 24, 16, 3), frames)
