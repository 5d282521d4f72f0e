"""Choose and describe the device that reconstructs."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from sci_stream.errors import CaptureError, ConfigError, DeviceError

# The threads of OpenMP do not survive a fork, and a child that waits for them would never return.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

# Oldest driver that runs a release of CUDA and those before the next one: NVIDIA, "CUDA
# compatibility".
_DRIVERS = ((13.0, "580"), (12.0, "525"), (11.0, "450"))
_NAME = re.compile(r"auto|cpu|cuda(:(?P<index>\d+))?")


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of this name.

    Parameters
    ----------
    name
        ``"auto"`` (the first CUDA device, else the CPU), ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Raises
    ------
    ConfigError
        If the name is none of these.
    DeviceError
        If the device is not available.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            "Unknown compute device", expected="auto, cpu, cuda or cuda:N", got=repr(name)
        )
    count = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and count == 0):
        return torch.device("cpu")
    index = int(match["index"] or 0)
    if count == 0:
        raise DeviceError(
            f"Device {name} is not available",
            expected="a CUDA device and a torch build that supports it",
            got=_why_no_cuda(),
            hint="Choose device 'auto' or 'cpu', or repair the driver (nvidia-smi shows whether "
            "it sees the GPU).",
        )
    if index >= count:
        names = ", ".join(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count))
        raise DeviceError(f"Device {name} does not exist", expected=f"one of {names}", got=name)
    chips = [
        int(chip)
        for name in torch.cuda.get_arch_list()
        if (chip := name.removeprefix("sm_")).isdigit()
    ]
    oldest = min(chips, default=0)
    major, minor = torch.cuda.get_device_capability(index)
    if 10 * major + minor < oldest:
        raise DeviceError(
            f"{torch.cuda.get_device_name(index)} is too old for this torch",
            expected=f"compute capability {oldest / 10} or higher, as torch {torch.__version__} "
            "is built for",
            got=f"{major}.{minor}",
            hint="Choose device 'cpu', another GPU, or a torch for an older CUDA.",
        )
    return torch.device("cuda", index)


def device_of_node(names: Sequence[str], index: int) -> str:
    """Return the name of a node's device: node i uses names[i mod n].

    Where that is ``auto``, and there are GPUs, the nodes use them in turn.
    """
    name = names[index % len(names)]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{index % gpus}" if name == "auto" and gpus else name


def describe_device(device: torch.device) -> str:
    """Describe a device: ``"NVIDIA H200 (cuda:0)"``, ``"AMD EPYC 7543 (2 threads)"``."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (cuda:{device.index or 0})"
    threads = torch.get_num_threads()
    return f"{_cpu_model()} ({threads} thread{'s' if threads != 1 else ''})"


def computes_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 in hardware,
    several times faster than float32.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Not public, and absent in older releases of torch: False is safe there, only slower.
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return supported is not None and bool(supported())


# Words of errors that are not of the class for them: of torch's allocator on a processor, of CUDA
# outside torch's allocator, and of its libraries.
_NO_MEMORY = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or NumPy means out of memory.

    >>> ran_out_of_memory(MemoryError()), ran_out_of_memory(ValueError("can't allocate memory"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def is_lost(error: BaseException) -> bool:
    """Return whether a device fails everything from now on, for this process: after an illegal
    access, or unplugged.

    Out of memory is none of these.
    """
    if isinstance(error, CaptureError):
        return True
    if ran_out_of_memory(error):
        return False
    sticky = isinstance(error, getattr(torch, "AcceleratorError", ()))  # torch 2.8 and newer
    return sticky or (isinstance(error, RuntimeError) and "CUDA error" in str(error))


def memory_in_use(device: torch.device) -> dict[str, int]:
    """Return bytes of a device's memory by use: of a CUDA device its own, of a CPU the host's."""
    if device.type != "cuda":
        return _host_memory()
    free, total = torch.cuda.mem_get_info(device)
    return {
        "memory_tensors": torch.cuda.memory_allocated(device),
        "memory_reserved": torch.cuda.memory_reserved(device),
        "memory_free": free,
        "memory_total": total,
    }


def _host_memory() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    wanted = {"memory_free": "MemAvailable", "memory_total": "MemTotal"}
    return {ours: kib[theirs] << 10 for ours, theirs in wanted.items() if theirs in kib}


def half_dtype(device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type in which a device convolves at a multiple of its speed in float32;
    None if there is none.

    float16 on GPUs with matrix units: it has three bits more of mantissa than bfloat16, and images
    need no wide range. bfloat16 on processors, which lack fast float16.
    """
    if device.type == "cuda":
        return torch.float16 if torch.cuda.get_device_capability(device) >= (7, 0) else None
    return torch.bfloat16 if computes_bfloat16(device) else None


# Of an A100 with a seventh of its parts disabled, and more than a GPU for inference or a laptop has
# (T4 40, L4 58).
_LARGE_GPU_MULTIPROCESSORS = 80


def is_large_gpu(device: torch.device) -> bool:
    """Return whether a device runs the full network at video rates:
    a large GPU with matrix units.
    """
    if device.type != "cuda" or half_dtype(device) is None:
        return False
    return (
        torch.cuda.get_device_properties(device).multi_processor_count >= _LARGE_GPU_MULTIPROCESSORS
    )


def prepare_libraries(device: torch.device) -> None:
    """Let cuDNN choose the fastest algorithm for each shape, and disable TF32; nothing on a CPU.

    Where only deterministic algorithms are allowed, as in a training, it takes the same one in each
    run. By default torch convolves float32 on a GPU in TF32, with ten bits of mantissa as in
    float16.
    """
    if device.type != "cuda":
        return
    # Not in a training: the fastest of two algorithms may be another one in the next run.
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic
    # The older of two switches: after `cudnn.conv.fp32_precision`, `cudnn.flags()`, `torch.export`
    # and `torch.compile` raise, since cuDNN's convolutions and recurrent layers then differ (torch
    # 2.9 to 2.13).
    torch.backends.cudnn.allow_tf32 = False


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__}, built without CUDA"
    driver = next((need for since, need in _DRIVERS if float(torch.version.cuda) >= since), "")
    needs = f", which needs NVIDIA's driver R{driver} or newer" if driver else ""
    return (
        f"torch {torch.__version__} for CUDA {torch.version.cuda}{needs}, but no usable GPU or "
        "driver"
    )


def idle_cuda(name: str) -> str:
    """Return why a device that may be a GPU is the CPU although torch is built for CUDA; empty if
    it is not so.
    """
    if name == "auto" and torch.version.cuda and not torch.cuda.is_available():
        return _why_no_cuda()
    return ""


def _cpu_model() -> str:
    """Return the processor's marketing name from Linux, or Python's description of it."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else (platform.processor() or platform.machine() or "CPU")
