"""What the live page fetches: kept pictures, values of pixels, stills and clips, recordings."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from sci_stream.errors import EnvironmentFault, InputError, SciStreamError
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Reconstruction
from sci_stream.web.archive import PictureArchive
from sci_stream.web.clips import as_jpeg, write_clip
from sci_stream.web.history import KEPT_S
from sci_stream.web.inspection import Region, coded_jpeg, describe_region, frame_png, pixel_values
from sci_stream.web.message import JPEG
from sci_stream.web.recordings import list_recordings, recorded_files
from sci_stream.web.still import save_still

# Making a clip or a still takes a core: two at a time leave the instrument the others.
_AT_ONCE = 2


class PictureSource(Protocol):
    """What the page's pictures and files come from. Called from any thread."""

    @property
    def archive(self) -> PictureArchive:
        """The kept pictures."""
        ...

    @property
    def tone(self) -> ToneSettings:
        """Current tone settings."""
        ...

    @property
    def bit_depth(self) -> int | None:
        """Bit depth of the sensor, if known."""
        ...

    def find_shown(self, series: str, seq: int) -> Reconstruction:
        """Return a snapshot that was shown. Raises `InputError` if it is no longer in memory."""
        ...

    @property
    def recordings(self) -> Path:
        """Folder of the recordings."""
        ...

    @property
    def open_recording(self) -> str:
        """Name of the file that is being written, ``""`` if none."""
        ...


def routes(source: PictureSource) -> list[Route]:
    """Return the routes of everything that is fetched."""
    answers = _Answers(source)
    busy = asyncio.Semaphore(_AT_ONCE)

    def worded(work: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Do the work in a thread; answer errors in words."""

        async def answer(request: Request) -> Response:
            try:
                return await asyncio.to_thread(work, request)
            except SciStreamError as error:
                status = 503 if isinstance(error, EnvironmentFault) else 400
                return JSONResponse({"ok": False, "error": str(error)}, status_code=status)

        return answer

    def in_turn(work: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Do long work in turn; pixel values and the time line do not wait for it."""
        worded_work = worded(work)

        async def answer(request: Request) -> Response:
            async with busy:
                return await worded_work(request)

        return answer

    return [
        Route("/timeline", worded(answers.timeline)),
        Route("/picture/{number}", worded(answers.picture)),
        Route("/values", worded(answers.values)),
        Route("/frame.png", worded(answers.frame)),
        Route("/coded.jpg", worded(answers.coded)),
        Route("/download/still", in_turn(answers.still)),
        Route("/download/clip", in_turn(answers.clip)),
        Route("/recordings", in_turn(answers.recordings)),
        Route("/recordings/{name}", worded(answers.recording)),
    ]


class _Answers:
    """The answers to requests. Each may block, in a thread of its own."""

    def __init__(self, source: PictureSource) -> None:
        self._source = source

    def timeline(self, request: Request) -> Response:
        archive = self._source.archive
        oldest, entries = archive.timeline(_whole(request, "after", -1))
        return JSONResponse(
            {
                "oldest": oldest,
                "bytes": archive.n_bytes,
                "most_bytes": archive.most_bytes,
                "snapshots": [entry.as_list() for entry in entries],
            }
        )

    def picture(self, request: Request) -> Response:
        found = self._source.archive.get(_as_whole("number", request.path_params["number"]))
        if found is None:
            raise InputError("This picture is no longer kept", hint="Only the last minutes are, in bounded memory.")
        if found.codec != JPEG and request.query_params.get("codec") != "h264":
            found = as_jpeg(found)
        return Response(found.message, media_type="application/octet-stream")

    def values(self, request: Request) -> Response:
        shown, frame = self._shown(request), _whole(request, "frame", 0)
        region = _region(request)
        report = describe_region(shown, frame, region, self._source.bit_depth)
        if region is not None and "pixels" in request.query_params:
            report["pixels"] = pixel_values(shown, frame, region)
        return JSONResponse(report)

    def frame(self, request: Request) -> Response:
        png = frame_png(self._shown(request), _whole(request, "frame", 0), self._source.tone)
        return Response(png, media_type="image/png")

    def coded(self, request: Request) -> Response:
        jpeg = coded_jpeg(self._shown(request), self._source.tone)
        return Response(jpeg, media_type="image/jpeg")

    def still(self, request: Request) -> Response:
        shown = self._shown(request)

        def zipped(folder: Path) -> Path:
            saved = save_still(folder, shown, self._source.tone)
            return Path(shutil.make_archive(str(saved), "zip", folder, saved.name))

        return _temporary(zipped)

    def clip(self, request: Request) -> Response:
        seconds = _number(request, "seconds", 10.0)
        kind = request.query_params.get("format", "mp4")
        if not 0 < seconds <= KEPT_S or kind not in {"mp4", "gif"}:
            expected = f"seconds up to {KEPT_S:g}, format mp4 or gif"
            raise InputError("Invalid clip", expected=expected, got=f"{seconds:g}, {kind}")
        until = _whole(request, "until", -1)
        pictures = self._source.archive.last(seconds, None if until < 0 else until)
        return _temporary(lambda folder: write_clip(pictures, folder, kind))

    def recordings(self, _: Request) -> Response:
        found = list_recordings(self._source.recordings, self._source.open_recording)
        text = json.dumps({"recordings": [asdict(entry) for entry in found]}, default=str)
        return Response(text, media_type="application/json")

    def recording(self, request: Request) -> Response:
        name = request.path_params["name"]
        # From the list: a name that is not in it, such as "../secret", is no recording.
        known = {path.name: path for path in recorded_files(self._source.recordings)}
        if name not in known:
            raise InputError(f"There is no recording {name!r}", hint="The list shows what there is.")
        if name == self._source.open_recording:
            raise InputError(f"{name} is still being written", hint="Stop the recording first.")
        return FileResponse(known[name], filename=name)

    def _shown(self, request: Request) -> Reconstruction:
        series = request.query_params.get("series", "")
        return self._source.find_shown(series, _whole(request, "seq", -1))


def _temporary(write: Callable[[Path], Path]) -> FileResponse:
    """Write a file to a temporary folder and send it; the folder is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sci-stream-"))
    try:
        path = write(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(path, filename=path.name, background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True))


def _region(request: Request) -> Region | None:
    """Return the region asked for, None for the whole picture."""
    if "width" not in request.query_params:
        return None
    x, y, width, height = (_whole(request, name, 0) for name in ("x", "y", "width", "height"))
    if width < 1 or height < 1:
        raise InputError("The region is empty", got=f"{width}×{height}")
    return Region(x, y, width, height)


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    return default if text is None else _as_whole(name, text)


def _as_whole(name: str, text: str) -> int:
    try:
        number = int(text) if len(text) < 20 else None
    except ValueError:
        number = None
    if number is None:
        raise InputError(f"{name} must be a whole number", got=repr(text[:20]))
    return number


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name, str(default))
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be a number", got=repr(text[:20])) from None
