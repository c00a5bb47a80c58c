"""Every sentence of the page in English and Chinese, and the rule that chooses between them.

The sentences are in `strings/<language>.json`, flat, with the same keys in each. `{name}` in a sentence is
filled in by whoever shows it, here or in the browser. What the pipeline says comes in English; for other
languages `strings/pipeline.<language>.json` pairs its sentences, blanks included, with their translations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

import gradio as gr

LANGUAGES = ("en", "zh")
LANGUAGE_COOKIE = "firstlook-language"
BLANK = re.compile(r"\{(\w+)\}")
STRINGS = Path(__file__).parent / "strings"


@cache
def sentences(language: str) -> dict[str, str]:
    """All sentences of one language, by key."""
    return json.loads((STRINGS / f"{language}.json").read_text(encoding="utf-8"))


def say(language: str, key: str, **values: object) -> str:
    """The sentence `key`, with its blanks filled in."""
    return sentences(language)[key].format(**values)


def translations() -> gr.I18n:
    """The same sentences for Gradio's own labels, which the browser translates."""
    return gr.I18n(**{language: sentences(language) for language in LANGUAGES})


def in_language(language: str, sentence: str) -> str:
    """A sentence of the pipeline in `language`; one that nobody has translated yet stays as it is."""
    if language == LANGUAGES[0]:
        return sentence
    for pattern, names, translation in _pipeline_sentences(language):
        found = pattern.fullmatch(sentence)
        if found:
            parts = (in_language(language, part) for part in found.groups())
            return translation.format(**dict(zip(names, parts, strict=True)))
    return sentence


@cache
def _pipeline_sentences(language: str) -> list[tuple[re.Pattern[str], list[str], str]]:
    """The pipeline's sentences as patterns, with the names of their blanks, and their translations."""
    text = (STRINGS / f"pipeline.{language}.json").read_text(encoding="utf-8")
    return [(*_pattern(sentence), translation) for sentence, translation in json.loads(text).items()]


def _pattern(sentence: str) -> tuple[re.Pattern[str], list[str]]:
    parts = BLANK.split(sentence)
    names = parts[1::2]
    fixed = [re.escape(part) for part in parts[::2]]
    return re.compile("(.+?)".join(fixed), re.DOTALL), names


def language_of(headers: Mapping[str, str]) -> str:
    """The one chosen on the page, else the browser's first that we speak, else English."""
    chosen = _cookie(headers.get("cookie", ""))
    if chosen in LANGUAGES:
        return chosen
    for entry in headers.get("accept-language", "").split(","):
        language = entry.split(";")[0].strip().lower().split("-")[0]
        if language in LANGUAGES:
            return language
    return LANGUAGES[0]


def _cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(LANGUAGE_COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None
