"""An algorithm of the user's own: tried out before the run, and guarded in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.algorithms import d2, diloco, dpsgd, gradient_tracking, push_sum
from peer.algorithms.algorithm import Algorithm, Heard, Message, State
from peer.algorithms.dpsgd import AdaptThenCombine
from peer.assembly import assemble, prepare_task, rehearsal
from peer.assembly.rehearsal import Guarded, check_settings, rehearse
from peer.errors import ConfigError, TrainingError
from peer.experiment import from_dict
from peer.explanation import explain
from peer.scripting import simulate
from tests.commands import Command, Write


def tried(algorithm: Any, *, size: int = 5, dtype: torch.dtype = torch.float64, **options: Any) -> None:
    rehearse(Guarded(algorithm, "own:Rule"), size, dtype, 0.1, **options)


def refusal(algorithm: Any, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        tried(algorithm, **options)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


# ---- What passes

BUILT = [
    dpsgd.AdaptThenCombine(),
    dpsgd.CombineThenAdapt(),
    gradient_tracking.AdaptThenCombine(),
    gradient_tracking.Diging(),
    d2.D2(),
    diloco.DiLoCo(),
    push_sum.PushSum(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", BUILT, ids=lambda a: f"{type(a).__module__}.{type(a).__name__}")
def test_all_that_are_built_would_pass(algorithm: Algorithm, dtype: torch.dtype) -> None:
    check_settings(algorithm, "own:Rule")
    for size in (1, 2, 1000):
        tried(algorithm, dtype=dtype, size=size)


class Edgewise(AdaptThenCombine):
    """The same sum, edge by edge."""

    def update(self, state: State, k: int, heard: Heard) -> State:
        e = heard.edges()
        pulls = e.weights * (e.theirs["x"] - e.own["x"])
        moved = torch.zeros_like(state["x"].view(-1, state["x"].shape[-1])).index_add(0, e.receivers, pulls)
        return {"x": state["x"] + moved.view_as(state["x"])}


class Noisy(AdaptThenCombine):
    """Draws numbers of its own."""

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"] + torch.randn_like(state["x"])}


class NotFinite(AdaptThenCombine):
    """Divides by nothing."""

    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["x"] / torch.zeros_like(state["x"])}


@pytest.mark.parametrize("algorithm", [Edgewise(), Noisy(), NotFinite()], ids=lambda a: type(a).__name__)
def test_these_pass_too(algorithm: Algorithm) -> None:
    tried(algorithm)


def test_it_leaves_no_trace() -> None:
    """Neither in the generator that the caller draws from, nor in what an instance holds."""

    class Counts(Noisy):
        calls = 0

        def init(self, x: Tensor) -> State:
            object.__setattr__(self, "calls", self.calls + 1)
            return super().init(x)

    algorithm = Counts()
    before = torch.get_rng_state()
    tried(algorithm)
    assert torch.equal(torch.get_rng_state(), before)
    assert algorithm.calls == 0


def test_large_vectors_are_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "REHEARSED_NUMBERS", 5)
    assert "update returned None" in str(refusal(Forgets(), size=5))
    tried(Forgets(), size=6)


# ---- What does not


class Forgets(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        heard.sum()
        return None  # type: ignore[return-value]


class Sums(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["x"].sum(dim=-1)}


class Cuts(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["x"][..., :2]}


class Casts(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["x"].half()}


class Scalar(AdaptThenCombine):
    def init(self, x: Tensor) -> State:
        return {"x": x, "round": torch.tensor(0.0)}


class Number(AdaptThenCombine):
    def init(self, x: Tensor) -> State:
        return {"x": x, "round": 0}  # type: ignore[dict-item]


class Adds(AdaptThenCombine):
    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        state["x"].add_(delta)
        return state


class Scales(AdaptThenCombine):
    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"x": state["x"] + delta.mul_(0.5)}


class Overwrites(AdaptThenCombine):
    def init(self, x: Tensor) -> State:
        return {"x": x.zero_()}


class Lends(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        mixed = heard.sum()["x"]
        state["x"].copy_(mixed)
        return {"x": mixed}


class Normalises(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        x = heard.sum()["x"]
        return {"x": x / x.norm()}


class Both(AdaptThenCombine):
    """Not finite in one place, and not row-wise in the others."""

    def update(self, state: State, k: int, heard: Heard) -> State:
        x = heard.sum()["x"]
        return {"x": torch.cat([x[..., :1] * float("nan"), x[..., 1:] / x[..., 1:].norm()], dim=-1)}


class Collapses(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        x = heard.sum()["x"]
        return {"x": x if x.dim() == 1 else x[:1]}


class Remembers(AdaptThenCombine):
    """Counts its calls: once for each peer in the simulator, and for itself alone in a daemon."""

    calls = 0

    def update(self, state: State, k: int, heard: Heard) -> State:
        object.__setattr__(self, "calls", self.calls + 1)
        return {"x": heard.sum()["x"] * self.calls}


class Alone(AdaptThenCombine):
    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return {"x": state["x"]}  # type: ignore[return-value]


class Silent(AdaptThenCombine):
    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {}


class Counted(AdaptThenCombine):
    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"].round().long()}


class Grows(AdaptThenCombine):
    def init(self, x: Tensor) -> State:
        return {"x": x, "said": x[..., :0]}

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"x": state["x"] + delta, "said": torch.cat([state["said"], state["x"]], dim=-1)}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"x": state["x"], "said": state["said"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["x"], "said": state["said"]}


class Elsewhere(AdaptThenCombine):
    def at(self, state: State) -> Tensor:
        return state["x"].unsqueeze(-1)


class Listed(AdaptThenCombine):
    def params(self, state: State) -> Tensor:
        return [state["x"]]  # type: ignore[return-value]


class Mumbles(AdaptThenCombine):
    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["x"][..., 0]


class Misspells(AdaptThenCombine):
    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": heard.sum()["y"]}


class Quits(AdaptThenCombine):
    def init(self, x: Tensor) -> State:
        raise SystemExit


WRONG: list[tuple[type[AdaptThenCombine], str]] = [
    (Forgets, "update returned None; states and messages are tables of tensors"),
    (
        Sums,
        "update returned 'x' of shape () where the parameters are (5,); it is to be (m,), with m = 1 for one number",
    ),
    (Cuts, "update and then params returned shape (2,) where the parameters are (5,)"),
    (Casts, "update and then params returned torch.float16 where the parameters are torch.float64"),
    (Scalar, "init returned 'round' of shape () where the parameters are (5,)"),
    (Number, "init returned a value of type int as 'round'; states and messages hold tensors"),
    (Adds, "learned changed 'x' in place, which others may still hold; return new tensors"),
    (Scales, "learned changed 'delta' in place"),
    (Overwrites, "init changed 'x' in place"),
    (Lends, "update changed 'x' in place"),
    (
        Normalises,
        "it comes to other parameters for two peers at once, (n, d), than for one after the other, (d,); sums",
    ),
    (Both, "it comes to other parameters for two peers at once"),
    (Collapses, "update returned 'x' of shape (1, 5) where the parameters are (2, 5); it is to be (2, m)"),
    (Remembers, "it comes to other parameters for two peers at once"),
    (Alone, "message returned a value of type dict; it is (state, message)"),
    (Silent, "message returned no floating-point tensors to send"),
    (Counted, "message returned no floating-point tensors to send"),
    (Grows, "message returned a message of other names, shapes or dtypes than the round before"),
    (Elsewhere, "at returned shape (5, 1) where the parameters are (5,)"),
    (Listed, "update and then params returned a value of type list; it is a tensor like the parameters"),
    (Mumbles, "parameters_in returned shape () where the parameters are (5,)"),
    (Misspells, "update raised KeyError: 'y'"),
    (Quits, "init raised SystemExit"),
]


@pytest.mark.parametrize(("rule", "words"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_nonsense_ends_in_one_line(rule: type[AdaptThenCombine], words: str) -> None:
    error = refusal(rule())
    assert error.key == "algorithm.name"
    assert error.problem.startswith(f"own:Rule: {words}"), error.problem
    assert ("Traceback" in error.details) == (rule in (Misspells, Quits))


def test_the_users_traceback_is_kept_and_ours_is_not() -> None:
    details = refusal(Misspells()).details
    assert f'File "{__file__}"' in details
    assert f"{Path('peer') / 'assembly'}" not in details


class Reticent(AdaptThenCombine):
    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return None


def test_the_metric_model_asks_what_a_message_stands_for() -> None:
    tried(Reticent())
    error = refusal(Reticent(), says_parameters=True)
    assert error.key == "topology.metric"
    assert "own:Rule does not say: its parameters_in returned None" in str(error)
    tried(AdaptThenCombine(), says_parameters=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stochastic": "both"}, "stochastic is 'both'; it can be 'doubly' or 'row' or 'column'"),
        ({"absent": "wait"}, "absent is 'wait'; it can be 'keep_own' or 'count'"),
        ({"scope": "edge"}, "scope is 'edge'; it can be 'peer'"),
        ({"extrapolates": "no"}, "extrapolates is 'no'; it can be True or False"),
        ({"exchanges": 0}, "exchanges is 0; it is how many messages a round has, 1 or more"),
        ({"exchanges": 1.5}, "exchanges is 1.5; "),
    ],
)
def test_what_it_says_of_itself_has_to_be_so(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(AdaptThenCombine(**settings), "own:Rule")
    assert str(caught.value).startswith(f"algorithm.name: own:Rule: {words}")


def test_what_is_guarded_says_the_same_of_itself() -> None:
    @dataclass(frozen=True)
    class Other(AdaptThenCombine):
        stochastic: Any = "row"
        absent: Any = "count"
        exchanges: int = 3
        scope: Any = "edge"
        extrapolates: bool = True

    guarded = Guarded(Other(), "own:Rule")
    found = (guarded.stochastic, guarded.absent, guarded.exchanges, guarded.scope, guarded.extrapolates)
    assert found == ("row", "count", 3, "edge", True)


# ---- In an experiment

MODULE = """
import torch
from peer.algorithms.dpsgd import AdaptThenCombine


class Cautious(AdaptThenCombine):
    def update(self, state, k, heard):
        return {"x": state["x"] + 0.5 * (heard.sum()["x"] - state["x"])}


def make(experiment):
    assert experiment.topology.family == "ring"
    return Cautious()


class Empty:
    stochastic, absent, exchanges, scope, extrapolates = "doubly", "keep_own", 1, "peer", False

    def init(self, x):
        return {"x": x}


def nothing():
    pass


def waits():
    return AdaptThenCombine(absent="wait")


class Reticent(AdaptThenCombine):
    def parameters_in(self, message, k):
        return None


def raises():
    raise RuntimeError("no rule")


class Cuts(AdaptThenCombine):
    def update(self, state, k, heard):
        return {"x": heard.sum()["x"][..., :1]}


class FailsLater(AdaptThenCombine):
    def init(self, x):
        return {"x": x, "rounds": torch.zeros_like(x[..., :1])}

    def learned(self, state, delta, lr):
        return {"x": state["x"] + delta, "rounds": state["rounds"] + 1}

    def update(self, state, k, heard):
        if float(state["rounds"].max()) == 7:
            raise ValueError("not\\nthe seventh")
        return {"x": heard.sum()["x"], "rounds": state["rounds"]}
"""


@pytest.fixture
def module(write: Write) -> Path:
    return write(MODULE, "rehearsal_own.py")


def text(factory: str, **topology: object) -> str:
    keys = "".join(f"{key} = {value}\n" for key, value in topology.items())
    return (
        'rounds = 20\n[task]\ndata = "none"\ninit = [[1.0, 0.0], [2.0, 0.0], [4.0, 8.0]]\n'
        f'[algorithm]\nname = "rehearsal_own:{factory}"\n[topology]\n{keys}'
    )


REFUSED = {
    "Empty": "rehearsal_own:Empty returned a Empty without at, learned, message, update, params, parameters_in; see",
    "nothing": "rehearsal_own:nothing returned a NoneType without stochastic, absent, exchanges, scope, extrapolates,",
    "waits": "rehearsal_own:waits: absent is 'wait'; it can be 'keep_own' or 'count'",
    "raises": "rehearsal_own:raises raised RuntimeError: no rule",
    "Cuts": "rehearsal_own:Cuts: update and then params returned shape (1,) where the parameters are (2,)",
    "Cautios": "rehearsal_own:Cautios: ",
}


@pytest.mark.parametrize("factory", REFUSED)
def test_it_is_refused_in_one_line_whichever_way_it_would_run(
    command: Command, write: Write, module: Path, factory: str
) -> None:
    write(text(factory))
    for way in (["explain"], ["simulate"], ["simulate", "--engine", "events"], ["up"]):
        outcome = command(*way, "exp.toml")
        assert (outcome.code, outcome.out) == (2, "")
        *above, last = outcome.err.splitlines()
        assert last.startswith(f"earshot: algorithm.name: {REFUSED[factory]}")
        assert bool(above) == (factory == "raises"), "and with the user's own traceback where there is one"
    assert not (module.parent / "runs").exists()


def test_what_it_raises_later_ends_the_run_in_words(command: Command, write: Write, module: Path) -> None:
    write(text("FailsLater"))
    assert command("explain", "exp.toml").code == 0
    for engine in ("rounds", "events"):
        outcome = command("simulate", "exp.toml", "--engine", engine, "--json", "--no-folder", "--quiet")
        assert outcome.code == 3
        assert (outcome.document["outcome"], outcome.document["rounds"]) == ("failed", 6)
        assert outcome.document["why"] == "rehearsal_own:FailsLater: update raised ValueError: not"
        assert 'rehearsal_own.py", line' in outcome.err


def test_a_factory_may_ask_for_the_experiment(module: Path) -> None:
    tables = {
        "rounds": 3,
        "task": {"data": "none", "init": [[0.0], [4.0]], "dtype": "float64"},
        "algorithm": {"name": "rehearsal_own:make"},
        "record": {"params": "final"},
    }
    for engine in ("rounds", "events"):
        e = from_dict(tables, folder=module.parent)
        assert simulate(e, engine=engine).params == [[1.75], [2.25]], "half the way to 2 in each round"


def test_an_algorithm_is_rehearsed_when_the_task_is_known(module: Path) -> None:
    tables = {"task": {"data": "none", "init": [1.0, 2.0]}, "algorithm": {"name": "rehearsal_own:Cuts"}}
    assembly = assemble(from_dict(tables, folder=module.parent))
    with pytest.raises(ConfigError, match="update and then params returned"):
        prepare_task(assembly)
    share = {**tables, "algorithm": {"name": "rehearsal_own:Cautious", "share": ["y*"]}}
    with pytest.raises(ConfigError, match=r'^algorithm\.share: "y\*" matches nothing; the model has x'):
        prepare_task(assemble(from_dict(share, folder=module.parent)))


def test_the_metric_model_goes_with_those_that_say_what_they_send(module: Path) -> None:
    tables: dict[str, Any] = {"task": {"data": "none", "init": [1.0]}, "topology": {"metric": "model", "threshold": 1}}
    assert explain(from_dict({**tables, "algorithm": {"name": "rehearsal_own:Cautious"}}, folder=module.parent))
    with pytest.raises(ConfigError, match=r'^topology\.metric: "model" asks what parameters a message stands for'):
        explain(from_dict({**tables, "algorithm": {"name": "rehearsal_own:Reticent"}}, folder=module.parent))


def test_what_our_own_code_raises_inside_passes_through() -> None:
    class Wraps(AdaptThenCombine):
        def init(self, x: Tensor) -> State:
            raise TrainingError("the model is at fault")

    with pytest.raises(TrainingError, match=r"^the model is at fault$"):
        Guarded(Wraps(), "own:Rule").init(torch.zeros(2))
