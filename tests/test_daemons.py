"""Real daemons on the loopback: they find each other, finish without the dead, and leave nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.histories import figures
from tests.processes import PATIENCE_S, earshot, ends, exists, free_ports

SOFTMAX = 'rounds = {rounds}\neval_every = 10\n[task]\nmodel = "softmax"\n[topology]\nfamily = "{family}"\n'
ENDLESS = 1_000_000


def experiment(folder: Path, text: str) -> str:
    (folder / "exp.toml").write_text(text)
    return "exp.toml"


def lab(folder: Path, rounds: int = 30, family: str = "complete", join_s: float = 60, names: int = 3) -> str:
    """Write an experiment of machines with addresses of their own."""
    text = SOFTMAX.format(rounds=rounds, family=family) + f"[transport]\njoin_s = {join_s}\n"
    for i, port in enumerate(free_ports(names)):
        text += f'[[peers]]\nname = "lab-{i + 1}"\naddress = "127.0.0.1:{port}"\n'
    return experiment(folder, text)


# ---- up


def test_up_writes_a_run_folder(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(rounds=10, family="ring") + "peers = 3\n")
    with earshot("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        code, summary = up.end()
    assert code == 0
    assert summary["outcome"] == "finished"
    assert summary["rounds"] == 10
    assert summary["lost"] == []
    assert summary["payload_bytes_sent"] == 10 * 6 * 7850 * 4
    assert summary["wire_bytes_sent"] > summary["payload_bytes_sent"]
    run = tmp_path / "run"
    assert sorted(p.name for p in run.iterdir()) == [
        "events.jsonl",
        "experiment.toml",
        "metrics.jsonl",
        "peers",
        "summary.json",
    ]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3 * 2
    model = load_file(run / "peers" / "peer-1" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in model.items()} == {
        "output.weight": (10, 784),
        "output.bias": (10,),
    }


@pytest.mark.parametrize("peers", [1, 2])
def test_one_peer_and_two_peers(tmp_path: Path, peers: int) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(rounds=10, family="ring") + f"peers = {peers}\n")
    with earshot("up", exp, "--json", "--no-folder", cwd=tmp_path) as up:
        code, summary = up.end()
    assert code == 0
    assert summary["peers"] == peers
    assert summary["short_rounds"] == 0


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_in_good_order(tmp_path: Path, sign: signal.Signals) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(rounds=ENDLESS, family="ring") + "peers = 4\n")
    with earshot("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 10/")
        children = up.children()
        up.process.send_signal(sign)
        code, summary = up.end()
    assert code == 130
    assert summary["outcome"] == "interrupted"
    assert summary["rounds"] >= 10
    assert summary["lost"] == []
    assert (tmp_path / "run" / "summary.json").exists()
    assert len(children) >= 4
    assert not any(exists(pid) for pid in children)


def test_daemons_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(rounds=ENDLESS, family="ring") + "peers = 3\n")
    with earshot("up", exp, "--no-folder", cwd=tmp_path) as up:
        up.read_until("round 10/")
        children = up.children()
        up.process.kill()
        assert up.process.stderr is not None
        up.process.stderr.read()  # ends when the last of them has closed it
        up.process.wait(PATIENCE_S)
    assert all(ends(pid) for pid in children)


def test_a_killed_peer_does_not_hang_the_others(tmp_path: Path) -> None:
    text = SOFTMAX.format(rounds=400, family="complete") + "peers = 4\n[transport]\ndead_s = 2\nsuspect_s = 1.5\n"
    with earshot("up", experiment(tmp_path, text), "--json", "--no-folder", cwd=tmp_path) as up:
        up.read_until("round 10/")
        os.kill(up.children()[1], signal.SIGKILL)
        code, summary = up.end()
    assert code == 0
    assert summary["outcome"] == "finished"
    assert summary["rounds"] == 400
    assert len(summary["lost"]) == 1
    assert summary["short_rounds"] > 0
    assert summary["history"][-1]["round"] == 400


def test_a_peer_killed_before_it_is_there_is_not_waited_for(tmp_path: Path) -> None:
    """The others need not wait for join_s: whoever started it knows that its process has ended."""
    text = SOFTMAX.format(rounds=20, family="ring") + "peers = 4\n[transport]\njoin_s = 100000\n"
    with earshot("up", experiment(tmp_path, text), "--json", "--no-folder", cwd=tmp_path) as up:
        up.read_until("4 peers")
        while not (children := up.children()):
            pass
        os.kill(children[0], signal.SIGKILL)
        code, summary = up.end()
    assert code == 0
    assert summary["lost"] == ["peer-0"]
    assert summary["rounds"] == 20


def test_a_diverged_run_names_round_and_peer(tmp_path: Path) -> None:
    exp = experiment(
        tmp_path,
        "rounds = 300\n"
        '[task]\nmodel = "linear"\ndata = "inline"\ndtype = "float64"\nbatch_size = 0\nlr = 0.1\ninit = [1.5]\n'
        "shards = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]], [[[4.0], 9.0]]]\n"
        '[algorithm]\norder = "cta"\n[record]\nparams = "final"\n',
    )
    found = []
    for command in (["up"], ["simulate", "--engine", "events"], ["simulate"]):
        with earshot(*command, exp, "--json", "--no-folder", cwd=tmp_path) as run:
            code, summary = run.end()
        assert code == 3
        assert summary["outcome"] == "diverged"
        assert [h["round"] for h in summary["history"]] == [0, 10, 20, summary["rounds"]]
        found.append([summary[key] for key in ("diverged", "rounds", "gradients", "params", "loss")])
        found[-1].append(figures(summary["history"]))
    assert found[0] == found[1]
    assert found[0][:3] == found[2][:3]


def test_a_model_that_fails_in_the_middle_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Fragile(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(784, 10)\n"
        "        self.calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += self.training\n"
        "        if self.calls > 3:\n"
        "            raise RuntimeError('out of luck')\n"
        "        return self.layer(x.flatten(1))\n"
    )
    exp = experiment(tmp_path, 'rounds = 50\n[task]\nmodel = "mine:Fragile"\n[topology]\npeers = 3\n')
    for command in ("up", "simulate"):
        with earshot(command, exp, "--json", "--no-folder", cwd=tmp_path) as run:
            children = run.children()
            code, summary = run.end()
        assert code == 3
        assert summary["outcome"] == "failed"
        assert "out of luck" in summary["why"]
        said = "\n".join(run.said)
        assert "in forward" in said
        assert "peer/" not in said.split("Traceback")[1].split("out of luck")[0]
        assert not any(exists(pid) for pid in children)


def test_a_model_that_ends_the_process_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys\n"
        "import torch\n"
        "class Quitter(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(784, 10)\n"
        "    def forward(self, x):\n"
        "        if self.training and torch.is_grad_enabled() and x.requires_grad is False:\n"
        "            sys.exit(0)\n"
        "        return super().forward(x.flatten(1))\n"
    )
    exp = experiment(tmp_path, 'rounds = 5\n[task]\nmodel = "mine:Quitter"\nstep = "plain"\n[topology]\npeers = 2\n')
    for command in (["up"], ["simulate"], ["simulate", "--engine", "events"]):
        with earshot(*command, exp, "--json", "--no-folder", cwd=tmp_path) as run:
            code, summary = run.end()
        assert (code, summary["outcome"]) == (3, "failed")
        assert "SystemExit" in summary["why"]


def test_what_a_model_prints_is_not_part_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Chatty(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(784, 10)\n"
        "    def forward(self, x):\n"
        "        print('here I am')\n"
        "        return super().forward(x.flatten(1))\n"
    )
    exp = experiment(tmp_path, 'rounds = 2\n[task]\nmodel = "mine:Chatty"\n[topology]\npeers = 2\n')
    for command in (["up", "--no-folder"], ["simulate", "--no-folder"], ["explain"]):
        with earshot(*command, exp, "--json", cwd=tmp_path) as run:
            code, document = run.end()
        assert code == 0
        assert document["peers"] == 2


@pytest.mark.parametrize("command", ["simulate", "up", "explain"])
def test_an_interruption_while_data_are_loading(tmp_path: Path, command: str) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys, threading\n"
        "def load():\n"
        "    print('loading', file=sys.stderr, flush=True)\n"
        "    threading.Event().wait()\n"
    )
    exp = experiment(tmp_path, '[task]\nmodel = "softmax"\ndata = "mine:load"\n[topology]\npeers = 2\n')
    with earshot(command, exp, "--json", cwd=tmp_path) as run:
        run.read_until("loading")
        run.process.terminate()
        code, document = run.end()
    assert code == 130
    assert document == {"error": "interrupted"}
    assert not (tmp_path / "runs").exists()


def test_a_local_step_that_does_not_end_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys, threading, torch\n"
        "class Slow(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(784, 10)\n"
        "        self.steps = 0\n"
        "    def forward(self, x):\n"
        "        self.steps += self.training\n"
        "        if self.steps > 2:\n"
        "            print('stuck', file=sys.stderr, flush=True)\n"
        "            threading.Event().wait()\n"
        "        return super().forward(x.flatten(1))\n"
    )
    exp = experiment(tmp_path, '[task]\nmodel = "mine:Slow"\nstep = "plain"\n[topology]\npeers = 2\n')
    for command in ("simulate", "up"):
        with earshot(command, exp, "--json", "--no-folder", cwd=tmp_path) as run:
            run.read_until("stuck")
            children = run.children()
            run.process.terminate()
            code, summary = run.end()
        assert code == 130
        assert summary["outcome"] == "interrupted"
        assert not any(exists(pid) for pid in children)


def test_a_closed_stdout_does_not_change_the_exit_code(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(rounds=2, family="ring") + "peers = 2\n")
    with earshot("simulate", exp, "--no-folder", cwd=tmp_path) as run:
        assert run.process.stdout is not None
        run.process.stdout.close()
        run.read_until("round 2/2")
        assert run.process.stderr is not None
        run.process.stderr.read()
        assert run.process.wait(PATIENCE_S) == 0


# ---- start


def test_three_daemons_started_one_by_one_find_each_other(tmp_path: Path) -> None:
    exp = lab(tmp_path)
    with earshot("start", exp, "--name", "lab-3", "--json", "--no-folder", cwd=tmp_path) as third:
        third.read_until("waits for lab-1, lab-2 since")
        with earshot("start", exp, "--name", "lab-1", "--json", "--no-folder", cwd=tmp_path) as first:
            first.read_until("waits for lab-2")
            with earshot("start", exp, "--name", "lab-2", "--json", "--no-folder", cwd=tmp_path) as second:
                ends = [daemon.end() for daemon in (first, second, third)]
    assert [code for code, _ in ends] == [0, 0, 0]
    assert all(summary["lost"] == [] and summary["rounds"] == 30 for _, summary in ends)
    assert all("consensus_distance" not in summary and summary["neighbour_distance"] > 0 for _, summary in ends)


def test_two_daemons_finish_without_the_third(tmp_path: Path) -> None:
    exp = lab(tmp_path, rounds=ENDLESS)
    short = ("--set", "rounds=300", "--set", "transport.dead_s=2", "--set", "transport.suspect_s=1")
    names = ("lab-1", "lab-2", "lab-3")
    with (
        earshot("start", exp, "--name", names[0], "--json", "--no-folder", *short, cwd=tmp_path) as first,
        earshot("start", exp, "--name", names[1], "--json", "--no-folder", *short, cwd=tmp_path) as second,
        earshot("start", exp, "--name", names[2], "--json", "--no-folder", *short, cwd=tmp_path) as third,
    ):
        second.read_until("round 10/")
        second.process.kill()
        ends = [daemon.end() for daemon in (first, third)]
    for code, summary in ends:
        assert code == 0
        assert summary["outcome"] == "finished"
        assert summary["rounds"] == 300
        assert summary["lost"] == ["lab-2"]


def test_a_peer_that_never_hears_anyone_says_for_whom_it_waits(tmp_path: Path) -> None:
    exp = lab(tmp_path, join_s=3)
    with earshot("start", exp, "--name", "lab-2", "--json", "--no-folder", cwd=tmp_path) as alone:
        line = alone.read_until("waits for")
        code, summary = alone.end()
    assert "lab-1, lab-3 since" in line
    assert "until" in line
    assert code == 3
    assert summary["outcome"] == "alone"
    assert "lab-1 or lab-3 within 3 s" in summary["why"]


def test_another_experiment_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    exp = lab(tmp_path, join_s=4, names=2)
    with (
        earshot("start", exp, "--name", "lab-1", "--json", "--no-folder", cwd=tmp_path) as first,
        earshot(
            "start", exp, "--name", "lab-2", "--json", "--no-folder", "--set", "task.lr=0.3", cwd=tmp_path
        ) as other,
    ):
        ends = [daemon.end() for daemon in (first, other)]
    assert [code for code, _ in ends] == [3, 3]
    for daemon in (first, other):
        said = "\n".join(daemon.said)
        assert "task.lr" in said
        assert "0.05" in said
        assert "0.3" in said


def test_another_order_of_peers_is_another_experiment(tmp_path: Path) -> None:
    """The third machine's file lists the same peers in another order, so it would train on another's shard."""
    exp = lab(tmp_path, join_s=4, names=2)
    head, first, second = (tmp_path / exp).read_text().split("[[peers]]")
    (tmp_path / "other.toml").write_text("[[peers]]".join([head, second, first]))
    with (
        earshot("start", exp, "--name", "lab-1", "--json", "--no-folder", cwd=tmp_path) as one,
        earshot("start", "other.toml", "--name", "lab-2", "--json", "--no-folder", cwd=tmp_path) as other,
    ):
        ends = [daemon.end() for daemon in (one, other)]
    assert [code for code, _ in ends] == [3, 3]


def test_an_occupied_port_is_named_with_the_setting_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exp = experiment(
            tmp_path,
            SOFTMAX.format(rounds=5, family="complete")
            + f'[[peers]]\nname = "a"\naddress = "127.0.0.1:{port}"\n'
            + f'[[peers]]\nname = "b"\naddress = "127.0.0.1:{free_ports(1)[0]}"\n',
        )
        with earshot("start", exp, "--name", "a", "--json", cwd=tmp_path) as daemon:
            code, document = daemon.end()
    assert code == 2
    assert f"{port}" in document["error"]
    assert "peers.a.address" in document["error"]
    assert not (tmp_path / "runs").exists()


def test_a_single_daemon_of_one_peer_trains_alone(tmp_path: Path) -> None:
    exp = lab(tmp_path, names=1, rounds=10)
    with earshot("start", exp, "--name", "lab-1", "--json", "--no-folder", cwd=tmp_path) as daemon:
        code, summary = daemon.end()
    assert code == 0
    assert summary["rounds"] == 10


def test_an_interrupted_daemon_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    exp = lab(tmp_path, rounds=ENDLESS)
    short = ("--set", "rounds=2000")
    with (
        earshot("start", exp, "--name", "lab-1", "--json", "--no-folder", *short, cwd=tmp_path) as first,
        earshot("start", exp, "--name", "lab-2", "--json", "--no-folder", *short, cwd=tmp_path) as second,
        earshot("start", exp, "--name", "lab-3", "--json", "--no-folder", *short, cwd=tmp_path) as third,
    ):
        second.read_until("round 10/")
        second.process.terminate()
        left, summary = second.end()
        assert (left, summary["outcome"]) == (130, "interrupted")
        for daemon in (first, third):
            code, summary = daemon.end()
            assert code == 0
            assert summary["lost"] == ["lab-2"]


SPAWNED = """
import json

from peer.assembly import assemble, prepare_task
from peer.daemon.host import Host, Observers
from peer.experiment import load
from peer.record import listed

if __name__ == "__main__":
    assembly = assemble(load("exp.toml"))
    ended = Host(assembly, prepare_task(assembly), None, Observers(), lambda: False, forks=False).run()
    print(json.dumps([ended.outcome, listed(ended.params)]))
"""


def test_where_processes_cannot_be_forked_they_are_spawned(tmp_path: Path) -> None:
    exp = experiment(tmp_path, SOFTMAX.format(rounds=5, family="ring") + 'peers = 2\n[record]\nparams = "final"\n')
    (tmp_path / "spawned.py").write_text(SPAWNED)
    spawned = subprocess.run([sys.executable, "spawned.py"], cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    with earshot("simulate", exp, "--engine", "events", "--json", "--no-folder", cwd=tmp_path) as run:
        _, summary = run.end()
    assert json.loads(spawned.stdout) == ["finished", summary["params"]]
