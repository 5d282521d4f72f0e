"""The viewers of the live page, with the latest image,
the status and the kept pictures for them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from sci_stream.model import JsonObject
from sci_stream.web.archive import CODED_EVERY_NS, TAIL, History, PictureArchive
from sci_stream.web.message import H264, JPEG, Picture

HEARTBEAT_S = 1.0
"""The status is sent at least this often, so that the page can distinguish a quiet rig from a lost
connection."""

# Images a viewer may have unacknowledged: one in transit while another is being shown.
_WINDOW = 2


class Viewer:
    """A browser or stream reader: sent and acknowledged images, and its wake-up event.

    ``codec`` is jpeg or h264.
    """

    def __init__(self, codec: str) -> None:
        self.codec = codec
        self.wake = asyncio.Event()
        self.wake.set()
        self.sent = -1
        self.status: JsonObject | None = None
        """The status as it was sent last."""
        self._coded_ns = 0
        self._unacknowledged = deque[int]()

    @property
    def ready(self) -> bool:
        """Whether another image may be sent."""
        return len(self._unacknowledged) < _WINDOW

    def take(self, picture: Picture) -> bytes:
        """Return the message to send of an image, and record that it was sent.

        With H.264 the coded snapshot comes twice a second: it would take more than the whole video.
        """
        self.sent = picture.number
        self._unacknowledged.append(picture.number)
        if self.codec == H264 and 0 <= picture.published_ns - self._coded_ns < CODED_EVERY_NS:
            return picture.without_coded.message
        self._coded_ns = picture.published_ns
        return picture.message

    def acknowledge(self, number: int) -> None:
        """Record that all images up to ``number`` have been shown."""
        while self._unacknowledged and self._unacknowledged[0] <= number:
            self._unacknowledged.popleft()
        self.wake.set()


class Hub:
    """The latest image and status, and the viewers.

    `latest` and `status` are replaced by other threads, which then call `wake_all` on the loop;
    everything else runs on the loop. There is one slot for the latest image, not a queue: a slow
    viewer costs no memory. ``archive`` has the kept pictures; ``on_join`` is called with each new
    viewer; ``counters`` returns further entries of the preview's status.
    """

    def __init__(
        self,
        *,
        archive: PictureArchive,
        max_viewers: int,
        stale_s: float,
        offers_h264: bool,
        on_join: Callable[[Viewer], None],
        counters: Callable[[], JsonObject],
    ) -> None:
        self.latest: dict[str, Picture] = {}
        """The latest image by codec, in those that viewers have asked for."""
        self._latest_s = 0.0
        self.interval_s = HEARTBEAT_S
        self.status: JsonObject = {}
        self.history = History()
        self.archive = archive
        self.viewers = set[Viewer]()
        self.stale_s = stale_s
        self.closing = False
        self.max_viewers = max_viewers
        self.offers_h264 = offers_h264
        self._on_join = on_join
        self._counters = counters

    def show(self, pictures: dict[str, Picture]) -> None:
        """Replace the latest image, by codec; called from one thread at a time.

        Without viewers it is not kept.
        """
        if not self.viewers:
            return
        now_s = time.monotonic()
        before, after = (next(iter(shown.values()), None) for shown in (self.latest, pictures))
        # The same reconstruction in another tone is no new snapshot: it must not enter the estimate
        # of the pace.
        if before is None or after is None or before.published_ns != after.published_ns:
            if before is not None:
                self.interval_s += 0.3 * (min(now_s - self._latest_s, 10.0) - self.interval_s)
            self._latest_s = now_s
        self.latest = pictures

    def picture_for(self, viewer: Viewer) -> Picture | None:
        """Return the latest image in the viewer's codec, or as JPEG, which every viewer decodes."""
        latest = self.latest
        return latest.get(viewer.codec) or latest.get(JPEG)

    def wants(self, codec: str) -> bool:
        """Whether a viewer is to be sent a codec."""
        # Another thread's call: viewers come and go.
        return any(viewer.codec == codec for viewer in tuple(self.viewers))

    def wake_all(self) -> None:
        """Wake every viewer."""
        for viewer in self.viewers:
            viewer.wake.set()

    def join(self, codec: str = JPEG) -> Viewer | None:
        """Add a viewer; None if there are too many."""
        if self.closing or len(self.viewers) >= self.max_viewers:
            return None
        viewer = Viewer(H264 if codec == H264 and self.offers_h264 else JPEG)
        self.viewers.add(viewer)
        self._on_join(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer.

        Nothing is encoded without viewers, so the last one also clears the image.
        """
        self.viewers.discard(viewer)
        if not self.viewers:
            self.latest = {}

    def report(self) -> JsonObject:
        """Return the status with the preview's own counters, as JSON types."""
        preview = {
            "viewers": len(self.viewers),
            "max_viewers": self.max_viewers,
            "stale_s": self.stale_s,
            **self._counters(),
            "history": self.history.samples(TAIL),
        }
        # Through text: the status may contain paths and enumerations.
        status: JsonObject = json.loads(
            json.dumps({**self.status, "preview": preview}, default=str)
        )
        return status

    @property
    def open_recording(self) -> str:
        """Name of the file that is being written, ``""`` if none."""
        recording = self.status.get("recording")
        if not isinstance(recording, dict) or recording.get("state") not in {
            "recording",
            "closing",
        }:
            return ""
        return Path(str(recording.get("file", ""))).name
