"""Alarms of the rig: raised and cleared by its status, the same for every page, sent to a webhook
if there is one.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from queue import Full, Queue
from typing import Any, Literal
from urllib.error import HTTPError, URLError

from sci_stream.clock import unix_ns
from sci_stream.delivery.frame_faults import fault_lines
from sci_stream.errors import InputError
from sci_stream.model import JsonObject
from sci_stream.modulation.patterns import sparser_masks_hint
from sci_stream.nodes.sink.series_recording import RecorderState
from sci_stream.nodes.sink.status import SinkStatus
from sci_stream.transport.proxies import opener_for

log = logging.getLogger(__name__)

Level = Literal["bad", "warn"]
MAX_ALARMS = 50
_NO_FIGURES = str.maketrans("", "", "+-.0123456789")
# A count that grows again after a minute of quiet is another alarm.
QUIET_NS = 60_000_000_000
# Chosen, not measured: highlights clip without harm, a twentieth of the picture does not. It clears
# at half of it.
SATURATED_FRACTION = 0.05
DARK_FRACTION = 0.02
_WEBHOOK_TIMEOUT_S = 5.0
# A server that restarts is back after some seconds; a minute would hold up the next alarms.
_PAUSES_S = (2.0, 10.0, 0.0)
_MAX_PAUSE_S = 60.0
# Statuses below 500 that pass by themselves: request timeout, too early, too many requests.
_PASSING = (408, 425, 429)
_JSON = {"Content-Type": "application/json"}
_MAX_WAITING = 100


@dataclass
class Alarm:
    """A problem of the rig, with the Unix times at which it appeared, cleared and grew."""

    number: int
    key: str
    level: Level
    text: str
    began_ns: int
    cleared_ns: int | None = None
    acknowledged_by: str = ""
    count: int | None = None
    grew_ns: int = 0


@dataclass(frozen=True)
class _Problem:
    """A present problem; ``count`` grows while it lasts, if it is one of a number of snapshots or
    messages.
    """

    key: str
    level: Level
    text: str
    count: int | None = None


class Alarms:
    """The alarms of a run, newest first; ``webhook``, if not empty, is sent each as JSON when it
    begins and clears.
    """

    def __init__(self, rig: str, webhook: str = "") -> None:
        self._alarms: list[Alarm] = []
        self._numbers = 0
        self._webhook = _Webhook(rig, webhook) if webhook else None

    def update(self, status: SinkStatus, now_ns: int) -> None:
        """Raise and clear alarms. Never blocks."""
        present = {problem.key: problem for problem in _problems(status, self.active())}
        for alarm in self._alarms:
            if alarm.cleared_ns is None and alarm.key not in present:
                alarm.cleared_ns = now_ns
                self._publish(alarm)
        active = {alarm.key: alarm for alarm in self._alarms if alarm.cleared_ns is None}
        for key, problem in present.items():
            if key in active:
                _grow(active[key], problem, now_ns)
                continue
            self._numbers += 1
            alarm = Alarm(
                self._numbers,
                key,
                problem.level,
                problem.text,
                now_ns,
                count=problem.count,
                grew_ns=now_ns,
            )
            self._alarms.insert(0, alarm)
            if key in {"saturated", "dark"}:  # others are in the log of the node that found them
                log.warning("%s", problem.text)
            self._publish(alarm)
        del self._alarms[MAX_ALARMS:]

    def active(self) -> set[str]:
        """Return the keys of the alarms that have not cleared."""
        return {alarm.key for alarm in self._alarms if alarm.cleared_ns is None}

    def acknowledge(self, number: object, who: str) -> None:
        """Acknowledge an alarm for every page.

        Raises `InputError` if there is none of this number.
        """
        alarm = next((alarm for alarm in self._alarms if alarm.number == number), None)
        if alarm is None:
            raise InputError(
                f"There is no alarm {number}", hint="It may have left the list of the last alarms."
            )
        alarm.acknowledged_by = who

    def to_json(self) -> list[JsonObject]:
        """Return the alarms as JSON, newest first."""
        return [asdict(alarm) for alarm in self._alarms]

    def close(self) -> None:
        """Send what waits for the webhook; takes seconds at most. May be called again."""
        if self._webhook is not None:
            self._webhook.close()

    def _publish(self, alarm: Alarm) -> None:
        if self._webhook is not None:
            self._webhook.send(alarm)


def _grow(alarm: Alarm, problem: _Problem, now_ns: int) -> None:
    alarm.text = problem.text
    if problem.count == alarm.count:
        return
    if alarm.acknowledged_by and now_ns - alarm.grew_ns > QUIET_NS:
        alarm.acknowledged_by = ""
        alarm.began_ns = now_ns
    alarm.count = problem.count
    alarm.grew_ns = now_ns


def _problems(status: SinkStatus, active: set[str]) -> Iterator[_Problem]:
    running = status.state != "ended"
    series = status.series
    if running:
        for node in status.nodes:
            if node["state"] != "up":
                yield _Problem(f"node {node['name']}", "bad", f"{node['name']} does not answer")
    refused = sum(status.wire_errors.values())
    if refused:
        reasons = ", ".join(reason.replace("_", " ") for reason in status.wire_errors)
        yield _Problem("refused", "warn", f"{refused} messages refused: {reasons}", refused)
    if series is None:
        return
    recording = series.recording
    if recording.state in {RecorderState.FAILED, RecorderState.STOPPED}:
        reason = f": {recording.reason}" if recording.reason else ""
        yield _Problem("recording", "bad", f"recording {recording.state}{reason}")
    elif recording.warning:
        yield _Problem("disk", "warn", recording.warning)
    ledger = series.ledger
    dropped = sum(ledger["dropped"].values())
    if dropped:
        text = f"{dropped:,} of {ledger['acquired']:,} snapshots dropped"
        yield _Problem(f"dropped {series.series}", "warn", text, dropped)
    if ledger["camera_missed"]:
        text = f"the camera missed {ledger['camera_missed']:,} frames"
        yield _Problem(f"missed {series.series}", "warn", text, ledger["camera_missed"])
    for name, text in fault_lines(series.frame_faults):
        yield _Problem(f"{name} {series.series}", "warn", text, series.frame_faults[name])
    if not running:
        return
    for text in series.calibration_alerts:
        yield _Problem(f"calibration {text.translate(_NO_FIGURES)}", "warn", text)
    saturated = None if series.report is None else series.report.saturated_fraction
    yield from _light(saturated, series.brightness, active, series.open_share)


def _light(
    saturated: float | None, brightness: float | None, active: set[str], open_share: float
) -> Iterator[_Problem]:
    """Yield faults of the exposure; an alarm clears at half of its threshold, so that it does not
    flicker.
    """
    limit = SATURATED_FRACTION / (2 if "saturated" in active else 1)
    if saturated is not None and saturated > limit:
        text = f"{saturated:.0%} of the pixels are saturated: shorten the exposure or dim the light"
        yield _Problem("saturated", "warn", sparser_masks_hint(saturated, open_share) or text)
    limit = DARK_FRACTION * (2 if "dark" in active else 1)
    if brightness is not None and brightness < limit:
        text = (
            f"the snapshots reach {brightness:.1%} of full scale in the mean: is there light, "
            "and the lens open?"
        )
        yield _Problem("dark", "warn", text)


class _Webhook:
    """Send alarms to an address, one after the other, in a thread; those that cannot be sent are
    logged.

    The address is a secret: with it, anyone can send false alarms. No message contains it.
    """

    def __init__(self, rig: str, address: str) -> None:
        self._rig = rig
        self._address = address
        self._waiting = Queue[JsonObject | None](_MAX_WAITING)
        self._closing = threading.Event()
        opener, proxy = opener_for(address, _NoRedirects, _LimitedHttp, _LimitedHttps)
        self._open = opener.open
        self._way = f"webhook through the proxy {proxy}" if proxy else "webhook"
        self._thread = threading.Thread(target=self._run, name="alarm-webhook", daemon=True)
        self._thread.start()

    def send(self, alarm: Alarm) -> None:
        try:
            self._waiting.put_nowait(
                {"rig": self._rig, "cleared": alarm.cleared_ns is not None, **asdict(alarm)}
            )
        except Full:
            log.error("the webhook for alarms does not keep up: %s is not sent", alarm.text)

    def close(self) -> None:
        self._closing.set()
        with suppress(Full):
            self._waiting.put_nowait(None)
        self._thread.join(_WEBHOOK_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("the webhook does not answer: the last alarms are not sent")

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            problem = self._deliver(json.dumps(body).encode())
            if problem:
                log.error(
                    "the alarm %r cannot be sent to the %s (%s)", body["text"], self._way, problem
                )

    def _deliver(self, body: bytes) -> str:
        """Send an alarm in three tries; return why it was not taken, "" if it was."""
        problem = ""
        for usual_s in _PAUSES_S:
            pause_s = usual_s
            try:
                request = urllib.request.Request(self._address, body, _JSON)
                with self._open(request, timeout=_WEBHOOK_TIMEOUT_S):
                    return ""
            except HTTPError as error:
                with error:
                    problem = f"it answered with status {error.code}"
                    if error.code < 500 and error.code not in _PASSING:
                        return problem
                    pause_s = retry_after_s(error.headers.get("Retry-After", "")) or usual_s
            except (OSError, HTTPException) as error:
                problem = _kind_of(error)
            except ValueError as error:
                return type(error).__name__
            self._closing.wait(pause_s)  # the last one holds up the next alarm
        return problem


def retry_after_s(header: str) -> float:
    """Return the pause that a server asks for, at most a minute; 0 if it names none."""
    try:
        if header.isdigit():
            seconds = float(header)
        else:
            seconds = parsedate_to_datetime(header).timestamp() - unix_ns() / 1e9
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _MAX_PAUSE_S)


def _kind_of(error: Exception) -> str:
    """Describe an error without its text, which may contain the address."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.strerror:
        return cause.strerror
    return type(cause).__name__


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its alarm, or at another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _LimitedConnection(HTTPConnection):
    """A connection that ends after a time, however slowly the bytes of an answer arrive."""

    def connect(self) -> None:
        super().connect()
        limit = threading.Timer(_WEBHOOK_TIMEOUT_S, _shut_down, (self.sock,))
        limit.daemon = True
        limit.start()


class _LimitedSecureConnection(_LimitedConnection, HTTPSConnection):
    """The same with TLS."""


class _LimitedHttp(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_LimitedConnection, req)


class _LimitedHttps(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_LimitedSecureConnection, req)


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)
