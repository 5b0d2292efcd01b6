"""Reading the files of a run folder: text, and JSON without what JSON does not have."""

import json
from pathlib import Path
from typing import Any

from peer.errors import ConfigError


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("", f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError("", f"{file}: is not UTF-8 at byte {error.start}; copy it anew from where it ran") from error


def parsed(file: Path, text: str, mend: str = "copy it anew from where it ran") -> Any:
    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError("", f"{file}: is not valid JSON ({error}); {mend}") from error


def refuse(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")
