"""The kernel between two runs of the network: interpreted, and compiled without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

_NO_TRITON = importlib.util.find_spec("triton") is None

_INTERPRETED = """
import torch
import torch.nn.functional as F
from sci_stream.optics.forward import accumulate_and_project
from sci_stream.recon.backend.triton_between import between
from sci_stream.recon.denoisers.temporal import FramesToImages, cosines

def transform(n, along_time):
    if not along_time:
        return FramesToImages.of(torch.eye(n), torch.ones(n), torch.zeros(n), torch.ones(n))
    scale, offset, level = torch.ones(n), torch.full((n,), 0.5), torch.ones(n)
    scale[0], offset[0], level[0] = n ** -0.5, 0.0, n ** -0.25
    return FramesToImages.of(cosines(n).float(), scale, offset, level)

def images(t, video):
    mixed = torch.einsum("ij,pjhw->pihw", t.forth[: len(t.scale), : len(t.scale)], video)
    return (mixed * t.scale.view(-1, 1, 1) + t.offset.view(-1, 1, 1)).contiguous()

def frames(t, mixed):
    forth = t.forth[: len(t.scale), : len(t.scale)]
    return torch.einsum("ji,pjhw->pihw", forth, (mixed - t.offset.view(-1, 1, 1)) / t.scale.view(-1, 1, 1))

random = torch.Generator().manual_seed(0)
cases = [(1, 5, 6, 10, False, False, True), (4, 18, 4, 6, True, True, False), (1, 3, 8, 4, True, False, True)]
for planes, n, height, width, gives_noise, local, weighted in cases:
    v0 = torch.rand(planes, n, height, width, generator=random)
    phi = torch.rand(v0.shape, generator=random)
    y, y_acc, r_inv, w = (torch.rand(planes, height, width, generator=random) for _ in range(4))
    weight, sigma = w if weighted else None, torch.tensor(0.1)
    relative = 0.5 + torch.rand(planes, height // 2, width // 2, generator=random) if local else None
    for before, after in ((transform(n, False), transform(n, True)), (transform(n, True), transform(n, False))):
        image = images(before, v0)
        given = torch.zeros(planes * n, 8, height // 2, width // 2)
        given[:, :4] = F.pixel_unshuffle(0.1 * torch.randn(planes * n, 1, height, width, generator=random), 2)
        given = given.to(memory_format=torch.channels_last)
        out = F.pixel_shuffle(given[:, :4], 2).view_as(image)
        v = frames(before, image - out if gives_noise else out)
        x, accumulated = accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=1.5, weight=weight)
        wanted = images(after, x)
        level = sigma * after.level.view(1, n, 1, 1).expand(planes, n, height // 2, width // 2)
        if relative is not None:
            level = (level * relative.unsqueeze(1)).clamp_max(0.12)
        own_image, own_acc, packed = image.clone(), y_acc.clone(), torch.full_like(given, torch.nan)
        between(
            given, own_image, own_acc, packed, before, after, phi=phi, y=y, r_inv=r_inv, sigma=sigma, relaxation=1.5,
            gives_noise=gives_noise, weight=weight, relative=relative, limit=0.8, max_level=0.12,
        )
        close = dict(rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own_acc, accumulated, **close)
        torch.testing.assert_close(own_image, wanted, **close)
        flat = wanted.flatten(0, 1).unsqueeze(1).clamp(-0.8, 0.8)
        torch.testing.assert_close(packed[:, :4], F.pixel_unshuffle(flat, 2), **close)
        torch.testing.assert_close(packed[:, 4], level.flatten(0, 1), **close)
        assert not packed[:, 5:].any()
"""

_IN_A_SOLVE = """
import torch
from sci_stream.recon.backend.network_stack import pad_channels
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser, Network
from sci_stream.recon.backend.network_stack import in_layers
from sci_stream.recon.denoisers.temporal import cycled_denoisers
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream.recon.backend.fused_gap import _difference, fused_gap

cpu = torch.device("cpu")
weights = load_ffdnet(shipped_weights("ffdnet-lite"))
prior = FfdnetDenoiser(weights, cpu, pixels_per_chunk=1500)
priors = cycled_denoisers(prior, 7, cpu, along_time=True)
assert fused_gap(prior, priors, torch.Size((2, 7, 12, 20)), cpu) == (None, ""), "it takes five channels"
layers = [pad_channels(kernel, bias) for kernel, bias in zip(weights.kernels, weights.biases)]
stack = in_layers([kernel for kernel, _ in layers], [bias for _, bias in layers])
prior._full = prior._half = Network(stack, 8, torch.float32, gives_noise=weights.gives_noise)
fused, why = fused_gap(prior, priors, torch.Size((2, 7, 12, 20)), cpu)
assert fused is not None, why
assert why == ""
difference = _difference(fused, priors, 7, cpu)
assert 0 < difference < 1e-5, difference
assert fused_gap(prior, priors, torch.Size((2, 7, 13, 20)), cpu) == (None, ""), "rows must be even"
"""

_COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sci_stream.recon.backend import triton_between as own
from sci_stream.recon.denoisers.temporal import padded_frames
floats = "image phi y y_acc r_inv weight back back_scale back_offset forth scale offset level sigma relative".split()
signature = dict.fromkeys(floats, "*fp32") | {"output": "*fp16", "packed": "*fp16"}
signature |= dict.fromkeys(("relaxation", "limit", "max_level"), "fp32") | {"height": "i32", "width": "i32"}
for n_frames in (8, 48):
    constants = {"N_FRAMES": n_frames, "PADDED": padded_frames(n_frames), "GIVES_NOISE": True, "WEIGHTED": True}
    constants |= {"LOCAL": True, "CHANNELS": 8, "BLOCK": own._BLOCK}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=own._kernel, signature=signature, constexprs=constants, attrs={})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
"""

# Triton launches on the current device: with tensors of another GPU it would read memory that is not there.
_ON_ITS_DEVICE = """
import contextlib
import torch
from sci_stream.optics import triton_kernels
from sci_stream.recon.backend import triton_between
from sci_stream.recon.denoisers.temporal import FramesToImages

entered, launched = [], []

@contextlib.contextmanager
def device_of(tensor):
    entered.append(tensor)
    yield
    entered.pop()

class Kernel:
    def __getitem__(self, grid):
        return lambda *_: launched.append(bool(entered))

torch.cuda.device_of = device_of
for module in (triton_kernels, triton_between):
    module._kernel = Kernel()
v, y = torch.rand(1, 3, 4, 6), torch.rand(1, 4, 6)
triton_kernels.accumulate_and_project(v, y, y, v, y, relaxation=1.0)
same = FramesToImages.of(torch.eye(3), torch.ones(3), torch.zeros(3), torch.ones(3))
triton_between.between(
    *(torch.rand(3, 8, 2, 3), v, y, torch.rand(3, 8, 2, 3), same, same),
    phi=v, y=y, r_inv=y, sigma=torch.tensor(0.1), relaxation=1.0, gives_noise=True,
)
assert launched == [True, True], launched
"""


@pytest.mark.skipif(_NO_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize(("script", "interpreted"), [(_INTERPRETED, "1"), (_IN_A_SOLVE, "1"), (_COMPILED, "0")])
def test_kernel_between_networks_equals_torch(script: str, interpreted: str) -> None:
    run_script(script, interpreted)


@pytest.mark.skipif(_NO_TRITON, reason="Triton is not installed")
def test_kernels_are_launched_on_the_device_of_their_tensors() -> None:
    run_script(_ON_ITS_DEVICE, "1")


def run_script(script: str, interpreted: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpreted, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert run.returncode == 0, run.stderr
