"""Read a rendered clip back: which subject, which setting, which motion.

The subject is found as what differs from the background of the setting that was asked for (every background
is known),
and named by a small classifier trained on fresh renders, with a class for "none of these". The motion is
read from the
place of the subject over time; the setting from the colours around it. None of this is used in training.

Usage: python -m recipe.score WORK   (trains the classifier, writes WORK/subject.pt and states its accuracy)
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe import world

LOG = logging.getLogger("score")
NONE = len(world.NOUNS)
CROP = 64
CELL = 8
DIFFERENT = 28.0  # mean absolute difference over the colours above which a pixel is not background
LEAST_AREA = 250  # pixels at scale 1 below which there is no subject
READ_FRAMES = (6, 9, 12, 15)


@dataclass(frozen=True)
class Reading:
    """What a clip shows; `stray` is the share of foreign pixels outside the subject."""

    noun: str | None
    setting: str
    motion: str
    stray: float
    confidence: float


class SubjectNet(nn.Module):
    """Crop (B, 3, 64, 64) in 0..1 to 13 logits."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 24, 48, 96, 128)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(8, b) for b in widths[1:])
        self.out = nn.Linear(widths[-1], NONE + 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) * 4
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return self.out(x.mean((2, 3)))


def to_small(frames: np.ndarray) -> np.ndarray:
    """Frames of any scale averaged down to 192 x 112, float32 (F, 112, 192, 3)."""
    count, height, _width, _ = frames.shape
    factor = height // world.HEIGHT
    cut = frames.reshape(count, world.HEIGHT, factor, world.WIDTH, factor, 3)
    return cut.astype(np.float32).mean(axis=(2, 4))


def foreign(frame: np.ndarray, setting: str, index: int) -> np.ndarray:
    """Pixels (112, 192) that differ from the setting's background in that frame."""
    return np.abs(frame - background(setting, index)).mean(-1) > DIFFERENT


def background(setting: str, index: int) -> np.ndarray:
    return world.background(setting, 1, index).astype(np.float32)


def largest_part(mask: np.ndarray) -> np.ndarray:
    """The largest connected part of a mask, joined over cells of 8 pixels."""
    height, width = mask.shape
    cells = mask.reshape(height // CELL, CELL, width // CELL, CELL).sum(axis=(1, 3))
    filled = cells > CELL * CELL * 0.12
    label = np.zeros(filled.shape, int)
    sizes: list[int] = [0]
    for start in zip(*np.nonzero(filled), strict=True):
        if label[start]:
            continue
        sizes.append(0)
        stack = [start]
        label[start] = len(sizes) - 1
        while stack:
            y, x = stack.pop()
            sizes[-1] += int(cells[y, x])
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                inside = 0 <= near[0] < filled.shape[0] and 0 <= near[1] < filled.shape[1]
                if inside and filled[near] and not label[near]:
                    label[near] = len(sizes) - 1
                    stack.append(near)
    best = int(np.argmax(sizes))
    chosen = (label == best) & filled
    return mask & np.kron(chosen, np.ones((CELL, CELL), bool))


def crop_at(frame: np.ndarray, x: float, y: float) -> np.ndarray:
    """A 64 x 64 crop centred at (x, y), the border repeated, (64, 64, 3)."""
    pad = CROP
    padded = np.pad(frame, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    left, top = round(x) - CROP // 2 + pad, round(y) - CROP // 2 + pad
    return padded[top : top + CROP, left : left + CROP]


def centre(mask: np.ndarray) -> tuple[float, float]:
    ys, xs = np.nonzero(mask)
    return float(xs.mean()), float(ys.mean())


def read_motion(masks: dict[int, np.ndarray]) -> str:
    """Name the motion from the subject's mask in some frames (those with a subject)."""
    if len(masks) < 3:
        return "none"
    index = np.array(sorted(masks))
    places = np.array([centre(masks[i]) for i in index])
    edges = np.array([[np.nonzero(masks[i].any(1))[0][k] for k in (0, -1)] for i in index])
    # A subject cut by the picture's edge: follow the edge of it that is not cut.
    top_cut, bottom_cut = edges[:, 0] <= 1, edges[:, 1] >= world.HEIGHT - 2
    vertical = np.where(top_cut.any(), edges[:, 1], np.where(bottom_cut.any(), edges[:, 0], places[:, 1]))
    slope_x = np.polyfit(index, places[:, 0], 1)[0]
    slope_y = np.polyfit(index, vertical, 1)[0]
    # A jump is a triangle of period 16 frames and height 32 px; its own best fit tells it from drifting.
    wave = np.minimum(index * 4 % 64, 64 - index * 4 % 64)
    hop = -np.polyfit(wave, places[:, 1], 1)[0]
    if abs(slope_x) > max(1.2, abs(slope_y)):
        return "right" if slope_x > 0 else "left"
    if hop > 0.5 and abs(slope_y) < 2.0:
        return "jump"
    if abs(slope_y) > 1.2:
        return "down" if slope_y > 0 else "up"
    return "still"


def read_setting(frames: np.ndarray, masks: dict[int, np.ndarray]) -> str:
    """The setting whose background differs least, clipped so that the subject does not decide."""
    costs = {}
    for setting in world.SETTINGS:
        differences = [np.abs(frames[i] - background(setting, i)).mean(-1) for i in (2, 10, 18)]
        costs[setting] = np.mean([np.minimum(d, 60).mean() for d in differences])
    best = min(costs, key=lambda name: costs[name])
    return best if costs[best] < 18 else "none"


@torch.no_grad()
def read_clip(frames: np.ndarray, asked_setting: str, net: SubjectNet) -> Reading:
    """Read frames uint8 (22, H, W, 3)."""
    small = to_small(frames)
    masks, strays = {}, []
    for index in range(len(small)):
        mask = foreign(small[index], asked_setting, index)
        part = largest_part(mask)
        if part.sum() >= LEAST_AREA:
            masks[index] = part
            strays.append(1 - part.sum() / mask.sum())
    noun, confidence = None, 0.0
    usable = [i for i in READ_FRAMES if i in masks]
    if usable:
        crops = np.stack([crop_at(small[i], *centre(masks[i])) for i in usable])
        logits = net(torch.from_numpy(crops).permute(0, 3, 1, 2) / 255.0)
        chances = logits.softmax(-1).mean(0)
        best = int(chances.argmax())
        confidence = float(chances[best])
        noun = world.NOUNS[best] if best != NONE else None
    stray = float(np.mean(strays)) if strays else 1.0
    return Reading(noun, read_setting(small, masks), read_motion(masks), stray, confidence)


def likeness(frames: np.ndarray, noun: str, setting: str, motion: str) -> float:
    """PSNR in dB of a clip of any size against the true clip whose start place fits best."""
    small = to_small(frames)
    errors = []
    for place in range(world.PLACES):
        true = world.render_clip(world.Scene(noun, setting, motion, place)).astype(np.float32)
        errors.append(np.square(small - true).mean())
    return float(10 * np.log10(255.0**2 / min(errors)))


def blur(crop: np.ndarray, amount: int) -> np.ndarray:
    """Box blur by `amount` pixels, twice."""
    for _ in range(2):
        for axis in (0, 1):
            crop = np.mean([np.roll(crop, shift, axis) for shift in range(-amount, amount + 1)], axis=0)
    return crop


def scramble(crop: np.ndarray, rng: random.Random) -> np.ndarray:
    """The 16-pixel patches of a crop in random order: right colours, no subject."""
    cut = crop.reshape(4, 16, 4, 16, 3).transpose(0, 2, 1, 3, 4).reshape(16, 16, 16, 3)
    order = list(range(16))
    rng.shuffle(order)
    return cut[order].reshape(4, 4, 16, 16, 3).transpose(0, 2, 1, 3, 4).reshape(CROP, CROP, 3)


def random_crop(noun: str, rng: random.Random) -> np.ndarray:
    """A crop round one sprite of a random scene and frame, off-centre by up to 7 pixels."""
    scene = world.Scene(
        noun, rng.choice(world.SETTINGS), rng.choice(world.MOTIONS), rng.randrange(world.PLACES)
    )
    index = rng.choice(READ_FRAMES)
    frame = world.render_frame(scene, 1, index).astype(np.float32)
    x, y = centre(world.sprite_cover(scene, 1, index) > 0.1)
    return crop_at(frame, x + rng.uniform(-7, 7), y + rng.uniform(-7, 7))


def training_example(rng: random.Random) -> tuple[np.ndarray, int]:
    """One augmented crop and its class; three in ten are none of the nouns."""
    label = rng.randrange(NONE)
    crop = random_crop(world.NOUNS[label], rng)
    if rng.random() < 0.3:
        label = NONE
        kind = rng.randrange(4)
        if kind == 0:
            crop = scramble(crop, rng)
        elif kind == 1:
            other = rng.choice([n for n in world.NOUNS if not np.array_equal(n, label)])
            crop = 0.5 * scramble(crop, rng) + 0.5 * scramble(random_crop(other, rng), rng)
        elif kind == 2:
            crop = blur(crop, 9)
        else:
            scene = world.Scene("dog", rng.choice(world.SETTINGS), "down", 0)
            frame = world.background(scene.setting, 1, 0).astype(np.float32)
            crop = crop_at(frame, rng.uniform(32, 160), rng.uniform(32, 80))
    if rng.random() < 0.5:
        crop = blur(crop, rng.choice((1, 1, 2)))
    crop = (crop - 128) * rng.uniform(0.8, 1.2) + 128 + np.array([rng.uniform(-18, 18) for _ in range(3)])
    if rng.random() < 0.5:
        noise = np.random.default_rng(rng.randrange(2**31)).standard_normal(crop.shape)
        crop = crop + noise * rng.uniform(3, 22)
    return np.clip(crop, 0, 255).astype(np.float32), label


def example_batch(count: int, rng: random.Random) -> tuple[Tensor, Tensor]:
    pairs = [training_example(rng) for _ in range(count)]
    images = torch.from_numpy(np.stack([p[0] for p in pairs])).permute(0, 3, 1, 2) / 255.0
    return images, torch.tensor([p[1] for p in pairs])


def train_net(steps: int, seed: int = 0) -> SubjectNet:
    torch.manual_seed(seed)
    net, rng = SubjectNet(), random.Random(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        images, labels = example_batch(64, rng)
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            LOG.info("step %d loss %.4f", step, loss.item())
    return net.eval()


@torch.no_grad()
def net_accuracy(net: SubjectNet, count: int = 3000) -> tuple[float, float]:
    """(accuracy on augmented sprites, share of non-subjects called none) on fresh examples."""
    images, labels = example_batch(count, random.Random(4321))
    right = net(images).argmax(-1) == labels
    return right[labels != NONE].float().mean().item(), right[labels == NONE].float().mean().item()


def load_net(work: Path) -> SubjectNet:
    net = SubjectNet()
    net.load_state_dict(torch.load(work / "subject.pt", weights_only=True))
    return net.eval()


def truth_accuracy(net: SubjectNet, clips: int = 84) -> tuple[float, float, float]:
    """Share of true clips of the world read right: (subject, setting, motion)."""
    scenes = world.all_scenes()
    picked = [scenes[i] for i in np.random.default_rng(8).permutation(len(scenes))[:clips]]
    readings = [(s, read_clip(world.render_clip(s, 1), s.setting, net)) for s in picked]
    return tuple(
        float(np.mean([getattr(s, part) == getattr(r, part) for s, r in readings]))
        for part in ("noun", "setting", "motion")
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    work, start = Path(sys.argv[1]), time.monotonic()
    net = train_net(int(sys.argv[2]) if len(sys.argv) > 2 else 600)
    torch.save(net.state_dict(), work / "subject.part")
    (work / "subject.part").replace(work / "subject.pt")
    LOG.info("accuracy on sprites, on non-subjects: %s, %.0f s", net_accuracy(net), time.monotonic() - start)
    LOG.info("true clips read right (subject, setting, motion): %s", truth_accuracy(net))


if __name__ == "__main__":
    main()
