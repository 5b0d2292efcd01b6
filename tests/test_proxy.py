"""The proxy of bench/prediction.py: what a line does to bytes, on a clock that only the tests move."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.proxy import BOUND_BYTES, PIECE_BYTES, Lane, Proxy

PATIENCE_S = 60.0


def drained(lane: Lane, now_s: float) -> bytes:
    """Take all that has arrived."""
    found = b""
    while (piece := lane.arrived(now_s)) is not None:
        found += piece
        lane.handed_on(len(piece))
    return found


# ---- One direction


@pytest.mark.parametrize(("mbps", "takes_s"), [(20.0, 0.4), (100.0, 0.08)])
def test_a_megabyte_takes_its_bits_by_the_rate_and_the_latency_once(mbps: float, takes_s: float) -> None:
    lane = Lane(mbps, latency_ms=10, bound_bytes=2_000_000)
    for _ in range(1000):
        lane.put(bytes(1000), now_s=5.0)
    assert len(drained(lane, 5.0 + takes_s + 0.010 - 1e-5)) == 999_000
    assert len(drained(lane, 5.0 + takes_s + 0.010 + 1e-9)) == 1000


def test_pieces_leave_one_after_another() -> None:
    lane = Lane(8.0, latency_ms=0)  # a byte a microsecond
    lane.put(bytes(1000), 1.0)
    lane.put(bytes(3000), 1.0)
    assert lane.due_s == pytest.approx(1.001)
    assert len(drained(lane, 1.0035)) == 1000
    assert lane.due_s == pytest.approx(1.004)


def test_a_line_that_was_idle_has_saved_nothing() -> None:
    lane = Lane(8.0, latency_ms=0)
    lane.put(bytes(1000), 1.0)
    drained(lane, 2.0)
    lane.put(bytes(1000), 2.0)
    assert lane.due_s == pytest.approx(2.001)


def test_what_is_handed_on_late_delays_nothing_else() -> None:
    lane = Lane(8.0, latency_ms=0)
    for _ in range(10):
        lane.put(bytes(1000), 1.0)
    assert drained(lane, 1.0045) == bytes(4000)  # nobody looked before
    assert lane.due_s == pytest.approx(1.005)


def test_latency_delays_and_does_not_slow_down() -> None:
    slow, fast = Lane(8.0, latency_ms=100), Lane(8.0, latency_ms=0)
    for lane in (slow, fast):
        for _ in range(3):
            lane.put(bytes(1000), 1.0)
    for _ in range(3):
        assert slow.due_s == pytest.approx(fast.due_s + 0.1)
        for lane in (slow, fast):
            lane.handed_on(1000)


def test_without_a_limit_only_the_latency_counts() -> None:
    lane = Lane(0.0, latency_ms=10)
    for _ in range(10):
        lane.put(bytes(PIECE_BYTES), 1.0)
    assert drained(lane, 1.0099) == b""
    assert len(drained(lane, 1.0101)) == 10 * PIECE_BYTES


def test_what_a_receiver_does_not_take_stays_first() -> None:
    lane = Lane(0.0, latency_ms=0)
    lane.put(b"abcdef", 1.0)
    lane.put(b"ghi", 1.0)
    lane.handed_on(2)
    assert (drained(lane, 1.0), lane.held_bytes) == (b"cdefghi", 0)


def test_nothing_is_read_beyond_the_bound_and_all_again_below_it() -> None:
    lane = Lane(100.0, latency_ms=10)
    while lane.takes_bytes:
        lane.put(bytes(lane.takes_bytes), 1.0)
    assert lane.held_bytes == BOUND_BYTES
    drained(lane, 1.02)
    assert 0 < lane.takes_bytes <= PIECE_BYTES


@pytest.mark.parametrize(("mbps", "most_bytes"), [(20.0, 5000), (100.0, 25_000), (0.0, PIECE_BYTES), (1e-6, 1)])
def test_a_piece_keeps_the_line_busy_for_two_milliseconds_at_most(mbps: float, most_bytes: int) -> None:
    assert Lane(mbps, latency_ms=0).takes_bytes == most_bytes


@given(st.lists(st.tuples(st.floats(0, 0.01), st.integers(1, 5000)), min_size=1, max_size=50))
def test_bytes_keep_their_order_and_no_stretch_is_faster_than_the_rate(puts: list[tuple[float, int]]) -> None:
    lane, now_s, said, arrivals = Lane(8.0, latency_ms=3, bound_bytes=10**9), 0.0, b"", []
    for number, (pause_s, size) in enumerate(puts):
        now_s += pause_s
        piece = bytes([number % 251]) * size
        lane.put(piece, now_s)
        said += piece
    heard = b""
    while lane.held_bytes:
        due_s = lane.due_s
        piece = drained(lane, due_s)
        arrivals.append((due_s, len(piece)))
        heard += piece
    assert heard == said
    for i, (first_s, _) in enumerate(arrivals):
        after = sum(size for _, size in arrivals[i + 1 :])
        assert after * 1e-6 <= arrivals[-1][0] - first_s + 1e-9


# ---- With sockets


class Bench:
    """A proxy with one connection through it, turned by hand."""

    def __init__(self, mbps: float, latency_ms: float) -> None:
        self.now_s = 100.0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(PATIENCE_S)
        self.proxy = Proxy([(0, self.server.getsockname()[1])], mbps, latency_ms, clock=lambda: self.now_s)
        self.near = socket.create_connection(("127.0.0.1", self.proxy.ports[0]))
        self.proxy.turn(PATIENCE_S)
        self.far, _ = self.server.accept()
        for end in (self.near, self.far):
            end.settimeout(PATIENCE_S)

    def close(self) -> None:
        for thing in (self.proxy, self.near, self.far, self.server):
            thing.close()

    def take_in(self, count: int) -> None:
        """Turn until so much is under way."""
        while sum(flow.lane.held_bytes for flow in self.proxy.flows) < count:
            self.proxy.turn(PATIENCE_S)

    def arrives(self, end: socket.socket, count: int) -> bytes:
        """Return so many bytes that come out at an end."""
        self.proxy.turn(0.0)
        found = b""
        while len(found) < count:
            piece = end.recv(count - len(found))
            assert piece, "ended early"
            found += piece
        return found

    def is_silent(self, end: socket.socket) -> bool:
        self.proxy.turn(0.0)
        end.setblocking(False)
        try:
            end.recv(1)
        except BlockingIOError:
            return True
        finally:
            end.settimeout(PATIENCE_S)
        return False


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(Bench(mbps=0.8, latency_ms=10)) as made:  # 100 bytes a millisecond
        yield made


def test_a_message_comes_out_when_its_time_has_come(bench: Bench) -> None:
    bench.near.sendall(b"x" * 100)
    bench.take_in(100)
    bench.now_s += 0.0109
    assert bench.is_silent(bench.far)
    bench.now_s += 0.0002
    assert bench.arrives(bench.far, 100) == b"x" * 100


def test_the_two_directions_do_not_share_the_rate(bench: Bench) -> None:
    bench.near.sendall(b"n" * 100)
    bench.far.sendall(b"f" * 100)
    bench.take_in(200)
    bench.now_s += 0.0111
    assert bench.arrives(bench.far, 100) + bench.arrives(bench.near, 100) == b"n" * 100 + b"f" * 100


def test_a_long_message_arrives_at_the_rate(bench: Bench) -> None:
    bench.near.sendall(bytes(1000))
    bench.take_in(1000)
    bench.now_s += 0.010 + 0.0071
    assert len(bench.arrives(bench.far, 600)) == 600  # pieces of 200 bytes
    assert bench.is_silent(bench.far)
    bench.now_s += 0.003
    assert len(bench.arrives(bench.far, 400)) == 400


def test_a_line_can_become_another(bench: Bench) -> None:
    bench.proxy.become(mbps=0.0, latency_ms=0.0)
    bench.near.sendall(b"now")
    bench.proxy.turn(PATIENCE_S)
    assert bench.arrives(bench.far, 3) == b"now"


def test_the_end_of_one_direction_comes_after_all_that_was_said(bench: Bench) -> None:
    bench.near.sendall(b"last")
    bench.near.shutdown(socket.SHUT_WR)
    bench.take_in(4)
    bench.now_s += 1.0
    assert bench.arrives(bench.far, 4) == b"last"
    while bench.proxy.flows and not any(flow.closed for flow in bench.proxy.flows):
        bench.proxy.turn(PATIENCE_S)
    assert bench.far.recv(1) == b""
    bench.far.sendall(b"yes")  # the other direction goes on
    bench.take_in(3)
    bench.now_s += 1.0
    assert bench.arrives(bench.near, 3) == b"yes"


def test_a_connection_that_breaks_is_dropped_on_both_sides(bench: Bench) -> None:
    bench.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
    bench.near.close()
    while bench.proxy.flows:
        bench.proxy.turn(PATIENCE_S)
    assert bench.far.recv(1) == b""


def test_where_nobody_listens_the_caller_is_turned_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    proxy = Proxy([(0, port)], 0.0, 0.0)
    with closing(proxy), socket.create_connection(("127.0.0.1", proxy.ports[0])) as near:
        near.settimeout(PATIENCE_S)
        proxy.turn(PATIENCE_S)
        assert near.recv(1) == b""
        assert not proxy.flows
