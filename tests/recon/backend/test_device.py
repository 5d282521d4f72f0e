"""Choosing a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sci_stream.errors import ConfigError, DeviceError
from sci_stream.recon.backend.device import (
    describe_device,
    device_of_node,
    idle_cuda,
    is_large_gpu,
    is_lost,
    pick_device,
    prepare_libraries,
)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda index: (7, 5) if index else (9, 0)
    )
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "compute_120"])


def test_auto_chooses_the_first_gpu(two_gpus: None) -> None:
    assert pick_device("auto") == torch.device("cuda", 0)


def test_auto_falls_back_to_the_cpu(no_gpu: None) -> None:
    assert pick_device("auto") == torch.device("cpu")


def test_nodes_with_auto_share_the_gpus_out(two_gpus: None) -> None:
    assert [device_of_node(("auto",), n) for n in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device_of_node(("auto", "auto"), n) for n in range(2)] == ["cuda:0", "cuda:1"]
    assert [device_of_node(("auto", "cpu"), n) for n in range(2)] == ["cuda:0", "cpu"]


def test_nodes_with_auto_and_no_gpu_use_the_cpu(no_gpu: None) -> None:
    assert pick_device(device_of_node(("auto",), 1)) == torch.device("cpu")


@pytest.mark.parametrize("kind", [RuntimeError, getattr(torch, "AcceleratorError", RuntimeError)])
@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: out of memory", False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", False),
    ],
)
def test_device_out_of_memory_is_not_lost(kind: type[Exception], words: str, lost: bool) -> None:
    assert is_lost(kind(words)) is lost


def test_cpu_is_chosen_by_name(two_gpus: None) -> None:
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_gpu_is_chosen_by_number(two_gpus: None, name: str, index: int) -> None:
    assert pick_device(name) == torch.device("cuda", index)


def test_missing_gpu_is_a_device_error(no_gpu: None) -> None:
    with pytest.raises(DeviceError, match=r"Device cuda:1 is not available.*'auto' or 'cpu'"):
        pick_device("cuda:1")


def test_gpu_number_out_of_range_lists_available_ones(two_gpus: None) -> None:
    with pytest.raises(
        DeviceError, match=r"cuda:7 does not exist.*cuda:0 \(GPU 0\), cuda:1 \(GPU 1\)"
    ):
        pick_device("cuda:7")


def test_gpu_that_torch_has_no_kernels_for_is_a_device_error(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (7, 0))
    with pytest.raises(DeviceError, match=r"compute capability 7\.5 or higher"):
        pick_device("auto")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"])
def test_unknown_device_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="auto, cpu, cuda or cuda:N"):
        pick_device(name)


def test_description_names_model_and_threads(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA Test")
    assert describe_device(torch.device("cuda", 1)) == "NVIDIA Test (cuda:1)"
    assert describe_device(torch.device("cpu")).endswith("threads)") or torch.get_num_threads() == 1


def test_prepare_libraries_on_cuda_leaves_cudnn_flags_usable() -> None:
    """torch's newer precision switch makes `cudnn.flags`, and with it `torch.export`, raise."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        prepare_libraries(torch.device("cuda"))
        assert not torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(enabled=True):
            pass
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before


def test_prepare_libraries_in_training_stays_reproducible() -> None:
    """Trainings make denoisers all the time, and resume bit for bit."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            prepare_libraries(torch.device("cuda"))
            assert not torch.backends.cudnn.benchmark
        prepare_libraries(torch.device("cuda"))
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    ("multiprocessors", "capability", "large"),
    [
        (132, (9, 0), True),
        (108, (8, 0), True),
        (80, (7, 0), True),
        (58, (8, 9), False),
        (128, (6, 1), False),
    ],
)
def test_is_large_gpu_needs_multiprocessors_and_matrix_units(
    multiprocessors: int, capability: tuple[int, int], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(multi_processor_count=multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert is_large_gpu(torch.device("cuda", 0)) is large


def test_is_large_gpu_on_the_cpu_is_false() -> None:
    assert not is_large_gpu(torch.device("cpu"))


def test_unusable_driver_is_named_with_what_cuda_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "CUDA 13.0, which needs NVIDIA's driver R580 or newer, but no usable GPU" in idle_cuda(
        "auto"
    )
    assert idle_cuda("cpu") == ""
    monkeypatch.setattr(torch.version, "cuda", None)
    assert idle_cuda("auto") == "", "a build for the CPU"
