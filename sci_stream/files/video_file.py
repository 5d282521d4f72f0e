"""Write video as MP4 or Matroska, H.264 or FFV1, playable even if its writer is killed; short clips as GIF."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from sci_stream.errors import InputError, StorageError, require_optional

if TYPE_CHECKING:
    import av.container
    import av.video

_NVIDIA = Path("/dev/nvidiactl")
_CONTAINERS: dict[str, tuple[str, dict[str, str]]] = {
    # A plain MP4 is unreadable without the index at its end; fragments contain their own index.
    ".mp4": ("mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof", "flush_packets": "1"}),
    ".mkv": ("matroska", {"cluster_time_limit": "1000", "flush_packets": "1"}),
}
# Denominator of the television rates, such as 30000/1001; players reject arbitrary fractions.
_MAX_FPS_DENOMINATOR = 1001
# Constant rate factor of H.264, 0–51: lower is better and larger. 18 is visually lossless.
_QUALITY = "18"


def write_gif(path: Path, pictures: Iterable[npt.NDArray[np.uint8]], fps: float) -> None:
    """Write images, (H, W) grey or (H, W, 3) RGB in 256 fixed colours, as an animated GIF.

    Raises
    ------
    ConfigError
        If PyAV is not installed.
    StorageError
        If it cannot be written.
    """
    av = require_optional("av", "video", "Writing GIF")
    rate = Fraction(fps).limit_denominator(100)
    try:
        with av.open(str(path), "w", format="gif") as container:
            stream = None
            for picture in pictures:
                grey = picture.ndim == 2
                if stream is None:
                    stream = container.add_stream("gif", rate=rate)
                    stream.height, stream.width = picture.shape[:2]
                    stream.pix_fmt = "gray" if grey else "rgb8"
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="gray" if grey else "rgb24")
                container.mux(stream.encode(frame))
            if stream is not None:
                container.mux(stream.encode(None))
    except (OSError, av.FFmpegError) as error:
        raise StorageError(f"{path} cannot be written", got=error) from error


class MovieFile:
    """Write images as a video file; a context manager. Used from one thread.

    There is a key frame every second: if the writer is killed, at most the last second is lost.

    Parameters
    ----------
    path
        Output file; an existing file is replaced.
    fps
        Frames per second at which the video plays.
    lossless
        FFV1 instead of H.264: exact values, many times larger, Matroska only.
    threads
        Threads of the encoder; 0: chosen by the encoder.
    container
        ``".mp4"`` or ``".mkv"``, if the path has no such suffix.

    Raises
    ------
    ConfigError
        If PyAV is not installed.
    InputError
        If the suffix is neither ``.mp4`` nor ``.mkv``, or FFV1 is requested for MP4.
    """

    def __init__(
        self,
        path: Path,
        fps: float,
        *,
        lossless: bool = False,
        threads: int = 0,
        container: str = "",
    ) -> None:
        self._av = require_optional("av", "video", f"Writing {path.name}")
        self.path = path
        self.frames = 0
        self._fps = Fraction(fps).limit_denominator(_MAX_FPS_DENOMINATOR)
        self._lossless, self._threads = lossless, threads
        self._suffix = container or path.suffix.lower()
        if self._suffix not in _CONTAINERS:
            raise InputError(
                f"Unknown video format of {path}", expected="a name that ends in .mp4 or .mkv", got=self._suffix
            )
        if lossless and self._suffix != ".mkv":
            raise InputError(f"{path} cannot be lossless", expected="a name that ends in .mkv", got=self._suffix)
        self._container: av.container.OutputContainer | None = None
        self._stream: av.video.VideoStream | None = None

    def write(self, picture: npt.NDArray[np.uint8]) -> None:
        """Add an image, (H, W) grey or (H, W, 3) RGB; all of one size. An odd last row or column is repeated.

        Raises
        ------
        StorageError
            If the image cannot be encoded or written.
        """
        even = np.pad(
            picture, [(0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)][: picture.ndim], mode="edge"
        )
        try:
            if self._stream is None:
                self._open(even)
            frame = self._av.VideoFrame.from_ndarray(
                np.ascontiguousarray(even), format="gray" if even.ndim == 2 else "rgb24"
            )
            frame.pts = self.frames
            frame.time_base = 1 / self._fps
            self._mux(frame)
        except (OSError, self._av.FFmpegError) as error:
            raise StorageError(f"The video file {self.path} cannot be written", got=error) from error
        self.frames += 1

    def _open(self, picture: npt.NDArray[np.uint8]) -> None:
        kind, options = _CONTAINERS[self._suffix]
        encoders = ["ffv1"] if self._lossless else ["libx264"]
        if not self._lossless and _NVIDIA.exists():
            encoders.insert(0, "h264_nvenc")
        for encoder in encoders:
            container = self._av.open(str(self.path), "w", format=kind, options=options)
            try:
                self._stream = self._add_stream(container, encoder, picture)
                self._stream.codec_context.open()
            except (ValueError, OSError, self._av.FFmpegError):
                container.close()
                if encoder == encoders[-1]:
                    raise
                continue
            self._container = container
            return

    def _add_stream(self, container: Any, encoder: str, picture: npt.NDArray[np.uint8]) -> Any:
        second = str(max(1, round(self._fps)))
        options = {
            # Without B-frames and look-ahead every frame leaves the encoder at once, so that a kill loses less.
            "libx264": {"crf": _QUALITY, "preset": "veryfast", "tune": "zerolatency", "g": second},
            "h264_nvenc": {"cq": _QUALITY, "preset": "p4", "bf": "0", "g": second},
            "ffv1": {"level": "3", "slicecrc": "1", "g": "1"},
        }[encoder]
        stream = container.add_stream(encoder, rate=self._fps, options=options)
        stream.height, stream.width = picture.shape[:2]
        lossless_format = "gray" if picture.ndim == 2 else "bgr0"
        stream.pix_fmt = lossless_format if self._lossless else "yuv420p"
        stream.codec_context.time_base = 1 / self._fps
        stream.codec_context.thread_count = self._threads
        return stream

    def _mux(self, frame: Any) -> None:
        assert self._container is not None
        assert self._stream is not None
        for packet in self._stream.encode(frame):
            self._container.mux(packet)

    def close(self) -> None:
        """Finish the file. May be called again; without images no file is created.

        Raises
        ------
        StorageError
            If the end of the file cannot be written; it plays up to there.
        """
        container, self._container = self._container, None
        if container is None:
            return
        try:
            assert self._stream is not None
            for packet in self._stream.encode(None):
                container.mux(packet)
            container.close()
        except (OSError, self._av.FFmpegError) as error:
            raise StorageError(f"The video file {self.path} cannot be finished", got=error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
