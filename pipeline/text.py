"""Prompt to conditioning: one row of the text encoder's state for each token.

MiniMax-H3 reads a Qwen3-VL language model at the *un-normalised* output of one decoder layer, the 50th of
64. A hook takes it, so the layers after it need not be loaded, and a model cut to exactly that many layers
works too (the last entry of transformers' `hidden_states` would be normalised there). The prompt is
tokenised verbatim: no chat template, no special tokens, no padding. An empty prompt becomes a single space,
because the encoder makes nothing of no tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, Qwen3VLTextModel
from transformers.utils import logging as transformers_logging

from pipeline.errors import ModelError, RequestError
from pipeline.sequence import TEXT_TAG

if TYPE_CHECKING:
    from pipeline.models import ModelFiles

SMALL = 1_500_000_000
"""Encoders of up to this many parameters compute in float32; larger ones in the dtype they are stored in."""
_LANGUAGE_TOWER = {r"^model\.language_model\.": "", r"^language_model\.": ""}


@dataclass(frozen=True)
class Conditioning:
    """What the transformer is told: `rows` [n, text_dim] float32, and `tags` [n] int64, all text (1)."""

    rows: Tensor
    tags: Tensor


class TextEncoder:
    """A tokenizer and a language model cut off after the layer that conditions. One call at a time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: Qwen3VLTextModel, layer: int) -> None:
        if not 1 <= layer <= len(model.layers):
            raise ModelError(
                f"The text encoder has {len(model.layers)} layers and layer {layer} was asked for."
            )
        self._tokenizer = tokenizer
        self._model = model.eval().requires_grad_(False)
        self._layer = layer

    @classmethod
    def open(cls, files: ModelFiles) -> TextEncoder:
        """Load from local files only. Raises ModelError naming the folder that is missing or damaged."""
        folder, tokenizer_folder = files.require("text_encoder"), files.require("tokenizer")
        try:
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True)
        except Exception as error:
            raise ModelError(
                f"The tokenizer in {tokenizer_folder} cannot be read ({_first_line(error)})."
            ) from error
        return cls(tokenizer, _load(folder, files.text_hidden_layer), files.text_hidden_layer)

    def tokens(self, prompt: str) -> list[int]:
        """The token ids of a prompt, of a space when it is empty."""
        return list(self._tokenizer(prompt or " ", add_special_tokens=False)["input_ids"])

    def encode(self, prompt: str) -> Conditioning:
        """The conditioning of a prompt. Raises RequestError for one longer than the encoder can read."""
        tokens = self.tokens(prompt)
        limit = self._model.config.max_position_embeddings
        if len(tokens) > limit:
            raise RequestError(
                "prompt", f"The prompt has {len(tokens)} tokens; this model reads at most {limit}."
            )
        taken: list[Tensor] = []

        def take(module: torch.nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
            taken.append(output if isinstance(output, Tensor) else output[0])

        hook = self._model.layers[self._layer - 1].register_forward_hook(take)
        try:
            with torch.inference_mode():
                self._model(input_ids=torch.tensor([tokens]), use_cache=False)
        finally:
            hook.remove()
        rows = taken[0][0].float().clone()
        if not torch.isfinite(rows).all():
            raise ModelError("The text encoder gave numbers that are not finite: its files may be damaged.")
        return Conditioning(rows, torch.full((len(tokens),), TEXT_TAG, dtype=torch.int64))


def _load(folder: Path, layer: int) -> Qwen3VLTextModel:
    """The language model of a Qwen3-VL folder, or a language model saved alone, cut to `layer` layers."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        config = getattr(config, "text_config", config)
        if not config.model_type.startswith("qwen3_vl"):
            raise ModelError(f"The text encoder in {folder} is a {config.model_type}, not a Qwen3-VL model.")
        if config.num_hidden_layers < layer:
            count = config.num_hidden_layers
            raise ModelError(f"The text encoder in {folder} has {count} layers; layer {layer} is needed.")
        config.num_hidden_layers = layer
        with _quiet():
            model, report = Qwen3VLTextModel.from_pretrained(
                folder,
                config=config,
                key_mapping=_LANGUAGE_TOWER,
                local_files_only=True,
                use_safetensors=True,
                dtype="auto",
                output_loading_info=True,
            )
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"The text encoder in {folder} cannot be read ({_first_line(error)}).") from error
    lacking = sorted(report["missing_keys"] - {"norm.weight"})
    if lacking:
        raise ModelError(f"The text encoder in {folder} lacks tensor {lacking[0]}: copy its files again.")
    small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL
    return model.float() if small else model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bar, and its table of layers that are left out on purpose."""
    level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
