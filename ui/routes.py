"""What the page's modules fetch: state, live frames, frames, archives; by a job's id, never by a path.

Plain functions: Starlette runs them in its thread pool, and none of them waits for a job.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi import Request as WebRequest
from fastapi.responses import FileResponse, Response

from pipeline import FirstlookError, Job, Studio
from ui.advice import look_over
from ui.shelf import Shelf, whole
from ui.words import in_language, language_of

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
NO_STORE = {"cache-control": "no-store"}
KEEP = {"cache-control": "private, max-age=3600"}
MAX_LISTED = 1000


def build_routes(studio: Studio, cache: Path) -> APIRouter:
    """All of /api/. Archives are built in `cache`, once for each job."""
    router = APIRouter(prefix="/api")
    shelf = Shelf(studio)

    def find(job_id: str) -> Job:
        if not JOB_ID.fullmatch(job_id):
            raise HTTPException(404, "There is no such job.")
        try:
            return studio.job(job_id)
        except FirstlookError as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/state")
    def state(request: WebRequest, response: Response) -> dict[str, Any]:
        response.headers.update(NO_STORE)
        return shelf.state(language_of(request.headers))

    @router.post("/plan")
    def plan(filled: dict[str, Any], request: WebRequest) -> dict[str, Any]:
        return look_over(studio, filled, language_of(request.headers))

    @router.get("/jobs")
    def jobs(request: WebRequest, response: Response, limit: int = 60) -> dict[str, Any]:
        response.headers.update(NO_STORE)
        return shelf.listing(max(1, min(limit, MAX_LISTED)), language_of(request.headers))

    @router.get("/jobs/{job_id}")
    def job(job_id: str, request: WebRequest, response: Response) -> dict[str, Any]:
        response.headers.update(NO_STORE)
        return whole(find(job_id), language_of(request.headers))

    @router.get("/jobs/{job_id}/live/{index}")
    def live(job_id: str, index: int) -> Response:
        frame = find(job_id).live(index)
        if frame is None:
            raise HTTPException(404, "This frame is not there yet.")
        return Response(frame[1], media_type="image/jpeg", headers=KEEP)

    @router.get("/jobs/{job_id}/frame/{number}.png")
    def frame(job_id: str, number: int) -> FileResponse:
        job = find(job_id)
        try:
            return _file(job.frame_path(number), "image/png")
        except FirstlookError as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/jobs/{job_id}/thumbnail.png")
    def thumbnail(job_id: str) -> FileResponse:
        picture = shelf.thumbnail(job_id)
        if picture is None:
            raise HTTPException(404, "This job has no picture yet.")
        return _file(picture, "image/png")

    @router.get("/jobs/{job_id}/clip.mp4")
    def clip(job_id: str) -> FileResponse:
        return _file(find(job_id).folder / "clip.mp4", "video/mp4")

    @router.get("/jobs/{job_id}/frames.zip")
    def frames(job_id: str) -> FileResponse:
        return _file(_archive(find(job_id), cache), "application/zip")

    @router.post("/jobs/{job_id}/cancel", status_code=202)
    def cancel(job_id: str) -> dict[str, str]:
        find(job_id).cancel()
        return {"id": job_id}

    @router.post("/jobs/{job_id}/resume", status_code=202)
    def resume(job_id: str, request: WebRequest) -> dict[str, str]:
        find(job_id)
        try:
            return {"id": studio.resume(job_id).id}
        except FirstlookError as error:
            raise HTTPException(409, in_language(language_of(request.headers), str(error))) from error

    return router


def _file(path: Path, media_type: str) -> FileResponse:
    if not path.is_file():
        raise HTTPException(404, "This file is not there.")
    return FileResponse(path, media_type=media_type, headers=KEEP)


def _archive(job: Job, cache: Path) -> Path:
    """The job's PNG sequence as one zip file. PNG is already deflated, so it is stored as it is."""
    frames = sorted(job.frames_folder.glob("[0-9]*.png"))
    if not frames:
        raise HTTPException(404, "No frame is there yet.")
    archive = cache / f"{job.id}-{len(frames)}.zip"
    if not archive.is_file():
        part = archive.with_suffix(".part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as file:
            for frame in frames:
                file.write(frame, f"{job.id}/{frame.name}")
        part.replace(archive)
    return archive
