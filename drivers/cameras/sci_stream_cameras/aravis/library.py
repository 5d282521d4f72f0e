"""The part of the Aravis library (LGPL-2.1) that the driver uses, through ctypes.

Calls release the interpreter's lock, so that a slow camera does not stop the other threads of a
node. The functions and their arguments are those of Aravis 0.8 and 0.10.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

from sci_stream.errors import CameraError

_FILES = ("libaravis-0.10.so.0", "libaravis-0.8.so.0")
SUCCESS = 0
"""Status of a complete buffer."""
STATUS = (
    *(
        "success",
        "cleared",
        "timeout",
        "missing_packets",
        "wrong_packet_id",
        "size_mismatch",
        "filling",
        "aborted",
    ),
    "payload_not_supported",
)
"""Names of the statuses of a buffer."""


class AravisError(Exception):
    """A call of Aravis failed."""


class _GError(ctypes.Structure):
    _fields_ = (("domain", c_uint32), ("code", c_int), ("message", c_char_p))


# Name: result, arguments. Functions of `_CHECKED` take a pointer to an error besides.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "arv_update_device_list": (None,),
    "arv_get_n_devices": (c_uint,),
    "arv_get_device_id": (c_char_p, c_uint),
    "arv_get_device_vendor": (c_char_p, c_uint),
    "arv_get_device_model": (c_char_p, c_uint),
    "arv_get_device_serial_nbr": (c_char_p, c_uint),
    "arv_get_device_protocol": (c_char_p, c_uint),
    "arv_get_device_address": (c_char_p, c_uint),
    "arv_device_get_genicam_xml": (c_void_p, c_void_p, POINTER(c_size_t)),
    "arv_gv_device_is_controller": (c_int, c_void_p),
    "arv_stream_push_buffer": (None, c_void_p, c_void_p),
    "arv_stream_try_pop_buffer": (c_void_p, c_void_p),
    "arv_stream_get_n_infos": (c_uint, c_void_p),
    "arv_stream_get_info_name": (c_char_p, c_void_p, c_uint),
    "arv_stream_get_info_uint64": (c_uint64, c_void_p, c_uint),
    "arv_buffer_new_allocate": (c_void_p, c_size_t),
    "arv_buffer_get_status": (c_int, c_void_p),
    "arv_buffer_get_data": (c_void_p, c_void_p, POINTER(c_size_t)),
    "arv_buffer_get_frame_id": (c_uint64, c_void_p),
    "arv_buffer_get_timestamp": (c_uint64, c_void_p),
    "arv_buffer_get_image_pixel_format": (c_uint32, c_void_p),
    "arv_buffer_get_image_width": (c_int, c_void_p),
    "arv_buffer_get_image_height": (c_int, c_void_p),
    "arv_buffer_get_image_padding": (None, c_void_p, POINTER(c_int), POINTER(c_int)),
    "g_object_unref": (None, c_void_p),
    "g_error_free": (None, c_void_p),
}
_CHECKED: dict[str, tuple[Any, ...]] = {
    "arv_open_device": (c_void_p, c_char_p),
    "arv_device_read_memory": (c_int, c_void_p, c_uint64, c_uint32, c_void_p),
    "arv_device_write_memory": (c_int, c_void_p, c_uint64, c_uint32, c_void_p),
    "arv_device_create_stream": (c_void_p, c_void_p, c_void_p, c_void_p),
    "arv_gv_device_auto_packet_size": (c_uint, c_void_p),
    "arv_gv_device_set_packet_size": (None, c_void_p, c_int),
}


class Aravis:
    """Functions of the library by name: ``call`` for those that cannot fail, ``checked`` for the
    others.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        for name, (result, *arguments) in _CHECKED.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, [*arguments, POINTER(POINTER(_GError))]
        self._library = library

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that cannot fail."""
        return getattr(self._library, name)(*arguments)

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns a text; empty if it returns none."""
        return (self.call(name, *arguments) or b"").decode(errors="replace")

    def checked(self, name: str, *arguments: Any) -> Any:
        """Call a function that may fail. Raises `AravisError` with the library's message."""
        error = POINTER(_GError)()
        result = getattr(self._library, name)(*arguments, ctypes.byref(error))
        if error:  # type: ignore[truthy-bool] # a null pointer is false
            message = (error.contents.message or b"").decode(errors="replace")
            self.call("g_error_free", error)
            raise AravisError(message)
        return result


@functools.cache
def aravis() -> Aravis:
    """Load the library. Raises `CameraError` if it is not installed."""
    problem: OSError | None = None
    for file in _FILES:
        try:
            return Aravis(ctypes.CDLL(file))
        except OSError as error:
            problem = error
    raise CameraError(
        "The driver aravis needs the library Aravis",
        expected=" or ".join(_FILES),
        got=problem,
        hint="Install it (Debian: apt-get install libaravis-0.8-0), or use the driver harvesters.",
    )
