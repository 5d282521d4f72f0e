"""Copies that run in parallel with computation, and clocks that do not block it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.recon.backend.transfers import Stopwatch, Transfers

DEVICES = [
    torch.device("cpu"),
    pytest.param(
        torch.device("cuda"),
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_])
def test_upload_and_download_round_trip(device: torch.device, dtype: type[np.generic]) -> None:
    transfers = Transfers(device)
    arrays = [(np.random.default_rng(n).random((31, 17)) * 2).astype(dtype) for n in range(5)]
    with torch.inference_mode():
        uploads = [transfers.upload(array) for array in arrays]
        arrivals = [transfers.download(tensor, tensor[0].clone()) for tensor in uploads]
    for array, arrival in zip(arrays, arrivals, strict=True):
        whole, row = arrival.arrays()
        assert arrival.ready
        np.testing.assert_array_equal(whole, array)
        np.testing.assert_array_equal(row, array[0])


@pytest.mark.parametrize("device", DEVICES)
def test_download_waits_for_its_computation(device: torch.device) -> None:
    transfers = Transfers(device)
    with torch.inference_mode():
        x = transfers.upload(np.full((256, 256), 0.5, np.float32))
        for _ in range(50):
            x = (x @ x) / 64
        (result,) = transfers.download(x).arrays()
    np.testing.assert_allclose(result, np.full((256, 256), result[0, 0]))
    assert result[0, 0] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_stopwatch_measures_between_laps(device: torch.device) -> None:
    watch = Stopwatch(device)
    for _ in range(3):
        watch.lap()
    assert 0 <= watch.seconds() < 10
