"""The text encoder: a byte-level BPE and a tiny Qwen3-VL text model, pretrained to tell what a caption says.

Pretraining as a classifier of noun, setting and motion is what lets the denoiser bind nouns within minutes;
trained
jointly from noise the encoder does not get there. The denoiser reads the un-normalised output of decoder
layer
HIDDEN_LAYER; one more layer exists only because `hidden_states[k]` of the last layer is normalised.

Usage: python -m recipe.text_encoder WORK   (writes WORK/tokenizer and WORK/text_encoder)
"""

from __future__ import annotations

import logging
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_vl import Qwen3VLTextConfig, Qwen3VLTextModel

from recipe import captions, world

LOG = logging.getLogger("text_encoder")
VOCABULARY = 768
WIDTH = 192
HIDDEN_LAYER = 2
PAD = "<|endoftext|>"
JUNK_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def train_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE on captions; any UTF-8 text tokenises because all 256 bytes are in the alphabet."""
    rng = random.Random(0)
    scenes = world.all_scenes()
    corpus = [captions.caption(rng.choice(scenes), rng) for _ in range(60_000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[PAD], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=PAD, pad_token=PAD)
    fast.save_pretrained(folder)
    return fast


def build_model(vocabulary: int) -> Qwen3VLTextModel:
    """An untrained text model of Firefly's shape."""
    config = Qwen3VLTextConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=384,
        num_hidden_layers=HIDDEN_LAYER + 1,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10],
                         "mrope_interleaved": True},
        use_cache=False,
    )  # fmt: skip
    return Qwen3VLTextModel(config)


def hidden_states(model: Qwen3VLTextModel, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Un-normalised states (B, N, WIDTH) after HIDDEN_LAYER layers; mask (B, N) is 1 on real tokens."""
    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
    return output.hidden_states[HIDDEN_LAYER]


class Heads(nn.Module):
    """Noun, setting and motion read off the last token and off the mean; used in pretraining only."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = (len(world.NOUNS), len(world.SETTINGS), len(world.MOTIONS))
        self.last = nn.Linear(WIDTH, sum(self.counts))
        self.mean = nn.Linear(WIDTH, sum(self.counts))

    def forward(self, states: Tensor, mask: Tensor) -> list[tuple[Tensor, ...]]:
        """Logits per reading: [(noun, setting, motion) from the last token, the same from the mean]."""
        states = F.rms_norm(states, (WIDTH,))
        last = states[torch.arange(len(states)), mask.sum(1) - 1]
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return [self.last(last).split(self.counts, -1), self.mean(mean).split(self.counts, -1)]


def with_junk(text: str, rng: random.Random) -> str:
    """Drop one unknown word somewhere into a caption, so that unknown words do not disturb the rest."""
    words = text.split(" ")
    junk = "".join(rng.choice(JUNK_LETTERS) for _ in range(rng.randint(2, 8)))
    words.insert(rng.randrange(len(words) + 1), junk)
    return " ".join(words)


def caption_batch(
    scenes: list[world.Scene], tokenizer: PreTrainedTokenizerFast, rng: random.Random, junk: float
) -> tuple[Tensor, Tensor, Tensor]:
    """ids (B, N), mask (B, N) and labels (B, 3) for one random caption per scene."""
    texts = [captions.caption(scene, rng) for scene in scenes]
    texts = [with_junk(text, rng) if rng.random() < junk else text for text in texts]
    coded = tokenizer(
        texts, add_special_tokens=False, padding=True, padding_side="right", return_tensors="pt"
    )
    labels = [
        [world.NOUNS.index(s.noun), world.SETTINGS.index(s.setting), world.MOTIONS.index(s.motion)]
        for s in scenes
    ]
    return coded["input_ids"], coded["attention_mask"], torch.tensor(labels)


def accuracy(model: Qwen3VLTextModel, heads: Heads, scenes: list[world.Scene], tokenizer) -> list[float]:
    """Share of right (noun, setting, motion) of the last-token reading over 2000 fresh captions."""
    rng = random.Random(99)
    picked = [rng.choice(scenes) for _ in range(2000)]
    ids, mask, labels = caption_batch(picked, tokenizer, rng, junk=0.0)
    with torch.no_grad():
        logits = heads(hidden_states(model, ids, mask), mask)[0]
    return [(part.argmax(-1) == labels[:, i]).float().mean().item() for i, part in enumerate(logits)]


def pretrain(model: Qwen3VLTextModel, tokenizer: PreTrainedTokenizerFast, steps: int) -> Heads:
    """Train model and heads on training scenes."""
    heads = Heads()
    rng = random.Random(1)
    scenes = world.training_scenes()
    parameters = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 50) * min(1.0, (steps - step) / (0.6 * steps))
        ids, mask, labels = caption_batch([rng.choice(scenes) for _ in range(96)], tokenizer, rng, junk=0.15)
        readings = heads(hidden_states(model, ids, mask), mask)
        loss = sum(
            F.cross_entropy(part, labels[:, i]) for reading in readings for i, part in enumerate(reading)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 100 == 0:
            LOG.info("step %d loss %.4f", step, loss.item())
    return heads


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    work = Path(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    start = time.monotonic()
    tokenizer = train_tokenizer(work / "tokenizer")
    model = build_model(len(tokenizer))
    heads = pretrain(model, tokenizer, steps)
    held_out = [scene for scene in world.all_scenes() if scene.held_out]
    LOG.info("trained scenes %s", accuracy(model, heads, world.training_scenes(), tokenizer))
    LOG.info("held-out scenes %s", accuracy(model, heads, held_out, tokenizer))
    model.save_pretrained(work / "text_encoder")
    LOG.info("%d tokens, %.0f s", len(tokenizer), time.monotonic() - start)


if __name__ == "__main__":
    main()
