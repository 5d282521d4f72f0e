"""Downloads of the live page: kept pictures, pixel values, stills, clips, recordings."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, PositiveInt
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from sci_stream.config.error_messages import validate_options
from sci_stream.errors import InputError
from sci_stream.model import Reconstruction
from sci_stream.web.clips import as_jpeg, write_clip
from sci_stream.web.display import Display
from sci_stream.web.history import KEPT_S
from sci_stream.web.hub import Hub
from sci_stream.web.inspection import Region, coded_jpeg, describe_region, frame_png, pixel_values
from sci_stream.web.message import H264, JPEG
from sci_stream.web.recordings import list_recordings, recorded_files
from sci_stream.web.still import save_still

# Making a clip or a still takes a core: two at a time leave the instrument the others.
_AT_ONCE = 2

Q = TypeVar("Q", bound=BaseModel)


class _TimelineQuery(BaseModel):
    after: int = -1


class _PictureQuery(BaseModel):
    number: int
    codec: str = JPEG


class _FrameQuery(BaseModel):
    series: str = ""
    seq: int = -1
    frame: int = 0


class _ValuesQuery(_FrameQuery):
    """A region, or the whole picture without its size; ``pixels`` asks for the values themselves."""

    x: int = 0
    y: int = 0
    width: PositiveInt | None = None
    height: PositiveInt | None = None
    pixels: bool = False


class _ClipQuery(BaseModel):
    seconds: Annotated[float, Field(gt=0, le=KEPT_S)] = 10.0
    format: Literal["mp4", "gif"] = "mp4"
    until: int = -1


def _query(model: type[Q], request: Request) -> Q:
    """Return the parameters of a request, of its path and its query."""
    return validate_options(model, {**request.query_params, **request.path_params}, request.url.path)


def routes(hub: Hub, display: Display, recordings: Path) -> list[Route]:
    """Return the routes of the downloads."""
    answers = _Answers(hub, display, recordings)
    slots = asyncio.Semaphore(_AT_ONCE)

    def threaded(work: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await asyncio.to_thread(work, request)

        return answer

    def limited(work: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Limit how many of the long answers are made at once; the others do not wait for them."""

        async def answer(request: Request) -> Response:
            async with slots:
                return await asyncio.to_thread(work, request)

        return answer

    return [
        Route("/timeline", threaded(answers.timeline)),
        Route("/picture/{number}", threaded(answers.picture)),
        Route("/values", threaded(answers.values)),
        Route("/frame.png", threaded(answers.frame)),
        Route("/coded.jpg", threaded(answers.coded)),
        Route("/download/still", limited(answers.still)),
        Route("/download/clip", limited(answers.clip)),
        Route("/recordings", limited(answers.recordings)),
        Route("/recordings/{name}", threaded(answers.recording)),
    ]


class _Answers:
    """The answers to requests. Each may block, in a thread of its own."""

    def __init__(self, hub: Hub, display: Display, recordings: Path) -> None:
        self._hub = hub
        self._display = display
        self._recordings = recordings

    def timeline(self, request: Request) -> Response:
        archive = self._hub.archive
        oldest, entries = archive.timeline(_query(_TimelineQuery, request).after)
        listing = {"oldest": oldest, "bytes": archive.n_bytes, "most_bytes": archive.most_bytes, "snapshots": entries}
        return JSONResponse(listing)

    def picture(self, request: Request) -> Response:
        wanted = _query(_PictureQuery, request)
        found = self._hub.archive.get(wanted.number)
        if found is None:
            raise InputError(
                "This picture is no longer kept", hint="Pictures of the last minutes are kept, in bounded memory."
            )
        if found.codec != JPEG and wanted.codec != H264:
            found = as_jpeg(found)
        return Response(found.message, media_type="application/octet-stream")

    def values(self, request: Request) -> Response:
        wanted = _query(_ValuesQuery, request)
        shown = self._display.find_shown(wanted.series, wanted.seq)
        region = None
        if wanted.width is not None and wanted.height is not None:
            region = Region(wanted.x, wanted.y, wanted.width, wanted.height)
        description = describe_region(shown, wanted.frame, region, self._display.bit_depth)
        if region is not None and wanted.pixels:
            description["pixels"] = pixel_values(shown, wanted.frame, region)
        return JSONResponse(description)

    def frame(self, request: Request) -> Response:
        shown, frame = self._shown(request)
        return Response(frame_png(shown, frame, self._display.tone), media_type="image/png")

    def coded(self, request: Request) -> Response:
        shown, _ = self._shown(request)
        return Response(coded_jpeg(shown, self._display.tone), media_type="image/jpeg")

    def still(self, request: Request) -> Response:
        shown, _ = self._shown(request)

        def zipped(folder: Path) -> Path:
            saved = save_still(folder, shown, self._display.tone)
            return Path(shutil.make_archive(str(saved), "zip", folder, saved.name))

        return _temporary(zipped)

    def clip(self, request: Request) -> Response:
        wanted = _query(_ClipQuery, request)
        pictures = self._hub.archive.last(wanted.seconds, None if wanted.until < 0 else wanted.until)
        return _temporary(lambda folder: write_clip(pictures, folder, wanted.format))

    def recordings(self, _: Request) -> Response:
        found = list_recordings(self._recordings, self._hub.open_recording)
        text = json.dumps({"recordings": [asdict(entry) for entry in found]}, default=str)
        return Response(text, media_type="application/json")

    def recording(self, request: Request) -> Response:
        name = request.path_params["name"]
        # From the list: a name that is not in it, such as "../secret", is no recording.
        known = {path.name: path for path in recorded_files(self._recordings)}
        if name not in known:
            raise InputError(f"There is no recording {name!r}", hint="The list shows what there is.")
        if name == self._hub.open_recording:
            raise InputError(f"{name} is still being written", hint="Stop the recording first.")
        return FileResponse(known[name], filename=name)

    def _shown(self, request: Request) -> tuple[Reconstruction, int]:
        """Return the snapshot asked for, and the number of its frame."""
        wanted = _query(_FrameQuery, request)
        return self._display.find_shown(wanted.series, wanted.seq), wanted.frame


def _temporary(write: Callable[[Path], Path]) -> FileResponse:
    """Write a file to a temporary folder and send it; the folder is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sci-stream-"))
    try:
        path = write(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(path, filename=path.name, background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True))
