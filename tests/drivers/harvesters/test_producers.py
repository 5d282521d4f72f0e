"""Finding and checking GenTL producers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sci_stream.errors import CameraError, ConfigError
from sci_stream_drivers.genicam.library import library
from sci_stream_drivers.harvesters import HarvestersCamera, HarvestersOptions
from sci_stream_drivers.harvesters.producers import (
    VARIABLE,
    check_producer,
    open_system,
    producer_files,
    usable_producers,
)
from tests.drivers.harvesters.kit import wheel_options

pytestmark = pytest.mark.rig


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.cti", "a.cti", "readme.txt"):
        (tmp_path / name).write_bytes(b"no library")
    return tmp_path


def test_folder_means_all_producers_in_it(folder: Path) -> None:
    assert producer_files([folder]) == [folder / "a.cti", folder / "b.cti"]


def test_duplicate_producer_is_used_once(folder: Path) -> None:
    assert producer_files([folder / "b.cti", folder]) == [folder / "b.cti", folder / "a.cti"]


def test_variables_and_the_home_folder_are_expanded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDK", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    assert producer_files([Path("$SDK/a.cti"), Path("~/b.cti")]) == [
        folder / "a.cti",
        folder / "b.cti",
    ]


def test_environment_is_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "c.cti").touch()
    monkeypatch.setenv(VARIABLE, f"{folder}:/no/such/folder::{folder / 'more'}")
    assert producer_files([]) == [folder / "a.cti", folder / "b.cti", folder / "more" / "c.cti"]


def test_missing_producer_error_names_the_sdk() -> None:
    with pytest.raises(ConfigError) as caught:
        producer_files([])
    for words in ("No GenTL producer is known", VARIABLE, ".cti", "SDK"):
        assert words in str(caught.value)


def test_environment_without_producers_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=f"got {VARIABLE}={tmp_path}, without any .cti file"):
        producer_files([])


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"no GenTL producer {tmp_path / 'none.cti'}"):
        producer_files([tmp_path / "none.cti"])
    with pytest.raises(ConfigError, match=rf"folder {tmp_path} contains no .cti file"):
        producer_files([tmp_path])


def test_file_that_is_not_a_library_is_refused(folder: Path) -> None:
    with pytest.raises(CameraError, match=r"a\.cti cannot be loaded; expected a shared library"):
        check_producer(folder / "a.cti")


def test_library_that_is_not_a_producer_is_refused(producer: Path, tmp_path: Path) -> None:
    library()  # loads the libraries that the one below needs
    other = next(producer.parent.glob("libLog*.so"))
    path = Path(shutil.copy(other, tmp_path / "other.cti"))
    with pytest.raises(
        CameraError, match=r"other\.cti is a library but not a GenTL producer.*GCInitLib"
    ):
        check_producer(path)


def test_producer_in_use_in_this_process_error_says_so(producer: Path) -> None:
    with open_system(producer) as system:
        assert system.is_open()
        with (
            pytest.raises(CameraError, match=r"viky\.cti is in use in this process"),
            open_system(producer),
        ):
            pass
    with open_system(producer) as system:
        assert system.is_open()


def test_unusable_producer_is_skipped_with_a_warning(
    producer: Path, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{folder}:{producer.parent}")
    options = {**wheel_options(producer), "cti": []}
    camera = HarvestersCamera(HarvestersOptions.model_validate(options))
    try:
        assert camera.open().serial == "1"
    finally:
        camera.close()
    assert "Skipped a GenTL producer" in caplog.text
    assert "a.cti cannot be loaded" in caplog.text


def test_only_unusable_producers_are_an_error(folder: Path) -> None:
    with pytest.raises(CameraError, match=r"a\.cti cannot be loaded"):
        usable_producers([folder / "a.cti", folder / "b.cti"])


def test_unknown_producer_of_the_selector_lists_the_known(producer: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected one of viky\.cti; got other\.cti"):
        usable_producers([producer], "other.cti")
