"""Offset between the clocks of two hosts, estimated from messages and their answers."""

from __future__ import annotations

from collections import deque


class ClockOffset:
    """Estimate the offset of a peer's clock by NTP's four times, from the fastest of the last
    exchanges.

    A message leaves here at t₁, reaches the peer at t₂, is answered at t₃ (both by the peer's
    clock), and the answer is here at t₄: offset θ = ((t₂ − t₁) + (t₃ − t₄))/2, wrong by at most
    half of the travel time, δ/2 with δ = (t₄ − t₁) − (t₃ − t₂). The exchange that waited least in
    queues is the most accurate.

    References
    ----------
    RFC 5905, section 8.
    """

    def __init__(self, window: int = 16) -> None:
        self._exchanges = deque[tuple[int, int]](maxlen=window)

    def add(self, sent_ns: int, received_ns: int, answered_ns: int, back_ns: int) -> None:
        """Add t₁, t₂, t₃, t₄, Unix times in ns; an exchange with a negative travel time
        is ignored.
        """
        delay_ns = (back_ns - sent_ns) - (answered_ns - received_ns)
        # A clock was set during the exchange, or the peer's stamps are wrong.
        if delay_ns < 0:
            return
        offset_ns = ((received_ns - sent_ns) + (answered_ns - back_ns)) // 2
        if (
            self._exchanges
            and abs(offset_ns - self._exchanges[-1][1]) > delay_ns + self._exchanges[-1][0]
        ):
            # The two estimates exclude each other, so one of the clocks was set: older exchanges no
            # longer count.
            self._exchanges.clear()
        self._exchanges.append((delay_ns, offset_ns))

    @property
    def offset_ns(self) -> int | None:
        """The peer's clock minus this one's, ns; None before the first exchange."""
        # The tuples compare by travel time first: the minimum is the exchange with the tightest
        # bound.
        return min(self._exchanges)[1] if self._exchanges else None

    @property
    def uncertainty_ns(self) -> int:
        """Half of the shortest round trip: the largest error of the offset."""
        return min(self._exchanges)[0] // 2 if self._exchanges else 0

    def status(self) -> dict[str, float]:
        """Return both in ms, for a status report; nothing before the first exchange."""
        if self.offset_ns is None:
            return {}
        return {
            "clock_offset_ms": round(self.offset_ns / 1e6, 3),
            "clock_uncertainty_ms": round(self.uncertainty_ns / 1e6, 3),
        }


def significant_ns(offset_ms: float, uncertainty_ms: float) -> int:
    """Return the offset to correct times by: 0 if it is within its uncertainty, as between programs
    on one host.
    """
    return int(offset_ms * 1e6) if abs(offset_ms) > uncertainty_ms else 0
