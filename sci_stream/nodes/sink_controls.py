"""What may be set on the sink itself: whether it records, and how video looks on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sci_stream.config import PreviewSection
from sci_stream.config.settable import declare
from sci_stream.parameters import Parameter, Value
from sci_stream.sinks.preview import WebPreview

_TONE = ("exposure_ev", "black", "gamma", "white_balance", "false_colour", "demosaic")
_LEAST_GAMMA = 0.1


class SinkControls:
    """The sink's own parameters. Used from its loop.

    Parameters
    ----------
    preview
        Whose tone is set; None where there is no page.
    recording
        Whether the series is being recorded now; None while there is none.
    switch
        Starts or stops the recording on behalf of somebody, and notes it. Raises a `SciStreamError` if it cannot.
    """

    def __init__(
        self, preview: WebPreview | None, recording: Callable[[], bool | None], switch: Callable[[bool, str], str]
    ) -> None:
        self._preview = preview
        self._recording = recording
        self._switch = switch

    def parameters(self) -> list[Parameter]:
        """Declare them, with their values now."""
        recording = self._recording()
        found = []
        if recording is not None:
            found.append(Parameter("recording", "flag", recording, says="Whether the series is being recorded."))
        if self._preview is not None:
            tone = self._preview.tone.as_dict()
            lows = {"gamma": _LEAST_GAMMA}
            found += [declare(PreviewSection, name, tone[name], low=lows.get(name)) for name in _TONE]
        return found

    def set(self, changes: Mapping[str, Value], who: str) -> None:
        """Set some of them, checked one by one. Raises a `SciStreamError` if it cannot be.

        That the tone was changed is not recorded: it is never in the data.
        """
        recording = changes.get("recording")
        if isinstance(recording, bool) and recording != self._recording():
            self._switch(recording, who)
        tone = {name: value for name, value in changes.items() if name in _TONE}
        if tone and self._preview is not None:
            self._preview.set_tone(tone)
