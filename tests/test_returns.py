"""Stories of coming back, mostly told of one gossip core: who is counted from when, and from what it goes on."""

from collections.abc import Sequence

from peer.assembly.faults import Fault
from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Bye,
    Command,
    Copied,
    Copy,
    Data,
    Done,
    Effect,
    Event,
    Fetch,
    Finish,
    Forget,
    Heartbeat,
    Message,
    Mix,
    Mixed,
    Model,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Resume,
    Send,
    Tick,
    Train,
    Trained,
)
from peer.protocol.standing import KEEPS_OWN_ROUNDS
from tests.fault_bed import Failure, run
from tests.fault_schedule import Links, Schedule
from tests.fault_shell import Bed

ROUNDS = 50


def peer(others: Sequence[PeerId] = (1,), rounds: int = ROUNDS, round_deadline_s: float = 0.0) -> Gossip:
    """Return the core of peer 0, which hears these others and is heard by them, before it knows that they are there."""
    weight = 1 / (len(others) + 1)
    here = Neighbourhood(dict.fromkeys((0, *others), weight), dict.fromkeys(others, weight))
    core = Gossip(0, rounds, lambda _: here, round_deadline_s=round_deadline_s)
    assert core.start(0.0) == []
    return core


def tell(core: Gossip, *events: Event, now_s: float = 0.0) -> list[Effect]:
    return [effect for event in events for effect in core.handle(event, now_s)]


def hear(core: Gossip, sender: PeerId, *messages: Message) -> list[Effect]:
    return tell(core, *(Received(sender, message) for message in messages))


def begun(others: Sequence[PeerId] = (1,), rounds: int = ROUNDS, round_deadline_s: float = 0.0) -> Gossip:
    """Return a core that knows all others and works on round 0."""
    core = peer(others, rounds, round_deadline_s)
    assert tell(core, *map(PeerJoined, others)) == [Train(0)]
    return core


def do_rounds(core: Gossip, count: int, with_peers: Sequence[PeerId] = ()) -> list[Effect]:
    """Let the core do so many rounds with these peers; returns what it asks for."""
    effects = []
    for round in range(core.round, core.round + count):
        effects += tell(core, Trained(round, f"x{round}"))
        for other in with_peers:
            effects += hear(core, other, Data(round, 0, f"{other}'s x{round}"))
        effects += tell(core, Mixed(round, 0, None))
    return effects


def mixes(effects: Sequence[Effect]) -> list[dict[PeerId, object]]:
    """Return what is mixed, by sender."""
    return [{term.sender: term.payload for term in effect.terms} for effect in effects if isinstance(effect, Mix)]


def sent(effects: Sequence[Effect]) -> list[tuple[PeerId, Message]]:
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


def weights(effects: Sequence[Effect]) -> dict[PeerId, float]:
    (mix,) = [effect for effect in effects if isinstance(effect, Mix)]
    return {term.sender: term.weight for term in mix.terms}


# ---- From which round on


def test_a_neighbour_that_was_lost_counts_from_the_round_that_both_agree_on() -> None:
    core = begun([1, 2])
    do_rounds(core, 3, with_peers=[1, 2])
    tell(core, PeerLost(1, "silent"))
    assert sent(tell(core, PeerJoined(1))) == [(1, Resume(4))]  # round 3 has begun
    assert hear(core, 1, Resume(5)) == []
    without = do_rounds(core, 2, with_peers=[2])
    assert mixes(without) == [{0: "x3", 2: "2's x3"}, {0: "x4", 2: "2's x4"}]
    assert without[-2:] == [Forget(1), Train(5)]
    assert sent(tell(core, Trained(5, "x5"))) == [(1, Data(5, 0, "x5")), (2, Data(5, 0, "x5"))]
    assert hear(core, 2, Data(5, 0, "z5")) == []
    assert set(weights(hear(core, 1, Data(5, 0, "y5")))) == {0, 1, 2}


def test_until_then_its_weight_is_the_own_messages() -> None:
    core = begun([1, 2])
    tell(core, PeerLost(1, "silent"), PeerJoined(1), Trained(0, "x0"))
    assert weights(hear(core, 2, Data(0, 0, "z0"))) == {0: 1 / 3 + 1 / 3, 2: 1 / 3}


def test_the_round_that_was_told_does_not_begin_before_the_other_has_answered() -> None:
    core = begun()
    tell(core, PeerLost(1, "silent"), PeerJoined(1))
    assert do_rounds(core, 1)[-1] != Train(1)
    assert core.waits_for() == {1}
    assert hear(core, 1, Resume(1)) == [Forget(1), Train(1)]


def test_it_does_not_matter_when_both_tell_their_rounds_at_once() -> None:
    for theirs in (2, 3, 4):
        core = begun()
        do_rounds(core, 3, with_peers=[1])
        tell(core, PeerLost(1, "silent"), PeerJoined(1))
        assert hear(core, 1, Resume(theirs)) == []
        assert hear(core, 1, Resume(theirs)) == []  # the same once more
        assert do_rounds(core, 1)[-2:] == [Forget(1), Train(4)]
        assert hear(core, 1, Done(3)) == []
        assert sent(tell(core, Trained(4, "x4"))) == [(1, Data(4, 0, "x4"))]


def test_whoever_is_lost_again_before_it_has_answered_holds_up_nobody() -> None:
    core = begun()
    tell(core, PeerLost(1, "silent"), PeerJoined(1))
    do_rounds(core, 1)
    assert tell(core, PeerLost(1, "silent"))[-1] == Train(1)


def test_what_a_neighbour_said_before_it_was_lost_is_void_when_it_is_back() -> None:
    core = begun()
    hear(core, 1, Data(0, 0, "old"))
    tell(core, PeerLost(1, "silent"), PeerJoined(1))
    assert mixes(tell(core, Trained(0, "x0"))) == [{0: "x0"}]


def test_a_message_may_overtake_the_answer_of_its_sender() -> None:
    """Found by the fault bed: it was thrown away, and both waited for ever."""
    core = begun()
    tell(core, PeerLost(1, "silent"), PeerJoined(1))
    assert hear(core, 1, Done(0), Data(1, 0, "y1"), Resume(0)) == []
    do_rounds(core, 1)
    effects = tell(core, Trained(1, "x1"))
    assert sent(effects) == [(1, Data(1, 0, "x1"))]
    assert mixes(effects) == [{0: "x1", 1: "y1"}]


def test_what_a_newcomer_says_before_it_counts_is_not_mixed() -> None:
    core = begun([1, 2], round_deadline_s=1.0)
    tell(core, PeerLost(1, "it joins later"), PeerJoined(1))
    hear(core, 1, Data(1, 0, "it does not know better"), Resume(3))
    assert all(mix.keys() == {0, 2} for mix in mixes(do_rounds(core, 2, with_peers=[2])))


def test_what_a_neighbour_said_of_rounds_in_which_it_never_came_to_count_is_not_mixed() -> None:
    """Found by the fault bed: its counters of one life were taken for those of another."""
    core = begun([1, 2])
    tell(core, PeerLost(1, "silent"), PeerLost(2, "silent"), PeerJoined(1), PeerJoined(2))
    do_rounds(core, 1)
    hear(core, 1, Resume(1), Data(1, 0, "y1"))
    assert core.waits_for() == {2}
    tell(core, PeerLost(1, "silent"), Received(2, Resume(1)))
    hear(core, 2, Data(1, 0, "z1"))
    assert mixes(tell(core, Trained(1, "x1"))) == [{0: "x1", 2: "z1"}]


# ---- From which parameters


def test_a_restarted_peer_that_has_missed_much_takes_a_neighbours_model_and_tells_how_far_it_is() -> None:
    core = begun()  # it does not know that the others have gone on without it
    far = KEEPS_OWN_ROUNDS + 1
    assert hear(core, 1, Resume(far)) == [Send(1, Resume(1)), Send(1, Fetch())]
    assert tell(core, Trained(0, "void")) == []
    assert hear(core, 1, Model(far - 1, "model")) == [Adopt(far, "model")]
    assert tell(core, Adopted(far)) == [Send(1, Done(far - 1)), Forget(1), Train(far)]
    assert sent(tell(core, Trained(far, "x"))) == [(1, Data(far, 0, "x"))]


def test_a_peer_that_lags_little_goes_on_from_its_own_parameters() -> None:
    core = begun()
    do_rounds(core, 2, with_peers=[1])
    tell(core, PeerLost(1, "cut"), PeerJoined(1))
    near = 2 + KEEPS_OWN_ROUNDS
    assert hear(core, 1, Resume(near)) == [Adopt(near, None)]
    assert tell(core, Adopted(near)) == [Send(1, Done(near - 1)), Forget(1), Train(near)]


def test_a_peer_stays_in_its_round_while_any_neighbour_is_there_that_has_not_left_it_behind() -> None:
    core = begun([1, 2])
    tell(core, PeerLost(1, "cut"), PeerJoined(1))
    assert hear(core, 1, Resume(30)) == []
    effects = do_rounds(core, 1, with_peers=[2])
    assert mixes(effects) == [{0: "x0", 2: "2's x0"}]
    assert effects[-1] == Train(1)


def test_where_the_source_of_the_model_dies_the_next_neighbour_is_asked() -> None:
    core = begun([1, 2])
    assert hear(core, 1, Resume(20)) == [Send(1, Resume(1))]
    assert sent(hear(core, 2, Resume(21))) == [(2, Resume(1)), (1, Fetch())]
    assert sent(tell(core, PeerLost(1, "silent"))) == [(2, Fetch())]
    assert hear(core, 1, Model(20, "too late")) == []
    assert hear(core, 2, Model(20, "model")) == [Adopt(20, "model")]


def test_the_loss_of_another_than_the_source_asks_nobody_again() -> None:
    core = begun([1, 2])
    hear(core, 1, Resume(20))
    hear(core, 2, Resume(21))
    assert sent(tell(core, PeerLost(2, "silent"))) == []


def test_where_nobody_is_left_to_give_a_model_a_peer_keeps_its_own() -> None:
    core = begun()
    hear(core, 1, Resume(20))
    assert tell(core, PeerLost(1, "silent"))[-1] == Adopt(20, None)


def test_where_the_source_is_done_before_it_was_asked_the_next_neighbour_gives_the_model() -> None:
    core = begun([1, 2], round_deadline_s=1.0)
    hear(core, 1, Resume(20))
    hear(core, 2, Resume(21))
    assert sent(hear(core, 1, Bye(ROUNDS))) == [(2, Fetch())]


def test_parameters_are_copied_for_whoever_asks() -> None:
    core = begun()
    assert hear(core, 1, Fetch()) == [Copy(1)]
    assert tell(core, Copied(1, "x")) == [Send(1, Model(0, "x"))]


# ---- At the end


def all_rounds_done(others: Sequence[PeerId] = (1,), round_deadline_s: float = 0.0) -> Gossip:
    """Return a core that has done its two rounds and waits for the last of the others to say goodbye."""
    core = begun(others, 2, round_deadline_s)
    do_rounds(core, 1, with_peers=others)
    do_rounds(core, 1, with_peers=others)
    assert core.phase == "closing"
    return core


def test_whoever_comes_back_when_all_are_done_takes_the_model_and_both_say_goodbye() -> None:
    there = all_rounds_done([1, 2])
    tell(there, PeerLost(1, "silent"))
    assert sent(tell(there, PeerJoined(1))) == [(1, Resume(3))]
    assert hear(there, 1, Resume(0)) == []
    assert hear(there, 1, Fetch()) == [Copy(1)]
    assert tell(there, Copied(1, "theirs")) == [Send(1, Model(2, "theirs"))]
    assert hear(there, 1, Done(1)) == []
    assert sent(hear(there, 1, Bye(2))) == [(1, Bye(2))]
    assert hear(there, 2, Bye(2)) == [Finish("finished")]

    back = begun([1], rounds=2)
    assert hear(back, 1, Resume(3)) == [Send(1, Resume(1)), Send(1, Fetch())]
    assert hear(back, 1, Model(2, "theirs")) == [Adopt(2, "theirs")]
    assert sent(tell(back, Adopted(2))) == [(1, Done(1)), (1, Bye(2))]
    assert hear(back, 1, Bye(2)) == [Finish("finished")]


def test_whoever_comes_back_after_its_goodbye_is_asked_like_one_that_was_lost() -> None:
    """Found by the fault bed: it began at round 0 and was waited for by nobody, and waited for ever."""
    core = begun([1, 2], rounds=2)
    do_rounds(core, 1, with_peers=[1, 2])
    hear(core, 1, Data(1, 0, "y1"), Bye(2))
    assert sent(tell(core, PeerJoined(1))) == [(1, Resume(2))]
    hear(core, 1, Resume(0))
    assert mixes(do_rounds(core, 1, with_peers=[2])) == [{0: "x1", 2: "2's x1"}]
    assert hear(core, 2, Bye(2)) == []
    assert core.waits_for() == {1}
    assert hear(core, 1, Bye(2)) == [Finish("finished")]


def test_what_was_agreed_in_an_earlier_life_does_not_answer_in_the_next() -> None:
    core = begun([1, 2], rounds=4)
    tell(core, PeerLost(1, "silent"), PeerJoined(1))
    hear(core, 1, Resume(1))
    do_rounds(core, 1, with_peers=[2])
    hear(core, 1, Data(1, 0, "y1"), Data(2, 0, "y2"), Bye(4))  # loses it: rounds are missing
    tell(core, PeerJoined(1))
    do_rounds(core, 1, with_peers=[2])
    assert core.waits_for() == {1}
    assert hear(core, 1, Resume(0))[-1] == Train(2)


def test_a_peer_that_is_stopped_when_its_rounds_are_done_says_goodbye_to_whoever_came_back() -> None:
    """Found by the fault bed: it left without a word, and its process was there to be waited for."""
    core = all_rounds_done([1, 2])
    tell(core, PeerLost(1, "silent"), PeerJoined(1))
    assert tell(core, Command("stop")) == [Send(1, Bye(2)), Finish("finished")]


def test_a_newcomer_that_is_done_before_it_was_asked_holds_up_nobody() -> None:
    """Found by the fault bed: its goodbye answers nothing, and yet it is all that will come."""
    core = begun(rounds=2, round_deadline_s=1.0)
    tell(core, PeerLost(1, "it joins later"), PeerJoined(1))
    do_rounds(core, 1)
    assert core.waits_for() == {1}
    assert hear(core, 1, Data(1, 0, "it does not know better"), Bye(2))[-1] == Train(1)
    assert mixes(tell(core, Trained(1, "x1"))) == [{0: "x1"}]

    newcomer = begun(rounds=1, round_deadline_s=1.0)
    tell(newcomer, Trained(0, "x0"))
    tell(newcomer, Tick(), now_s=1.0)
    assert sent(tell(newcomer, Mixed(0, 0, None))) == [(1, Bye(1))]
    assert hear(newcomer, 1, Resume(1)) == []  # nothing follows a goodbye


def test_nothing_follows_a_goodbye_not_even_a_model() -> None:
    core = all_rounds_done()
    assert hear(core, 1, Fetch()) == []
    assert tell(core, Copied(1, "x")) == []


# ---- With a deadline


def test_a_round_with_a_deadline_is_closed_short_without_those_that_are_late() -> None:
    core = begun([1, 2], round_deadline_s=0.5)
    tell(core, Trained(0, "x0"), now_s=1.0)
    hear(core, 1, Data(0, 0, "y0"))
    assert core.deadline_s == 1.5
    assert tell(core, Tick(), now_s=1.4) == []
    mixed = tell(core, Tick(), now_s=1.5)
    assert mixes(mixed) == [{0: "x0", 1: "y0"}]
    assert sum(weights(mixed).values()) == 1.0
    tell(core, Mixed(0, 0, None))
    assert core.short_rounds == 1
    assert hear(core, 2, Data(0, 0, "too late")) == []
    assert mixes(tell(core, Trained(1, "x1")) + hear(core, 1, Data(1, 0, "y1"))) == []


def test_a_round_with_a_deadline_ends_as_soon_as_all_are_heard() -> None:
    core = begun(round_deadline_s=0.5)
    tell(core, Trained(0, "x0"), now_s=1.0)
    assert mixes(hear(core, 1, Data(0, 0, "y0"))) == [{0: "x0", 1: "y0"}]
    tell(core, Mixed(0, 0, None))
    assert core.short_rounds == 0
    assert tell(core, Tick(), now_s=1.5) == []


def test_with_a_deadline_whoever_is_far_behind_hears_a_goodbye_and_nothing_after_it() -> None:
    """Found by the fault bed: what was kept for it went out after the goodbye, which a daemon refuses."""
    core = begun(rounds=4, round_deadline_s=0.5)
    for round in range(4):
        tell(core, Trained(round, f"x{round}"))
        tell(core, Tick(), now_s=1.0)
        closed = tell(core, Mixed(round, 0, None))
    assert sent(closed) == [(1, Bye(4))]
    assert hear(core, 1, Heartbeat(3)) == []


# ---- On the clockwork


def test_local_steps_may_take_longer_than_anybody_is_waited_for() -> None:
    """With faults to come, a run of slow peers was given up: nobody had moved for so long, and all were at work."""
    slow = Schedule(
        seed=0,
        core="gossip",
        steps_s=(100.0, 100.0),
        arcs=((0, 1), (1, 0)),
        rounds=2,
        faults=(Fault("cut", (0, 1), at_s=1.0, for_s=0.5),),
    )
    outcome = run(slow)
    assert not isinstance(outcome, Failure)
    assert outcome.states == ("done", "done")


def test_a_restart_before_anybody_has_noticed_is_one_loss_and_one_return() -> None:
    """It was turned away as one that is lost, again and again, though it was there."""
    quick = Schedule(
        seed=0,
        core="gossip",
        steps_s=(0.4, 0.4),
        arcs=((0, 1), (1, 0)),
        rounds=4,
        faults=(Fault("kill", (1,), at_s=0.9, for_s=0.1),),
    )
    bed = Bed(quick)
    assert bed.run().states == ("done", "done")
    assert bed.clockwork.connections.incarnation(0, 1) == 2  # one for the kill, one for the restart


def test_who_has_heard_no_goodbye_of_a_peer_that_is_done_learns_that_its_process_has_ended() -> None:
    """The other was done in the very moment in which it saw a new life, and was waited for ever after."""
    late = Schedule(
        seed=0,
        core="gossip",
        steps_s=(0.1, 0.1),
        arcs=((0, 1),),
        rounds=1,
        conserves="columns",
        links=Links(bandwidth_mbps=5.0),
        faults=(Fault("kill", (1,), round=1, for_s=0.0),),
    )
    outcome = run(late)
    assert not isinstance(outcome, Failure)
    assert outcome.states == ("done", "done")
