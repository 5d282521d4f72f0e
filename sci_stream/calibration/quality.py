"""Assess the quality of a calibration by a list of figures."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from sci_stream.calibration.measurement import Measured
from sci_stream.model import F64, Flags
from sci_stream.optics.calibration import Calibration

# Independent random masks correlate by about 1/√pixels; frames of correlated masks share their
# errors.
_SIMILAR = 0.5
_DUPLICATE = 0.95


class Verdict(enum.StrEnum):
    """Verdict on a quality figure."""

    OK = "ok"
    WARN = "warn"
    """Usable, but unusual or at the cost of quality."""
    BAD = "bad"
    """Unusable for reconstruction."""


@dataclass(frozen=True)
class QualityFigure:
    """One quality figure: name, value, verdict and explanation."""

    name: str
    value: float | None
    verdict: Verdict
    text: str

    def as_dict(self) -> dict[str, str | float | None]:
        """Return the figure for JSON."""
        value = self.value if self.value is None or np.isfinite(self.value) else None
        return {"name": self.name, "value": value, "verdict": self.verdict.value, "text": self.text}


def assess(calibration: Calibration, measured: Measured | None = None) -> list[QualityFigure]:
    """Return all quality figures of a calibration; the worst verdict is the calibration's."""
    good = calibration.good
    figures = [_bad_pixels(good), _blind(calibration, good)]
    if not good.any():
        return figures
    masks = calibration.phi[:, good].astype(np.float64)
    figures += [
        _contrast(masks),
        _transmission(masks),
        *_likeness(masks),
        _dark(calibration),
        _saturation(calibration),
    ]
    figures += _noise(calibration)
    if measured is not None:
        figures += _evidence(calibration, measured)
    return figures


def worst(figures: list[QualityFigure]) -> Verdict:
    """Return the worst of the verdicts."""
    order = list(Verdict)
    return max((figure.verdict for figure in figures), key=order.index, default=Verdict.OK)


def _by_limits(value: float, warn: float, bad: float) -> Verdict:
    """Assess a figure for which smaller is better."""
    return Verdict.BAD if value > bad else Verdict.WARN if value > warn else Verdict.OK


def _bad_pixels(good: Flags) -> QualityFigure:
    share = float(np.mean(~good))
    text = f"{int((~good).sum())} pixels ({share:.3%}) are excluded as bad"
    return QualityFigure("bad_pixels", share, _by_limits(share, 0.01, 0.3), text)


def _blind(calibration: Calibration, good: Flags) -> QualityFigure:
    blind = calibration.blind & good
    share = float(np.mean(blind))
    text = (
        f"{int(blind.sum())} pixels ({share:.3%}) are opened by no mask (Σφ² near 0): the prior "
        "fills them in"
    )
    return QualityFigure("blind", share, _by_limits(share, 0.01, 0.3), text)


def _contrast(masks: F64) -> QualityFigure:
    mean = masks.mean(0)
    seen = mean > 1e-3
    value = float(np.median(masks.std(0)[seen] / mean[seen])) if seen.any() else 0.0
    verdict = _by_limits(-value, -0.2, -0.02) if len(masks) > 1 else Verdict.OK
    text = (
        f"masks modulate a pixel by {value:.2f} of its mean (1 for random binary masks half open)"
    )
    return QualityFigure("contrast", value, verdict, text)


def _transmission(masks: F64) -> QualityFigure:
    value = float(masks.mean())
    verdict = Verdict.WARN if not 0.05 <= value <= 0.95 else Verdict.OK
    return QualityFigure(
        "transmission", value, verdict, f"the masks transmit {value:.0%} of the light on average"
    )


def _likeness(masks: F64) -> list[QualityFigure]:
    """Compare the masks with each other: frames of similar masks cannot be separated."""
    if len(masks) == 1:
        return []
    varied = masks - masks.mean(1, keepdims=True)
    norms = np.linalg.norm(varied, axis=1)
    empty = [b for b, norm in enumerate(norms) if norm <= 1e-6 * np.sqrt(masks.shape[1])]
    if empty:
        text = f"masks {', '.join(map(str, empty))} are constant across the sensor: not a pattern"
        return [QualityFigure("likeness", 1.0, Verdict.BAD, text)]
    varied /= norms[:, None]
    alike = varied @ varied.T
    off = alike - np.diag(np.full(len(masks), 2.0))
    a, b = sorted(int(i) for i in np.unravel_index(off.argmax(), off.shape))
    top = float(off[a, b])
    eigenvalues = np.linalg.eigvalsh(alike)
    condition = float(eigenvalues[-1] / max(eigenvalues[0], 1e-9))
    same = "are duplicates" if top > _DUPLICATE else "are the most similar"
    text = f"masks {a} and {b} {same}: correlation {top:.2f}"
    of_all = (
        f"condition number {condition:.3g} of the masks' correlations (1 if all are independent)"
    )
    return [
        QualityFigure("likeness", top, _by_limits(top, _SIMILAR, _DUPLICATE), text),
        QualityFigure("condition", condition, _by_limits(condition, 30, 1e4), of_all),
    ]


def _dark(calibration: Calibration) -> QualityFigure:
    level = float(np.median(calibration.dark))
    if not calibration.dark.any():
        text = "no dark frame: the black level is assumed to be 0 DN"
        return QualityFigure("black_level_dn", 0.0, Verdict.WARN, text)
    return QualityFigure("black_level_dn", level, Verdict.OK, f"black level {level:.1f} DN")


def _saturation(calibration: Calibration) -> QualityFigure:
    level = calibration.saturation_dn
    if level is None:
        text = "the saturation level is unknown: clipped pixels will be treated as valid"
        return QualityFigure("saturation_dn", None, Verdict.WARN, text)
    headroom = float(level - np.median(calibration.dark))
    brightest = float(np.percentile(calibration.phi.sum(0), 99.9)) * calibration.full_scale_dn
    share = brightest / headroom if headroom > 0 else np.inf
    text = f"saturates at {level:g} DN; a white scene fills {share:.0%} of the range above black"
    return QualityFigure(
        "saturation_dn", float(level), Verdict.OK if 0.02 <= share <= 1.5 else Verdict.WARN, text
    )


def _noise(calibration: Calibration) -> list[QualityFigure]:
    """Describe the noise model if known; without one reconstruction quality is lower."""
    if calibration.noise is None:
        text = "the noise is unknown: every count will be treated as exact"
        return [QualityFigure("read_noise_dn", None, Verdict.OK, text)]
    known = (
        ("read_noise_dn", calibration.read_noise_dn, "read noise {:.2f} DN"),
        ("gain_e_per_dn", calibration.gain_e_per_dn, "{:.2f} electrons per DN"),
    )
    return [
        QualityFigure(name, value, Verdict.OK, text.format(value))
        for name, value, text in known
        if value is not None
    ]


def _evidence(calibration: Calibration, measured: Measured) -> list[QualityFigure]:
    clipped = measured.clipped_fraction
    text = f"{clipped:.3%} of the values were outside 0–1 before clipping"
    figures = [QualityFigure("clipped", clipped, _by_limits(clipped, 0.01, 0.2), text)]
    light = measured.white - calibration.dark
    unevenness = float(np.percentile(light, 1) / max(float(np.percentile(light, 99)), 1e-6))
    text = (
        f"the darkest corner of the white field has {unevenness:.0%} of its peak "
        f"({measured.field.value} field)"
    )
    figures.append(
        QualityFigure(
            "white_evenness", unevenness, Verdict.WARN if unevenness < 0.3 else Verdict.OK, text
        )
    )
    return figures
