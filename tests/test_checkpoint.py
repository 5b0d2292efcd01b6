"""Checkpoints: there whole or not at all, whatever dies or breaks, and at whatever moment."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer import checkpoint
from peer.checkpoint import MANIFEST, STATE, Saved, load_latest, save
from peer.errors import ConfigError, EarshotError, TrainingError


def state(number: int) -> dict[str, Tensor]:
    """Return a state that can be told from those of other numbers."""
    return {"x": torch.arange(100.0) + number, "steps": torch.tensor([number])}


def saved(folder: Path, *numbers: int, keep: int = 3) -> Path:
    """Save these, one after the other; returns where the last one is."""
    for number in numbers:
        path = save(folder, number, state(number), {"version": number}, keep)
    return path


def latest(folder: Path) -> Saved:
    found = load_latest(folder)
    assert found is not None
    return found


def check_is(found: Saved, number: int) -> None:
    assert (found.number, found.facts) == (number, {"version": number})
    assert found.tensors.keys() == state(number).keys()
    assert all(torch.equal(tensor, state(number)[name]) for name, tensor in found.tensors.items())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- What comes back


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path = saved(tmp_path / "runs" / "a", 12)
    assert path == tmp_path / "runs" / "a" / "00000012"
    assert names(path) == [MANIFEST, STATE]
    check_is(latest(tmp_path / "runs" / "a"), 12)
    assert latest(tmp_path / "runs" / "a").damaged == ()


EXACT = {
    "float16": torch.tensor([1.5, -0.0, 65504.0, float("inf")], dtype=torch.float16),
    "bfloat16": torch.tensor([[1.5], [-3e38]], dtype=torch.bfloat16),
    "float32": torch.tensor([1 / 3, float("nan")]),
    "float64": torch.tensor(1 / 3, dtype=torch.float64),
    "int64": torch.tensor([2**62 + 1, -1]),
    "int32": torch.tensor([-7], dtype=torch.int32),
    "uint8": torch.tensor([255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "empty": torch.empty(0, dtype=torch.bfloat16),
    "no rows": torch.empty(0, 4, dtype=torch.int64),
}


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path, 0, EXACT, {}, 1)
    found = latest(tmp_path).tensors
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        name: (t.dtype, t.shape) for name, t in EXACT.items()
    }
    for name, tensor in EXACT.items():
        assert torch.equal(bits(found[name]), bits(tensor)), name


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_no_tensor_at_all_is_a_state_too(tmp_path: Path) -> None:
    save(tmp_path, 0, {}, {}, 1)
    assert latest(tmp_path).tensors == {}


def test_views_of_one_memory_are_saved_as_they_look(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    tensors = {"a": whole, "b": whole, "columns": whole[:, 1:3], "turned": whole.T, "spread": whole[0, 1].expand(5)}
    save(tmp_path, 0, tensors, {}, 1)
    found = latest(tmp_path).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert len({tensor.data_ptr() for tensor in found.values()}) == len(tensors)
    found["a"].add_(1)
    assert torch.equal(found["b"], whole)


def test_a_parameter_is_saved_as_a_tensor(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    save(tmp_path, 0, {"w": parameter, "twice": 2 * parameter}, {}, 1)
    assert latest(tmp_path).tensors["twice"].tolist() == [2.0] * 3
    assert not latest(tmp_path).tensors["w"].requires_grad


def test_what_is_loaded_lies_where_torch_puts_its_tensors(tmp_path: Path) -> None:
    """Sums depend on how memory is aligned, and a run that goes on is to be the run that was never stopped."""
    save(tmp_path, 0, {f"{i}": torch.ones(i) for i in range(1, 20)}, {}, 1)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in latest(tmp_path).tensors.values())


def test_saving_changes_nothing_that_it_is_handed(tmp_path: Path) -> None:
    tensors, facts = state(1), {"pushes": {"0": 3}}
    save(tmp_path, 1, tensors, facts, 1)
    assert facts == {"pushes": {"0": 3}}
    assert all(torch.equal(tensor, state(1)[name]) for name, tensor in tensors.items())


def test_facts_are_what_json_makes_of_them(tmp_path: Path) -> None:
    save(tmp_path, 0, {}, {"none": None, "pair": (1, 2.5), "inner": {"text": "Gruß\n", "big": 2**70}}, 1)
    assert latest(tmp_path).facts == {"none": None, "pair": [1, 2.5], "inner": {"text": "Gruß\n", "big": 2**70}}


def test_facts_that_json_has_no_word_for_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, 2, {}, {"loss": float("nan")}, 1)
    assert names(tmp_path) == ["00000001"]


def test_the_manifest_is_for_other_tools_too(tmp_path: Path) -> None:
    path = saved(tmp_path, 4)
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["size_bytes"] == (path / STATE).stat().st_size
    assert manifest["format"] == 1
    assert manifest["number"] == 4
    assert len(manifest["sha256"]) == 64


# ---- Which are there


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "nowhere") is None
    assert load_latest(tmp_path) is None
    (tmp_path / ".00000003.partial").mkdir()
    assert load_latest(tmp_path) is None, "one that was never whole"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    saved(tmp_path, *range(5), keep=keep)
    assert names(tmp_path) == [f"{number:08d}" for number in range(5 - keep, 5)]
    check_is(latest(tmp_path), 4)


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    saved(tmp_path, 99_999_999, 100_000_000, keep=2)
    assert latest(tmp_path).number == 100_000_000
    saved(tmp_path, 100_000_001, keep=2)
    assert names(tmp_path) == ["100000000", "100000001"]


def test_one_of_the_same_number_is_replaced(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    save(tmp_path, 2, state(7), {"version": 7}, 3)
    found = latest(tmp_path)
    assert (found.number, found.facts) == (2, {"version": 7})
    assert names(tmp_path) == ["00000001", "00000002"]


def test_the_one_just_written_is_never_removed(tmp_path: Path) -> None:
    saved(tmp_path, 5, 6, 2, keep=2)
    assert names(tmp_path) == ["00000002", "00000005", "00000006"]


def test_leftovers_of_a_death_are_removed_by_the_next_save_and_nothing_else_is(tmp_path: Path) -> None:
    for leftover in (".00000001.partial", ".00000003.partial", ".00000000.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / STATE).write_bytes(b"half")
    (tmp_path / "00000000-mine").mkdir()
    (tmp_path / ".partial").mkdir()
    for other in ("0000001", "notes.txt", "00000009", ".00000001.old"):
        (tmp_path / other).write_text("mine", encoding="utf-8")
    others = sorted(["00000000-mine", ".partial", "0000001", "notes.txt", "00000009", ".00000001.old"])
    assert load_latest(tmp_path / "00000000-mine") is None
    saved(tmp_path, 2, keep=1)
    assert names(tmp_path) == sorted([*others, "00000002"])
    check_is(latest(tmp_path), 2)


# ---- Damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(**changed: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")

    return change


def write(data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(data)

    return change


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "state torn": (STATE, cut, "bytes instead of"),
    "state empty": (STATE, write(b""), "0 bytes instead of"),
    "state flipped": (STATE, flip, "another SHA-256"),
    "state gone": (STATE, Path.unlink, f"{STATE} cannot be read"),
    "state a folder": (STATE, make_folder, f"{STATE} cannot be read"),
    "manifest torn": (MANIFEST, cut, "is no JSON"),
    "manifest empty": (MANIFEST, write(b""), "is no JSON"),
    "manifest no text": (MANIFEST, write(b"\xff\xfe{}"), "is no JSON"),
    "manifest gone": (MANIFEST, Path.unlink, f"{MANIFEST} cannot be read"),
    "manifest a list": (MANIFEST, write(b"[1]"), "which format"),
    "manifest of the future": (MANIFEST, rewrite(format=2), "format 2, and here 1 is read"),
    "manifest of another": (MANIFEST, rewrite(number=7), "is of checkpoint 7"),
    "manifest without facts": (MANIFEST, rewrite(facts=None), "lacks facts"),
    "other digest": (MANIFEST, rewrite(sha256="0" * 64), "another SHA-256"),
}
ALL_DAMAGE = pytest.mark.parametrize(("file", "damage", "words"), DAMAGE.values(), ids=DAMAGE.keys())


@ALL_DAMAGE
def test_a_damaged_one_is_passed_over_for_the_one_before(
    tmp_path: Path, file: str, damage: Callable[[Path], None], words: str
) -> None:
    damage(saved(tmp_path, 1, 2) / file)
    found = latest(tmp_path)
    check_is(found, 1)
    assert len(found.damaged) == 1
    assert found.damaged[0].startswith("00000002: ")
    assert words in found.damaged[0]


@ALL_DAMAGE
def test_where_none_is_whole_it_is_said_what_is_wrong_with_each(
    tmp_path: Path, file: str, damage: Callable[[Path], None], words: str
) -> None:
    for number in (1, 2):
        damage(saved(tmp_path, number) / file)
    with pytest.raises(ConfigError, match="no checkpoint is whole") as refused:
        load_latest(tmp_path)
    for part in (str(tmp_path), "00000001: ", "00000002: ", words):
        assert part in str(refused.value)


def test_a_file_of_no_tensors_is_damage_although_its_digest_is_right(tmp_path: Path) -> None:
    path = saved(tmp_path, 1, 2)
    other = b"\x10\0\0\0\0\0\0\0 no tensors here "
    (path / STATE).write_bytes(other)
    digest = sha256(other).hexdigest()
    rewrite(sha256=digest, size_bytes=len(other))(path / MANIFEST)
    check_is(latest(tmp_path), 1)
    assert "no file of tensors" in latest(tmp_path).damaged[0]


def test_a_damaged_one_is_replaced_when_its_number_comes_again(tmp_path: Path) -> None:
    cut(saved(tmp_path, 1, 2) / STATE)
    check_is(latest(tmp_path), 1)
    saved(tmp_path, 2)
    check_is(latest(tmp_path), 2)
    assert latest(tmp_path).damaged == ()


# ---- Death at any moment


class KilledError(BaseException):
    """Stands for the death of the process: no code of ours is to run after it."""


CALLS = ("mkdir", "open", "fsync", "rename", "rmdir", "unlink", "scandir", "close")


@contextmanager
def failing(k: int, death: Callable[[], BaseException]) -> Iterator[list[str]]:
    """Let the k-th call of the file system fail, from 0 on, halfway through where it writes; yields what was called.

    After a death nothing is called any more; after an error, as of a full disk, all further calls work.
    """
    called: list[str] = []

    def count(name: str) -> bool:
        called.append(name)
        return len(called) == k + 1

    def around(name: str) -> Callable[..., Any]:
        real = getattr(os, name) if name != "fsync" else lambda _: None  # takes time, and nothing here can see it

        def call(*arguments: Any, **options: Any) -> Any:
            if count(name):
                raise death()
            return real(*arguments, **options)

        return call

    class Torn:
        """A file of which the write that fails brings half of the data to the disk."""

        def __init__(self, path: Path, mode: str) -> None:
            if count("create"):
                raise death()
            self._file = open(path, mode, buffering=0)  # noqa: SIM115

        def __enter__(self) -> "Torn":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> None:
            if count("write"):
                self._file.write(data[: len(data) // 2])
                raise death()
            self._file.write(data)

        def flush(self) -> None:
            self._file.flush()

        def fileno(self) -> int:
            return self._file.fileno()

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, around(name))
        patch.setattr(checkpoint, "open", Torn, raising=False)
        yield called


def calls_of(folder: Path, number: int, keep: int) -> list[str]:
    """Return the calls of the file system that it takes to save this number to a copy of the folder."""
    counted = copy_of(folder, "counted")
    with failing(-1, KilledError) as called:
        saved(counted, number, keep=keep)
    return called


def copy_of(folder: Path, name: str) -> Path:
    copied = folder.parent / name
    shutil.copytree(folder, copied)
    return copied


@pytest.fixture(params=[1, 3], ids=["keep 1", "keep 3"])
def keep(request: pytest.FixtureRequest) -> int:
    kept: int = request.param
    return kept


@pytest.mark.parametrize("number", [5, 4], ids=["the next", "the same again"])
def test_whenever_the_process_dies_a_whole_checkpoint_is_there(tmp_path: Path, number: int, keep: int) -> None:
    """After each death: the one before, or the new one; and the next save leaves what it would have left."""
    before = tmp_path / "before"
    saved(before, 2, 3, 4, keep=3)
    count = len(calls_of(before, number, keep))
    assert count > 15
    seen = set()
    for k in range(count):
        folder = copy_of(before, f"{k}")
        with failing(k, KilledError), pytest.raises(KilledError):
            saved(folder, number, keep=keep)
        found = latest(folder)
        assert found.number in (4, number)
        assert found.damaged == ()
        check_is(found, found.number)
        seen.add(found.number)
        saved(folder, number, keep=keep)
        assert names(folder) == [f"{n:08d}" for n in sorted({2, 3, 4, number})[-keep:]]
        check_is(latest(folder), number)
    assert seen == {4, number}


def test_whenever_the_process_dies_twice_a_whole_checkpoint_is_there(tmp_path: Path) -> None:
    """With one to keep, and the same number again: there is nothing else to fall back to."""
    before = tmp_path / "before"
    saved(before, 4)
    count = len(calls_of(before, 4, 1))
    for first in range(count):
        for second in range(count):
            folder = copy_of(before, f"{first}-{second}")
            for k in (first, second):
                with failing(k, KilledError), suppress(KilledError):
                    saved(folder, 4, keep=1)
            check_is(latest(folder), 4)
            shutil.rmtree(folder)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_whatever_the_disk_refuses_is_said_and_nothing_is_lost(tmp_path: Path, code: int) -> None:
    before = tmp_path / "before"
    saved(before, 3, 4)
    count = len(calls_of(before, 5, 1))
    refused = 0
    for k in range(count):
        folder = copy_of(before, f"{k}")
        with failing(k, lambda: OSError(code, os.strerror(code), "somewhere")):
            try:
                saved(folder, 5, keep=1)
            except TrainingError as error:
                refused += 1
                assert str(error) == f"{folder}: checkpoint 5 cannot be saved: {os.strerror(code)}"  # noqa: PT017
        found = latest(folder)
        check_is(found, found.number)
        assert found.number in (4, 5)
        saved(folder, 5, keep=1)
        assert names(folder) == ["00000005"]
    assert refused == count


def test_a_full_disk_gets_back_what_was_written_in_vain(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    saved(folder, 1)
    for k, name in enumerate(calls_of(folder, 2, 1)):
        if name in ("create", "write", "fsync"):
            with failing(k, lambda: OSError(errno.ENOSPC, "full")), pytest.raises(TrainingError, match="saved: full"):
                saved(folder, 2, keep=1)
            assert names(folder) in (["00000001"], ["00000001", "00000002"])


def test_a_checkpoint_is_on_the_disk_before_it_has_a_name_and_earlier_ones_go(tmp_path: Path) -> None:
    """The two files and their folder, then the name, then the folder of all, then what is older."""
    saved(tmp_path, 1)
    with failing(-1, KilledError) as called:
        saved(tmp_path, 2, keep=1)
    order = [name for name in called if name in ("write", "fsync", "rename", "unlink")]
    assert order == ["write", "fsync", "write", "fsync", "fsync", "rename", "fsync", "rename", "unlink", "unlink"]


# ---- No place for checkpoints


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("a file", encoding="utf-8")
    for folder in (tmp_path / "here", tmp_path / "here" / "deeper"):
        with pytest.raises(TrainingError, match="checkpoint 1 cannot be saved"):
            saved(folder, 1)
        with pytest.raises(ConfigError, match="no place for checkpoints: Not a directory"):
            load_latest(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_is_read_only_is_read_and_not_written(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(TrainingError, match="checkpoint 2 cannot be saved: Permission denied"):
            saved(tmp_path, 2)
        check_is(latest(tmp_path), 1)
    finally:
        tmp_path.chmod(0o700)


def test_the_errors_reach_a_user_as_one_line(tmp_path: Path) -> None:
    odd = tmp_path / "odd\nname"
    odd.write_text("a file", encoding="utf-8")
    for act in (lambda: saved(odd, 1), lambda: load_latest(odd)):
        with pytest.raises(EarshotError) as refused:
            act()
        assert "\n" not in str(refused.value)
