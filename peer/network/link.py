"""One neighbour: the incarnation that the two are in with each other, the greeting that opens it, and its stream.

An *incarnation* is one life of two peers with each other. It ends when one of them counts the other as lost, or finds
that the other's process was started anew; then both count each other as lost. Its number only grows, and the greater
number wins. The next one begins with a greeting, and of what was said before nothing counts in it.

    turned away                          own number + 1, and Refuse with it
    Refuse with a greater number         taken over; whoever dials says Hello with it at its next beat
    Hello with a lower number            Refuse with the own one
    Hello with a greater number          taken over, then as an equal one
    Hello with an equal one              the first, or the same process: Welcome
    ... of another process               once something has come of the stream: own number + 1, and Refuse with it
    Hello to a process that is no more   the same

Frames keep their order on a connection, and that is enough to tell two incarnations apart. The side that dials says
nothing of an earlier one after its Hello, nor the other side after its Welcome; and before these, and from the end of
an incarnation on, neither takes anything of a stream. So items and acknowledgements need no number of their own.

There are no sockets here: headers go out by `transmit`, and come in in the order in which they were sent.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

from peer.network.greeting import Greeting, from_wire, plain, refusal
from peer.network.sizes import Sizes
from peer.network.stream import Incoming, Outgoing
from peer.network.wire import TEXT_CHARACTERS, Ack, Beat, Chunk, Header, Hello, Note, Refuse, Welcome
from peer.protocol.messages import Alert, Greeted, Heard, Heartbeat, Message, PeerId, Received, Severed

LinkEvent = Greeted | Severed | Received | Heard | Alert


class Transmit(Protocol):
    """Send this to the neighbour, now; returns whether there is a connection and it took it."""

    def __call__(self, header: Header, body: memoryview | None = None) -> bool: ...


class Link:
    """One neighbour, as this peer sees it.

    `ours` is the own greeting, and `fields` the same as it travels. `sizes` says what may come from the neighbour.
    """

    def __init__(
        self,
        peer: PeerId,
        name: str,
        ours: Greeting,
        fields: Mapping[str, Any],
        sizes: Sizes,
        transmit: Transmit,
    ) -> None:
        self.peer = peer
        self.name = name
        self.dials = False  # whether it is this side that dials
        self.connection = 0  # its number, counted by the side that dials
        self.incarnation = 0
        self.is_vacant = False  # this incarnation follows a loss, and nobody has been greeted in it
        self.greeted = False  # on the connection there is now: the stream may be sent
        self.trusted = False  # a process passed the greeting, and has neither refused ours nor broken the protocol
        self.owes_ack = False  # the last one found a full queue, or no connection
        self.outgoing = Outgoing()
        self.incoming = Incoming(sizes)
        self._ours = ours
        self._fields = dict(fields)
        self._sizes = sizes
        self._transmit = transmit
        self._session = ""  # of the process that was greeted in this incarnation
        self._reason = "in an earlier life"  # why the last incarnation ended
        self._settles = False  # that has just been told: no greeting before the owner has taken it in

    @property
    def has_begun(self) -> bool:
        """Whether a part of either stream has arrived."""
        return bool(self.incoming.next_wanted or self.outgoing.acknowledged_until)

    @property
    def is_waited_for(self) -> bool:
        """Whether an acknowledgement may still come: not from a peer that has said goodbye and then gone."""
        return self.trusted and not self.outgoing.is_empty() and (self.greeted or not self.incoming.ended)

    # ---- From this peer

    def beat(self, round: int) -> None:
        """Say that this peer is alive; greet, where that is for this side to do and not yet done."""
        if self.greeted:
            self._transmit(Beat(round))
            self.push()
        elif self.dials:
            self.greet()

    def greet(self) -> None:
        """Say Hello, on the connection there is now."""
        knows = self._session if self.has_begun else ""
        self._transmit(Hello(self.connection, self.incarnation, self.name, knows, self._fields))

    def send(self, message: Message) -> None:
        """Queue a message of the stream."""
        self.outgoing.put(message)
        self.push()

    def push(self) -> None:
        """Send as much of the stream as the window and the connection take."""
        while self.greeted and (item := self.outgoing.ready()) is not None:
            if not self._transmit(*item):
                return
            self.outgoing.sent()

    def acknowledge(self) -> None:
        """Acknowledge what has come, to whom it came from: on a connection that is not greeted there may be another."""
        self.owes_ack = not (self.greeted and self._transmit(Ack(self.incoming.next_wanted)))

    def turn_away(self, reason: str) -> None:
        """This peer counts the neighbour as lost. Where the link has said so itself, the next incarnation is here."""
        if not self.is_vacant:
            self._end(self.incarnation + 1, reason)
            self._transmit(self._dismissal())

    def settle(self) -> None:
        """The owner has taken in all that was told."""
        self._settles = False

    def part(self, reason: str) -> Iterator[LinkEvent]:
        """Take note that a neighbour cannot be talked to; before the greeting that may still change."""
        if self.trusted:
            self._distrust()
            yield Severed(self.peer, reason)
        else:
            yield Alert(f"{self.name}: {reason}", refusal=True)

    # ---- From the neighbour

    def take(self, header: Header, body: memoryview | None) -> Iterator[LinkEvent]:
        """Take anything but a `Hello`. Raises WireError for what no right neighbour says."""
        match header:
            case Welcome(connection, incarnation, fields) if self.dials and not self.greeted:
                if connection == self.connection:  # and not one that stood before
                    yield from self._welcome(incarnation, from_wire(fields))
            case Refuse(reason, 0):
                yield from self.part(f"it refuses this peer: {plain(reason, TEXT_CHARACTERS)}")
            case Refuse(reason, incarnation) if incarnation > self.incarnation:  # others have been met by now
                yield from self._take_over(incarnation, f"it refuses this peer: {plain(reason, TEXT_CHARACTERS)}")
            case Beat(round) if self.trusted:
                yield Received(self.peer, Heartbeat(round))
            case Beat() if self.is_vacant:  # it has not heard yet that the last incarnation is over
                self._transmit(self._dismissal())
            case Ack(next_wanted) if self.trusted:
                self.outgoing.acknowledged(next_wanted)
                self.push()
                yield Heard(self.peer)
            case Chunk() | Note() if self.trusted:
                message = self.incoming.take(header, body)
                self.owes_ack = True  # one for all that has come by the time that the sockets are drained
                yield Heard(self.peer) if message is None else Received(self.peer, message)

    def is_late(self, hello: Hello, theirs: Greeting) -> bool:
        """Say whether this greeting came over a connection that has been replaced, and is read only now."""
        return theirs.session == self._session and hello.connection < self.connection

    def answer(self, hello: Hello, theirs: Greeting) -> Generator[LinkEvent, None, Welcome | Refuse | None]:
        """Answer a neighbour with which this peer can train; None: with nothing, it greets again.

        After the Welcome has gone out comes `open`.
        """
        if hello.incarnation < self.incarnation:
            return self._dismissal()
        if hello.knows not in ("", self._ours.session):
            yield from self._take_over(hello.incarnation + 1, "it goes on with a process that is no more")
            return Refuse(f"{self._ours.name} was started anew", self.incarnation)
        if hello.incarnation > self.incarnation:
            yield from self._take_over(hello.incarnation, "it had counted this peer as lost")
        elif self._was_started_anew(theirs):
            yield from self._take_over(self.incarnation + 1, "its process was started anew")
            return Refuse(f"{self.name} was started anew", self.incarnation)
        return None if self._settles else Welcome(hello.connection, self.incarnation, self._fields)

    def open(self, theirs: Greeting) -> Iterator[LinkEvent]:
        """The greeting has succeeded: the stream begins, or goes on over a new connection."""
        is_new = not self.greeted
        self._session = theirs.session
        self.greeted = self.trusted = True
        self.is_vacant = False
        if is_new:
            self.outgoing.rewind()
            self.owes_ack = True  # what arrived before the connection broke need not come again
            yield Greeted(self.peer, self.incarnation)
        self.push()

    # ---- Inside

    def _welcome(self, incarnation: int, theirs: Greeting) -> Iterator[LinkEvent]:
        reason = refusal(self._ours, theirs)
        if self.name != theirs.name:
            reason = f"{self.name} was expected at this address, and {theirs.name} answered"
        if reason:
            self._transmit(Refuse(reason[:TEXT_CHARACTERS], 0))
            yield from self.part(f"its greeting was refused: {reason}")
        elif incarnation > self.incarnation:
            yield from self._take_over(incarnation, "it had counted this peer as lost")
        elif incarnation == self.incarnation and self._was_started_anew(theirs):
            yield from self._take_over(incarnation + 1, "its process was started anew")
        elif incarnation == self.incarnation and not self._settles:
            yield from self.open(theirs)

    def _was_started_anew(self, theirs: Greeting) -> bool:
        return self._session not in ("", theirs.session) and self.has_begun

    def _take_over(self, incarnation: int, reason: str) -> Iterator[Severed]:
        """Go on to a greater number, for a reason that lies with the neighbour."""
        if not self._session:  # nobody was greeted in the old one: what waits in its stream waits on
            self.incarnation = incarnation
            return
        was_trusted = self.trusted
        self._end(incarnation, reason)
        if was_trusted:
            self._settles = True
            yield Severed(self.peer, reason)

    def _end(self, incarnation: int, reason: str) -> None:
        """The incarnation is over, and the next has this number."""
        self._distrust()
        self.incarnation, self.is_vacant = incarnation, True
        self.outgoing, self.incoming = Outgoing(), Incoming(self._sizes)
        self._session, self._reason = "", reason

    def _distrust(self) -> None:
        self.trusted = self.greeted = self.owes_ack = False

    def _dismissal(self) -> Refuse:
        text = f"{self.name} was counted as lost by {self._ours.name} ({self._reason})"
        return Refuse(text[:TEXT_CHARACTERS], self.incarnation)
