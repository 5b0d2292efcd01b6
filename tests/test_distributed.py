"""A ring's sums on torch.distributed: the same mode, the same ends, in real processes; and its core by itself."""

import re
import shlex
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.daemon.distributed import Gloo, Meeting, sent_elements
from peer.protocol.collective import Collective, Summed
from peer.protocol.messages import (
    Assemble,
    Assembled,
    Broken,
    Bye,
    Command,
    Divide,
    Done,
    Effect,
    Finish,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    Tick,
    Train,
    Trained,
)
from peer.protocol.ring import Ring, cut
from peer.task.local import Interrupted
from tests.commands import Command as Earshot
from tests.commands import Write
from tests.forked import forked
from tests.processes import ends, exists, free_ports

RING = '[coordinator]\nmode = "ring"\nengine = "{engine}"\n[record]\nparams = "final"\n'
SOFTMAX = '[task]\nmodel = "softmax"\npartition = "sizes"\nsizes = {sizes}\nlr = 0.1\n'
SIZES = {1: "[4000]", 2: "[1000, 3000]", 3: "[1000, 2500, 500]"}
VECTORS = '[task]\ndata = "none"\ndtype = "float64"\nlr = 0.0\ninit = {init}\n'
ENDLESS = 1_000_000

# A model that is trained as ever, but for what befalls peer-1 in its sixth local step.
FATED = """
import multiprocessing, os, signal, sys, threading
import torch

class Fated(torch.nn.Linear):
    def __init__(self):
        super().__init__(784, 10)
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps == 6 and multiprocessing.current_process().name == "peer-1":
            {fate}
        return super().forward(x.flatten(1))
"""


def experiment(folder: Path, text: str, *, rounds: int = 6, peers: int = 3, engine: str = "gloo") -> str:
    head = f"rounds = {rounds}\neval_every = 2\n[topology]\npeers = {peers}\n"
    (folder / "exp.toml").write_text(head + RING.format(engine=engine) + text)
    return "exp.toml"


def fated(folder: Path, fate: str, rounds: int = 20, more: str = "") -> str:
    (folder / "fated.py").write_text(FATED.format(fate=fate))
    model = '[task]\nmodel = "fated:Fated"\nstep = "plain"\n[transport]\ndead_s = 1.5\nsuspect_s = 1\n'
    return experiment(folder, model + more, rounds=rounds)


def lab(folder: Path, rounds: int, peers: int = 3) -> str:
    """Write an experiment of machines with addresses of their own."""
    text = '[task]\nmodel = "softmax"\n[transport]\nsuspect_s = 1\njoin_s = 20\n'
    for i, port in enumerate(free_ports(peers)):
        text += f'[[peers]]\nname = "lab-{i + 1}"\naddress = "127.0.0.1:{port}"\n'
    head = f"rounds = {rounds}\neval_every = 10\n"
    (folder / "exp.toml").write_text(head + RING.format(engine="gloo") + text)
    return "exp.toml"


def run(folder: Path, *arguments: str) -> tuple[int | None, dict[str, Any]]:
    with forked(*arguments, "--json", "--no-folder", cwd=folder) as running:
        return running.end()


def simulated(folder: Path, exp: str, *sets: str) -> dict[str, Any]:
    """Return the summary of the same with our own ring, in the simulator."""
    settings = [word for text in sets for word in ("--set", text)]
    code, summary = run(folder, "simulate", exp, "--engine", "events", *settings)
    assert code == 0
    return summary


def assert_near(found: Sequence[Any], expected: Sequence[Any], relative: float) -> None:
    a, b = np.array(found), np.array(expected)
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= relative * np.abs(b).max()


# ---- The same as our own ring


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_the_parameters_are_those_of_our_own_ring_to_rounding(tmp_path: Path, peers: int) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(sizes=SIZES[peers]), peers=peers)
    code, summary = run(tmp_path, "up", exp)
    own = simulated(tmp_path, exp)
    assert (code, summary["outcome"], summary["rounds"], summary["lost"]) == (0, "finished", 6, [])
    assert summary["params"] == [summary["params"][0]] * peers  # the same bits everywhere
    assert_near(summary["params"], own["params"], 1e-6)
    assert [entry["round"] for entry in summary["history"]] == [0, 2, 4, 6]
    assert summary["gradients"] == own["gradients"]
    assert summary.keys() == own.keys() - {"events", "event_hash"}


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_vectors_in_float64_come_to_their_mean(tmp_path: Path, peers: int) -> None:
    vectors = [[i + k / 7 for k in range(5)] for i in range(peers)]
    code, summary = run(tmp_path, "up", experiment(tmp_path, VECTORS.format(init=vectors), rounds=2, peers=peers))
    assert code == 0
    assert_near(summary["params"], [np.mean(vectors, axis=0)] * peers, 1e-15)


def test_peers_count_by_their_rows_and_equally_if_that_is_asked(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(sizes=SIZES[3]))
    found = []
    for weighting in ("samples", "equal"):
        setting = f'coordinator.weighting="{weighting}"'
        code, summary = run(tmp_path, "up", exp, "--set", setting)
        assert code == 0
        assert_near(summary["params"], simulated(tmp_path, exp, setting)["params"], 1e-6)
        found.append(np.array(summary["params"][0]))
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_bytes_sent_are_reckoned_as_those_of_our_own_ring_and_bytes_at_sockets_not_known(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(sizes=SIZES[3]))
    code, summary = run(tmp_path, "up", exp)
    own = simulated(tmp_path, exp)
    assert code == 0
    assert summary["wire_bytes_sent"] is None
    assert summary["payload_bytes_sent"] == own["payload_bytes_sent"] == 6 * 2 * 2 * 7850 * 4
    sent = [entry["payload_bytes_sent"] for entry in summary["history"]]
    assert sent == [entry["payload_bytes_sent"] for entry in own["history"]]


@pytest.mark.parametrize("elements", [1, 2, 6, 13])
@pytest.mark.parametrize("members", [1, 2, 3, 4, 7])
def test_what_is_reckoned_is_what_a_member_of_our_own_ring_sends(members: int, elements: int) -> None:
    segments = [sum(map(len, segment)) for segment in cut(elements, members, elements)]
    rings = [Ring(me, 1, [1] * members) for me in range(members)]
    sent = [
        sum(segments[ring.segment_heard(phase, step)] for phase in ("scatter", "gather") for step in range(members - 1))
        for ring in (rings[(me + 1) % members] for me in range(members))  # what a member sends, the next one hears
    ]
    assert [sent_elements(elements, members, me) for me in range(members)] == sent
    assert sum(sent) == 2 * (members - 1) * elements


def test_a_figure_that_is_reached_ends_all_after_the_same_round(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(sizes=SIZES[3]), rounds=ENDLESS)
    code, summary = run(tmp_path, "up", exp, "--set", 'stop_when="accuracy.mean >= 0.5"')
    assert (code, summary["outcome"]) == (0, "finished")
    reached = [entry["round"] for entry in summary["history"] if entry["accuracy"]["mean"] >= 0.5]
    assert reached == [summary["rounds"]]
    assert_near(summary["params"], simulated(tmp_path, exp, f"rounds={summary['rounds']}")["params"], 1e-5)


# ---- Ends


def test_a_member_that_is_killed_ends_all_with_a_complete_round(tmp_path: Path) -> None:
    """It dies in local steps, while the others have given their parts."""
    exp = fated(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 4/")
        children = up.children()
        code, summary = up.end()
    assert (code, summary["outcome"], summary["rounds"], summary["lost"]) == (3, "failed", 5, ["peer-1"])
    assert "peer-1 is lost (its process ended)" in summary["why"]
    first, dead, third = summary["params"]
    assert dead is None
    assert first == third
    (tmp_path / "fated.py").write_text(FATED.format(fate="pass"))
    assert_near([first], simulated(tmp_path, exp, "rounds=5")["params"][:1], 1e-6)
    assert all(ends(pid) for pid in children)


def test_a_member_whose_model_fails_ends_all_and_says_why(tmp_path: Path) -> None:
    code, summary = run(tmp_path, "up", fated(tmp_path, "raise ValueError('no more')"))
    assert (code, summary["outcome"], summary["rounds"]) == (3, "failed", 5)
    assert "no more" in summary["why"]


def test_a_sum_that_is_not_finite_is_not_applied(tmp_path: Path) -> None:
    exp = experiment(tmp_path, VECTORS.format(init="[[1e308], [1e308], [1e308]]"))
    code, summary = run(tmp_path, "up", exp, "--set", 'record.on_divergence="continue"')
    assert (code, summary["outcome"], summary["rounds"]) == (3, "failed", 0)
    assert "not finite" in summary["why"]
    assert summary["params"] == [[1e308]] * 3


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_after_one_round_for_all(tmp_path: Path, sign: signal.Signals) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(sizes=SIZES[3]), rounds=ENDLESS)
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 10/")
        children = up.children()
        up.signal(sign)
        code, summary = up.end()
    assert (code, summary["outcome"], summary["lost"]) == (130, "interrupted", [])
    assert summary["rounds"] >= 10
    assert summary["params"] == [summary["params"][0]] * 3
    assert (tmp_path / "run" / "summary.json").exists()
    assert len(children) >= 3
    assert not any(exists(pid) for pid in children)


# ---- start


def test_three_daemons_started_one_by_one_come_to_the_same(tmp_path: Path) -> None:
    exp = lab(tmp_path, rounds=20)
    arguments = ("start", exp, "--json", "--no-folder", "--name")
    with (
        forked(*arguments, "lab-3", cwd=tmp_path) as third,
        forked(*arguments, "lab-2", cwd=tmp_path) as second,
        forked(*arguments, "lab-1", cwd=tmp_path) as first,
    ):
        found = [daemon.end() for daemon in (first, second, third)]
    assert [code for code, _ in found] == [0, 0, 0]
    assert all(summary["rounds"] == 20 and summary["wire_bytes_sent"] is None for _, summary in found)
    params = [summary["params"][0] for _, summary in found]
    assert params == [params[0]] * 3
    assert_near(params, simulated(tmp_path, exp)["params"], 1e-5)


@pytest.mark.parametrize(
    ("which", "sign", "setting", "reason"),
    [
        (0, signal.SIGKILL, "transport.dead_s=2", ""),
        (2, signal.SIGKILL, "transport.dead_s=2", ""),
        (1, signal.SIGSTOP, "transport.dead_s=2", "silent"),
        (1, signal.SIGSTOP, "transport.round_deadline_s=0.5", "waited for in round"),
    ],
    ids=["the first killed", "the last killed", "one stands still", "one is late"],
)
def test_the_others_of_a_daemon_that_is_lost_end_and_name_it(
    tmp_path: Path, which: int, sign: signal.Signals, setting: str, reason: str
) -> None:
    """The first holds the store by which the members met; it is nothing special by then."""
    exp = lab(tmp_path, rounds=ENDLESS)
    arguments = ("start", exp, "--json", "--no-folder", "--set", setting, "--name")
    with (
        forked(*arguments, "lab-1", cwd=tmp_path) as first,
        forked(*arguments, "lab-2", cwd=tmp_path) as second,
        forked(*arguments, "lab-3", cwd=tmp_path) as third,
    ):
        daemons = [first, second, third]
        lost = daemons.pop(which)
        lost.read_until("round 10/")
        lost.signal(sign)
        found = [daemon.end() for daemon in daemons]
    for code, summary in found:
        assert (code, summary["outcome"]) == (3, "failed")
        assert summary["lost"] == [f"lab-{which + 1}"]
        assert f"lab-{which + 1} is lost" in summary["why"]
    assert any(reason in summary["why"] for _, summary in found)
    rounds = [summary["rounds"] for _, summary in found]
    for _, summary in found:
        end = simulated(tmp_path, exp, f"rounds={summary['rounds']}")
        assert_near(summary["params"], end["params"][:1], 1e-4)
    assert abs(rounds[0] - rounds[1]) <= 1


def test_a_daemon_that_is_stopped_stops_the_others_after_the_same_round(tmp_path: Path) -> None:
    exp = lab(tmp_path, rounds=ENDLESS)
    arguments = ("start", exp, "--json", "--no-folder", "--name")
    with (
        forked(*arguments, "lab-1", cwd=tmp_path) as first,
        forked(*arguments, "lab-2", cwd=tmp_path) as second,
        forked(*arguments, "lab-3", cwd=tmp_path) as third,
    ):
        second.read_until("round 10/")
        second.signal(signal.SIGTERM)
        found = [daemon.end() for daemon in (first, second, third)]
    assert [(code, summary["outcome"]) for code, summary in found] == [(130, "interrupted")] * 3
    assert len({summary["rounds"] for _, summary in found}) == 1
    params = [summary["params"] for _, summary in found]
    assert params == [params[0]] * 3


def test_another_experiment_is_refused_with_the_key_that_differs(tmp_path: Path) -> None:
    exp = lab(tmp_path, rounds=20, peers=2)
    arguments = ("start", exp, "--json", "--no-folder", "--set", "transport.join_s=3")
    with (
        forked(*arguments, "--name", "lab-1", cwd=tmp_path) as first,
        forked(*arguments, "--name", "lab-2", "--set", "task.lr=0.3", cwd=tmp_path) as other,
    ):
        found = [daemon.end() for daemon in (first, other)]
        said = ["\n".join(daemon.said) for daemon in (first, other)]
    assert [code for code, _ in found] == [3, 3]
    assert all("task.lr is" in text for text in said)


# ---- What is refused, and what is said


@pytest.mark.skipif(torch.cuda.device_count() >= 3, reason="here nccl has a device for each")
@pytest.mark.parametrize("way", [["up"], ["start", "--name", "peer-0"]])
def test_nccl_without_a_device_for_each_peer_is_refused_in_one_line(
    command: Earshot, write: Write, way: list[str]
) -> None:
    exp = write(
        '[topology]\npeers = 3\n[coordinator]\nmode = "ring"\nengine = "nccl"\n'
        + "".join(
            f'[[peers]]\nname = "peer-{i}"\naddress = "127.0.0.1:{port}"\n' for i, port in enumerate(free_ports(3))
        )
    )
    refused = command(*way, exp, "--json")
    assert refused.code == 2
    assert refused.document["error"].startswith(
        'coordinator.engine: "nccl" needs a CUDA device for each of the 3 peers'
    )
    assert not (exp.parent / "runs").exists()


def test_every_peer_needs_an_address_to_be_started_by_itself(command: Earshot, write: Write) -> None:
    text = '[topology]\npeers = 2\n[coordinator]\nmode = "ring"\nengine = "gloo"\n'
    exp = write(text + f'[[peers]]\nname = "a"\naddress = "127.0.0.1:{free_ports(1)[0]}"\n[[peers]]\nname = "b"\n')
    refused = command("start", exp, "--name", "a", "--json")
    assert refused.code == 2
    assert "needs [[peers]] with an address of b" in refused.document["error"]


def test_an_occupied_address_of_the_first_peer_is_named(tmp_path: Path, command: Earshot, write: Write) -> None:
    meeting = Meeting()
    meeting.open("tcp://127.0.0.1:*")
    assert meeting.address is not None
    peers = "".join(
        f'[[peers]]\nname = "{name}"\naddress = "{address}"\n'
        for name, address in (("a", meeting.address), ("b", f"127.0.0.1:{free_ports(1)[0]}"))
    )
    exp = write('[task]\nmodel = "softmax"\n[coordinator]\nmode = "ring"\nengine = "gloo"\n' + peers)
    refused = command("start", exp, "--name", "a", "--json")
    assert refused.code == 2
    assert refused.document["error"].startswith("peers.a.address: ")
    assert meeting.address in refused.document["error"]


def test_the_simulator_says_that_it_sums_by_itself(command: Earshot, write: Write) -> None:
    exp = write('rounds = 1\n[task]\nmodel = "softmax"\n[topology]\npeers = 2\n[coordinator]\nmode = "ring"\n')
    for engine in ("gloo", "nccl"):
        done = command("simulate", exp, "--no-folder", "--set", f'coordinator.engine="{engine}"')
        assert done.code == 0
        assert f'coordinator.engine = "{engine}"' in done.err


# ---- Its page in docs/


def test_the_commands_of_the_page_say_what_stands_there(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "ring.md").read_text(encoding="utf-8")
    (file, script, shown) = (
        re.findall(rf"^```{name}\n(.*?)^```$", page, re.M | re.S)[-1] for name in ("toml", "sh", "")
    )
    (tmp_path / "ring.toml").write_text(file)
    accuracies = set()
    for line in script.splitlines():
        with forked(*shlex.split(line)[1:], cwd=tmp_path) as running:
            code, said = running.end_as_text()
        assert code == 0
        assert set(shown.splitlines()) <= set(said.splitlines())
        accuracies |= set(re.findall(r"^accuracy.*$", said, re.M))
    assert len(script.splitlines()) == 3
    assert len(accuracies) == 1


# ---- The engine by itself


def two_of_them() -> list[Gloo]:
    meeting = Meeting()
    meeting.open("tcp://127.0.0.1:*")
    other = Meeting(meeting.address)
    with ThreadPoolExecutor(2) as threads:
        joining = [threads.submit(Gloo, m.store(20), me, 2, 20) for me, m in enumerate((meeting, other))]
        return [joined.result() for joined in joining]


def test_gloo_sums_in_place() -> None:
    engines = two_of_them()
    parts = [torch.arange(5.0), torch.ones(5)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(e.sum, x, lambda: False) for e, x in zip(engines, parts, strict=True)]:
            done.result()
    assert parts[0].tolist() == parts[1].tolist() == [1, 2, 3, 4, 5]


def test_who_waits_for_a_sum_can_be_stopped() -> None:
    first, _second = two_of_them()
    with pytest.raises(Interrupted):
        first.sum(torch.ones(5), lambda: True)


def test_a_sum_without_the_other_fails() -> None:
    first, second = two_of_them()
    del second
    with pytest.raises(RuntimeError):
        first.sum(torch.ones(5), lambda: False)


# ---- The core by itself


def member(me: int = 0, *, rounds: int = 3, **options: Any) -> Collective:
    """Return member `me` of a, b and c, in the local steps of round 0."""
    core = Collective(me, rounds, ["a", "b", "c"], patience_s=5, **options)
    assert core.start(0) == []
    effects = [effect for peer in sorted(core.neighbours) for effect in core.handle(PeerJoined(peer), 0)]
    assert effects == [Train(0)]
    return core


def summing(**options: Any) -> Collective:
    """Return member a, which has given its part to round 0."""
    core = member(**options)
    given = core.handle(Trained(0, "x"), 1)
    assert given == [Send(1, Done(0)), Send(2, Done(0)), Divide(0, core.weight, "x")]
    return core


def finish(effects: list[Effect]) -> Finish | None:
    return next((effect for effect in effects if isinstance(effect, Finish)), None)


def byes(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(e.to, e.message.rounds) for e in effects if isinstance(e, Send) and isinstance(e.message, Bye)]


SUM = Summed(0, (("sum",),))
NOTHING = Summed(0, (), "connection closed")


def test_nobody_begins_before_all_others_are_there() -> None:
    core = Collective(0, 3, ["a", "b", "c"])
    assert core.start(0) == []
    assert core.handle(PeerJoined(2), 0) == []
    assert core.waits_for() == {1}
    assert core.handle(PeerJoined(1), 0) == [Train(0)]


def test_a_round_goes_from_local_steps_over_the_sum_to_the_mean() -> None:
    core = summing(weights=[1.0, 2.0, 5.0])
    assert core.handle(SUM, 2) == [Assemble(0, 8.0, (("sum",),))]
    assert core.handle(Assembled(0), 3) == [Train(1)]
    assert core.round == 1


def test_it_is_known_whose_part_is_missing() -> None:
    core = summing()
    assert core.waits_for() == {1, 2}
    assert core.handle(Received(2, Done(0)), 2) == []
    assert core.waits_for() == {1}


def test_the_one_whose_part_is_missing_at_the_deadline_is_lost() -> None:
    core = summing(round_deadline_s=4)
    core.handle(Received(1, Done(0)), 2)
    assert core.deadline_s == 5
    effects = core.handle(Tick(), 5)
    assert Send(1, Broken(2)) in effects
    assert finish(effects) == Finish(
        "failed",
        "c is lost (waited for in round 0, which was not complete within 4 s), and a sum needs every member",
    )


def test_nobody_is_blamed_at_the_deadline_if_all_have_given_their_parts() -> None:
    core = summing(round_deadline_s=4)
    for peer in (1, 2):
        core.handle(Received(peer, Done(0)), 2)
    ended = finish(core.handle(Tick(), 5))
    assert ended is not None
    assert "because of whom is not known" in ended.why
    assert core.lost == {}


def test_a_stop_in_local_steps_is_a_goodbye_at_once() -> None:
    effects = member().handle(Command("stop"), 1)
    assert byes(effects) == [(1, 0), (2, 0)]
    assert finish(effects) == Finish("interrupted")


def test_a_stop_after_the_own_part_was_given_waits_for_the_sum() -> None:
    core = summing()
    assert core.handle(Command("stop"), 2) == []
    assert core.handle(Command("stop"), 2.5) == []
    assert core.deadline_s == 7
    assert core.handle(SUM, 3) == [Assemble(0, 3.0, (("sum",),))]
    effects = core.handle(Assembled(0), 4)
    assert byes(effects) == [(1, 1), (2, 1)]
    assert finish(effects) == Finish("interrupted")
    assert core.round == 1


def test_a_stop_does_not_wait_for_ever_for_the_sum() -> None:
    core = summing()
    core.handle(Command("stop"), 2)
    assert finish(core.handle(Tick(), 7)) == Finish("interrupted")
    assert core.round == 0


def test_one_that_left_without_giving_its_part_ends_the_round_for_all() -> None:
    core = summing()
    assert finish(core.handle(Received(1, Bye(0)), 2)) == Finish("interrupted")
    assert core.round == 0


def test_one_that_left_with_the_sum_is_followed_after_the_same_round() -> None:
    core = summing()
    assert finish(core.handle(Received(1, Bye(1)), 2)) is None
    core.handle(SUM, 3)
    assert finish(core.handle(Assembled(0), 4)) == Finish("interrupted")
    assert core.round == 1


def test_a_sum_that_came_to_nothing_waits_for_membership_to_say_why() -> None:
    core = summing()
    assert core.handle(NOTHING, 2) == []
    assert core.deadline_s == 7
    effects = core.handle(PeerLost(2, "silent"), 3)
    assert Send(1, Broken(2)) in effects
    assert finish(effects) == Finish("failed", "c is lost (silent), and a sum needs every member")


def test_a_sum_that_came_to_nothing_as_somebody_stopped_is_no_failure() -> None:
    core = summing()
    core.handle(NOTHING, 2)
    assert finish(core.handle(Received(2, Bye(0)), 3)) == Finish("interrupted")


def test_a_sum_that_came_to_nothing_ends_without_a_name_when_patience_is_over() -> None:
    core = summing()
    core.handle(NOTHING, 2)
    assert finish(core.handle(Tick(), 6.9)) is None
    ended = finish(core.handle(Tick(), 7))
    assert ended is not None
    assert ended.outcome == "failed"
    assert "came to nothing (connection closed); because of whom is not known" in ended.why


def test_a_sum_that_is_not_finite_is_a_failure_that_all_see() -> None:
    core = summing()
    core.handle(SUM, 2)
    ended = finish(core.handle(Assembled(0, is_applied=False), 3))
    assert ended is not None
    assert "not finite" in ended.why


def test_who_is_done_first_is_not_taken_for_lost_by_one_that_waits_for_the_last_sum() -> None:
    core = summing(rounds=1)
    assert core.handle(Received(1, Bye(1)), 2) == []
    core.handle(SUM, 3)
    assert byes(core.handle(Assembled(0), 4)) == [(1, 1), (2, 1)]
    assert finish(core.handle(Received(2, Bye(1)), 5)) == Finish("finished")
    assert core.lost == {}
    assert core.deadline_s == inf


def test_a_goodbye_in_the_middle_of_local_steps_of_the_last_round_is_a_loss() -> None:
    core = member(rounds=1)
    ended = finish(core.handle(Received(1, Bye(1)), 2))
    assert ended is not None
    assert ended.outcome == "failed"


def test_one_peer_alone_sums_by_itself() -> None:
    core = Collective(0, 1, ["a"])
    assert core.start(0) == [Train(0)]
    assert core.handle(Trained(0, "x"), 1) == [Divide(0, 1.0, "x")]
    core.handle(SUM, 2)
    assert finish(core.handle(Assembled(0), 3)) == Finish("finished")
