"""Table 1 as printed: PSNR, SSIM and run time of each method on the six benchmark sets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

# Rows in the paper's order: PSNR in dB and SSIM of each set of _SETS.
_TABLE = {
    "GAP-TV": "26.46 .8848 20.89 .7148 28.52 .9092 34.63 .9704 24.82 .8383 25.05 .8281",
    "DeSCI": "33.25 .9518 28.71 .9250 38.48 .9693 43.10 .9925 27.04 .9094 25.33 .8603",
    "PnP-VBM4D": "30.60 .9260 26.60 .8958 30.10 .9271 26.58 .8777 25.30 .8502 26.89 .8521",
    "PnP-FFDNet": "30.50 .9256 24.18 .8279 32.15 .9332 40.70 .9892 25.42 .8493 25.27 .8291",
    "PnP-WNNM-TV": "33.00 .9520 26.76 .9035 38.00 .9690 43.27 .9927 26.25 .8972 25.53 .8595",
    "PnP-WNNM-VBM4D": "33.08 .9537 28.05 .9191 33.73 .9632 28.82 .9289 26.56 .8874 27.74 .8852",
    "PnP-WNNM-FFDNet": "32.54 .9511 26.00 .8861 36.31 .9664 43.45 .9930 26.21 .8930 25.83 .8618",
}
_SETS = ("kobe", "traffic", "runner", "drop", "crash", "aerial")

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    name: {
        method: (float(row.split()[2 * n]), float(row.split()[2 * n + 1]))
        for method, row in _TABLE.items()
    }
    for n, name in enumerate(_SETS)
}
"""PSNR in dB and SSIM by set and method, means over all shots of a set."""

PAPER_MINUTES = {
    "GAP-TV": 0.07,
    "DeSCI": 103.0,
    "PnP-VBM4D": 7.9,
    "PnP-FFDNet": 0.05,
    "PnP-WNNM-TV": 40.8,
    "PnP-WNNM-VBM4D": 25.0,
    "PnP-WNNM-FFDNet": 17.9,
}
"""Minutes a shot; PnP-FFDNet on a GPU."""


PUBLISHED_DB: dict[str, dict[str, float]] = {
    "PnP-FFDNet": {name: PAPER[name]["PnP-FFDNet"][0] for name in _SETS},
    "PnP-FastDVDnet": dict(zip(_SETS, (32.33, 26.17, 36.14, 41.93, 26.33, 27.87), strict=True)),
    "GAP-net": dict(zip(_SETS, (31.38, 27.67, 37.59, 41.11, 28.00, 28.97), strict=True)),
    "EfficientSCI": {},
}
"""PSNR in dB by method and set, as published: see `SOURCES`."""
SOURCES = (
    "published PSNR, for any mask: PnP-FFDNet (Yuan et al., CVPR 2020); PnP-FastDVDnet by the "
    "toolbox github.com/ucaswangls/cacti (Yuan et al., TPAMI 2021, print a mean of 32.35)",
    "published PSNR, trained for one mask: GAP-net (Meng et al. 2020) by the same toolbox; "
    "EfficientSCI (Wang et al., CVPR 2023), mean of the six sets alone",
)
EFFICIENTSCI_MEAN_DB = 36.4


def published_db(method: str, stem: str) -> float | None:
    """Return the PSNR of a method for a file whose name starts with the set's name."""
    row = PUBLISHED_DB[method]
    return next((db for name, db in row.items() if stem.lower().startswith(name)), None)


def published_mean_db(method: str, stems: Sequence[str]) -> float | None:
    """Return the mean PSNR of a method over sets; None unless all of them are published."""
    sets = {name for name in _SETS for stem in stems if stem.lower().startswith(name)}
    if method == "EfficientSCI":
        return EFFICIENTSCI_MEAN_DB if sets == set(_SETS) else None
    figures = [published_db(method, stem) for stem in stems]
    known = [db for db in figures if db is not None]
    return fmean(known) if known and len(known) == len(figures) else None


def paper_row(stem: str) -> dict[str, tuple[float, float]]:
    """Return the paper's figures for a file whose name starts with the set's name; empty if
    unknown.
    """
    return next((row for name, row in PAPER.items() if stem.lower().startswith(name)), {})
