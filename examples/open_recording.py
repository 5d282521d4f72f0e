"""Open a recording and plot a coded snapshot, two of its frames, and one pixel over time::

python examples/open_recording.py recordings/run.h5 plot.png
"""

from __future__ import annotations

import sys

from matplotlib.figure import Figure

import sci_stream


def main(path: str, output: str) -> None:
    """Plot the second snapshot of a recording to a file."""
    with sci_stream.open(path) as recording:  # arrays are read when they are indexed
        figure = Figure(figsize=(12, 3), layout="constrained")
        axes = figure.subplots(1, 4)
        axes[0].imshow(recording.raw[1], cmap="gray")  # (N, H, W) counts, DN
        axes[1].imshow(recording.video[1, 0], cmap="gray")  # (N, B, H, W), 0–1
        axes[2].imshow(recording.video[1, -1], cmap="gray")
        height, width = recording.video.shape[-2:]
        axes[3].plot(recording.video[:, :, height // 2, width // 2].ravel(), ".-")
        figure.savefig(output)
        # A dropped snapshot has a row, too.
        solved = recording.table[recording.table["iterations"] > 0]
        print(
            f"{recording.raw.shape[0]} snapshots, {solved['iterations'].mean():.1f} iterations on "
            "average"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
