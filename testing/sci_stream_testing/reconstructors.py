"""One suite of tests for every reconstructor, also for networks of other packages.

Derive a class from `ReconstructorContract` in a test module; pytest runs its tests::

    class TestMyNetwork(ReconstructorContract):
        def make(self, device):
            return as_solver(sci_stream.Network(MyNetwork), device, weights=None)
"""

from __future__ import annotations

import torch

from sci_stream.plugins import Coded, MemoryReducible, Reconstructor

CPU = torch.device("cpu")


class ReconstructorContract:
    """Tests of a reconstructor; see `sci_stream.ports.Reconstructor`."""

    device = CPU
    shapes: tuple[tuple[int, int, int], ...] = ((8, 32, 32), (8, 24, 48), (8, 30, 21))
    """(B, H, W) that it must recover. Sensors have any size, and calibrations any B; a network
    that recovers one B alone says so in its abilities."""
    tolerance = 1e-4
    """Difference that arithmetic in another order may make."""

    def make(self, device: torch.device) -> Reconstructor:
        """Return the reconstructor on the device."""
        raise NotImplementedError

    def test_each_step_gives_a_finite_video(self) -> None:
        """Videos of any size come back in float32 on the device, one for each step."""
        solver = self.make(self.device)
        assert isinstance(solver, Reconstructor)
        assert solver.name
        for shape in self.shapes:
            problem = self.problem(*shape)
            videos = self._videos(solver, problem)
            assert len(videos) == solver.abilities.steps
            for video in videos:
                assert video.shape == problem.phi.shape
                assert (video.dtype, video.device) == (torch.float32, problem.y.device)
                assert video.isfinite().all(), f"NaN or infinity for {shape}"

    def test_problem_is_neither_changed_nor_aliased(self) -> None:
        """The engine keeps the masks for all snapshots; a replay gives the same video."""
        solver = self.make(self.device)
        problem = self.problem(*self.shapes[0])
        before = Coded(*(field.clone() for field in problem))
        video = self._videos(solver, problem)[-1]
        for field, was in zip(problem, before, strict=True):
            assert torch.equal(field, was), "the problem was changed"
            assert field.untyped_storage().data_ptr() != video.untyped_storage().data_ptr()
        assert torch.equal(self._videos(solver, problem)[-1], video)

    def test_planes_do_not_depend_on_each_other(self) -> None:
        """The planes of a colour camera are videos of their own."""
        solver = self.make(self.device)
        planes = [self.problem(*self.shapes[0], seed=seed) for seed in range(4)]
        together = Coded(*(torch.cat(fields) for fields in zip(*planes, strict=True)))
        videos = self._videos(solver, together)[-1]
        for plane, video in zip(planes, videos, strict=True):
            alone = self._videos(solver, plane)[-1][0]
            torch.testing.assert_close(video, alone, rtol=0, atol=self.tolerance)

    def test_less_memory_gives_a_video_without_measured_pixels(self) -> None:
        """One that can reduce its memory says when it cannot any more; r_inv is 0 in places."""
        solver = self.make(self.device)
        problem = self.problem(8, 128, 128)
        problem.r_inv[..., 3:5, 7] = 0.0
        problem.y[..., 3:5, 7] = 0.0
        for _ in range(64):
            assert self._videos(solver, problem)[-1].isfinite().all()
            if not isinstance(solver, MemoryReducible) or not solver.reduce_memory():
                return
        raise AssertionError("reduce_memory is never False")

    def problem(self, n_frames: int, height: int, width: int, seed: int = 0) -> Coded:
        """Return a problem with random masks, whose start is the still image."""
        generator = torch.Generator().manual_seed(seed)
        phi = (torch.rand(1, n_frames, height, width, generator=generator) < 0.5).float()
        phi[:, 0] = 1 - phi[:, 1]  # each pixel is measured
        still = 0.3 + 0.4 * torch.rand(1, height, width, generator=generator)
        variance = torch.full_like(still, 1e-4)
        start = still.unsqueeze(1).expand_as(phi).clone()
        y = phi.sum(1) * still
        problem = Coded(y, phi, 1 / phi.square().sum(1), variance, 100 * variance, still, start)
        return Coded(*(field.to(self.device) for field in problem))

    def _videos(self, solver: Reconstructor, problem: Coded) -> list[torch.Tensor]:
        steps = solver.abilities.steps
        begun: list[None] = []
        with torch.inference_mode():
            videos = list(solver.reconstruct(problem, steps, lambda: begun.append(None)))
        assert len(begun) == steps, "between is called before each step"
        return videos
