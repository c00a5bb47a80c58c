"""What the buttons do: commands to the studio, and answers to the form. No command waits for a job.

Handlers take Gradio's request first, for its language, then the form's values in the order of `form.FIELDS`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import gradio as gr

from pipeline import FirstlookError, Preset, Request, Studio
from ui import form
from ui.advice import preview_of
from ui.words import in_language, language_of

log = logging.getLogger(__name__)


class Actions:
    """The page's commands over one studio."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio

    def check(self, request: gr.Request, *values: Any) -> list[dict[str, Any]]:
        """Gradio's validator: one verdict for each field, shown at the field before anything runs."""
        found = form.problems(values, self.studio, language_of(request.headers))
        return [gr.validate(name not in found, found.get(name, "")) for name in form.FIELDS]

    def preview(self, request: gr.Request, *values: Any) -> str:
        """Start the first look; returns the seed, which an empty field has just drawn."""
        return self._submit(request, form.to_request(values, "preview", self.studio))

    def render(self, request: gr.Request, *values: Any) -> str:
        """Start the render, from the preview of the same form where there is one."""
        wish = form.to_request(values, "render", self.studio)
        return self._submit(
            request, replace(wish, source=preview_of(self.studio, wish) if wish.keep > 0 else None)
        )

    def choose_preset(self, request: gr.Request, name: str) -> list[Any]:
        """The preset's values for `form.PRESET_FIELDS`, the negative prompt, and what is said about it."""
        preset = self.studio.presets[name]
        values = self._offered(form.preset_values(preset) | {"negative_prompt": gr.skip()}, preset)
        about = self._about(preset, language_of(request.headers))
        return [*(values[field] for field in form.PRESET_FIELDS), values["negative_prompt"], about, about]

    def settings_of(self, request: gr.Request, event: gr.EventData) -> list[Any]:
        """The settings of an earlier job, for every field, then what is said about its preset."""
        language = language_of(request.headers)
        try:
            wish = self.studio.job(str(event.id)).request
        except FirstlookError as error:
            raise gr.Error(in_language(language, str(error)), print_exception=False) from error
        return self._filled(form.request_values(wish), language)

    def restore(self, request: gr.Request, saved: dict[str, Any] | None) -> list[Any]:
        """The form as this browser left it, else the first preset's, then what is said about the preset."""
        saved = saved if isinstance(saved, dict) else {}
        name = (
            saved.get("preset")
            if saved.get("preset") in self.studio.presets
            else next(iter(self.studio.presets))
        )
        values = {"prompt": "", "negative_prompt": "", "seed": "", "threads": 0}
        values |= form.preset_values(self.studio.presets[name])
        values |= {key: saved[key] for key in form.FIELDS if saved.get(key) is not None}
        return self._filled(values | {"preset": name}, language_of(request.headers))

    def _submit(self, request: gr.Request, wish: Request) -> str:
        try:
            job = self.studio.submit(wish)
        except FirstlookError as error:
            sentence = in_language(language_of(request.headers), str(error))
            raise gr.Error(sentence, print_exception=False) from error
        log.info("submitted %s", job.id)
        return str(wish.seed)

    def _filled(self, values: dict[str, Any], language: str) -> list[Any]:
        preset = self.studio.presets.get(values["preset"])
        if preset is None:
            shown = {**values, "preset": gr.skip()}
            return [*(shown[field] for field in form.FIELDS), gr.skip(), gr.skip()]
        choices = [(_title(each, language), name) for name, each in self.studio.presets.items()]
        shown = self._offered(values, preset) | {"preset": gr.update(choices=choices, value=preset.name)}
        about = self._about(preset, language)
        return [*(shown[field] for field in form.FIELDS), about, about]

    def _offered(self, values: dict[str, Any], preset: Preset) -> dict[str, Any]:
        """The values, with guidance and its negative prompt hidden where the model has none."""
        shown = dict(values)
        for field in ("guidance", "negative_prompt"):
            value = {} if isinstance(values[field], dict) else {"value": values[field]}
            shown[field] = gr.update(visible=preset.guidance_offered, **value)
        return shown

    def _about(self, preset: Preset, language: str) -> dict[str, Any]:
        """What is said about a preset, and what is wrong with preset files that could not be read."""
        chinese = language == "zh"
        return {
            "description": preset.description_zh if chinese else preset.description,
            "examples": list(preset.examples_zh if chinese else preset.examples),
            "problems": [
                in_language(language, problem) for problem in getattr(self.studio.presets, "problems", ())
            ],
        }


def _title(preset: Preset, language: str) -> str:
    return preset.title_zh if language == "zh" else preset.title
