"""The dispatch queue: credit, blocks, redelivery and drops."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sci_stream.delivery.dispatch_queue import MAX_ATTEMPTS, DispatchQueue


def drain(queue: DispatchQueue[str]) -> list[tuple[str, int]]:
    out = []
    while (assigned := queue.assign()) is not None:
        out.append((assigned[0], assigned[1].seq))
    return out


def test_node_never_holds_more_than_its_credit() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=10, block=4)
    queue.join("a", 2)
    for seq in range(5):
        queue.offer(seq, "s")
    assert drain(queue) == [("a", 0), ("a", 1)]
    assert queue.done("a", 0)
    assert drain(queue) == [("a", 2)]


def test_full_queue_drops_oldest_snapshot() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=2, block=1)
    assert queue.offer(0, "s") == []
    assert queue.offer(1, "s") == []
    assert [entry.seq for entry in queue.offer(2, "s")] == [0]


def test_stale_snapshots_give_way_to_the_newest_once_a_node_asks() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=10, block=4)
    for seq, age in enumerate(["stale", "stale", "fresh", "fresh"]):
        queue.offer(seq, age, promised=seq == 0)
    queue.join("a", 0)
    assert queue.drop_stale("stale".__eq__) == []
    queue.join("a", 1)
    assert [entry.seq for entry in queue.drop_stale("stale".__eq__)] == [1, 2], (
        "all but the newest and the promised"
    )
    assert queue.drop_stale("stale".__eq__) == []
    assert drain(queue) == [("a", 0)]


def test_promised_snapshot_is_never_dropped_but_redelivered() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=2, block=1)
    assert queue.offer(0, "s", promised=True) == []
    assert queue.offer(1, "s") == []
    assert [entry.seq for entry in queue.offer(2, "s")] == [1]
    assert queue.redelivered == 1
    queue.join("a", 1)
    assigned = queue.assign()
    assert assigned is not None
    assert (assigned[1].seq, assigned[1].attempts) == (0, 2)


def test_block_stays_with_its_node() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=10, block=4)
    queue.join("a", 2)
    queue.join("b", 2)
    owners = []
    for seq in range(8):
        queue.offer(seq, "s")
        assigned = queue.assign()
        assert assigned is not None
        owners.append(assigned[0])
        queue.done(assigned[0], seq)
    assert owners[:4] == ["a"] * 4
    assert len(set(owners[4:])) == 1


def test_two_nodes_work_on_different_blocks() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=20, block=4)
    queue.join("a", 2)
    queue.join("b", 2)
    for seq in range(8):
        queue.offer(seq, "s")
    assert sorted(drain(queue)) == [("a", 0), ("a", 1), ("b", 4), ("b", 5)]


def test_idle_node_takes_over_waiting_block() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=20, block=8)
    queue.join("a", 1)
    queue.join("b", 1)
    for seq in range(3):
        queue.offer(seq, "s")
    assert drain(queue) == [("a", 0), ("b", 1)]


def test_snapshots_of_lost_node_are_redelivered_first() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=2, block=2)
    queue.join("a", 2)
    for seq in range(2):
        queue.offer(seq, "s")
    drain(queue)
    queue.offer(2, "s")
    queue.offer(3, "s")
    assert queue.leave("a") == []
    assert queue.redelivered == 2
    queue.join("b", 2)
    assert drain(queue) == [("b", 0), ("b", 1)]


def test_redelivered_snapshot_is_not_dropped_for_new_ones() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=1, block=1)
    queue.join("a", 1)
    queue.offer(0, "s")
    drain(queue)
    queue.leave("a")
    assert [entry.seq for entry in queue.offer(1, "s")] == [1]


def test_snapshot_that_kills_several_nodes_is_given_up() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=4, block=1)
    queue.offer(0, "s")
    for attempt in range(MAX_ATTEMPTS):
        queue.join("a", 1)
        assert drain(queue) == [("a", 0)]
        given_up = queue.leave("a")
        assert [entry.seq for entry in given_up] == ([0] if attempt == MAX_ATTEMPTS - 1 else [])
    assert queue.waiting == 0


def test_recalled_snapshot_does_not_count_an_attempt() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=4, block=1)
    queue.join("a", 1)
    queue.offer(0, "s")
    for _ in range(MAX_ATTEMPTS + 2):
        assert drain(queue) == [("a", 0)]
        queue.recall("a")
    assert queue.drop_stale(lambda _: True) == [], "it was promised to a node"
    assert queue.waiting == 1


def test_late_result_of_lost_node_settles_redelivered_copy() -> None:
    queue: DispatchQueue[str] = DispatchQueue(capacity=4, block=1)
    queue.join("a", 1)
    queue.offer(0, "s")
    drain(queue)
    queue.leave("a")
    queue.join("b", 1)
    drain(queue)
    assert queue.done("a", 0)
    assert queue.in_flight == 0
    assert not queue.done("b", 0)


@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["offer", "assign", "done", "lose", "join", "fail"]), st.integers(0, 2)
        ),
        max_size=120,
    )
)
def test_snapshot_is_always_in_exactly_one_place(actions: list[tuple[str, int]]) -> None:
    queue: DispatchQueue[int] = DispatchQueue(capacity=5, block=3)
    next_seq = 0
    held: dict[str, set[int]] = {}
    settled: set[int] = set()
    for action, which in actions:
        name = f"n{which}"
        if action == "offer":
            settled |= {entry.seq for entry in queue.offer(next_seq, next_seq)}
            next_seq += 1
        elif action == "join":
            queue.join(name, 2)
            held.setdefault(name, set())
        elif action == "assign" and (assigned := queue.assign()) is not None:
            held[assigned[0]].add(assigned[1].seq)
            assert len(held[assigned[0]]) <= 2
        elif action in ("done", "fail") and held.get(name):
            seq = min(held[name])
            held[name].remove(seq)
            if action == "done":
                assert queue.done(name, seq)
                settled.add(seq)
            elif (entry := queue.failed(name, seq)) is not None:
                settled.add(entry.seq)
        elif action == "lose":
            settled |= {entry.seq for entry in queue.leave(name)}
            held.pop(name, None)
        on_the_way = queue.waiting + queue.in_flight
        assert on_the_way + len(settled) == next_seq
        assert sum(map(len, held.values())) == queue.in_flight
    settled |= {entry.seq for entry in queue.clear()}
    assert settled == set(range(next_seq))
