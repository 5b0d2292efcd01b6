"""The notes of a peer that waits for nobody: in the order of what it did, and by what each payload was."""

from typing import Any

import pytest

from peer.daemon.journal import KEPT_LABELS, UNKNOWN, Entry, Journal
from peer.protocol.messages import (
    Accept,
    Adopt,
    Busy,
    Bye,
    Data,
    Done,
    Learn,
    Message,
    Mix,
    Model,
    Propose,
    Received,
    Resume,
    Term,
    Train,
)

ME = 0


class Noted:
    """A journal and what it has written."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.journal = Journal(self.entries.append, "abc".__getitem__)

    def hear(self, sender: int, message: Message) -> Any:
        self.journal.received(Received(sender, message))
        return getattr(message, "payload", None)

    def change(self, effect: Train | Mix | Learn | Adopt) -> Entry:
        self.journal.plans(effect)
        self.journal.did()
        return self.entries[-1]


@pytest.fixture
def noted() -> Noted:
    return Noted()


def mix(*terms: Term) -> Mix:
    return Mix(7, 0, ME, terms)


def test_a_change_is_noted_when_it_is_made_and_not_when_it_is_planned(noted: Noted) -> None:
    noted.journal.plans(Train(3))
    noted.journal.plans(mix(Term(1.0, ME, b"own")))
    assert noted.entries == []
    noted.journal.did()
    assert noted.entries == [{"did": "train", "round": 3}]
    noted.journal.did()
    assert noted.entries[1]["did"] == "mix"


def test_terms_are_noted_by_what_they_were(noted: Noted) -> None:
    noted.journal.greeted(1, 4)
    theirs = noted.hear(1, Data(5, 0, bytearray(b"x")))
    entry = noted.change(mix(Term(0.5, ME, b"own"), Term(0.5, 1, theirs)))
    assert entry == {"did": "mix", "round": 7, "terms": [[0.5, "a", None, None, None], [0.5, "b", "data", 5, 4]]}


def test_equal_payloads_are_told_apart(noted: Noted) -> None:
    first = noted.hear(1, Data(5, 0, bytearray(b"same")))
    second = noted.hear(1, Data(6, 0, bytearray(b"same")))
    for payload, number in ((first, 5), (second, 6)):
        assert noted.change(mix(Term(1.0, 1, payload)))["terms"] == [[1.0, "b", "data", number, 0]]


def test_what_was_said_in_another_life_keeps_that_life(noted: Noted) -> None:
    early = noted.hear(1, Propose(1, 0, bytearray(b"x")))
    noted.journal.greeted(1, 1)
    late = noted.hear(1, Propose(1, 0, bytearray(b"y")))
    lives = [noted.change(mix(Term(1.0, 1, payload)))["terms"][0][4] for payload in (early, late)]
    assert lives == [0, 1]


def test_what_is_said_is_noted_with_its_listener(noted: Noted) -> None:
    noted.journal.greeted(2, 3)
    said: list[Message] = [Data(1, 0, b""), Propose(2, 0, b""), Accept(3, b""), Model(4, b"")]
    for message in said:
        noted.journal.sent(2, message)
    expected = [("data", 1), ("propose", 2), ("accept", 3), ("model", 4)]
    assert noted.entries == [
        {"did": "say", "to": "c", "what": what, "number": number, "life": 3} for what, number in expected
    ]


@pytest.mark.parametrize("message", [Done(1), Busy(1), Bye(1), Resume(1)])
def test_words_without_parameters_are_not_noted(noted: Noted, message: Message) -> None:
    noted.journal.sent(1, message)
    noted.hear(1, message)
    assert noted.entries == []


def test_a_model_may_wait_while_much_else_is_said(noted: Noted) -> None:
    model = noted.hear(1, Model(9, bytearray(b"model")))
    for round in range(3 * KEPT_LABELS):
        noted.hear(1, Data(round, 0, bytearray(b"data")))
    assert noted.change(Adopt(9, model)) == {"did": "adopt", "round": 9, "of": ["b", "model", 9, 0]}


def test_own_parameters_are_nobodys(noted: Noted) -> None:
    assert noted.change(Adopt(9, None)) == {"did": "adopt", "round": 9, "of": None}


def test_a_neighbour_that_talks_without_end_takes_no_memory_and_ends_no_run(noted: Noted) -> None:
    first = noted.hear(1, Data(0, 0, bytearray(b"first")))
    for _ in range(100):
        noted.hear(1, Data(0, 0, bytearray(b"again")))
    assert sum(1 for _ in noted.journal._labelled()) == KEPT_LABELS
    assert noted.change(mix(Term(1.0, 1, first)))["terms"] == [[1.0, "b", *UNKNOWN]]
