"""The live page in a real browser with a running rig, as an operator uses it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from sci_stream.clock import unix_ns
from sci_stream.config import PreviewSection
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Reconstruction, SnapshotId
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.transport.client_connection import MISSED_HEARTBEATS
from sci_stream.web.message import jpeg_picture, render_snapshot
from sci_stream.web.preview import WebPreview
from tests.e2e.kit import PATIENCE_S, RunningRig, assert_accounted_for, wait_for
from tests.series_fixtures import Series
from tests.web.path_proxy import path_proxy

pytestmark = pytest.mark.rig(seconds=80)

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
if CHROMIUM is None:
    pytest.skip("no chromium in PATH (Debian: apt-get install chromium)", allow_module_level=True)

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
MAX_VIEWERS = 2
PAGE = {
    "preview": {"enabled": True, "max_viewers": MAX_VIEWERS},
    "record": {"enabled": False},
    "camera": {"options": {"snapshot_rate_hz": 5.0}},
    "policy": {"queue_snapshots": 8},  # on a busy machine the backlog must not take minutes
}
WAIT_MS = 1000 * PATIENCE_S
ENABLED = "!document.querySelector('#record').disabled"
RECORDS = "document.querySelector('#record').getAttribute('aria-pressed') === 'true'"
SHOWN_SEQ = "Number(document.querySelector('#seq').textContent.replace(/[#,]/g, ''))"
# A green word over a picture that is older than a second (the rig takes five snapshots a second).
WATCH_GREEN = """() => { window.greenOverOld = []; setInterval(() => {
    const age = document.querySelector('#age').textContent, state = document.querySelector('#state');
    const isOld = !/ ms$|^1.0 s$/.test(age);
    if (state.classList.contains('good') && isOld) window.greenOverOld.push(`${state.textContent}: ${age}`);
}, 50); }"""

SETTLED = "document.getAnimations().every(one => one.playState !== 'running')"
# The time of the newest notice, and the longest delay of a timer in this page.
WATCH_TOAST = """() => { new MutationObserver(() => { window.toastMs = Date.now(); })
    .observe(document.querySelector('#toast'), { childList: true });
    let before = performance.now(); window.lateMs = 0;
    setInterval(() => { const now = performance.now();
        window.lateMs = Math.max(window.lateMs, now - before - 50); before = now; }, 50); }"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRig]:
    """Yield a rig that shows video, does not record yet, and runs for all tests of this file."""
    with RunningRig(tmp_path_factory.mktemp("page"), PAGE) as rig:
        rig.wait_for_count("reconstructed", 1)
        yield rig


class Viewer:
    """A page with its console errors and its requests to other hosts."""

    def __init__(self, browser: Any, port: int, operator: str = "Eva", **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        self.context.add_init_script(
            f"if ('{operator}') localStorage.setItem('operator', '{operator}')"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on(
            "console",
            lambda m: self.complaints.append(m.text) if m.type in {"error", "warning"} else None,
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.address = f"127.0.0.1:{port}"

    def visit(self, url: str = "") -> None:
        """Open the live page."""
        self.page.goto(url or f"http://{self.address}/")

    def leave(self) -> None:
        """Close the page and delete its data in the browser."""
        if self.page.url != "about:blank":
            self.page.evaluate("localStorage.clear()")
            self.page.goto("about:blank")
        self.complaints.clear()
        self.hosts.clear()

    def text(self, name: str) -> str:
        return str(self.page.inner_text(f"#{name}"))

    def until(self, script: str, what: str = "") -> None:
        """Wait until an expression holds in the page; polled from here,
        since its CSP forbids eval.
        """
        wait_for(lambda: self.page.evaluate(script), what or script)

    def until_live(self) -> None:
        # On a busy machine it plays but is late or loses snapshots, and shows that.
        self.until(
            "/^live$|^[0-9].*behind$|^losing/.test(document.querySelector('#state').textContent)"
        )

    def passed(self, ms: int) -> int:
        """Let time pass on a page with a clock of its own; return the number of the snapshot."""
        self.page.clock.run_for(ms)
        return int(self.page.evaluate(SHOWN_SEQ))

    def picture(self, name: str) -> str:
        return str(self.page.evaluate(f"document.querySelector('#{name}').toDataURL()"))

    def brightness(self, name: str = "video") -> float:
        return float(
            self.page.evaluate(
                f"""() => {{ const c = document.querySelector('#{name}');
                const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
                let sum = 0; for (let i = 0; i < d.length; i += 4) sum += d[i] + d[i + 1] + d[i + 2];
                return sum / (d.length / 4 * 3); }}"""
            )
        )

    def start_recording(self) -> None:
        # A page without a status does not know yet whether it can.
        self.until(ENABLED)
        self.page.keyboard.press("r")
        self.until(RECORDS, "it records")

    def stop_recording(self) -> None:
        # The rig records before the page has its next status; until then, its button starts.
        self.until(RECORDS, "it records")
        self.page.click("#record")
        self.page.click("#confirm-yes")
        self.until("document.querySelector('#recording-state').textContent === 'off'")

    def close(self) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def viewers() -> dict[tuple[str, int], Viewer]:
    """Return the viewers so far: a new browser window takes three times as long as a page in one
    that is there.
    """
    return {}


@pytest.fixture
def open_viewer(
    browser: Any, rig: RunningRig, viewers: dict[tuple[str, int], Viewer]
) -> Iterator[Callable[..., Viewer]]:
    opened: list[Viewer] = []

    def open_one(url: str = "", operator: str = "Eva") -> Viewer:
        key = operator, len(opened)
        viewer = viewers[key] = viewers.get(key) or Viewer(browser, rig.rig.preview.port, operator)
        opened.append(viewer)
        viewer.visit(url)
        viewer.until_live()
        return viewer

    yield open_one
    for viewer in opened:
        viewer.leave()


def show(preview: WebPreview, viewer: Viewer, snapshot: Reconstruction) -> None:
    times = replace(snapshot.times, acquired_ns=unix_ns())
    preview.publish(replace(snapshot, times=times))
    viewer.until(f"{SHOWN_SEQ} === {snapshot.id.seq}")


@pytest.fixture
def filmed(browser: Any, series: Series, tmp_path: Path) -> Iterator[tuple[WebPreview, Viewer]]:
    """Yield a live page without a rig, which shows the last of three snapshots and has
    a recording.
    """
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in range(20):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 20, "closed": True})
    preview = WebPreview(
        PreviewSection(port=0, h264_mbit_per_s=0.0, stale_after_s=PATIENCE_S), tmp_path
    )
    viewer = Viewer(browser, urlsplit(preview.start()).port)
    preview.set_status({"series": "run-1", "state": "running"})
    viewer.visit()
    for seq in range(3):
        show(preview, viewer, series.reconstruction(seq))
    yield preview, viewer
    viewer.close()
    preview.close()


# The time of each frame that is drawn, ms.
WATCH_DRAWN = """window.drawn = []; const draw = CanvasRenderingContext2D.prototype.drawImage;
CanvasRenderingContext2D.prototype.drawImage = function (...what) {
    if (this.canvas.id === 'video') window.drawn.push(performance.now());
    return draw.apply(this, what); }"""
UP = [{"name": name, "kind": name, "state": "up"} for name in ("acquire", "reconstruct")]


@pytest.fixture
def timed(browser: Any, series: Series, tmp_path: Path) -> Iterator[tuple[WebPreview, Viewer]]:
    """Yield a live page without a rig whose clock the test advances, with its first snapshot."""
    preview = WebPreview(PreviewSection(port=0, h264_mbit_per_s=0.0, stale_after_s=3.0), tmp_path)
    viewer = Viewer(browser, urlsplit(preview.start()).port)
    viewer.page.clock.install(time=0)
    viewer.page.clock.pause_at(1000)
    viewer.page.add_init_script(WATCH_DRAWN)
    advance(preview, viewer, 0, 0)
    viewer.visit()
    show(preview, viewer, series.reconstruction(0))
    yield preview, viewer
    viewer.close()
    preview.close()


def advance(
    preview: WebPreview,
    viewer: Viewer,
    acquired: int,
    ms: int,
    *,
    nodes: Any = UP,
    acquired_per_s: float = 0.0,
) -> None:
    """Report a status of a running rig, and let time pass on the page."""
    ledger = {"acquired": acquired, "in_flight": 1}
    rates = {"acquired_per_s": acquired_per_s}
    status = {"series": "run-1", "state": "running", "nodes": nodes, "ledger": ledger}
    preview.set_status({**status, "rates": rates})
    if ms:
        acquired_is = (
            f"document.querySelector('#ledger td:last-child').textContent === '{acquired}'"
        )
        viewer.until(acquired_is)
        viewer.page.clock.run_for(ms)


def test_demo_plays_an_example_until_it_has_a_picture(
    browser: Any, series: Series, tmp_path: Path
) -> None:
    preview = WebPreview(PreviewSection(port=0, h264_mbit_per_s=0.0), tmp_path)
    viewer = Viewer(browser, urlsplit(preview.start()).port)
    preview.set_status({"series": "run-1", "state": "running", "rig": "demo", "nodes": UP})
    viewer.visit()
    viewer.until("document.querySelector('#overlay-title').textContent === 'EXAMPLE'")
    stage = "getComputedStyle(document.querySelector('#video-figure .stage'))"
    assert "example-film" in viewer.page.evaluate(f"{stage}.backgroundImage")
    show(preview, viewer, series.reconstruction(0))
    viewer.until("!document.body.classList.contains('example')")
    assert viewer.page.evaluate(f"{stage}.backgroundImage") == "none"
    assert viewer.complaints == []
    viewer.close()
    preview.close()


def test_frames_of_slow_snapshots_are_drawn_evenly(timed, series: Series) -> None:
    preview, viewer = timed
    begin_ns = unix_ns()
    for seq in range(1, 6):
        for _ in range(2):
            advance(preview, viewer, seq, 1000)
        snapshot = series.reconstruction(seq)
        times = replace(snapshot.times, acquired_ns=begin_ns + seq * 2_000_000_000)
        preview.publish(replace(snapshot, times=times))
        # It begins once the frames before it have had their time.
        wait_for(lambda seq=seq: viewer.passed(1) == seq, "it is shown")
    drawn = viewer.page.evaluate("window.drawn")
    gaps_ms = np.diff(drawn)[-2 * series.calibration.n_frames :]
    frame_ms = 2000 / series.calibration.n_frames
    assert np.all(np.abs(gaps_ms - frame_ms) < 0.3 * frame_ms), gaps_ms


def test_slow_picture_stays_until_the_camera_is_silent(timed) -> None:
    preview, viewer = timed
    for second in range(1, 9):
        advance(preview, viewer, second, 1000)
    viewer.until("document.querySelector('#overlay-title').textContent === 'SLOW'")
    assert not viewer.page.evaluate("document.querySelector('#video-figure.stale')")
    for _ in range(5):
        advance(preview, viewer, 8, 1000)
    viewer.until("document.querySelector('#overlay-title').textContent === 'NO DATA'")


def test_viewer_who_joins_a_slow_rig_waits_for_a_picture(timed) -> None:
    preview, viewer = timed
    for _ in range(8):
        advance(preview, viewer, 1, 1000, acquired_per_s=0.1)
    assert viewer.text("overlay-title") == ""
    for _ in range(30):
        advance(preview, viewer, 1, 1000, acquired_per_s=0.1)
    viewer.until("document.querySelector('#overlay-title').textContent === 'NO DATA'")


def test_old_picture_without_a_solver_is_no_data(timed) -> None:
    preview, viewer = timed
    for second in range(1, 6):
        advance(preview, viewer, second, 1000, nodes=UP[:1])
    viewer.until("document.querySelector('#overlay-title').textContent === 'NO DATA'")


def test_page_keeps_its_place_in_another_tone_or_refined(filmed, series: Series) -> None:
    preview, viewer = filmed
    page, polls = viewer.page, []
    page.on("request", lambda request: polls.append(request.url))
    page.keyboard.press("Space")
    for number in (2, 3, 4):
        polled = f"{page.url}timeline?after={number}"
        wait_for(
            lambda polled=polled: page.evaluate("1") and polled in polls,
            "the timeline has the newest number",
        )
        if number < 4:
            preview.display.set_tone({"exposure_ev": number - 1.0}, "Eva")
    for key, seq in ((",", 1), (".", 2)):
        page.keyboard.press(key)
        viewer.until(f"{SHOWN_SEQ} === {seq}")
    refined = series.reconstruction(2, id=SnapshotId("run-1 refined", 1, 2), node="replay")
    message = jpeg_picture(*render_snapshot(refined, -1, unix_ns(), tone=ToneSettings())).message
    page.route("**/refined?*", lambda route: route.fulfill(body=message))
    page.keyboard.press("e")
    viewer.until("document.querySelector('#overlay-title').textContent === 'REFINED'")
    page.keyboard.press("o")
    with page.expect_request("**/download/clip?*") as asked:
        page.click("#get-mp4")
    assert asked.value.url.endswith("until=4")
    page.keyboard.press("Escape")
    page.keyboard.press(",")
    viewer.until(f"{SHOWN_SEQ} === 1")


def test_drag_along_a_recording_shows_where_it_ends(filmed) -> None:
    _, viewer = filmed
    page, held = viewer.page, []
    page.keyboard.press("o")
    page.click("#recordings .thumbnail button")
    viewer.until("document.querySelector('#overlay-title').textContent === 'RECORDING'")
    page.keyboard.press("Space")
    page.keyboard.press("o")
    assert page.is_disabled("#get-mp4"), "the kept pictures are not of the recording"
    page.keyboard.press("Escape")
    page.wait_for_load_state("networkidle")
    page.route("**/recordings/run.h5/*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.525 * box["width"], box["y"] + 5, steps=10)
    page.mouse.up()
    for n in (1, 2):
        wait_for(lambda n=n: page.evaluate("1") and len(held) >= n, "a request")
        assert len(held) == n, "one at a time"
        held[-1].continue_()
    viewer.until(f"{SHOWN_SEQ} === 10")


def test_page_speaks_states_and_frees_pictures(filmed, series: Series) -> None:
    preview, viewer = filmed
    page = viewer.page
    show(
        preview,
        viewer,
        series.reconstruction(3, picture=np.zeros((*series.calibration.shape, 3), np.uint8)),
    )
    assert not page.evaluate("document.querySelector('#analyses').hidden"), (
        "an analysis that only draws"
    )
    page.keyboard.press("Space")
    viewer.until("/^paused/.test(document.querySelector('#spoken').textContent)")
    spoken, before = (page.text_content(f"#{name}") for name in ("spoken", "state"))
    viewer.until(
        f"document.querySelector('#state').textContent !== {json.dumps(before)}", "its age changes"
    )
    assert page.text_content("#spoken") == spoken
    assert page.get_attribute("#state", "role") is None
    page.evaluate(
        """() => { window.made = window.open = 0; const make = createImageBitmap;
        window.createImageBitmap = async (part) => { const image = await make(part), close = image.close.bind(image);
            made += 1; open += 1; image.close = () => { open -= 1; close(); }; return image; }; }"""
    )
    for seq in (4, 5, 6):
        preview.publish(series.reconstruction(seq))
        viewer.until(f"window.made === {4 * (seq - 3)}")
    viewer.until("window.open === 0", "a paused page closes the pictures that it does not show")


def status(rig: RunningRig) -> dict[str, Any]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{rig.rig.preview.port}/status", timeout=PATIENCE_S
    ) as answer:
        report: dict[str, Any] = json.loads(answer.read())
    return report


def test_page_behind_a_proxy_with_a_path_works(open_viewer, rig: RunningRig) -> None:
    with path_proxy(rig.rig.preview.port) as url:
        viewer = open_viewer(url=url)
        viewer.until(f"{SHOWN_SEQ} > 0", "snapshots arrive through the proxy")
        viewer.page.keyboard.press("i")
        answer = viewer.page.evaluate("fetch('recordings').then((answer) => answer.status)")
        assert answer == 200
        assert not viewer.complaints
        viewer.leave()


def test_page_plays_video_without_external_requests(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    seen = set()

    def six_different() -> bool:
        seen.add(viewer.picture("video"))
        return len(seen) >= 6

    wait_for(six_different, "the video moves")
    assert viewer.brightness("video") > 20
    assert viewer.brightness("coded") > 20
    first = viewer.text("seq")
    viewer.until(f"document.querySelector('#seq').textContent !== {json.dumps(first)}")
    viewer.until("document.querySelectorAll('#latency tbody tr').length >= 6")
    viewer.until(
        "!document.querySelector('#simulated').hidden", "the simulated camera is marked as such"
    )
    assert viewer.text("camera").startswith("sci_stream simulated SCI camera")
    for name in (
        "rate-in",
        "fps",
        "total",
        "age",
        "iterations",
        "queue",
        "psnr",
        "saturated",
        "counts-given",
    ):
        viewer.until(
            f"!['', '–'].includes(document.querySelector('#{name}').textContent)",
            f"{name} is known",
        )
    viewer.page.click("#more")
    for name in ("strip", "levels", "counts"):
        drawn = (
            "(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].some(v "
            "=> v > 60))"
        )
        viewer.until(f"{drawn}(document.querySelector('#{name}'))", f"{name} is drawn")
    assert viewer.hosts == {viewer.address}
    assert viewer.complaints == []


def test_page_shows_the_first_frame_together_with_the_number(open_viewer) -> None:
    viewer = open_viewer()
    viewer.page.evaluate(
        """() => { window.frames_at_begin = [];
        new MutationObserver(() => frames_at_begin.push(document.querySelector('#frame').textContent))
        .observe(document.querySelector('#seq'), { childList: true, characterData: true, subtree: true }); }"""
    )
    viewer.until("window.frames_at_begin.length >= 4")
    assert set(viewer.page.evaluate("window.frames_at_begin")) == {"1/4"}


def test_page_transport_works_by_mouse_and_keyboard(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    page = viewer.page
    page.keyboard.press("Space")
    viewer.until("/^paused, .* behind$/.test(document.querySelector('#state').textContent)")
    snapshot = viewer.text("seq")
    page.keyboard.press("Home")
    assert viewer.text("frame") == "1/4"
    first = viewer.picture("video")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert viewer.text("frame") == "3/4"
    third = viewer.picture("video")
    assert third != first
    page.locator("#scrub").fill("0")
    assert viewer.text("frame") == "1/4"
    assert viewer.picture("video") == first
    page.keyboard.press("End")
    assert viewer.text("frame") == "4/4"
    shown = status(rig)["preview"]["encoded"]
    wait_for(lambda: status(rig)["preview"]["encoded"] >= shown + 3, "newer images arrive")
    assert viewer.text("seq") == snapshot, "a paused page keeps its snapshot"
    page.click("#pause")
    viewer.until(f"document.querySelector('#seq').textContent !== {json.dumps(snapshot)}")
    viewer.until_live()

    page.keyboard.press("l")
    assert page.is_checked("#loop")
    page.select_option("#rate", "50")
    viewer.until_live()
    page.keyboard.press("v")
    assert page.is_visible("#video")
    assert not page.is_visible("#coded")
    page.click("button[data-view=coded]")
    assert not page.is_visible("#video")
    page.keyboard.press("f")
    viewer.until("document.fullscreenElement !== null")

    def by_pointer(*names: str) -> list[bool]:
        """Return which are visible when the pointer has just moved: three seconds later, controls
        are hidden.
        """
        for place in (300, 310):
            page.mouse.move(place, place)
        return [page.is_visible(name) for name in names]

    controls = ("#pause", "#state", "[data-panel=histograms]")
    wait_for(lambda: by_pointer(*controls) == [True, True, False], "a picture with its controls")
    viewer.until(
        "getComputedStyle(document.querySelector('header')).display === 'none'", "the picture alone"
    )
    assert [page.is_visible(name) for name in ("#coded", "#pause", "#state")] == [
        True,
        False,
        False,
    ]
    wait_for(lambda: by_pointer("#pause") == [True], "the pointer brings the controls back")
    page.keyboard.press("f")
    viewer.until("document.fullscreenElement === null")
    page.keyboard.press("?")
    assert page.is_visible("#help")
    assert "start or stop recording" in viewer.text("shortcuts")
    page.keyboard.press("Escape")
    assert not page.is_visible("#help")
    assert viewer.complaints == []


def recordings(rig: RunningRig) -> list[Path]:
    """Return the recordings so far, oldest first."""
    return sorted(
        Path(rig.rig.record.folder).glob("*.h5"), key=lambda path: path.stat().st_mtime_ns
    )


def test_page_starts_and_stops_recording(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    assert recordings(rig) == []
    for number in (1, 2):
        viewer.start_recording() if number == 1 else viewer.page.click("#record")
        viewer.until("!document.querySelector('#rec').hidden")
        before = status(rig)["recording"]["rows"]
        wait_for(
            lambda before=before: status(rig)["recording"]["rows"] >= before + 2,
            "two snapshots in the recording",
        )
        viewer.stop_recording()
        assert viewer.page.is_hidden("#rec")
        files = recordings(rig)
        assert len(files) == number
        with Recording(files[-1]) as recording:
            assert recording.clean
            assert len(list(recording.settled_seqs)) >= 2
    report = status(rig)
    switched = [
        change["text"]
        for change in report["changes"]
        if change["text"].startswith("sink recording")
    ]
    assert (
        switched == ["sink recording from False to True", "sink recording from True to False"] * 2
    )
    assert report["ledger"]["unrecorded"] > 0
    assert viewer.complaints == []


def test_keys_typed_into_a_field_are_no_shortcuts(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    page, before = viewer.page, status(rig)
    page.click("#unlock")
    page.keyboard.press("?")
    for field, typed in (("#operator", "R.s-w0+"), ("#set-reconstruct-iterations", "0.8")):
        page.evaluate(f"document.querySelector('{field}').select()")
        page.keyboard.type(typed)
        assert page.evaluate(f"document.querySelector('{field}').value") == typed
        page.keyboard.press("Escape")
    after = status(rig)
    assert after["preview"]["tone"] == before["preview"]["tone"]
    assert after["recording"].get("state") == before["recording"].get("state")
    assert after["changes"] == before["changes"]


def test_stop_asks_and_every_viewer_sees_who_changed_a_setting(
    open_viewer, rig: RunningRig
) -> None:
    eva, other = open_viewer(operator=""), open_viewer(operator="Max")
    for viewer in (eva, other):
        viewer.page.evaluate(WATCH_TOAST)

    def lag_ms(viewer: Viewer) -> float:
        """Return the time of the notice after the change, without the delays of a busy machine in
        four processes.
        """
        shown_ms, late_ms = viewer.page.evaluate("[window.toastMs, window.lateMs]")
        return float(shown_ms) - status(rig)["changes"][-1]["time_ns"] / 1e6 - 4 * float(late_ms)

    eva.until(ENABLED)
    eva.page.keyboard.press("r")
    eva.page.fill("#who-name", "Eva")
    eva.page.click("#who button[value=yes]")
    by_eva = (
        "document.querySelector('#toast').textContent.includes('recording from False to "
        "True, by Eva')"
    )
    other.until(by_eva, "the other viewer sees it")
    lags_ms = [lag_ms(other)]
    other.until(RECORDS)
    other.page.keyboard.press("r")
    other.page.keyboard.press("Escape")
    assert other.page.get_attribute("#record", "aria-pressed") == "true", (
        "Escape leaves the recording running"
    )
    other.stop_recording()
    eva.until("document.querySelector('#toast').textContent.includes('by Max')")
    assert "by Max" in eva.page.inner_text("#changes")
    lags_ms.append(lag_ms(eva))
    while min(lags_ms) >= 1000 and len(lags_ms) < 6:  # the machine is busy
        eva.start_recording()
        other.stop_recording()
        eva.until("document.querySelector('#toast').textContent.includes('by Max')")
        lags_ms.append(lag_ms(eva))
    assert min(lags_ms) < 1000, "within a second"


def test_large_change_of_a_setting_asks(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    field = "#set-acquire-snapshot_rate_hz"
    before = viewer.page.input_value(field)
    assert viewer.page.is_disabled(field), "locked"
    viewer.page.click("#unlock")
    viewer.page.fill(field, "60")
    viewer.page.keyboard.press("Enter")
    assert "from 5 to 60" in viewer.page.inner_text("#confirm-title")
    viewer.page.keyboard.press("Escape")
    viewer.until(f"document.querySelector('{field}').value === '{before}'")
    assert all("snapshot_rate_hz" not in change["text"] for change in status(rig)["changes"])


def state_of_run(rig: RunningRig) -> dict[str, Any]:
    """Return all of a run that an operator can change, but for the tone of the screen."""
    report = status(rig)
    parameters = {
        (node["node"], parameter["name"]): parameter["value"]
        for node in report["controls"]
        for parameter in node["parameters"]
        if node["kind"] != "sink" or parameter["name"] == "recording"
    }
    return {"series": report["series"], "changes": report["changes"], "parameters": parameters}


def test_refined_snapshot_and_recording_are_shown_as_such(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    page = viewer.page
    viewer.start_recording()
    wait_for(
        lambda: status(rig)["recording"].get("rows", 0) >= 3, "three snapshots in the recording"
    )
    viewer.stop_recording()
    page.keyboard.press("Space")
    shown = page.evaluate(SHOWN_SEQ)
    page.keyboard.press("e")
    viewer.until("document.querySelector('#overlay-title').textContent === 'REFINED'")
    assert page.evaluate(SHOWN_SEQ) == shown
    assert viewer.text("overlay-why") == "solved again with 40 iterations"
    page.keyboard.press("c")
    # A single snapshot has no time from frame to frame.
    viewer.until("/^[0-9]+ frames; down/.test(document.querySelector('#cut-is').textContent)")
    page.keyboard.press("c")
    alone = viewer.picture("video")
    page.keyboard.press("t")
    assert viewer.picture("video") != alone, "the live result is left of the wipe"
    assert (viewer.text("wipe-left"), viewer.text("wipe-right")) == (
        "2 iterations",
        "40 iterations",
    )
    page.keyboard.press("t")
    page.keyboard.press("o")
    viewer.until("document.querySelector('#recordings img')?.naturalWidth > 0", "a thumbnail")
    page.click("#recordings .thumbnail button >> nth=0")
    viewer.until(
        r"/\.h5, ([2-9]|\d\d+) of/.test(document.querySelector('#overlay-why').textContent)",
        "it plays",
    )
    assert viewer.text("overlay-title") == "RECORDING"
    page.click("#to-live")
    viewer.until_live()
    assert viewer.complaints == []


def test_random_keys_and_taps_leave_the_run_as_it_is(open_viewer, rig: RunningRig) -> None:
    """After the test of refined snapshots: a random key may begin such a solve, and the host does
    one at a time.
    """
    viewer = open_viewer()
    page, random = viewer.page, Random(39)
    viewer.start_recording()
    # A question hesitates for less time than a busy machine takes for a few of these keys.
    page.evaluate(
        "void (window.setTimeout = ((later) => (f, ms, x) => later(f, ms === 600 ? 1e9 : ms, "
        "x))(setTimeout))"
    )
    before = state_of_run(rig)
    keys = [
        *"abcdefghijklmnopqrstuvwxyz0123456789.,+-?",
        "Enter",
        "Escape",
        "Tab",
        "Space",
        "Home",
        "End",
    ]
    for number in range(500):
        if number % 5 < 3:
            page.keyboard.press(random.choice(keys))
        else:
            page.mouse.click(random.randrange(1440), random.randrange(900))
    assert state_of_run(rig) == before
    viewer.visit()
    viewer.until_live()
    viewer.stop_recording()


def test_page_saves_shown_snapshot_while_newer_ones_come(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    viewer.page.keyboard.press("Space")
    shown = viewer.page.evaluate(SHOWN_SEQ)
    figures = [viewer.text(name) for name in ("iterations", "psnr", "counts-given")]
    rig.wait_for_count("reconstructed", status(rig)["ledger"]["reconstructed"] + 3)
    with viewer.page.expect_download() as download:
        viewer.page.keyboard.press("s")
    assert download.value.suggested_filename.endswith(f"_{shown:06d}.zip")
    assert [viewer.text(name) for name in ("iterations", "psnr", "counts-given")] == figures


def point_in(viewer: Viewer, figure: str = "video-figure") -> tuple[float, float]:
    """Return the middle of a picture on the screen, px."""
    box = viewer.page.locator(f"#{figure} .stage").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_zoomed_pixel_values_are_the_recorded_ones(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    page = viewer.page
    page.click("#record")
    viewer.until("!document.querySelector('#rec').hidden")
    first = status(rig)["ledger"]["acquired"]
    viewer.until(f"{SHOWN_SEQ} > {first}", "a recorded snapshot is on the screen")
    page.keyboard.press("Space")
    seq, frame = viewer.page.evaluate(SHOWN_SEQ), int(viewer.text("frame")[0]) - 1
    page.mouse.move(*point_in(viewer))
    for _ in range(16):
        page.mouse.wheel(0, -100)
    viewer.until(
        "document.querySelector('#zoom-one').textContent.includes('64:1')", "it is zoomed in"
    )
    viewer.until("document.querySelector('#video-size').textContent.includes('full resolution')")
    viewer.until(
        "document.querySelector('#video-probe').textContent.includes('DN')", "the pixel has values"
    )
    found = re.fullmatch(
        r"x (\d+), y (\d+): ([\d.]+) ([\d.]+) ([\d.]+) · (\d+) DN", viewer.text("video-probe")
    )
    assert found is not None
    viewer.stop_recording()
    with Recording(recordings(rig)[-1]) as recording:
        x, y = int(found[1]), int(found[2])
        assert recording.info.bayer is not None
        # Each pixel of the mosaic measures one colour, which demosaicing keeps.
        channel = "RGB".index(recording.info.bayer.value[2 * (y % 2) + x % 2])
        measured = np.clip(float(recording.video(seq)[frame, y, x]), 0, 1)
        assert float(found[3 + channel]) == pytest.approx(measured, abs=6e-4)
        assert int(found[6]) == recording.raw(seq)[y, x]


def test_space_time_cut_is_that_of_the_recording(
    open_viewer, rig: RunningRig, tmp_path: Path
) -> None:
    viewer = open_viewer()
    page = viewer.page
    viewer.start_recording()
    begun = status(rig)["ledger"]["reconstructed"]
    viewer.until(
        f"{SHOWN_SEQ} > {status(rig)['ledger']['acquired']}", "a recorded snapshot is on the screen"
    )
    page.keyboard.press("c")
    box = page.locator("#video").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 20, steps=3)
    page.mouse.up()
    viewer.until(
        "Number(/^[0-9]+/.exec(document.querySelector('#cut-is').textContent)) >= 24",
        "six snapshots",
    )
    wait_for(
        lambda: status(rig)["ledger"]["reconstructed"] > begun + 3, "three of them in the recording"
    )
    viewer.stop_recording()

    def rows_of_cut() -> np.ndarray:
        with page.expect_download() as download:
            page.click("#cut-csv")
        download.value.save_as(tmp_path / "cut.csv")
        return np.loadtxt(tmp_path / "cut.csv", delimiter=",", skiprows=1)

    compared = 0
    with Recording(recordings(rig)[-1]) as recording:
        recorded = recording.video_seqs
        wait_for(lambda: max(rows_of_cut()[:, 0]) >= recorded[2], "the cut has recorded snapshots")
        rows = rows_of_cut()
        for seq, frame, _, mean, *along in rows:
            if int(seq) in recorded:
                video = np.asarray(recording.video(int(seq))[int(frame)], np.float32)
                assert mean == pytest.approx(float(video.mean(dtype=np.float64)), rel=1e-6)
                greens = (video[::2, 1::2] + video[1::2, ::2]) / 2
                for values, plane in zip(
                    np.reshape(along, (-1, 3)).T,
                    (video[::2, ::2], greens, video[1::2, 1::2]),
                    strict=True,
                ):
                    assert set(np.float32(values)) <= set(plane.ravel())
                compared += 1
    assert compared >= 8
    page.keyboard.press("c")


def test_page_shows_the_trend_of_an_hour_and_a_day(open_viewer) -> None:
    page = open_viewer().page
    page.keyboard.press("m")
    drawn = "canvas => canvas.toDataURL()"
    canvas = page.locator("#strip")
    for button, span in (("1 h", 3600), ("1 day", 86_400)):
        before = canvas.evaluate(drawn)
        with page.expect_response(
            lambda answer, span=span: answer.url.endswith(f"span={span}")
        ) as got:
            page.get_by_role("button", name=button).click()
        assert got.value.json()["history"]
        page.wait_for_function(
            "before => document.querySelector('#strip').toDataURL() !== before", arg=before
        )


def test_page_measures_a_region(open_viewer) -> None:
    viewer = open_viewer()
    page = viewer.page
    page.keyboard.press("g")
    x, y = point_in(viewer)
    page.mouse.move(x - 40, y - 40)
    page.mouse.down()
    page.mouse.move(x + 40, y + 40, steps=3)
    page.mouse.up()
    viewer.until(
        "/^[0-9]+×[0-9]+ at [0-9]+, [0-9]+$/.test(document.querySelector('#region-is').textContent)"
    )
    viewer.until("document.querySelectorAll('#region tbody tr').length >= 4")
    viewer.until(
        "Number(document.querySelector('#focus').textContent) > 0", "it has a focus figure"
    )
    page.click("#region-clear")
    viewer.until("document.querySelector('#region-is').textContent === 'whole picture'")
    page.keyboard.press("x")
    assert page.get_attribute("#zebra", "aria-pressed") == "true"
    page.keyboard.press("x")
    assert viewer.complaints == []


@contextlib.contextmanager
def refusal_shown(viewer: Any) -> Iterator[None]:
    """Fail with the message on the page where a download does not come."""
    try:
        yield
    except playwright_api.TimeoutError as error:
        raise AssertionError(f"no download; the page says {viewer.text('toast')!r}") from error


def test_page_looks_back_and_downloads_what_it_shows(
    open_viewer, rig: RunningRig, tmp_path: Path
) -> None:
    viewer = open_viewer()
    page = viewer.page
    first = viewer.page.evaluate(SHOWN_SEQ)
    viewer.until(f"{SHOWN_SEQ} > {first + 5}")
    page.keyboard.press("Space")
    fetched: list[str] = []
    page.on(
        "request",
        lambda request: fetched.append(request.url) if "/picture/" in request.url else None,
    )

    def is_looking_back() -> bool:
        if not fetched:
            page.keyboard.press(",")
        return bool(page.evaluate("document.body.classList.contains('review')"))

    wait_for(
        is_looking_back, "the time line, updated once a second, has the snapshot on the screen"
    )
    assert viewer.text("overlay-title") == "LOOKING BACK"
    viewer.until("/^paused|no data/.test(document.querySelector('#state').textContent)")
    newer = viewer.text("seq")
    page.keyboard.press(",")
    viewer.until(
        f"document.querySelector('#seq').textContent !== {json.dumps(newer)}", "the snapshot before"
    )
    shown = viewer.page.evaluate(SHOWN_SEQ)
    page.keyboard.press("o")
    for button, ending in (("get-still", f"_{shown:06d}.zip"), ("get-mp4", f"-{shown:06d}.mp4")):
        with refusal_shown(viewer), page.expect_download() as download:
            page.click(f"#{button}")
        assert download.value.suggested_filename.endswith(ending)
    page.keyboard.press("Escape")
    page.click("#to-live")
    viewer.until(f"{SHOWN_SEQ} > {shown}")
    viewer.until_live()
    assert viewer.complaints == []


# Another implementation than the page's, of the rules of WCAG.
AXE = next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text()
FAULTS = "async () => (await axe.run()).violations.map(({ id, nodes }) => [id, nodes[0].html])"


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_page_has_no_barriers(browser, rig: RunningRig, theme: str, size: tuple[int, int]) -> None:
    with contextlib.closing(
        Viewer(browser, rig.rig.preview.port, color_scheme=theme, bypass_csp=True)
    ) as viewer:
        page = viewer.page
        page.set_viewport_size({"width": size[0], "height": size[1]})
        viewer.visit()
        viewer.until_live()
        page.evaluate(AXE)
        viewer.until(ENABLED)  # a button that becomes so meanwhile seems to have little contrast
        assert page.evaluate(FAULTS) == []
        for opened in ("more", "cut", "help-open"):
            page.evaluate(f"document.querySelector('#{opened}').click()")
            page.wait_for_function(SETTLED)  # a notice that fades in has little contrast
            assert page.evaluate(FAULTS) == [], opened


def test_page_on_a_phone_has_targets_for_a_finger(browser, rig: RunningRig) -> None:
    viewer = Viewer(browser, rig.rig.preview.port, has_touch=True)
    viewer.page.set_viewport_size({"width": 390, "height": 844})
    viewer.visit()
    viewer.until_live()
    small = viewer.page.evaluate(
        """[...document.querySelectorAll('button, select, input:not([type=checkbox])')]
        .filter(field => field.offsetParent && field.getBoundingClientRect().height < 43.5)
        .filter(field => !field.closest('.film')).map(field => field.outerHTML)"""
    )
    # Text beside the name of a panel stands on its line.
    raised = viewer.page.evaluate(
        """[...document.querySelectorAll('.fold ~ :is(.tag, small)')].filter(text => text.textContent && text.offsetParent)
        .filter(text => { const middle = one => { const { top, bottom } = one.getBoundingClientRect(); return (top + bottom) / 2; };
            return Math.abs(middle(text) - middle(text.parentElement.querySelector('.fold'))) > 3; }).map(text => text.outerHTML)"""
    )
    viewer.close()
    assert small == []
    assert raised == []


def test_page_folds_panels_and_changes_colours(open_viewer) -> None:
    viewer = open_viewer()
    page = viewer.page
    assert page.is_visible("#ledger")
    page.click("[data-panel=ledger] .fold")
    assert not page.is_visible("#ledger")
    page.keyboard.press("b")
    assert not page.is_visible("[data-panel=tone]")
    page.keyboard.press("b")
    page.keyboard.press("?")
    page.select_option("#theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(238, 241, 244)"
    page.reload()
    viewer.until_live()
    assert not page.is_visible("#ledger"), "a folded panel stays folded"
    assert viewer.complaints == []


def test_page_brightness_is_own_until_it_is_shared(open_viewer) -> None:
    one, other = open_viewer(), open_viewer()
    before = other.brightness()
    one.page.locator("#exposure").fill("-3")
    wait_for(lambda: one.brightness() < 0.6 * before, "this viewer's video is darker")
    assert other.page.locator("#exposure").input_value() == "0"
    assert other.brightness() > 0.8 * before
    own = one.brightness()
    one.page.click("#tone-share")
    other.until("document.querySelector('#exposure').value === '-3'")
    wait_for(lambda: abs(other.brightness() / own - 1) < 0.1, "both are equally dark")
    one.until("document.querySelector('#tone-share').hidden")


def test_page_white_balance_is_for_all_viewers(open_viewer) -> None:
    one, other = open_viewer(), open_viewer()
    one.page.keyboard.press("w")
    other.until(
        "document.querySelector('#white-grey_world').getAttribute('aria-pressed') === 'true'"
    )
    one.page.keyboard.press("0")
    other.until("document.querySelector('#white-none').getAttribute('aria-pressed') === 'true'")
    one.page.click("#white-fixed")
    other.until("!document.querySelector('#gains').hidden", "the gains are shown")
    one.page.locator("#gains input").nth(2).fill("2.5")
    one.page.locator("#gains input").nth(2).press("Tab")
    other.until("document.querySelector('#gains input:last-child').value === '2.50'")
    one.page.locator("#gains input").first.fill("99")
    one.page.locator("#gains input").first.press("Tab")
    one.until(
        "document.querySelector('#toast').textContent.includes('gains')", "refused with a reason"
    )
    one.until(
        "document.querySelector('#gains input').value === '1.00'", "it shows the current value"
    )
    one.page.click("#white-none")
    other.until("document.querySelector('#gains').hidden")
    one.page.click("#white-pick")
    one.page.click(
        "#video", position={"x": 2, "y": 2}
    )  # a click outside the picture or on a dark border breaks nothing
    one.page.keyboard.press("Escape")
    assert one.page.is_hidden("#pick-hint")


def test_slow_viewer_affects_no_other(open_viewer, rig: RunningRig) -> None:
    slow, quick = open_viewer(), open_viewer()
    # From now on it decodes no picture.
    slow.page.evaluate("void (window.createImageBitmap = () => new Promise(() => {}))")
    before = status(rig)
    seen = set()

    def quick_sees_on() -> bool:
        seen.add(quick.text("seq"))
        return len(seen) >= 8

    wait_for(quick_sees_on, "the fast viewer receives new images")
    # The status arrives twice a second, pictures as they are encoded.
    came = before["ledger"]["reconstructed"] + 7
    wait_for(lambda: status(rig)["ledger"]["reconstructed"] >= came, "the pipeline keeps running")
    assert status(rig)["preview"]["viewers"] >= 2, "no viewer was disconnected"
    wait_for(lambda: slow.text("state") != "live", "the slow viewer shows that it is not live")


def test_page_fits_phone_and_desktop(browser, rig: RunningRig) -> None:
    viewer = Viewer(browser, rig.rig.preview.port, has_touch=True)
    for width, height, least_px in ((390, 844, 38), (1440, 900, 24)):
        viewer.page.set_viewport_size({"width": width, "height": height})
        viewer.visit()
        viewer.until_live()
        assert viewer.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            "it scrolls horizontally"
        )
        record = viewer.page.locator("#record").bounding_box()
        assert record["x"] >= 0
        assert record["x"] + record["width"] <= width
        assert record["y"] + record["height"] <= height, (
            "the record button is visible without scrolling"
        )
        small = viewer.page.evaluate(
            """least => [...document.querySelectorAll('.actions button, .keys button')].filter(b => b.offsetParent)
            .filter(b => b.getBoundingClientRect().height < least).length""",
            least_px,
        )
        assert small == 0, "buttons are large enough for a finger"
    heights = viewer.page.evaluate(
        """() => { const latency = document.querySelector('#total'), height = () => latency.parentElement.offsetHeight;
            latency.textContent = '8 s'; const short = height(); latency.textContent = '888 ms'; return [short, height()]; }"""
    )
    assert heights[0] == heights[1], "the latency stays on its line on a desktop"
    viewer.close()


def test_page_names_silent_node_and_recovers(open_viewer, rig: RunningRig) -> None:
    # Two seconds are promised: the heartbeat timeout; the page is informed at once.
    assert MISSED_HEARTBEATS * rig.rig.network.heartbeat_s < 2.0
    viewer = open_viewer()
    viewer.page.evaluate(WATCH_GREEN)
    # Stopped, not killed: a fast machine might restart it before it is missed.
    rig.nodes()["reconstruct-0"].send_signal(signal.SIGSTOP)
    named = (
        "document.querySelector('#alerts').textContent.includes('reconstruct-0 does not answer')"
    )
    viewer.until(named)
    alarm = viewer.page.locator("#alerts li.bad", has_text="reconstruct-0 does not answer")
    assert re.search(r"reconstruct-0 does not answer since \d\d:\d\d:\d\d", alarm.inner_text())
    alarm.locator("button").click()
    viewer.until(f"!{named}", "it is acknowledged")
    viewer.until("document.querySelector('#alarms').textContent.includes('acknowledged')")
    viewer.until("document.querySelector('#nodes .lost') !== null")
    viewer.until(
        "/a node is lost$|^no data$|^camera "
        "stopped$/.test(document.querySelector('#state').textContent)"
    )
    rig.kill("reconstruct-0")
    viewer.until("document.querySelector('#nodes .lost') === null", "it is replaced")
    viewer.until_live()

    sink = rig.nodes()["sink"]
    sink.send_signal(signal.SIGSTOP)  # it hangs: connections stay open but carry no data
    viewer.until("document.querySelector('#overlay-title').textContent === 'NO CONNECTION'")
    assert viewer.page.is_visible("#overlay")
    sink.send_signal(signal.SIGCONT)
    viewer.until_live()

    rig.kill("sink")
    viewer.until("document.querySelector('#overlay-title').textContent === 'NO CONNECTION'")
    assert viewer.page.is_visible("#overlay")
    viewer.until_live()
    assert viewer.page.evaluate("window.greenOverOld") == []


def test_page_sets_node_parameters(open_viewer, rig: RunningRig) -> None:
    one, other = open_viewer(), open_viewer()
    field = "document.querySelector('#set-reconstruct-iterations')"
    for viewer in (one, other):
        viewer.until(f"{field} !== null && {field}.value === '2'", "it is declared")
    one.page.click("#unlock")
    one.page.fill("#set-reconstruct-iterations", "3")
    one.page.press("#set-reconstruct-iterations", "Enter")
    one.until(
        "document.querySelector('#iterations').textContent === '3'",
        "video is made with the new value",
    )
    other.until(f"{field}.value === '3'", "the other viewer sees it")
    one.page.fill("#set-reconstruct-iterations", "0")
    one.page.press("#set-reconstruct-iterations", "Tab")
    one.until(
        "document.querySelector('#toast').textContent.includes('from 1 to 10000')",
        "refused with the range",
    )
    one.until(f"{field}.value === '3'", "it shows the current value")
    one.page.fill("#set-reconstruct-iterations", "2")
    one.page.press("#set-reconstruct-iterations", "Enter")
    other.until(f"{field}.value === '2'")
    assert {entry["node"] for entry in status(rig)["controls"]} == {
        "acquire",
        "reconstruct-0",
        "sink",
    }


def test_page_controls_series(open_viewer, rig: RunningRig) -> None:
    viewer = open_viewer()
    before = viewer.text("series")
    viewer.page.click("#unlock")
    viewer.page.click("#series-actions button[data-action=next_series]")
    viewer.page.click("#confirm-yes")
    viewer.until(
        "!['', 'no series yet', "
        f"{json.dumps(before)}].includes(document.querySelector('#series').textContent)"
    )
    viewer.until_live()
    viewer.page.click("#series-actions button[data-action=stop_series]")
    assert viewer.page.is_visible("#confirm"), "a series is not stopped by one click"
    viewer.page.keyboard.press("Escape")
    assert not viewer.page.is_visible("#confirm")
    viewer.page.click("#series-actions button[data-action=stop_series]")
    viewer.page.click("#confirm-yes")
    start = "#series-actions button[data-action=start_series]"
    viewer.until(f"document.querySelector('{start}') !== null", "it waits")
    second = viewer.text("series")
    viewer.page.click(start)
    viewer.until(
        f"document.querySelector('#series').textContent !== {json.dumps(second)}", "a third series"
    )
    viewer.until_live()


def test_page_shows_end_and_closed_ledger(open_viewer, browser, rig: RunningRig) -> None:
    """Last, because it ends the rig."""
    viewer, *_ = (open_viewer() for _ in range(MAX_VIEWERS))
    another = Viewer(browser, rig.rig.preview.port)
    another.visit()
    another.until("document.querySelector('#overlay-title').textContent === 'FULL'")
    assert another.text("overlay-why").startswith(
        f"{MAX_VIEWERS} viewers are watching, the limit of this rig"
    )
    another.close()
    viewer.page.click("#record")
    viewer.until("!document.querySelector('#rec').hidden")
    os.kill(rig.process.pid, signal.SIGTERM)
    viewer.until("document.querySelector('#overlay-title').textContent === 'ENDED'")
    assert viewer.brightness("video") > 20, "the last video is still there"
    unveiled = "getComputedStyle(document.querySelector('#video')).filter === 'none'"
    viewer.until(unveiled, "its veil has faded")
    summary = rig.finish()
    assert assert_accounted_for(summary)["unrecorded"] > 0
    assert summary["changes"][-1]["name"] == "recording"
