"""One suite of tests for every reconstructor, also for networks of other packages.

Derive a class from `ReconstructorContract` in a test module; pytest runs its tests::

    class TestMyNetwork(ReconstructorContract):
        def make(self, device):
            return as_solver(sci_stream.Network(MyNetwork), device, weights=None)
"""

from __future__ import annotations

import itertools

import torch

from sci_stream.ports import Coded, MemoryReducible, Reconstructor

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

    def test_it_satisfies_the_protocol(self) -> None:
        """It has a name and abilities that agree."""
        solver = self.make(self.device)
        assert isinstance(solver, Reconstructor)
        assert solver.name
        abilities = solver.abilities
        assert abilities.steps >= 1
        assert abilities.before is not None or abilities.least_before == 0

    def test_each_step_gives_a_finite_video(self) -> None:
        """Videos of any size come back in float32 on the device, one for each step."""
        solver = self.make(self.device)
        for shape in self.shapes:
            problem = self.problem(*shape)
            calls: list[None] = []
            steps = solver.abilities.steps
            with torch.inference_mode():
                videos = list(solver.reconstruct(problem, steps, lambda: calls.append(None)))  # noqa: B023
            assert len(videos) == len(calls) == steps, "between is called before each step"
            for video in videos:
                assert video.shape == problem.phi.shape
                assert (video.dtype, video.device) == (torch.float32, problem.y.device)
                assert video.isfinite().all(), f"NaN or infinity for {shape}"

    def test_problem_is_neither_changed_nor_aliased(self) -> None:
        """The engine keeps the masks for all snapshots."""
        problem = self.problem(*self.shapes[0])
        before = Coded(*(field.clone() for field in problem))
        video = self._video(self.make(self.device), problem)
        for name, field, was in zip(Coded._fields, problem, before, strict=True):
            assert torch.equal(field, was), f"{name} was changed"
            aliased = field.untyped_storage().data_ptr() == video.untyped_storage().data_ptr()
            assert not aliased, f"the video shares the memory of {name}"

    def test_planes_do_not_depend_on_each_other(self) -> None:
        """The planes of a colour camera are videos of their own."""
        solver = self.make(self.device)
        planes = [self.problem(*self.shapes[0], seed=seed) for seed in range(4)]
        together = Coded(*(torch.cat(fields) for fields in zip(*planes, strict=True)))
        videos = self._video(solver, together)
        for plane, video in zip(planes, videos, strict=True):
            alone = self._video(solver, plane)[0]
            torch.testing.assert_close(video, alone, rtol=0, atol=self.tolerance)

    def test_equal_problems_give_equal_videos(self) -> None:
        """A replay of a recording must give the same video."""
        solver, problem = self.make(self.device), self.problem(*self.shapes[0])
        assert torch.equal(self._video(solver, problem), self._video(solver, problem))

    def test_pixels_without_measurement_give_a_finite_video(self) -> None:
        """Stuck and saturated pixels are left out: there r_inv is 0."""
        problem = self.problem(*self.shapes[0])
        r_inv = problem.r_inv.clone()
        r_inv[..., 3:5, 7] = 0.0
        holes = problem._replace(r_inv=r_inv, y=problem.y * (r_inv > 0))
        assert self._video(self.make(self.device), holes).isfinite().all()

    def test_less_memory_is_asked_for_until_none_is_free(self) -> None:
        """One that can reduce its memory still gives a video, and says when it cannot any more."""
        solver, problem = self.make(self.device), self.problem(8, 128, 128)
        if not isinstance(solver, MemoryReducible):
            return
        self._video(solver, problem)
        more = (solver.reduce_memory() for _ in range(64))
        assert len(list(itertools.takewhile(bool, more))) < 64
        assert self._video(solver, problem).isfinite().all()

    def problem(self, n_frames: int, height: int, width: int, seed: int = 0) -> Coded:
        """Return a problem with random masks, whose start is the still image."""
        generator = torch.Generator().manual_seed(seed)
        phi = (torch.rand(1, n_frames, height, width, generator=generator) < 0.5).float()
        phi[:, 0] = 1 - phi[:, 1]  # each pixel is measured
        still = 0.3 + 0.4 * torch.rand(1, height, width, generator=generator)
        y = phi.sum(1) * still
        r_inv = 1 / phi.square().sum(1)
        noise = torch.full_like(y, 1e-4)
        start = still.unsqueeze(1).expand_as(phi).clone()
        problem = Coded(y, phi, r_inv, noise, 0.01 * torch.ones_like(y), still, start)
        return Coded(*(field.to(self.device) for field in problem))

    def _video(self, solver: Reconstructor, problem: Coded) -> torch.Tensor:
        with torch.inference_mode():
            *_, video = solver.reconstruct(problem, solver.abilities.steps, lambda: None)
        return video
