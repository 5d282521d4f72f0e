"""Downloads of the live page: kept pictures, pixel values, stills, clips, recordings."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, Field, PositiveInt
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sci_stream.clock import unix_ns
from sci_stream.config.error_messages import validate_options
from sci_stream.errors import InputError
from sci_stream.imaging.rendering import encode_jpeg, encode_png, render
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Json, Reconstruction
from sci_stream.web import h264
from sci_stream.web.archive import KEPT_S
from sci_stream.web.display import Display
from sci_stream.web.hub import Hub
from sci_stream.web.inspection import (
    Line,
    Region,
    coded_jpeg,
    describe_region,
    error_png,
    frame_png,
    pixel_values,
    traces,
)
from sci_stream.web.message import H264, JPEG, Picture, description, jpeg_picture, render_snapshot
from sci_stream.web.replays import MAX_ITERATIONS, Replays
from sci_stream.web.slots import Slots

# A page asks again for more.
_MAX_TRACED = 32

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


class _RegionQuery(BaseModel):
    """A region, or the whole picture without its size."""

    x: int = 0
    y: int = 0
    width: PositiveInt | None = None
    height: PositiveInt | None = None

    @property
    def region(self) -> Region | None:
        if self.width is None or self.height is None:
            return None
        return Region(self.x, self.y, self.width, self.height)


class _ValuesQuery(_FrameQuery, _RegionQuery):
    """``pixels`` asks for the values themselves."""

    pixels: bool = False


class _TracesQuery(_RegionQuery):
    """Snapshots of a series after a number, and a line from (x0, y0) to (x1, y1),
    if there is one.
    """

    series: str = ""
    after: int = -1
    x0: int | None = None
    y0: int = 0
    x1: int = 0
    y1: int = 0


class _RefinedQuery(_FrameQuery):
    """A snapshot to solve again; a ``denoiser`` of a module (``module:Class``) is none that a page
    may choose.
    """

    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 40
    denoiser: Annotated[str, Field(max_length=64, pattern=r"^[\w-]*$")] = ""


class _RecordedQuery(BaseModel):
    index: int


class _ClipQuery(BaseModel):
    seconds: Annotated[float, Field(gt=0, le=KEPT_S)] = 10.0
    until: int = -1


def _query(model: type[Q], request: Request) -> Q:
    """Return the parameters of a request, of its path and its query."""
    return validate_options(
        model, {**request.query_params, **request.path_params}, request.url.path
    )


# Answers of each kind at once.
_AT_ONCE = 2


def routes(hub: Hub, display: Display, replays: Replays) -> list[Route]:
    """Return the routes of the downloads."""
    answers = _Answers(hub, display, replays)
    # Making a clip or a still takes a core: two at a time leave the instrument the others.
    # The other answers do not wait for the long ones.
    long_ones = Slots(_AT_ONCE)
    short_ones = Slots(_AT_ONCE)

    def threaded(
        work: Callable[[Request], Response], slots: Slots = short_ones
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await slots.run(partial(work, request))

        return answer

    return [
        Route("/refined", threaded(answers.refined, long_ones)),
        Route("/timeline", threaded(answers.timeline)),
        Route("/picture/{number}", threaded(answers.picture)),
        Route("/values", threaded(answers.values)),
        Route("/traces", threaded(answers.traces)),
        Route("/frame.png", threaded(answers.frame)),
        Route("/error.png", threaded(answers.error, long_ones)),
        Route("/coded.jpg", threaded(answers.coded)),
        Route("/download/still", threaded(answers.still, long_ones)),
        Route("/download/clip", threaded(answers.clip, long_ones)),
        Route("/recordings", threaded(answers.recordings)),
        Route("/recordings/{name}", threaded(answers.recording)),
        Route("/recordings/{name}/thumbnail", threaded(answers.thumbnail, long_ones)),
        Route("/recordings/{name}/{index}", threaded(answers.recorded)),
    ]


class _Answers:
    """The answers to requests. Each may block, in a thread of its own."""

    def __init__(self, hub: Hub, display: Display, replays: Replays) -> None:
        self._hub = hub
        self._display = display
        self._replays = replays
        self._recordings = replays.recordings

    def timeline(self, request: Request) -> Response:
        archive = self._hub.archive
        oldest, entries = archive.timeline(_query(_TimelineQuery, request).after)
        listing = {
            "oldest": oldest,
            "bytes": archive.n_bytes,
            "max_bytes": archive.max_bytes,
            "snapshots": entries,
        }
        return JSONResponse(listing)

    def picture(self, request: Request) -> Response:
        wanted = _query(_PictureQuery, request)
        picture = self._hub.archive.get(wanted.number)
        if picture is None:
            raise InputError(
                "This picture is no longer kept",
                hint="Pictures of the last minutes are kept, in bounded memory.",
            )
        if picture.codec != JPEG and wanted.codec != H264:
            picture = as_jpeg(picture)
        return Response(picture.message, media_type="application/octet-stream")

    def values(self, request: Request) -> Response:
        wanted = _query(_ValuesQuery, request)
        shown = self._display.find_shown(wanted.series, wanted.seq)
        description = describe_region(shown, wanted.frame, wanted.region, self._display.bit_depth)
        if wanted.region is not None and wanted.pixels:
            description["pixels"] = pixel_values(shown, wanted.frame, wanted.region)
        return JSONResponse(description)

    def traces(self, request: Request) -> Response:
        wanted = _query(_TracesQuery, request)
        line = None if wanted.x0 is None else Line(wanted.x0, wanted.y0, wanted.x1, wanted.y1)
        shown = self._display.shown_after(wanted.series, wanted.after, _MAX_TRACED)
        return Response(traces(shown, line, wanted.region), media_type="application/octet-stream")

    def frame(self, request: Request) -> Response:
        shown, frame = self._shown(request)
        return Response(frame_png(shown, frame, self._display.tone), media_type="image/png")

    def coded(self, request: Request) -> Response:
        shown, _ = self._shown(request)
        return Response(coded_jpeg(shown, self._display.tone), media_type="image/jpeg")

    def still(self, request: Request) -> Response:
        shown, _ = self._shown(request)
        still = zip_still(shown, self._display.tone)
        return _download(still, f"{shown.id.series}_{shown.id.seq:06d}.zip", "application/zip")

    def clip(self, request: Request) -> Response:
        wanted = _query(_ClipQuery, request)
        pictures = self._hub.archive.last(
            wanted.seconds, None if wanted.until < 0 else wanted.until
        )
        clip = make_clip(pictures)
        first = pictures[0].header
        last = pictures[-1].header
        return _download(
            clip, f"{first['series']}_{first['seq']:06d}-{last['seq']:06d}.mp4", "video/mp4"
        )

    def refined(self, request: Request) -> Response:
        wanted = _query(_RefinedQuery, request)
        shown = self._display.find_shown(wanted.series, wanted.seq)
        refined = self._replays.refine(shown, wanted.iterations, wanted.denoiser)
        return self._message(refined, method=wanted.denoiser)

    def recordings(self, _: Request) -> Response:
        listing = {
            "recordings": [asdict(entry) for entry in self._recordings.entries()],
            "replay": self._replays.state(),
        }
        return Response(json.dumps(listing, default=str), media_type="application/json")

    def recording(self, request: Request) -> Response:
        return OpenedFile(self._recordings.path_of(request.path_params["name"]))

    def thumbnail(self, request: Request) -> Response:
        picture = self._recordings.thumbnail(request.path_params["name"])
        return Response(picture, media_type="image/jpeg")

    def error(self, request: Request) -> Response:
        shown, frame = self._shown(request)
        return Response(
            error_png(shown, frame, self._replays.calibration_of(shown)), media_type="image/png"
        )

    def recorded(self, request: Request) -> Response:
        index = _query(_RecordedQuery, request).index
        shown, total = self._recordings.snapshot(request.path_params["name"], index)
        return self._message(shown, recorded={"index": index, "total": total})

    def _message(self, shown: Reconstruction, **more: Json) -> Response:
        """Return a snapshot that is not live, as a picture is sent, and keep it for values and
        stills.
        """
        self._display.keep(shown, live=False)
        tone = self._display.tone
        bit_depth = self._display.bit_depth
        rendered = render_snapshot(shown, -1, unix_ns(), tone=tone, bit_depth=bit_depth, more=more)
        return Response(jpeg_picture(*rendered).message, media_type="application/octet-stream")

    def _shown(self, request: Request) -> tuple[Reconstruction, int]:
        """Return the snapshot asked for, and the number of its frame."""
        wanted = _query(_FrameQuery, request)
        return self._display.find_shown(wanted.series, wanted.seq), wanted.frame


class OpenedFile(FileResponse):
    """A file that is opened at once, and not through a link that has taken its name meanwhile.

    Raises `InputError` if it is a link or has gone.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = open(path, "rb", opener=_without_links)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{path.name} cannot be sent", got=error.strerror) from error
        super().__init__(f"/proc/self/fd/{self._file.fileno()}", filename=path.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, then close it."""
        with self._file:
            await super().__call__(scope, receive, send)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _download(content: bytes, name: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{quote(name)}"'}
    return Response(content, media_type=media_type, headers=headers)


def zip_still(reconstruction: Reconstruction, tone: ToneSettings) -> bytes:
    """Return a zip archive of a reconstruction.

    It contains ``frame_00.png`` … as on the screen, ``data.npz`` with ``video`` (B, H, W) and
    ``counts`` (H, W, DN) without tone, ``coded.png`` with the counts if they are integers, and the
    description ``snapshot.json``.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in _files(reconstruction, tone):
            file.writestr(name, content)
    return archive.getvalue()


def _files(reconstruction: Reconstruction, tone: ToneSettings) -> Iterator[tuple[str, bytes | str]]:
    for number, frame in enumerate(render(reconstruction.video, reconstruction.bayer, tone)):
        yield f"frame_{number:02d}.png", encode_png(frame)
    arrays = {"video": reconstruction.video}
    if reconstruction.counts is not None:
        arrays["counts"] = reconstruction.counts
        if reconstruction.counts.dtype in (np.uint8, np.uint16):
            yield "coded.png", encode_png(reconstruction.counts)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    yield "data.npz", data.getvalue()
    described = {
        **description(reconstruction),
        "camera_frame_id": reconstruction.camera_frame_id,
        "camera_time_ns": reconstruction.camera_time_ns,
        "calibration_hash": reconstruction.calibration_hash,
        "tone": tone.as_dict(),
    }
    yield "snapshot.json", json.dumps(described, indent=2) + "\n"


_QUALITY = 90


def as_jpeg(picture: Picture) -> Picture:
    """Convert an H.264 picture to JPEG, for browsers that cannot decode H.264."""
    width, height = picture.header["shown_px"]
    frames = h264.decode(picture.frames, height, width)
    jpegs = tuple(encode_jpeg(frame, _QUALITY) for frame in frames)
    return replace(picture, codec=JPEG, frames=jpegs)


def make_clip(pictures: list[Picture]) -> bytes:
    """Return kept pictures as MP4, at the pace of acquisition, without encoding them again.

    Raises `InputError` if there are none, or not all in H.264.
    """
    if not pictures:
        raise InputError(
            "There is no video of that time",
            hint="Wait for the first video, or choose a longer time.",
        )
    width, height = pictures[0].header["shown_px"]
    if any(
        picture.codec == JPEG or picture.header["shown_px"] != [width, height]
        for picture in pictures
    ):
        hint = "Install the extra 'video', or export a recording."
        raise InputError("These pictures are kept as JPEG", expected="H.264", hint=hint)
    snapshots = [
        (picture.header["acquired_ns"] // 1_000_000, picture.frames) for picture in pictures
    ]
    return h264.mp4(snapshots, height, width, snapshot_interval_ns(pictures) / 1e6)


def snapshot_interval_ns(pictures: list[Picture]) -> float:
    """Return the median interval between consecutive snapshots, ns; a second if there is no pair of
    them.
    """
    headers = [picture.header for picture in pictures]
    steps = [
        (after["acquired_ns"] - before["acquired_ns"]) / (after["seq"] - before["seq"])
        for before, after in pairwise(headers)
        if after["seq"] > before["seq"] and after["acquired_ns"] > before["acquired_ns"]
    ]
    return float(np.median(steps)) if steps else 1e9
