"""One suite of tests for every denoiser, also those of other packages.

Derive a class from `DenoiserContract` in a test module; pytest runs its tests::

    class TestMyDenoiser(DenoiserContract):
        def make(self, device):
            return make_denoiser("my_package:MyDenoiser", device)
"""

from __future__ import annotations

import itertools

import torch

from sci_stream.plugins import Denoiser, MemoryReducible

CPU = torch.device("cpu")
_SHAPES = ((1, 16, 16), (5, 8, 24), (3, 15, 17), (2, 7, 4), (2, 1, 6), (1, 1, 1))
_LEVELS = (1.0, 0.2, 0.02, 1 / 255)


class DenoiserContract:
    """Tests of a denoiser; see `sci_stream.ports.Denoiser`."""

    device = CPU
    shapes: tuple[tuple[int, int, int], ...] = _SHAPES
    """(N, H, W) that the denoiser must accept. Sensors may have any size; remove those that yours
    need not support."""
    reduces_noise = True
    """False for one that leaves noise: the identity, or an untrained network."""

    def make(self, device: torch.device) -> Denoiser:
        """Return the denoiser on the device."""
        raise NotImplementedError

    def test_it_satisfies_the_protocol(self) -> None:
        """It is callable and has a name."""
        denoiser = self.make(self.device)
        assert isinstance(denoiser, Denoiser)
        assert isinstance(denoiser.name, str)
        assert denoiser.name

    def test_shape_and_dtype_are_kept_for_any_size(self) -> None:
        """Frames of any size come back finite, with shape, dtype and device unchanged."""
        denoiser = self.make(self.device)
        for shape in self.shapes:
            x = self._frames(*shape)
            out = denoiser(x, 0.1)
            assert out.shape == x.shape, f"{tuple(x.shape)} became {tuple(out.shape)}"
            assert (out.dtype, out.device) == (x.dtype, x.device)
            assert out.isfinite().all(), f"NaN or infinity for frames of {tuple(x.shape)}"

    def test_output_is_finite_at_any_level_and_beyond_the_range(self) -> None:
        """σ from 1 to 1/255, and frames beyond 0–1, as they occur in a solve."""
        denoiser = self.make(self.device)
        x = 3.0 * self._frames(2, 16, 16) - 1.0
        for sigma in _LEVELS:
            assert denoiser(x, sigma).isfinite().all(), f"NaN or infinity at sigma = {sigma:.4g}"

    def test_input_is_neither_changed_nor_aliased(self) -> None:
        """The solver keeps its input, and writes to the output."""
        denoiser = self.make(self.device)
        x = self._frames(2, 9, 8)
        before = x.clone()
        out = denoiser(x, 0.1)
        assert torch.equal(x, before), "the input was changed"
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), (
            "the output shares the input's memory"
        )

    def test_a_frame_does_not_depend_on_its_neighbours_in_the_batch(self) -> None:
        """Batches are split to fit the memory; the result must not depend on it."""
        denoiser = self.make(self.device)
        x = self._frames(7, 12, 10)
        together = denoiser(x, 0.1)
        for n in range(7):
            torch.testing.assert_close(
                denoiser(x[n : n + 1], 0.1)[0], together[n], rtol=1e-5, atol=1e-5
            )

    def test_equal_calls_give_equal_results(self) -> None:
        """A replay of a recording must give the same video."""
        denoiser = self.make(self.device)
        x = self._frames(2, 10, 10)
        assert torch.equal(denoiser(x, 0.2), denoiser(x, 0.2))

    def test_non_contiguous_frames_are_accepted(self) -> None:
        """Frames may be views."""
        denoiser = self.make(self.device)
        x = self._frames(2, 20, 10)
        torch.testing.assert_close(denoiser(x[:, ::2], 0.1), denoiser(x[:, ::2].contiguous(), 0.1))

    def test_it_runs_in_inference_mode(self) -> None:
        """Solves record no gradients."""
        with torch.inference_mode():
            assert not self.make(self.device)(self._frames(1, 8, 8), 0.1).requires_grad

    def test_noise_is_reduced(self) -> None:
        """White noise of σ = 0.1 on a smooth image loses at least a third of its power."""
        if not self.reduces_noise:
            return
        row, column = torch.meshgrid(torch.arange(48.0), torch.arange(56.0), indexing="ij")
        clean = (
            (0.5 + 0.3 * torch.sin(row / 9) * torch.cos(column / 11))
            .expand(3, -1, -1)
            .to(self.device)
        )
        noise = 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)).to(
            self.device
        )
        error = self.make(self.device)(clean + noise, 0.1) - clean
        assert error.square().mean() < noise.square().mean() * 2 / 3, "noise was not reduced"

    def test_less_memory_gives_the_same(self) -> None:
        """One that can reduce its memory gives the same result with less, until nothing is left."""
        denoiser = self.make(self.device)
        if not isinstance(denoiser, MemoryReducible):
            return
        x = self._frames(6, 8, 8)
        before = denoiser(x, 0.1)
        reduced = list(
            itertools.takewhile(lambda more: more, (denoiser.reduce_memory() for _ in range(64)))
        )
        assert 1 <= len(reduced) < 64
        torch.testing.assert_close(denoiser(x, 0.1), before)

    def _frames(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=torch.Generator().manual_seed(1)).to(self.device)
