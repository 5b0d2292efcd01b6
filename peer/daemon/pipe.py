"""Between `earshot up` and the daemons it starts: msgpack over a pipe. Nothing is pickled."""

from multiprocessing.connection import Connection
from typing import Any

import msgpack


class Pipe:
    """One end of a pipe that carries small tables and raw bytes."""

    def __init__(self, connection: "Connection[bytes, bytes]") -> None:
        self.connection = connection
        self.is_open = True

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, kind: str, /, **fields: Any) -> None:
        """Send a message; when nobody listens any more, the pipe counts as closed."""
        if not self.is_open:
            return
        try:
            self.connection.send_bytes(msgpack.packb([kind, fields]))
        except OSError:
            self.is_open = False

    def receive(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what has arrived; when the other end is gone, the pipe counts as closed."""
        messages = []
        try:
            while self.connection.poll():
                kind, fields = msgpack.unpackb(self.connection.recv_bytes())
                messages.append((kind, fields))
        except (EOFError, OSError):
            self.is_open = False
        return messages

    def close(self) -> None:
        self.is_open = False
        self.connection.close()
