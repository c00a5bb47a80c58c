"""The page's words: two languages with the same keys, and nothing of the pipeline left untranslated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline import LIMITS, FirstlookError, Request, load_presets
from pipeline.canvas import ModelGeometry, plan
from ui import words
from ui.shell import dress

UI = Path(words.__file__).parent
CHINESE = re.compile("[\u4e00-\u9fff]")
BLANK = re.compile(r"\{\w+\}")
MADE_OF_PARTS = re.compile(r"^(state|phase|remains|step|error|key)_|^(en|zh|preview|render|look|save)$")
GRID = ModelGeometry()


def test_both_languages_have_the_same_keys_and_blanks() -> None:
    english, chinese = words.sentences("en"), words.sentences("zh")
    assert english.keys() == chinese.keys()
    for key, sentence in english.items():
        assert sorted(BLANK.findall(sentence)) == sorted(BLANK.findall(chinese[key])), key


def test_every_sentence_is_used() -> None:
    code = "".join(path.read_text() for path in [*UI.glob("*.py"), *(UI / "static").glob("*.js")])
    unused = [
        k
        for k in words.sentences("en")
        if not MADE_OF_PARTS.search(k) and not re.search(rf"['\"]{k}['\"]", code)
    ]
    assert unused == []


def test_translations_of_the_pipeline_fill_the_same_blanks() -> None:
    for pattern, names, translation in words._pipeline_sentences("zh"):
        assert pattern is not None
        assert set(BLANK.findall(translation)) <= {f"{{{name}}}" for name in names}, translation


def refusals() -> list[str]:
    preset = next(iter(load_presets(Path("/nonexistent")).values()))
    bad = [{"prompt": " "}, {"prompt": "x" * 5000}, {"prompt": "\ud800"}, {"seed": str(2**64)}]
    bad += [{name: "9999999"} for name in LIMITS]
    said = []
    for values in bad:
        with pytest.raises(FirstlookError) as caught:
            Request.from_form({"prompt": "a dog"} | values, preset)
        said.append(str(caught.value))
    return said


def notes() -> list[str]:
    wishes = [(300, 180, 22), (320, 192, 20), (320, 192, 1), (300, 180, 20), (300, 180, 1)]
    return [plan(*wish, GRID).note for wish in wishes]


def test_what_the_pipeline_says_has_a_translation() -> None:
    for sentence in [*refusals(), *notes()]:
        assert CHINESE.search(words.in_language("zh", sentence)), sentence
        assert words.in_language("en", sentence) == sentence


def test_nested_parts_are_translated_too() -> None:
    said = words.in_language("zh", "The width is a whole number from 32 to 2048, not 5.")
    assert said == "宽度应为 32 到 2048 之间的整数，而不是 5。"


def test_an_unknown_sentence_stays() -> None:
    assert words.in_language("zh", "Nobody wrote this.") == "Nobody wrote this."


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("", "", "en"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "fr-FR,en;q=0.5,zh;q=0.2", "en"),
        ("firstlook-language=zh", "en-US", "zh"),
        ("firstlook-language=en", "zh-CN", "en"),
        ("firstlook-language=<script>", "zh-CN", "zh"),
        ("a=b; firstlook-language=zh; c=d", "", "zh"),
    ],
)
def test_which_language_is_answered(cookie: str, accepted: str, language: str) -> None:
    assert words.language_of({"cookie": cookie, "accept-language": accepted}) == language


def test_the_shell_sets_the_language_and_names_no_outside_host() -> None:
    tag = '<meta property="og:image" content="https://outside.example/a.jpg" />'
    page = f'<html\n\tlang="en"\n><head>{tag}</head>'
    dressed = dress(page, "zh")
    assert 'lang="zh"' in dressed
    assert "outside.example" not in dressed
    assert "/firstlook/boot.js" in dressed


def test_no_file_of_the_page_names_an_outside_host() -> None:
    allowed = ("http://www.w3.org/2000/svg",)
    for path in (UI / "static").iterdir():
        text = path.read_text(encoding="utf-8")
        for address in allowed:
            text = text.replace(address, "")
        assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text.replace("// ", "")), path.name
