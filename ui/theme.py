"""Gradio's theme, mapped onto the tokens of `static/tokens.css`: colours and spaces are named in one place.

The bundled IBM Plex has whole alphabets in 400 and 700 only; other weights fall back to another face.
"""

from __future__ import annotations

import gradio as gr
from gradio.themes.utils.fonts import LocalFont

CJK = ("Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei")

# One value for both: the tokens themselves change with the theme.
TOKENS = {
    "body_background_fill": "var(--paper)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--ink-2)",
    "background_fill_primary": "var(--surface)",
    "background_fill_secondary": "var(--paper)",
    "border_color_primary": "var(--line)",
    "border_color_accent": "var(--accent)",
    "color_accent": "var(--accent)",
    "color_accent_soft": "var(--accent-soft)",
    "block_background_fill": "transparent",
    "block_border_color": "transparent",
    "block_label_background_fill": "transparent",
    "block_label_text_color": "var(--ink)",
    "block_title_text_color": "var(--ink)",
    "block_title_background_fill": "transparent",
    "block_info_text_color": "var(--ink-2)",
    "panel_background_fill": "transparent",
    "panel_border_color": "transparent",
    "input_background_fill": "var(--field)",
    "input_background_fill_focus": "var(--field)",
    "input_border_color": "var(--line-2)",
    "input_border_color_focus": "var(--accent)",
    "input_placeholder_color": "var(--ink-3)",
    "button_primary_background_fill": "var(--accent)",
    "button_primary_background_fill_hover": "var(--accent-hover)",
    "button_primary_text_color": "var(--on-accent)",
    "button_primary_text_color_hover": "var(--on-accent)",
    "button_primary_border_color": "transparent",
    "button_secondary_background_fill": "var(--field)",
    "button_secondary_background_fill_hover": "var(--hover)",
    "button_secondary_text_color": "var(--ink)",
    "button_secondary_text_color_hover": "var(--ink)",
    "button_secondary_border_color": "var(--line-2)",
    "button_secondary_border_color_hover": "var(--line-2)",
    "slider_color": "var(--accent)",
    "link_text_color": "var(--accent)",
    "error_background_fill": "var(--surface)",
    "error_border_color": "var(--danger)",
    "error_text_color": "var(--danger)",
    "error_icon_color": "var(--danger)",
}

MEASURES = {
    "block_border_width": "0px",
    "block_padding": "0",
    "block_radius": "0",
    "block_shadow": "none",
    "block_label_text_size": "13px",
    "block_title_text_size": "13px",
    "block_title_text_weight": "700",
    "block_info_text_size": "13px",
    "input_border_width": "1px",
    "input_padding": "8px 12px",
    "input_radius": "8px",
    "input_shadow": "none",
    "input_shadow_focus": "0 0 0 3px var(--ring)",
    "input_text_size": "15px",
    "button_large_radius": "8px",
    "button_small_radius": "8px",
    "button_large_text_size": "15px",
    "button_large_text_weight": "700",
    "button_small_text_size": "13px",
    "button_border_width": "1px",
    "button_transition": "background-color 120ms ease, border-color 120ms ease",
    "button_primary_shadow": "none",
    "button_primary_shadow_hover": "none",
    "button_primary_shadow_active": "none",
    "button_secondary_shadow": "none",
    "button_secondary_shadow_hover": "none",
    "button_secondary_shadow_active": "none",
    "layout_gap": "16px",
    "form_gap_width": "0px",
    "panel_border_width": "0px",
}


def theme() -> gr.themes.Base:
    """The theme of the page; light and dark differ only in the tokens' values."""
    base = gr.themes.Base(
        font=[LocalFont("IBM Plex Sans", weights=(400, 700)), *CJK, "ui-sans-serif", "sans-serif"],
        font_mono=[LocalFont("IBM Plex Mono", weights=(400, 700)), *CJK, "ui-monospace", "monospace"],
        text_size=gr.themes.sizes.text_md,
        radius_size=gr.themes.sizes.radius_md,
    )
    dark = {f"{name}_dark": value for name, value in TOKENS.items() if hasattr(base, f"{name}_dark")}
    return base.set(**TOKENS, **dark, **MEASURES)
