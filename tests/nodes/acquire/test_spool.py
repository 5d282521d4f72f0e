"""The spool survives a crash of the acquire node: every complete snapshot is recovered, no partial
one.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sci_stream import clock
from sci_stream.errors import StorageError
from sci_stream.model import FIRMWARE, Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.acquire.spool import SPOOL_VARIABLE, RecoveredState, Spool, spool_path
from sci_stream.nodes.runtime.process import PARENT_VARIABLE
from tests.e2e.kit import ROOT, environment

HEIGHT, WIDTH, B = 6, 8, 2
HASH = "0" * 32


def info(**changes: object) -> SeriesInfo:
    made = SeriesInfo(
        "s-1", 5, "rig", Policy.RECORD, "simulated", "7", HEIGHT, WIDTH, "Mono12", 12, B, HASH
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type] # whichever field a test wants


def snapshot(seq: int, *, truth: bool = False, epoch: int = 0) -> Snapshot:
    generator = np.random.default_rng(seq)
    return Snapshot(
        SnapshotId("s-1", epoch, seq),
        generator.integers(0, 4096, (HEIGHT, WIDTH), dtype=np.uint16),
        HASH,
        B,
        host_time_ns=1000 + seq,
        camera_time_ns=seq,
        camera_frame_id=seq,
        dropped_before=seq % 3,
        truth=generator.integers(0, 256, (B, HEIGHT, WIDTH), dtype=np.uint8) if truth else None,
    )


def new(path: Path, limit_bytes: int = 1 << 12) -> Spool:
    shutil.rmtree(path, ignore_errors=True)
    spool = Spool(path.parent, path.stem)
    spool.begin(info(), limit_bytes=limit_bytes)
    return spool


def taken_up(path: Path) -> RecoveredState:
    """Open the spool as the next process does."""
    spool = Spool(path.parent, path.stem)
    assert spool.recovered is not None
    spool.close(over=False)
    return spool.recovered


def same(one: Snapshot, other: Snapshot) -> bool:
    arrays = [(one.counts, other.counts), (one.truth, other.truth)]
    plain = [dataclasses.replace(each, counts=np.empty(0), truth=None) for each in (one, other)]
    report = [[getattr(each, field.name) for field in dataclasses.fields(each)] for each in plain]
    report = [[value for value in values if not isinstance(value, np.ndarray)] for values in report]
    return report[0] == report[1] and all(
        np.array_equal(a, b) if a is not None else b is None for a, b in arrays
    )


@pytest.mark.parametrize("truth", [False, True])
def test_spooled_snapshots_are_recovered_bit_for_bit(tmp_path: Path, truth: bool) -> None:
    spool = new(tmp_path / "rig.spool")
    made = [snapshot(seq, truth=truth) for seq in range(4)]
    for each in made:
        assert spool.keep(each, missed=each.id.seq)
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert left.info == info()
    assert (left.next_seq, left.camera_missed, left.corrupt, left.ending) == (4, 3, 0, "")
    assert all(same(recovered, each) for recovered, each in zip(left.snapshots, made, strict=True))


def test_released_snapshots_are_absent_and_delivered_ones_marked(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    for seq in range(4):
        spool.keep(snapshot(seq), 0)
    spool.number(4, 1, 9)  # there was no memory for this one
    spool.release(0)
    spool.delivered(2)
    spool.confirm(0)
    spool.run_since(77)
    spool.end("stopped")
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert ([each.id.seq for each in left.snapshots], left.delivered) == ([1, 2, 3], {2})
    assert (left.next_seq, left.epoch, left.camera_missed) == (5, 1, 9)
    assert (left.confirmed, left.running_ns, left.ending) == (1, 77, "stopped")
    assert list(left.lost) == [2, 4], "the outcome may not have reached the sink"


def test_next_process_continues_in_the_same_spool(tmp_path: Path) -> None:
    path = tmp_path / "rig.spool"
    first = new(path)
    for seq in range(3):
        first.keep(snapshot(seq), 0)
    first.close(over=False)
    second = Spool(tmp_path, "rig")
    assert second.begin(info(), limit_bytes=1) == info()
    second.release(1)
    second.keep(snapshot(3, epoch=1), 0)
    second.close(over=False)
    left = taken_up(path)
    assert [each.id.seq for each in left.snapshots] == [0, 2, 3]
    assert (left.epoch, left.next_seq) == (1, 4)


def resume(folder: Path) -> None:
    spool = Spool(folder, "rig")
    spool.begin(info(), limit_bytes=1)
    spool.close(over=False)


@pytest.mark.parametrize("step_s", [-86400, -3600, 3600, 86400])
def test_resumed_series_keeps_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    before_ns = clock.unix_ns()
    new(tmp_path / "rig.spool").close(over=False)
    real = time.time_ns
    monkeypatch.setattr(clock, "_ahead_ns", clock._ahead_ns)  # put back afterwards
    monkeypatch.setattr(time, "time_ns", lambda: real() + step_s * 10**9)
    clock.read_again()  # as a new process does
    assert abs(clock.unix_ns() - before_ns) > 3000 * 10**9
    resume(tmp_path)
    assert 0 <= clock.unix_ns() - before_ns < 60 * 10**9


def test_series_of_another_boot_does_not_keep_its_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new(tmp_path / "rig.spool").close(over=False)
    ahead_ns = clock._ahead_ns
    monkeypatch.setattr(clock, "_ahead_ns", ahead_ns + 10**12)
    monkeypatch.setattr(clock, "_boot", lambda: "another")
    resume(tmp_path)
    assert clock._ahead_ns == ahead_ns + 10**12


def test_finished_series_leaves_no_file(tmp_path: Path) -> None:
    new(tmp_path / "rig.spool").close(over=True)
    assert list(tmp_path.iterdir()) == []
    assert Spool(tmp_path, "rig").recovered is None


def test_full_spool_counts_and_numbering_continues(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool", limit_bytes=1)
    recovered = [spool.keep(snapshot(seq), 0) for seq in range(4)]
    assert recovered == [True, True, False, False]
    assert spool.unspooled == 2
    spool.release(0)
    assert spool.keep(snapshot(4), 0)
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert [each.id.seq for each in left.snapshots] == [1, 4]
    assert left.next_seq == 5


def test_full_file_system_does_not_end_the_series(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    assert spool.keep(snapshot(0), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        assert not spool.keep(snapshot(1), 0), "it is written in part"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert spool.unspooled == 1
    assert spool.keep(snapshot(2), 0)
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert ([each.id.seq for each in left.snapshots], left.corrupt) == ([0, 2], 0)


def test_spool_file_of_an_earlier_version_is_quarantined(tmp_path: Path) -> None:
    (tmp_path / "rig.spool").write_bytes(b"SCISPOOL" + bytes(1000))
    assert Spool(tmp_path, "rig").recovered is None
    (aside,) = tmp_path.iterdir()
    assert aside.suffix == ".aside"


def test_spool_is_locked_by_one_process(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    with pytest.raises(StorageError, match="in use"):
        Spool(tmp_path, "rig")
    spool.close(over=False)
    taken_up(tmp_path / "rig.spool")


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("cut off", lambda content: content[:100]),
        ("another file", lambda content: b"hello" + content[5:]),
        ("another version", lambda content: content[:8] + struct.pack("<I", 99) + content[12:]),
        ("damaged information", lambda content: content[:520] + b"\xff" + content[521:]),
        ("nothing", lambda _content: b""),
    ],
)
def test_foreign_file_is_quarantined_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, damage: object
) -> None:
    path = tmp_path / "rig.spool"
    new(path).close(over=False)
    content = damage((path / "series").read_bytes())  # type: ignore[operator]
    (path / "series").write_bytes(content)
    assert Spool(tmp_path, "rig").recovered is None, what
    (aside,) = tmp_path.iterdir()
    assert (aside / "series").read_bytes() == content
    assert aside.name in caplog.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_corruption_never_yields_a_wrong_snapshot(
    tmp_path: Path, damage: list[tuple[float, int]]
) -> None:
    path = tmp_path / "rig.spool"
    spool = new(path)
    made = [snapshot(seq, truth=True) for seq in range(3)]
    for each in made:
        spool.keep(each, 0)
    spool.close(over=False)
    for where, change in damage:
        file = path / str(change % 3)
        content = bytearray(file.read_bytes())
        content[int(where * (len(content) - 1))] ^= change
        file.write_bytes(content)
    left = taken_up(path)
    for recovered in left.snapshots:
        assert same(recovered, made[recovered.id.seq])
    assert len(left.snapshots) + left.corrupt <= 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["keep", "release", "delivered"]), st.integers(0, 9)), max_size=40
    )
)
def test_recovered_state_equals_a_model(tmp_path: Path, events: list[tuple[str, int]]) -> None:
    path = tmp_path / "rig.spool"
    spool = new(path)
    expected: dict[int, bool] = {}
    fresh = 0
    for what, which in events:
        if what == "keep":
            spool.keep(snapshot(fresh), 0)
            expected[fresh] = False
            fresh += 1
        elif what == "release":
            spool.release(which)
            expected.pop(which, None)
        else:
            spool.delivered(which)
            expected.update({which: True} if which in expected else {})
    spool.close(over=False)
    left = taken_up(path)
    assert {each.id.seq: each.id.seq in left.delivered for each in left.snapshots} == expected
    assert left.next_seq == fresh


def test_kill_during_write_loses_at_most_that_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "rig.spool"
    script = f"""
        import sys
        from pathlib import Path
        from tests.nodes.acquire.test_spool import new, snapshot
        spool = new(Path({str(path)!r}))
        made = [snapshot(seq) for seq in range(20000)]
        print("ready", flush=True)
        for each in made:
            spool.keep(each, 0)
            if each.id.seq >= 4:
                spool.release(each.id.seq - 4)
            if each.id.seq == 200:
                print("on its way", flush=True)
        """
    variables = environment(PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "on its way\n"]
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    left = taken_up(path)
    seqs = [each.id.seq for each in left.snapshots]
    assert left.next_seq > 200
    assert seqs[-1] in {left.next_seq - 1, left.next_seq - 2}, "all except the one being written"
    assert seqs == list(range(seqs[0], seqs[-1] + 1))
    assert 3 <= len(seqs) <= 5
    assert all(same(recovered, snapshot(recovered.id.seq)) for recovered in left.snapshots)


def test_spool_path_follows_rig_and_supervisor(tmp_path: Path) -> None:
    given = {SPOOL_VARIABLE: "/run/there"}
    assert spool_path(tmp_path, "bench", given) == tmp_path / "bench.spool"
    assert spool_path(None, "bench", given) == Path("/run/there/bench.spool")
    assert spool_path(None, "bench", {}) is None


def test_spool_in_shared_folder_is_in_own_subfolder(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    own = tmp_path / f"sci-stream-{os.geteuid()}"
    assert spool_path(tmp_path, "bench", {}) == own / "bench.spool"
    first = Spool(tmp_path, "bench")
    first.begin(info(), limit_bytes=1 << 12)
    first.close(over=False)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert stat.S_IMODE((own / "bench.spool").stat().st_mode) == 0o700
    assert stat.S_IMODE((own / "bench.spool" / "series").stat().st_mode) == 0o600


def test_spool_that_others_can_write_is_refused(tmp_path: Path) -> None:
    first = Spool(tmp_path, "bench")
    first.begin(info(), limit_bytes=1 << 12)
    first.close(over=False)
    (tmp_path / "bench.spool" / "series").chmod(0o666)
    with pytest.raises(StorageError, match="other users can write to the file"):
        Spool(tmp_path, "bench")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_spool_of_another_user_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    own = tmp_path / f"sci-stream-{os.geteuid()}"
    own.mkdir()
    os.chown(own, 12345, 12345)
    with pytest.raises(StorageError, match="belongs to user 12345"):
        Spool(tmp_path, "bench").begin(info(), limit_bytes=1 << 12)
    os.chown(own, 0, 0)
    (own / "bench.spool").mkdir()
    (own / "bench.spool" / "series").touch(0o600)
    os.chown(own / "bench.spool", 12345, 12345)
    with pytest.raises(StorageError, match="belongs to user 12345"):
        Spool(tmp_path, "bench")


# --- crash recovery in the acquire node


@pytest.mark.parametrize("other_camera", [False, True])
def test_series_resumes_with_another_camera_only_if_allowed(
    tmp_path: Path, other_camera: bool
) -> None:
    first = Spool(tmp_path, "bench")
    first.begin(info(), limit_bytes=1 << 12)
    first.keep(snapshot(0), 0)
    first.close(over=False)
    again = Spool(tmp_path, "bench")
    another = info(series="s-2", versions={FIRMWARE: "2.0"})
    resumed = again.begin(another, limit_bytes=1 << 12, other_camera=other_camera)
    assert (resumed == info()) is other_camera
    again.close(over=True)


def test_series_resumes_only_with_equal_masks_and_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Spool(tmp_path, "rig")
    assert first.begin(info(), limit_bytes=1 << 12) == info()
    first.keep(snapshot(0), 0)
    first.close(over=False)

    again = Spool(tmp_path, "rig")
    later = info(series="s-2", started_ns=9)
    assert again.begin(later, limit_bytes=1 << 12) == info(), "the recovered one"
    again.close(over=False)

    other = Spool(tmp_path, "rig")
    with_other_masks = info(series="s-3", calibration_hash="1" * 32)
    assert other.begin(with_other_masks, limit_bytes=1 << 12) == with_other_masks
    assert other.recovered is None
    assert "calibration_hash changed" in caplog.text
    other.close(over=True)
    (aside,) = tmp_path.iterdir()
    assert aside.suffix == ".aside"


def test_without_a_folder_nothing_is_spooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPOOL_VARIABLE, raising=False)
    none = Spool(None, "rig")
    assert none.begin(info(), limit_bytes=1) == info()
    none.keep(snapshot(0), 0)
    none.confirm(0)
    none.end("stopped")
    none.close(over=True)
    assert none.status() == {}


def test_completion_marker_is_written_after_the_last_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path))
    cases = [(False, True, True), (True, False, True), (True, True, False), (True, True, True)]
    for supervised, over, last in cases:
        if supervised:
            monkeypatch.setenv(PARENT_VARIABLE, "1")
        else:
            monkeypatch.delenv(PARENT_VARIABLE, raising=False)
        safe = Spool(None, "rig")
        safe.begin(info(), limit_bytes=1 << 12)
        safe.close(over=over, last=last)
        assert (tmp_path / "done").exists() is (supervised and over and last)
        assert (tmp_path / "rig.spool").exists() is not over


def test_confirmed_bound_advances_in_any_order(tmp_path: Path) -> None:
    safe = Spool(tmp_path, "rig")
    safe.begin(info(), limit_bytes=1 << 12)
    for seq in range(6):
        safe.number(seq, 0, 0)
    for seq in (0, 2, 1, 1, 4):
        safe.confirm(seq)
    safe.close(over=False)
    again = Spool(tmp_path, "rig")
    assert again.recovered is not None
    assert list(again.recovered.lost) == [3, 4, 5]
    again.begin(info(), limit_bytes=1 << 12)
    for seq in (5, 3, 4):
        again.confirm(seq)
    again.close(over=False)
    assert list(taken_up(tmp_path / "rig.spool").lost) == []


def test_default_spool_without_room_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder can be here")
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "file" / "spool"))
    safe = Spool(None, "rig")
    wanted = info()
    assert safe.begin(wanted, limit_bytes=1 << 20) is wanted
    assert safe.status() == {}
    assert "lost if this node crashes" in caplog.text
    with pytest.raises(StorageError, match=r"\[policy\] spool"):
        Spool(tmp_path / "file" / "spool", "rig").begin(wanted, limit_bytes=1 << 20)
