"""Choose and describe the device that reconstructs."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

from sci_stream.errors import ConfigError, DeviceError

_NAME = re.compile(r"auto|cpu|cuda(:(?P<index>\d+))?")


def pick_device(name: str = "auto") -> torch.device:
    """Return the device a rig asks for.

    Parameters
    ----------
    name
        ``"auto"`` (the first CUDA device, else the CPU), ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Raises
    ------
    ConfigError
        If the name is none of these.
    DeviceError
        If the device is not there.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError("Unknown compute device", expected="auto, cpu, cuda or cuda:N", got=repr(name))
    count = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and count == 0):
        return torch.device("cpu")
    index = int(match["index"] or 0)
    if count == 0:
        raise DeviceError(
            f"Device {name} is not available",
            expected="a CUDA device and a torch build that supports it",
            got=_why_no_cuda(),
            hint="Choose device 'auto' or 'cpu', or mend the driver (nvidia-smi shows whether it sees the GPU).",
        )
    if index >= count:
        names = ", ".join(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count))
        raise DeviceError(f"Device {name} does not exist", expected=f"one of {names}", got=name)
    return torch.device("cuda", index)


def describe_device(device: torch.device) -> str:
    """Say in words what a device is: ``"NVIDIA H200 (cuda:0)"``, ``"AMD EPYC 7543 (2 threads)"``."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (cuda:{device.index or 0})"
    threads = torch.get_num_threads()
    return f"{_cpu_model()} ({threads} thread{'s' if threads != 1 else ''})"


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__}, built without CUDA"
    return f"torch {torch.__version__} for CUDA {torch.version.cuda}, but no usable GPU or driver"


def _cpu_model() -> str:
    """Return the processor's marketing name where Linux tells it, else what Python knows."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else (platform.processor() or platform.machine() or "CPU")
