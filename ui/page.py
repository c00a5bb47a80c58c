"""The layout of the page and which handler each control calls; nothing is decided here.

The rail on the left is Gradio's: the form and its buttons. The desk on the right is ours: the stage with live
frames and the result, and under it the inspector, the history and the export, each a `gr.HTML` that a module
of `static/` fills. A quoted event name in `js_on_load` is what makes it a Python listener.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from pipeline import Studio
from ui import form
from ui.actions import Actions
from ui.words import translations

STORE_KEY = "firstlook-form"
STORE_SECRET = "firstlook"
MOUNT = """
const events = {events!r};
(window.firstlookMounts ??= []).push({{ name: {name!r}, events, element, trigger, watch, props }});
window.dispatchEvent(new Event('firstlook-mount'));
"""
KEEP = """(...values) => {
    const form = Object.fromEntries({fields}.map((name, i) => [name, values[i]]));
    window.firstlookForm = form;
    window.dispatchEvent(new Event('firstlook-form'));
    return form;
}"""
DRAW_SEED = "() => String(crypto.getRandomValues(new Uint32Array(1))[0])"

i18n = translations()


def build_page(studio: Studio) -> gr.Blocks:
    """The whole page over `studio`."""
    actions = Actions(studio)
    with gr.Blocks(
        title="Firstlook", analytics_enabled=False, fill_width=True, delete_cache=(3600, 3600)
    ) as page:
        store = gr.BrowserState(None, storage_key=STORE_KEY, secret=STORE_SECRET)
        with gr.Row(elem_id="app"):
            with gr.Column(elem_id="rail", scale=0, min_width=320):
                view("brand")
                fields, about, dice = _form(studio)
                with gr.Column(elem_id="actions"):
                    view("estimate")
                    buttons = _buttons()
            with gr.Column(elem_id="desk", scale=1, min_width=320):
                view("stage")
                history = _tabs()
        _wire(page, actions, fields, about, store)
        _wire_buttons(actions, fields, buttons, dice)
        inputs = [fields[name] for name in form.FIELDS]
        history.settings(
            actions.settings_of,
            None,
            [*inputs, *about],
            show_progress="hidden",
            queue=False,
            api_visibility="private",
        )
    return page


def view(name: str, *events: str, value: Any = None) -> gr.HTML:
    """A place that `static/main.js` fills with the view `name`; `events` may be listened to in Python."""
    return gr.HTML(
        value,
        html_template=f'<div class="fl-view" data-view="{name}"></div>',
        js_on_load=MOUNT.format(name=name, events=list(events)),
        apply_default_css=False,
        elem_id=name,
    )


def _form(studio: Studio) -> tuple[dict[str, gr.components.Component], list[gr.HTML], gr.Button]:
    first = next(iter(studio.presets.values()))
    start = form.preset_values(first)
    fields: dict[str, gr.components.Component] = {}

    def add(name: str, kind: type, **settings: Any) -> None:
        settings.setdefault("label", i18n(name))
        fields[name] = kind(elem_id=name.replace("_", "-"), **settings)

    add("prompt", gr.Textbox, placeholder=i18n("prompt_placeholder"), lines=3, max_lines=8)
    examples = view("examples", value={})
    add(
        "preset",
        gr.Dropdown,
        choices=[(p.title, name) for name, p in studio.presets.items()],
        value=first.name,
        filterable=False,
    )
    described = view("described", value={})
    with gr.Row(elem_classes="fl-pair"):
        add("steps", gr.Number, value=start["steps"], precision=None, min_width=80)
        with gr.Row(elem_id="seed-row"):
            add("seed", gr.Textbox, placeholder=i18n("seed_placeholder"), max_lines=1, min_width=80)
            dice = gr.Button("", elem_id="dice", min_width=42, scale=0)
    with gr.Row(elem_classes="fl-triple"):
        for name in ("width", "height", "frames"):
            add(name, gr.Number, value=start[name], min_width=60)
    with gr.Accordion(i18n("more"), open=False, elem_id="more"):
        add(
            "keep",
            gr.Slider,
            value=start["keep"],
            minimum=0,
            maximum=0.95,
            step=0.05,
            info=i18n("keep_info"),
            buttons=[],
        )
        add(
            "guidance",
            gr.Slider,
            value=start["guidance"],
            minimum=0,
            maximum=20,
            step=0.1,
            buttons=[],
            visible=first.guidance_offered,
        )
        add(
            "negative_prompt",
            gr.Textbox,
            placeholder=i18n("negative_placeholder"),
            lines=2,
            visible=first.guidance_offered,
        )
        add("threads", gr.Number, value=0, info=i18n("threads_info"))
    return fields, [examples, described], dice


def _buttons() -> dict[str, gr.Button]:
    with gr.Row(elem_id="buttons"):
        return {
            name: gr.Button(i18n(name), elem_id=name, variant=variant, size="lg", min_width=80)
            for name, variant in (("preview", "primary"), ("render", "secondary"), ("cancel", "stop"))
        }


def _tabs() -> gr.HTML:
    with gr.Tabs(elem_id="tabs"):
        with gr.Tab(i18n("inspect"), id="inspect", elem_id="inspect-tab"):
            view("inspector")
        with gr.Tab(i18n("history"), id="history", elem_id="history-tab"):
            history = view("history", "settings")
        with gr.Tab(i18n("export"), id="export", elem_id="export-tab"):
            view("export")
    return history


def _wire(
    page: gr.Blocks, actions: Actions, fields: dict[str, Any], about: list[gr.HTML], store: gr.BrowserState
) -> None:
    """Restore the form on load, keep it in the browser, follow the preset."""
    inputs = [fields[name] for name in form.FIELDS]
    quiet = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
    keep = {"js": KEEP.replace("{fields}", str(list(form.FIELDS))), **quiet}
    page.load(actions.restore, store, [*inputs, *about], **quiet).then(None, inputs, store, **keep)
    gr.on([field.change for field in inputs], None, inputs, store, **keep)
    fields["preset"].input(
        actions.choose_preset,
        fields["preset"],
        [*(fields[name] for name in form.PRESET_FIELDS), fields["negative_prompt"], *about],
        **quiet,
    )


def _wire_buttons(
    actions: Actions, fields: dict[str, Any], buttons: dict[str, gr.Button], dice: gr.Button
) -> None:
    inputs = [fields[name] for name in form.FIELDS]
    for name in ("preview", "render"):
        buttons[name].click(
            getattr(actions, name),
            inputs,
            fields["seed"],
            validator=actions.check,
            concurrency_limit=None,
            show_progress="hidden",
            api_visibility="private",
        )
    dice.click(None, None, fields["seed"], js=DRAW_SEED, show_progress="hidden", api_visibility="private")
