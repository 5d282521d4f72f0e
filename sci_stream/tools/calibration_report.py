"""A calibration as one picture: its masks, Σφ², how φ is distributed, its bad pixels, and what was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.calibration.measurement import Measured, PixelFlag
from sci_stream.calibration.quality import Figure, Verdict
from sci_stream.errors import StorageError
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration

Picture = npt.NDArray[np.uint8]

_WIDTH, _MARGIN, _GAP = 1560, 30, 20
_TITLE, _TEXT, _SMALL = 0.9, 0.52, 0.45
_PAPER, _INK, _FAINT, _ACCENT = (255, 255, 255), (40, 40, 40), (140, 140, 140), (150, 90, 20)
_SIGNS = {
    Verdict.OK: ("ok", (70, 140, 40)),
    Verdict.WARN: ("warn", (20, 130, 220)),
    Verdict.BAD: ("BAD", (40, 40, 200)),
}
_MASKS_SHOWN, _MASK_COLUMNS = 16, 8
_FLAG_COLOURS = {PixelFlag.HOT: (40, 40, 220), PixelFlag.DEAD: (200, 120, 0), PixelFlag.NOISY: (0, 160, 230)}
_PANEL = 360
_ASCII = {"Σφ²": "sum phi^2", "φ": "phi", "–": "-", "…": "...", "×": "x", "²": "^2"}


def write_report(
    path: Path, name: str, calibration: Calibration, figures: Sequence[Figure], measured: Measured | None = None
) -> None:
    """Write the report as an image; its format follows from the name.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    picture = draw_report(name, calibration, figures, measured)
    try:
        there, coded = cv2.imencode(path.suffix or ".png", picture)
    except cv2.error:
        there = False
    if not there:
        raise StorageError(f"The report {path} cannot be written", expected="a name that ends in .png", got=path.suffix)
    try:
        path.write_bytes(coded.tobytes())
    except OSError as error:
        raise StorageError(f"The report {path} cannot be written", got=error.strerror) from error


def draw_report(
    name: str, calibration: Calibration, figures: Sequence[Figure], measured: Measured | None = None
) -> Picture:
    """Return the report, (height, width, 3) BGR."""
    parts = [
        _heading(name, calibration),
        _montage(calibration),
        _maps(calibration, measured),
        _findings(figures),
    ]
    height = sum(len(part) for part in parts) + _GAP * (len(parts) - 1) + 2 * _MARGIN
    page = _blank(height, _WIDTH)
    top = _MARGIN
    for part in parts:
        page[top : top + len(part), _MARGIN : _MARGIN + part.shape[1]] = part
        top += len(part) + _GAP
    return page


def _blank(height: int, width: int) -> Picture:
    return np.full((height, width, 3), _PAPER, np.uint8)


def _write(page: Picture, text: str, at: tuple[int, int], scale: float = _TEXT, colour: Sequence[int] = _INK) -> None:
    """Write a line; the font knows ASCII only."""
    for mark, plain in _ASCII.items():
        text = text.replace(mark, plain)
    plain = text.encode("ascii", "replace").decode()
    weight = 2 if scale >= _TITLE else 1
    cv2.putText(page, plain, at, cv2.FONT_HERSHEY_SIMPLEX, scale, tuple(colour), weight, cv2.LINE_AA)


def _heading(name: str, c: Calibration) -> Picture:
    part = _blank(84, _WIDTH - 2 * _MARGIN)
    height, width = c.shape
    _write(part, f"Calibration {name}", (0, 28), _TITLE)
    facts = [f"{c.n_frames} masks of {height} x {width}", f"hash {c.hash[:16]}"]
    facts += [f"camera {c.camera_serial}"] if c.camera_serial else []
    facts += [f"Bayer {c.bayer}"] if c.bayer else []
    facts += [c.created] if c.created else []
    _write(part, "   ".join(facts), (0, 56))
    _write(part, c.source[:160], (0, 78), _SMALL, _FAINT)
    return part


def _montage(c: Calibration) -> Picture:
    """Show the first masks whole, and from each a detail whose pixels can be distinguished."""
    shown = min(c.n_frames, _MASKS_SHOWN)
    columns = min(shown, _MASK_COLUMNS)
    side = (_WIDTH - 2 * _MARGIN - (columns - 1) * 8) // columns if columns > 4 else 320
    rows = math.ceil(shown / columns)
    part = _blank(28 + rows * (side + 24), _WIDTH - 2 * _MARGIN)
    more = "" if shown == c.n_frames else f" (the first {shown} of {c.n_frames})"
    _write(part, f"Masks phi: whole on the left half, the middle 24 x 12 pixels on the right{more}", (0, 16))
    for b in range(shown):
        left, top = (b % columns) * (side + 8), 28 + (b // columns) * (side + 24)
        part[top : top + side, left : left + side] = _mask_tile(c.phi[b], side)
        _write(part, str(b), (left, top + side + 15), _SMALL, _FAINT)
    return part


def _mask_tile(mask: npt.NDArray[np.float32], side: int) -> Picture:
    half = side // 2
    grey = np.rint(mask * 255).astype(np.uint8)
    whole = cv2.resize(grey[:, : max(1, grey.shape[1] // 2)], (half, side), interpolation=cv2.INTER_AREA)
    rows, columns = min(24, mask.shape[0]), min(12, mask.shape[1])
    top, left = (mask.shape[0] - rows) // 2, (mask.shape[1] - columns) // 2
    detail = grey[top : top + rows, left : left + columns]
    large = cv2.resize(detail, (side - half, side), interpolation=cv2.INTER_NEAREST)
    return np.asarray(cv2.cvtColor(np.hstack([whole, large]), cv2.COLOR_GRAY2BGR), np.uint8)


def _maps(c: Calibration, measured: Measured | None) -> Picture:
    """Show Σφ², bad pixels, the dark frame, and the histogram of φ."""
    panels = [
        _scaled(c.gram_diag, "Sum of phi^2 (0: no measurement)"),
        _bad(c, measured),
        _scaled(c.dark if measured is None else measured.white, "Dark, DN" if measured is None else "White, DN"),
        _histogram(c.phi),
    ]
    return np.hstack([np.pad(panel, ((0, 0), (0, 15), (0, 0)), constant_values=255) for panel in panels])


def _panel(title: str) -> Picture:
    panel = _blank(_PANEL + 60, _PANEL)
    _write(panel, title, (0, 16))
    return panel


def _fit(image: Array, interpolation: int) -> Array:
    """Resize to fit a panel, its aspect kept."""
    scale = _PANEL / max(image.shape[:2])
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    return np.asarray(cv2.resize(image, size, interpolation=interpolation))


def _scaled(image: npt.NDArray[np.float32], title: str) -> Picture:
    panel = _panel(title)
    low, high = (float(v) for v in np.percentile(image, (0.5, 99.5)))
    high = max(high, low + 1e-6)
    grey = np.rint(np.clip((image - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    shrinks = max(image.shape) > _PANEL
    colours = cv2.applyColorMap(_fit(grey, cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST), cv2.COLORMAP_VIRIDIS)
    panel[26 : 26 + len(colours), : colours.shape[1]] = colours
    bar = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[None], cv2.COLORMAP_VIRIDIS)
    panel[_PANEL + 32 : _PANEL + 42, 60:300] = cv2.resize(np.asarray(bar), (240, 10))
    _write(panel, f"{low:.3g}", (0, _PANEL + 42), _SMALL)
    _write(panel, f"{high:.3g}", (308, _PANEL + 42), _SMALL)
    return panel


def _bad(c: Calibration, measured: Measured | None) -> Picture:
    """Mark bad pixels, each as large as can be seen, and say what is wrong with how many."""
    bad = np.zeros(c.shape, np.bool_) if c.bad_pixels is None else c.bad_pixels
    panel = _panel(f"Bad pixels: {int(bad.sum())}")
    extent = _fit(bad.astype(np.uint8), cv2.INTER_NEAREST).shape
    cv2.rectangle(panel, (0, 26), (extent[1] - 1, 25 + extent[0]), _FAINT, 1)
    kinds = measured.flags if measured is not None else np.where(bad, np.uint8(PixelFlag.DEAD), np.uint8(0))
    scale = _PANEL / max(c.shape)
    for flag, colour in _FLAG_COLOURS.items():
        for y, x in np.argwhere(kinds & flag)[:20_000]:
            cv2.circle(panel, (round((x + 0.5) * scale), 26 + round((y + 0.5) * scale)), 2, colour, -1, cv2.LINE_AA)
    if measured is not None:
        left = 0
        for flag, colour in _FLAG_COLOURS.items():
            words = f"{int(np.count_nonzero(measured.flags & flag))} {str(flag.name).lower()}"
            _write(panel, words, (left, _PANEL + 42), _SMALL, colour)
            left += 120
    return panel


def _histogram(phi: npt.NDArray[np.float32]) -> Picture:
    panel = _panel("Transmissions phi, log scale")
    counts, _ = np.histogram(phi, bins=120, range=(0, 1))
    heights = np.log1p(counts) / np.log1p(counts.max()) * (_PANEL - 10)
    bottom = 26 + _PANEL
    for i, height in enumerate(heights):
        cv2.rectangle(panel, (3 * i, bottom - round(height)), (3 * i + 2, bottom), _ACCENT, -1)
    cv2.line(panel, (0, bottom), (_PANEL - 1, bottom), _INK, 1)
    for value in (0.0, 0.5, 1.0):
        _write(panel, f"{value:g}", (round(value * (_PANEL - 24)), bottom + 18), _SMALL)
    return panel


def _findings(figures: Sequence[Figure]) -> Picture:
    part = _blank(14 + 24 * len(figures), _WIDTH - 2 * _MARGIN)
    for i, figure in enumerate(figures):
        word, colour = _SIGNS[figure.verdict]
        _write(part, word, (0, 18 + 24 * i), _TEXT, colour)
        _write(part, figure.name, (70, 18 + 24 * i), _TEXT)
        _write(part, figure.text, (270, 18 + 24 * i), _TEXT)
    return part
