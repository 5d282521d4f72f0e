"""Published files, found by their content in the folder of data, are solved without a defect;
docs/how-to/ci.md.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import pytest

import sci_stream

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "ci.md"


class PublicFile(NamedTuple):
    """A published file: SHA-256, the PSNR that its first snapshot has at least, dB,
    and its origin.
    """

    name: str
    sha256: str
    least_psnr_db: float | None
    origin: str


FILES = (
    PublicFile(
        "traffic48_cacti.mat",
        "b43d542d3eef97d2bb5d666ff36f5dd60239d35bbcf2b17121c923b019318cf4",
        22.5,
        "liuyang12/PnP-SCI_python on GitHub",
    ),
    PublicFile(
        "crash32_cacti.mat",
        "87ee5211ca42df51a505e36129d80d26c9e75102fb867632b48dbd218009bdfc",
        26.0,
        "frames of GuillermoHan97/SCI-Tensor-FISTA-Net on GitHub behind the masks of traffic48",
    ),
    PublicFile(
        "4fan14_cacti.mat",
        "cf24ac8b7e086c2307a7c4e5b704a9ef694bc5b5b12b8c59598e0479d2257b72",
        None,
        "YangletLiu/ShearLet_for_Snapshot_Compressive_Imaging on GitHub, a real capture",
    ),
)


@pytest.fixture(scope="module")
def by_content(data_dir: Path) -> dict[str, Path]:
    """Return the paths of the files in the folder of data by their SHA-256."""
    return {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in data_dir.rglob("*.mat")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_public_file_is_right_without_a_defect(
    file: PublicFile, by_content: dict[str, Path]
) -> None:
    if file.sha256 not in by_content:
        pytest.skip(f"{file.name} is not in the folder of data: {file.origin}")
    data = sci_stream.load_measurement(by_content[file.sha256])
    truth = None if data.truth is None else data.truth[: len(data.masks)]
    result = sci_stream.reconstruct(data.y[:1], data.masks, truth=truth, iterations=4, device="cpu")
    assert result.faults == ()
    assert file.least_psnr_db is None or result.psnr_db > file.least_psnr_db


def test_documentation_lists_the_public_files() -> None:
    text = DOCUMENT.read_text()
    assert [f"| `{file.name}` | `{file.sha256}` | {file.origin} |" in text for file in FILES] == [
        True
    ] * len(FILES)
