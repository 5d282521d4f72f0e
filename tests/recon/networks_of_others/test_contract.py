"""The suite of reconstructors, over networks of three families and the shipped stages."""

from __future__ import annotations

import pytest
import torch

import sci_stream
from sci_stream.ports import Reconstructor
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.external import as_solver
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream_testing.reconstructors import ReconstructorContract
from tests.recon.networks_of_others.families import StackedUnet, UnrolledConv3d, WindowTransformer


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class TestStackedUnet(ReconstructorContract):
    def make(self, device: torch.device) -> Reconstructor:
        return as_solver(StackedUnet(), device, None)


class TestUnetOfPlanes(ReconstructorContract):
    def make(self, device: torch.device) -> Reconstructor:
        return as_solver(sci_stream.Network(StackedUnet, planes=True), device, None)


class TestUnrolledConv3d(ReconstructorContract):
    def make(self, device: torch.device) -> Reconstructor:
        return as_solver(UnrolledConv3d(), device, None)


class TestWindowTransformer(ReconstructorContract):
    def make(self, device: torch.device) -> Reconstructor:
        return as_solver(WindowTransformer(), device, None)


class TestTilesOfOneSize(ReconstructorContract):
    shapes = ((8, 32, 32), (8, 40, 72), (8, 20, 33))

    def make(self, device: torch.device) -> Reconstructor:
        return as_solver(sci_stream.Network(WindowTransformer(), tile=32), device, None)


class TestShippedStages(ReconstructorContract):
    def make(self, device: torch.device) -> Reconstructor:
        return named_prior("unrolled", device, None, Precision.FLOAT32)
