"""A user's own function, named "package.module:factory" in the experiment file: found, called, hashed.

Whatever goes wrong in it ends as one line that names the file's key, with the user's own traceback below.
"""

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType

from peer.errors import ConfigError

BUILT_IN_PREFIXES = ("npz", "torchvision")

# Top-level modules that came from an experiment's folder. Python keeps one module per name, so the `model.py`
# of a second experiment in this process would otherwise be the first one's.
_brought: dict[str, Path] = {}

_PACKAGE = f"{Path(__file__).resolve().parents[1]}{os.sep}"


def load_factory(spec: str, key: str, folder: Path) -> Callable[..., object]:
    """Return the callable that `spec`, "package.module:factory", names; `folder` goes first on sys.path.

    Raises ConfigError(key) where the form is wrong, the module or the attribute is not found (it says where
    it looked), the module raises while it is imported, or the attribute cannot be called.
    """
    module_name, attribute = _parse(spec, key)
    found: object = _import(module_name, spec, key, folder)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(key, f"{spec}: {_where(module_name)} has no {part!r}{_nearest(part, found)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(key, f"{spec} is of type {type(found).__name__}, not a function that can be called")
    return found


def call_factory(factory: Callable[..., object], spec: str, key: str, **offered: object) -> object:
    """Call `factory` with those of the `offered` arguments that it accepts, and return what it returns.

    What it prints goes to stderr: stdout may be one JSON document. Raises ConfigError(key) where it wants an
    argument that is not offered, and where it raises; `details` is then the user's own traceback.
    """
    arguments = _accepted(factory, spec, key, offered)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return factory(**arguments)
    except (Exception, SystemExit) as error:
        # The user's code may raise anything; a SystemExit would end the process without a word.
        raise _raised(error, spec, key) from error


def source_hash(spec: str, folder: Path) -> str:
    """Return the hex sha256 of the source file of the module that `spec` names; "" for what is built in.

    Line ends are made alike first, so that a Windows checkout and a Linux one agree. Raises ConfigError like
    load_factory.
    """
    module_name, colon, _ = spec.partition(":")
    if not colon or module_name in BUILT_IN_PREFIXES:
        return ""
    module_name, _ = _parse(spec, "task")
    file = _import(module_name, spec, "task", folder).__file__
    return hashlib.sha256(Path(file).read_bytes().replace(b"\r\n", b"\n")).hexdigest() if file else ""


def own_traceback(error: BaseException) -> str:
    """Format an error's traceback from the user's first frame on; where no frame is theirs, from torch's."""
    rest = [tb for tb in _frames(error.__traceback__) if not _is_ours(tb)]
    theirs = next((tb for tb in rest if not _is_torch(tb)), rest[0] if rest else None)
    return "".join(traceback.format_exception(type(error), error, theirs))


def _parse(spec: str, key: str) -> tuple[str, str]:
    module_name, _, attribute = spec.partition(":")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted = module_name.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        raise ConfigError(key, f'"{spec}" names a file; write the module, as in "{dotted}:{attribute or "factory"}"')
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise ConfigError(key, f'"{spec}" is not of the form "package.module:factory"')
    return module_name, attribute


def _import(module_name: str, spec: str, key: str, folder: Path) -> ModuleType:
    folder = folder.resolve()
    _put_first(folder)
    _make_room(module_name, spec, key, folder)
    before = set(sys.modules)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            where = f"in {folder}, nor among the packages of {sys.executable}"
            raise ConfigError(key, f"{spec}: no module named {error.name!r} {where}") from error
        raise _raised(error, spec, key) from error
    finally:
        _brought.update({name: folder for name in _tops(set(sys.modules) - before) if _lies_in(name, folder)})


def _put_first(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()


def _make_room(module_name: str, spec: str, key: str, folder: Path) -> None:
    """Forget modules of another experiment's folder whose names this folder uses too."""
    for name in [name for name, origin in _brought.items() if origin != folder and _offers(folder, name)]:
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]
        del _brought[name]
    top = module_name.partition(".")[0]
    if top in sys.modules and _offers(folder, top) and not _lies_in(top, folder):
        raise ConfigError(key, f"{spec}: {_where(top)} already has the name {top!r}; rename the one in {folder}")


def _offers(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _tops(names: set[str]) -> set[str]:
    return {name for name in names if "." not in name}


def _lies_in(name: str, folder: Path) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not Path(file).exists():
        return False
    own = (folder / f"{name}.py", folder / name / "__init__.py")
    return any(path.exists() and path.samefile(file) for path in own)


def _where(name: str) -> str:
    file = getattr(sys.modules[name], "__file__", None)
    return file or f"the built-in module {name}"


def _nearest(part: str, owner: object) -> str:
    close = get_close_matches(part, [name for name in dir(owner) if not name.startswith("_")], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _accepted(factory: Callable[..., object], spec: str, key: str, offered: dict[str, object]) -> dict[str, object]:
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):  # some functions written in C tell nothing of theirs
        return {}
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        accepted = {n: v for n, v in offered.items() if kinds.get(n) is not inspect.Parameter.POSITIONAL_ONLY}
    else:
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        accepted = {n: v for n, v in offered.items() if kinds.get(n) in by_name}
    try:
        signature.bind(**accepted)
    except TypeError as error:
        names = ", ".join(offered)
        raise ConfigError(key, f"{spec}: {error}; what it can be given is {names}. Give it a default") from error
    return accepted


def _raised(error: BaseException, spec: str, key: str) -> ConfigError:
    first, *_ = str(error).splitlines() or [""]
    cause = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return ConfigError(key, f"{spec} raised {cause}", details=own_traceback(error))


def _frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_ours(tb: TracebackType) -> bool:
    """Tell whether a frame is of this package or of the import machinery."""
    file = tb.tb_frame.f_code.co_filename
    return file.startswith((_PACKAGE, "<frozen importlib")) or file == importlib.__file__


def _is_torch(tb: TracebackType) -> bool:
    return str(tb.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "torch"
