"""What a person sees: one local page over a `Studio`.

The page imports pipeline's public face and nothing below it. Gradio carries the form and its commands;
everything that moves (live frames, progress, history) goes over small routes of our own and hand-written
modules in `static/`.
"""

from ui.server import create_app

__all__ = ["create_app"]
