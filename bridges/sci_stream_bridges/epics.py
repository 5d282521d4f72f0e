"""EPICS PVAccess: serve the live video of a rig as NTNDArray process variables (extra ``epics``).

::

    python -m sci_stream_bridges.epics SCI: --taps tcp://127.0.0.1:5703

serves ``SCI:VIDEO`` (all frames of the newest snapshot), ``SCI:FRAME`` (its last frame, for image
viewers), ``SCI:SNAPSHOT`` (the coded snapshot, DN), ``SCI:SEQ`` and ``SCI:RESIDUAL``. An encrypted
rig needs ``--sink-key``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from sci_stream.errors import TransportError, require_optional
from sci_stream.model import Reconstruction
from sci_stream.plugins import Array
from sci_stream.security.curve import client_config, unencrypted
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.pubsub import DEFAULT_ENDPOINT, subscribe

# A rig may rest: a line a minute is enough.
_SILENCE_S = 60.0


class PvaServer:
    """Process variables with the newest reconstruction; a context manager.

    Parameters
    ----------
    prefix
        Beginning of the names.
    conf
        Configuration of the server instead of the ``EPICS_PVAS_…`` variables; ``isolated`` for one
        that only `conf` of this very server finds.
    isolated
        Listen on the loopback interface and any free ports.

    Raises
    ------
    ConfigError
        If p4p is not installed.
    """

    def __init__(
        self, prefix: str, conf: Mapping[str, str] | None = None, *, isolated: bool = False
    ) -> None:
        nt = require_optional("p4p.nt", "epics", "The EPICS bridge", "sci-stream-bridges")
        server = require_optional("p4p.server", "epics", "The EPICS bridge", "sci-stream-bridges")
        thread = require_optional(
            "p4p.server.thread", "epics", "The EPICS bridge", "sci-stream-bridges"
        )
        empty = np.zeros((1, 1), np.float32)
        self._arrays = {
            name: thread.SharedPV(nt=nt.NTNDArray(), initial=empty) for name in ("VIDEO", "FRAME")
        }
        self._arrays["SNAPSHOT"] = thread.SharedPV(nt=nt.NTNDArray(), initial=empty)
        self._seq = thread.SharedPV(nt=nt.NTScalar("l"), initial=-1)
        self._residual = thread.SharedPV(nt=nt.NTScalar("d"), initial=float("nan"))
        pvs = {**self._arrays, "SEQ": self._seq, "RESIDUAL": self._residual}
        options = {} if conf is None else {"conf": dict(conf), "useenv": False}
        self._server = server.Server(
            providers=[{f"{prefix}{name}": pv for name, pv in pvs.items()}],
            isolate=isolated,
            **options,
        )

    @property
    def conf(self) -> dict[str, str]:
        """Configuration with which a client finds this server."""
        return dict(self._server.conf())

    def post(self, reconstruction: Reconstruction) -> None:
        """Publish a reconstruction, with the time at which the snapshot was acquired."""
        stamp = reconstruction.times.acquired_ns / 1e9
        video = np.asarray(reconstruction.video, np.float32)
        self._post("VIDEO", video, stamp)
        self._post("FRAME", video[-1], stamp)
        if reconstruction.counts is not None:
            self._post("SNAPSHOT", reconstruction.counts, stamp)
        self._residual.post(reconstruction.report.residual, timestamp=stamp)
        self._seq.post(
            reconstruction.id.seq, timestamp=stamp
        )  # last: who monitors it finds the arrays there

    def _post(self, name: str, array: Array, stamp: float) -> None:
        self._arrays[name].post(np.ascontiguousarray(array), timestamp=stamp)

    def close(self) -> None:
        """Stop serving."""
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(
    reconstructions: Iterable[Reconstruction],
    server: PvaServer,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Post reconstructions as they arrive, until there are no more or a stop is requested."""
    for reconstruction in reconstructions:
        server.post(reconstruction)
        if stop():
            return


def main(arguments: list[str] | None = None) -> None:
    """Serve the live video of a rig until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve live video as EPICS PVAccess NTNDArray.")
    parser.add_argument(
        "prefix", help="beginning of the names of the process variables, such as SCI:"
    )
    parser.add_argument(
        "--taps", default=DEFAULT_ENDPOINT, help="the [network] taps address of the rig"
    )
    parser.add_argument("--sink-key", help="the [security] sink_key of an encrypted rig")
    parser.add_argument(
        "--key",
        type=Path,
        default="~/.config/sci-stream/key",
        help="this host's key, for such a rig",
    )
    given: Any = parser.parse_args(arguments)
    keyed = given.sink_key is not None
    configure = (
        client_config(read_key_pair(given.key.expanduser()), given.sink_key)
        if keyed
        else unencrypted
    )
    with PvaServer(given.prefix) as server:
        while True:
            try:
                serve(subscribe(given.taps, timeout_s=_SILENCE_S, configure=configure), server)
            except TransportError as error:
                print(error, file=sys.stderr)
            except KeyboardInterrupt:
                return


if __name__ == "__main__":
    main()
