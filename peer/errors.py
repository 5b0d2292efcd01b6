"""Errors that say who is at fault. An `assert` is for our own bugs only."""


def printable(text: str) -> str:
    """Return the text with every character that is not printable escaped, line ends among them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class EarshotError(Exception):
    """Base of every error that reaches a user as one clear line, whatever its words were made from."""

    def __init__(self, line: str) -> None:
        super().__init__(printable(line))


class ConfigError(EarshotError):
    """The command line or the experiment file is wrong: names the key and the mend. Exit code 2.

    `key` is the dotted name in the file, such as "topology.threshold"; empty where no single key is to blame.
    `details` holds text printed after the line as it is: the traceback of a user's own factory, for example.
    """

    def __init__(self, key: str, problem: str, details: str = "") -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem
        self.details = details


class RemoteError(EarshotError):
    """Another peer is at fault; `peer` is its name."""

    def __init__(self, peer: str, problem: str) -> None:
        super().__init__(f"{peer}: {problem}")
        self.peer = peer


class WireError(EarshotError):
    """Bytes that are not a message of this protocol, or a message that breaks its rules."""


class TrainingError(EarshotError):
    """The user's model, loss or data failed while a run was on. `details` is their traceback."""

    def __init__(self, problem: str, details: str = "") -> None:
        super().__init__(problem)
        self.details = details
