"""The command line: `python -m pipeline <command>`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 the request
cannot be granted, 130 interrupted. Heavy imports wait until a command needs them, so that --help is instant.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pipeline.errors import FirstlookError, RequestError
from pipeline.events import JobStatus
from pipeline.jobs import Job
from pipeline.limits import LIMITS
from pipeline.presets import DEFAULT_PRESET, Preset, Presets, find_preset, load_presets
from pipeline.request import Request
from pipeline.store import JobFolder
from pipeline.studio import Studio
from pipeline.terminal import watch

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
TOOLS = {
    "convert": "turn released weights into one GGUF file",
    "verify": "compare the engine with diffusers, block by block",
}
FORM = ("prompt", "negative_prompt", *LIMITS, "seed")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser(words).parse_args(words)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if options.verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return options.run(options)
    except RequestError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT
    except FirstlookError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED


def _parser(words: list[str]) -> Parser:
    summary = "Firstlook: from a prompt to a short video on a CPU."
    parser = Parser(prog="python -m pipeline", description=summary)
    parser.add_argument("--verbose", action="store_true", help="log what happens, every pointer included")
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=Parser)
    _add_render(commands.add_parser("render", help="make a video, or its preview"))
    _add_resume(commands.add_parser("resume", help="go on with a job that was stopped"))
    _add_simple(commands.add_parser("presets", help="list the presets"), _presets)
    _add_simple(commands.add_parser("doctor", help="say what this computer can do"), _doctor)
    chosen = next((word for word in words if not word.startswith("-")), "")
    for name, summary in TOOLS.items():
        tool = commands.add_parser(name, help=summary)
        if name == chosen:
            module = importlib.import_module(f"pipeline.{name}")
            module.add_arguments(tool)
            tool.set_defaults(run=module.run)
    return parser


def _add_render(parser: argparse.ArgumentParser) -> None:
    number = "by default the preset's"
    parser.add_argument("--prompt", help="what the video should show")
    parser.add_argument("--negative", dest="negative_prompt", help="what it should not show")
    parser.add_argument("--preset", help=f"named settings (default: {DEFAULT_PRESET})")
    parser.add_argument("--width", help=f"pixels, {number}")
    parser.add_argument("--height", help=f"pixels, {number}")
    parser.add_argument("--frames", help=f"length of the render, {number}")
    parser.add_argument("--steps", help=f"evaluations of the render, {number}")
    parser.add_argument("--guidance", help=f"how strictly the prompt is followed, {number}")
    parser.add_argument("--keep", help=f"how much of the preview's composition to keep, 0 to 0.95, {number}")
    parser.add_argument("--seed", help="0 to 2^64 - 1; drawn when absent")
    parser.add_argument("--threads", help="by default one for each physical core")
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument("--preview", action="store_true", help="make only the 4-frame composition preview")
    stage.add_argument("--from", dest="source", type=Path, metavar="DIR", help="render this earlier preview")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder to be the job's own")
    _add_common(parser)
    parser.set_defaults(run=_render)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=Path, metavar="DIR", help="the job's folder")
    _add_common(parser)
    parser.set_defaults(run=_resume)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of paths")
    _add_places(parser)


def _add_simple(parser: argparse.ArgumentParser, run: Any) -> None:
    _add_places(parser)
    parser.set_defaults(run=run)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--outputs", type=Path, metavar="DIR", help="where jobs go (default: ./outputs)")
    parser.add_argument("--presets", type=Path, metavar="DIR", help="a folder with preset files of your own")


def _render(options: argparse.Namespace) -> int:
    presets = load_presets(options.presets)
    request = _request(options, presets)
    with Studio(_outputs(options), presets) as studio:
        for note in studio.preflight(request).notes:
            sys.stderr.write(f"{note}\n")
        return _finish(studio.submit(request, options.out), options)


def _resume(options: argparse.Namespace) -> int:
    presets = load_presets(options.presets)
    given = options.job.expanduser()
    with Studio(_outputs(options), presets) as studio:
        return _finish(studio.resume(given if given.is_dir() else str(given)), options)


def _request(options: argparse.Namespace, presets: Presets) -> Request:
    given = {name: value for name in FORM if (value := getattr(options, name)) is not None}
    if options.source is None:
        preset = find_preset(presets, options.preset or DEFAULT_PRESET)
        return Request.from_form(given | {"stage": "preview" if options.preview else "render"}, preset)
    folder = options.source.expanduser().absolute()
    try:
        earlier = JobFolder(folder).read().request
    except FirstlookError as error:
        raise RequestError("source", str(error)) from error
    preset = find_preset(presets, options.preset or earlier.preset)
    form = earlier.to_json() | given | {"preset": preset.name, "stage": "render", "source": None}
    # Only the command line may name a folder anywhere on the disk; a form names a job.
    return replace(Request.from_form(form, preset), source=str(folder))


def _finish(job: Job, options: argparse.Namespace) -> int:
    """Show progress until the job is over, then its paths; Ctrl-C cancels it cleanly."""
    try:
        status = watch(job, sys.stderr)
    except KeyboardInterrupt:
        job.cancel()
        job.wait()
        sys.stderr.write(f"\nCancelled. Go on with: python -m pipeline resume {job.folder}\n")
        return INTERRUPTED
    if status.state != "done":
        sys.stderr.write(f"{status.message}\n")
        return FAILED
    sys.stdout.write(_result(job, status, options.json))
    return DONE


def _result(job: Job, status: JobStatus, as_json: bool) -> str:
    paths = [str(job.frame_path(index)) for index in range(1, status.frames_written + 1)]
    clip = str(job.clip_path) if status.clip else None
    if not as_json:
        return "".join(f"{path}\n" for path in [*paths, *([clip] if clip else [])])
    seconds = JobFolder(job.folder).read().timings.get("phases", {})
    result = {"frames": paths, "clip": clip, "seed": status.seed, "seconds": seconds, "job": str(job.folder)}
    return json.dumps(result, ensure_ascii=False) + "\n"


def _presets(options: argparse.Namespace) -> int:
    presets = load_presets(options.presets)
    for preset in presets.values():
        sys.stdout.write(f"{preset.name:12}  {preset.title}: {_shape(preset)}\n")
        sys.stdout.write(f"{'':12}  {preset.description}\n")
    for problem in presets.problems:
        sys.stderr.write(f"{problem}\n")
    return FAILED if presets.problems else DONE


def _shape(preset: Preset) -> str:
    stage = preset.render
    return f"{stage.width}×{stage.height}, {stage.frames} frames, {stage.steps} steps, {preset.fps} fps"


def _doctor(options: argparse.Namespace) -> int:
    from pipeline.doctor import report

    lines, works = report(load_presets(options.presets), _outputs(options))
    sys.stdout.write("\n".join(lines) + "\n")
    return DONE if works else FAILED


def _outputs(options: argparse.Namespace) -> Path:
    chosen = options.outputs or Path(os.environ.get("FIRSTLOOK_OUTPUTS") or "outputs")
    return chosen.expanduser().absolute()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
