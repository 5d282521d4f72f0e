"""Write video as a film, GIF, web page, OME-TIFF, OME-Zarr, NumPy or HDF5 array,
or PNG pictures.
"""

from __future__ import annotations

import base64
import enum
import html
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.errors import InputError, StorageError, require_optional
from sci_stream.imaging.demosaic import demosaic_values
from sci_stream.imaging.rendering import encode_jpeg, encode_png, render, render_counts
from sci_stream.imaging.tone import FalseColour, ToneSettings
from sci_stream.model import U8, Array, BayerPhase, JsonObject
from sci_stream.recording.hdf5 import open_file
from sci_stream.recording.segments import require_space


class VideoFormat(enum.StrEnum):
    """Format of a video; TIFF, Zarr, NumPy and HDF5 store its values, the others 8-bit pictures.

    ``png`` is a folder of pictures, ``sheet`` a picture of a snapshot and its frames, ``html`` a
    page that plays them.
    """

    MP4 = "mp4"
    MKV = "mkv"
    FFV1 = "ffv1"
    GIF = "gif"
    TIFF = "tiff"
    ZARR = "zarr"
    NPY = "npy"
    NPZ = "npz"
    HDF5 = "hdf5"
    HTML = "html"
    PNG = "png"
    SHEET = "sheet"


_BY_SUFFIX = {f".{form}": form for form in VideoFormat if form not in ("ffv1", "png", "sheet")}
_BY_SUFFIX |= {".tif": VideoFormat.TIFF, ".h5": VideoFormat.HDF5, ".png": VideoFormat.SHEET}


def format_of(path: Path, name: str = "") -> VideoFormat:
    """Return the format of this name, or that of the file's suffix.

    Raises `InputError` if the name is unknown, or there is none and the suffix is unknown.
    """
    if name and name not in set(VideoFormat):
        raise InputError(f"--as {name} is not known", expected="one of " + ", ".join(VideoFormat))
    chosen = VideoFormat(name) if name else _BY_SUFFIX.get(path.suffix.lower())
    if chosen is None:
        raise InputError(
            f"Cannot determine the format of {path}",
            expected=f"a name ending in {', '.join(_BY_SUFFIX)}, or --as with one of "
            f"{', '.join(VideoFormat)}",
            got=path.suffix or "no suffix",
        )
    return chosen


@dataclass(frozen=True, kw_only=True)
class VideoStack:
    """Video to write.

    ``snapshots`` yields the frames of each: (B, H, W), 0–1, or, if ``coded``, the snapshot as (1,
    H, W), DN; ``shape`` is (B, H, W), or, in colour, (B, H, W, 3). ``bayer`` is None
    for mono and for pictures, ``interval_s`` of the frames of a snapshot and ``pixel_um``, µm, None
    if unknown. ``content`` names the values, ``notes`` are further metadata. ``times_s`` are those
    of the frames after ``started``, an ISO 8601 time; both are empty where unknown. Pages and
    sheets show ``first``, the first coded snapshot, (H, W) DN, if it is known, and pages the
    ``defects`` of the data. HDF5 has the ``report``, made at the end.
    """

    snapshots: Iterable[Array]
    seqs: Sequence[int]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    name: str
    bayer: BayerPhase | None = None
    coded: bool = False
    interval_s: float | None = None
    content: str = "reconstructed video (0-1)"
    notes: dict[str, str] = field(default_factory=dict)
    times_s: Sequence[float] = ()
    started: str = ""
    pixel_um: float | None = None
    first: Array | None = None
    defects: Sequence[Defect] = ()
    report: Callable[[], str] | None = None

    @property
    def count(self) -> int:
        """Number of frames."""
        return len(self.seqs) * self.shape[0]

    @property
    def colour(self) -> bool:
        """Whether the frames are RGB."""
        return len(self.shape) == 4

    @property
    def frames(self) -> Iterator[Array]:
        """The frames, one by one."""
        return (frame for snapshot in self.snapshots for frame in snapshot)

    @property
    def labels(self) -> Iterator[str]:
        """Name of each frame: seq, and the number in its snapshot."""
        return (
            f"{seq:08d}" if self.coded else f"{seq:08d}_{b:03d}"
            for seq in self.seqs
            for b in range(self.shape[0])
        )

    def as_pictures(self, tone: ToneSettings) -> VideoStack:
        """Return the same as 8-bit pictures, (B, H, W) or (B, H, W, 3)."""
        becomes_colour = not (self.coded or self.colour) and (
            self.bayer is not None or tone.false_colour is not FalseColour.NONE
        )
        pictures = (
            render_counts(frames[0], tone.gamma)[np.newaxis]
            if self.coded
            else render(frames, self.bayer, tone)
            for frames in self.snapshots
        )
        shape = (*self.shape, 3) if becomes_colour else self.shape
        return replace(
            self,
            snapshots=pictures,
            shape=shape,
            dtype=np.dtype(np.uint8),
            content="8-bit pictures",
        )

    def in_colour(self) -> VideoStack:
        """Return the same with the mosaics of a colour sensor as RGB, (B, H, W, 3)."""
        if self.coded or self.bayer is None:
            return self
        bayer = self.bayer
        colours = (
            demosaic_values(video, bayer).astype(self.dtype, copy=False) for video in self.snapshots
        )
        return replace(self, snapshots=colours, shape=(*self.shape, 3))


FOLDERS = {VideoFormat.ZARR: r"zarr\.json|0", VideoFormat.PNG: r"\d{8,}(_\d{3,})?\.png"}
"""Patterns of the names in the formats that are folders."""


def write_video(
    path: Path,
    video: VideoStack,
    form: VideoFormat,
    *,
    tone: ToneSettings,
    fps: float,
    pictures: bool = False,
) -> None:
    """Write a video to a file or, for Zarr and PNG, a folder, whose suffix has no meaning.

    ``tone`` is that of pictures, ``fps`` of films and GIFs, Hz; ``pictures`` writes 8-bit pictures
    where the format could store the values.

    Raises `ConfigError` if a library for the format is not installed; `StorageError` or OSError if
    writing fails.
    """
    video = video.as_pictures(tone) if pictures or form not in _OF_VALUES else video.in_colour()
    if video.colour and video.bayer:
        video = replace(video, notes=video.notes | {"bayer": f"{video.bayer}, demosaiced"})
    if form in _FILMS:
        write_film(path, video.frames, fps, form)
    elif form in _OF_VALUES:
        _OF_VALUES[form](path, video)
    elif form is VideoFormat.PNG:
        _write_png(path, video)
    elif form is VideoFormat.HTML:
        path.write_text(as_page(video, fps, tone.gamma), encoding="utf-8")
    else:
        path.write_bytes(encode_png(_sheet(video, tone.gamma)))


@dataclass(frozen=True)
class _Film:
    """A film format of FFmpeg: container, encoder with its options, pixel formats of grey and of
    colour.
    """

    container: str
    encoder: str
    options: dict[str, str]
    grey: str
    colour: str


# Constant rate factor of H.264, 0–51: lower is better and larger. 18 is visually lossless.
_X264 = {"crf": "18", "preset": "veryfast"}
_FILMS = {
    VideoFormat.MP4: _Film("mp4", "libx264", _X264, "yuv420p", "yuv420p"),
    VideoFormat.MKV: _Film("matroska", "libx264", _X264, "yuv420p", "yuv420p"),
    VideoFormat.FFV1: _Film(
        "matroska", "ffv1", {"level": "3", "slicecrc": "1", "g": "1"}, "gray", "bgr0"
    ),
    VideoFormat.GIF: _Film("gif", "gif", {}, "gray", "rgb8"),
}
# Denominator of the television rates, such as 30000/1001; players reject arbitrary fractions.
_MAX_FPS_DENOMINATOR = 1001


def write_film(path: Path, pictures: Iterable[U8], fps: float, form: VideoFormat) -> None:
    """Write pictures, (H, W) grey or (H, W, 3) RGB and all of one size, as H.264, lossless FFV1 or
    GIF of 256 colours.

    H.264 repeats an odd last row or column.

    Raises `ConfigError` if PyAV is not installed; `StorageError` if the film cannot be written.
    """
    av = require_optional("av", "video", f"Writing {form}")
    film = _FILMS[form]
    rate = Fraction(fps).limit_denominator(_MAX_FPS_DENOMINATOR)
    stream: Any = None
    try:
        # An index in front: a film plays before it is loaded. Other containers ignore the option.
        flags = {"movflags": "+faststart"} if film.container == "mp4" else {}
        with av.open(str(path), "w", format=film.container, options=flags) as container:
            for index, picture in enumerate(pictures):
                grey = picture.ndim == 2
                pixels = film.grey if grey else film.colour
                unit = 2 if pixels == "yuv420p" else 1
                edges = [(0, picture.shape[0] % unit), (0, picture.shape[1] % unit), (0, 0)][
                    : picture.ndim
                ]
                image = np.ascontiguousarray(np.pad(picture, edges, mode="edge"))
                if stream is None:
                    stream = container.add_stream(film.encoder, rate=rate, options=film.options)
                    stream.height, stream.width, stream.pix_fmt = *image.shape[:2], pixels
                    stream.codec_context.time_base = 1 / rate
                    stream.codec_context.thread_count = 0  # of its choice
                    if pixels == "yuv420p":
                        _tag_colours(stream.codec_context)
                frame = av.VideoFrame.from_ndarray(image, format="gray" if grey else "rgb24")
                if pixels == "yuv420p" and not grey:
                    frame = frame.reformat(format=pixels, dst_colorspace="ITU709")
                frame.pts = index
                frame.time_base = 1 / rate
                container.mux(stream.encode(frame))
            if stream is not None:
                container.mux(stream.encode(None))
    except (OSError, av.FFmpegError) as error:
        raise StorageError(f"The film {path} cannot be written", got=error) from error


def _tag_colours(context: Any) -> None:
    """Say how colours are stored, or players guess: BT.709, limited range, the curve of sRGB."""
    context.colorspace = 1
    context.color_primaries = 1
    context.color_trc = 13
    context.color_range = 1


def _write_tiff(path: Path, video: VideoStack) -> None:
    """Write a BigTIFF with OME metadata, axes TYX (or TYXS in colour)."""
    tifffile = require_optional("tifffile", "export", "Writing TIFF")
    metadata: JsonObject = {
        "axes": "TYXS" if video.colour else "TYX",
        "Name": video.name,
        "Description": "; ".join(f"{key} = {value}" for key, value in video.notes.items()),
    }
    if video.interval_s is not None:
        metadata |= {"TimeIncrement": video.interval_s, "TimeIncrementUnit": "s"}
    if video.pixel_um is not None:
        for axis in "XY":
            metadata |= {f"PhysicalSize{axis}": video.pixel_um, f"PhysicalSize{axis}Unit": "µm"}
    if video.started:
        metadata["AcquisitionDate"] = video.started
        metadata["Plane"] = {"DeltaT": list(video.times_s), "DeltaTUnit": ["s"] * video.count}
    # OME has no half precision; single precision represents every value of it.
    dtype = np.dtype(np.float32) if video.dtype == np.float16 else video.dtype
    with tifffile.TiffWriter(path, bigtiff=True, ome=True) as writer:
        writer.write(
            (frame.astype(dtype, copy=False) for frame in video.frames),
            shape=(video.count, *video.shape[1:]),
            dtype=dtype,
            photometric="rgb" if video.colour else "minisblack",
            metadata=metadata,
        )


def _write_zarr(path: Path, video: VideoStack) -> None:
    """Write a Zarr v3 group with OME metadata (version 0.5), one level, axes t, y, x (or t, c, y, x
    in colour).
    """
    zarr = require_optional("zarr", "export", "Writing Zarr")
    height, width = video.shape[1:3]
    shape = (video.count, 3, height, width) if video.colour else (video.count, height, width)
    unit = {} if video.pixel_um is None else {"unit": "micrometer"}
    space = [{"name": name, "type": "space"} | unit for name in "yx"]
    channel = [{"name": "c", "type": "channel"}] if video.colour else []
    time_axis = {"name": "t", "type": "time"} | (
        {} if video.interval_s is None else {"unit": "second"}
    )
    axes = [time_axis, *channel, *space]
    scale = [video.interval_s or 1.0, *[1.0] * len(channel), *[video.pixel_um or 1.0] * len(space)]
    datasets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": scale}]}]
    ome = {
        "version": "0.5",
        "multiscales": [{"name": video.name, "axes": axes, "datasets": datasets}],
    }
    # OME-Zarr has no place for these.
    times = (
        {"acquisition_date": video.started, "times_s": list(video.times_s)} if video.started else {}
    )
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.attrs.update({"ome": ome, "sci_stream": video.notes | times})
    names = [axis["name"] for axis in axes]
    array = group.create_array(
        "0", shape=shape, dtype=video.dtype, chunks=(1, *shape[1:]), dimension_names=names
    )
    for index, frame in enumerate(video.frames):
        array[index] = np.moveaxis(frame, -1, 0) if video.colour else frame


def _write_npy(path: Path, video: VideoStack) -> None:
    shape = (len(video.seqs), *video.shape)
    descr = np.lib.format.dtype_to_descr(video.dtype)
    with path.open(
        "wb"
    ) as file:  # not a memory map: on a full disk, writing to one ends the process
        np.lib.format.write_array_header_1_0(
            file, {"shape": shape, "fortran_order": False, "descr": descr}
        )
        for frames in video.snapshots:
            file.write(frames.astype(video.dtype, copy=False).tobytes())


def _write_npz(path: Path, video: VideoStack) -> None:
    with path.open("wb") as file:
        np.savez(file, video=np.stack(list(video.snapshots)), seq=np.asarray(video.seqs))


def _write_hdf5(path: Path, video: VideoStack) -> None:
    """Write a NeXus file: ``/entry/video/data``, also as ``/video``, with axes; notes are
    attributes of the entry.
    """
    shape = (len(video.seqs), *video.shape)
    require_space(path, math.prod(shape) * video.dtype.itemsize)
    with open_file(path, "w") as file:
        file.attrs["NX_class"] = "NXroot"
        file.attrs["default"] = "entry"
        entry = file.create_group("entry")
        entry.attrs.update(video.notes, NX_class="NXentry", default="video")
        group = entry.create_group("video")
        group.attrs.update(
            NX_class="NXdata", signal="data", axes=["seq", ".", "y", "x", "."][: len(shape)]
        )
        data = group.create_dataset("data", shape, video.dtype)
        data.attrs.update(
            long_name=video.content, interpretation="rgb-image" if video.colour else "image"
        )
        group["seq"] = np.asarray(video.seqs)
        for axis, size in zip("yx", shape[2:4], strict=True):
            group[axis] = np.arange(size) * (video.pixel_um or 1.0)
            group[axis].attrs["units"] = "um" if video.pixel_um else "pixel"
        if video.started:
            entry["start_time"] = video.started
            group["time"] = np.reshape(video.times_s, shape[:2])
            group["time"].attrs["units"] = "s"
        for index, frames in enumerate(video.snapshots):
            require_space(path, frames.nbytes)  # another program may fill the disk
            data[index] = frames
        file["video"] = data
        if video.report is not None:
            file["report"] = video.report()


def _write_png(path: Path, video: VideoStack) -> None:
    path.mkdir()
    for label, frame in zip(video.labels, video.frames, strict=True):
        (path / f"{label}.png").write_bytes(encode_png(frame))


_GAP_PX = 4


def _sheet(video: VideoStack, gamma: float) -> Array:
    """Return the coded snapshot and its frames side by side, in rows of about the shape of a
    screen.
    """
    if len(video.seqs) > 1:
        raise InputError(
            f"A picture shows one snapshot, and there are {len(video.seqs)}",
            hint="Write a film, OUT.mp4, or choose a snapshot: its result, or --first and --last.",
        )
    tiles = [*_coded(video, gamma), *video.frames]
    height, width = (side + _GAP_PX for side in video.shape[1:3])
    columns = min(len(tiles), max(1, math.ceil(math.sqrt(len(tiles) * 1.6 * height / width))))
    rows = -(-len(tiles) // columns)
    canvas = np.full(
        (rows * height - _GAP_PX, columns * width - _GAP_PX, *video.shape[3:]), 255, np.uint8
    )
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        canvas[row * height :, column * width :][: tile.shape[0], : tile.shape[1]] = tile
    return canvas


def _coded(video: VideoStack, gamma: float) -> list[U8]:
    """Return the picture of the first coded snapshot, in the colours of the video; none if it is
    not known.
    """
    if video.first is None:
        return []
    coded = render_counts(video.first, gamma)
    return [np.repeat(coded[..., np.newaxis], 3, axis=2) if video.colour else coded]


_PLAYER = Path(__file__).with_name("player.html")
_CODED = (
    '<figure><img class="large" alt="snapshot" src="data:image/jpeg;base64,{}">'
    "<figcaption>snapshot</figcaption></figure>"
)


def _jpeg_text(image: U8) -> str:
    return base64.b64encode(encode_jpeg(image, 90)).decode()


def as_page(video: VideoStack, fps: float, gamma: float) -> str:
    """Return a page of HTML that plays pictures, with the coded snapshot and the faults; it loads
    nothing.
    """
    frames = [_jpeg_text(image) for image in video.frames]
    coded = [_jpeg_text(image) for image in _coded(video, gamma)]
    return Template(_PLAYER.read_text(encoding="utf-8")).substitute(
        title=html.escape(video.name),
        faults="".join(f"<li>{html.escape(defect.text)}</li>" for defect in video.defects),
        coded="".join(_CODED.format(image) for image in coded),
        frames=json.dumps(frames),
        period=max(round(1e3 / fps), 20),
    )


_OF_VALUES: dict[VideoFormat, Callable[[Path, VideoStack], None]] = {
    VideoFormat.TIFF: _write_tiff,
    VideoFormat.ZARR: _write_zarr,
    VideoFormat.NPY: _write_npy,
    VideoFormat.NPZ: _write_npz,
    VideoFormat.HDF5: _write_hdf5,
}
"""Writers of the formats that store values."""
