"""Every state that a power cut could have left on the disk, worked out from a log of system calls.

The model. What was synced stays. Of the writes that were not, any subset may have reached the disk, torn at
512-byte sectors; a sector left out before one that was kept reads as it was, or as zeros beyond the old end.
Truncations are whole. The names of files are durable at once (``entries="kept"``), or only after a sync of
their folder (``entries="lost"``: any prefix of the later creations, renames and removals survives, as on a
file system that journals them). Folders themselves always survive.

SQLite's ``-shm`` file is left out: it is rebuilt from the log after a power cut.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stepfast.testing.processes import Body, Child, CrashTestFailed, Note, in_shards, scratch, story_of
from stepfast.testing.syscalls import Call, Log, trace

__all__ = [
    "CrashState",
    "PowerLossExplored",
    "Violation",
    "check_states",
    "crash_states",
    "explore_power_loss",
]

SECTOR = 512

Check = Callable[[Path, tuple[str, ...]], object]
Entries = Literal["kept", "lost"]


@dataclass(frozen=True)
class CrashState:
    """What the disk may hold after a power cut, and what had been acknowledged by then."""

    files: dict[str, bytes]
    acked: tuple[str, ...]
    #: The number of calls that had finished, and which of the unsynced writes survived.
    point: int
    kept: str

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def __str__(self) -> str:
        return f"power cut after call {self.point}, {self.kept}, {len(self.acked)} acknowledged"


@dataclass(frozen=True)
class Violation:
    """A crash state that the check refused."""

    state: str
    why: str
    #: The state itself, for the first few.
    folder: Path | None


@dataclass(frozen=True)
class PowerLossExplored:
    """How many distinct states were checked, and those that broke a promise."""

    states: int
    violations: tuple[Violation, ...]
    seconds: float
    #: False if the search ended early, having seen violations enough.
    complete: bool = True

    def __str__(self) -> str:
        found = f"{self.states} crash states, {len(self.violations)} violations, {self.seconds:.1f} s"
        return found if self.complete else f"{found}, ended early"


class _Content:
    """A file's content, kept by sectors so that a copy and a digest cost little after a small change."""

    ZERO = bytes(SECTOR)

    def __init__(self, content: bytes = b"") -> None:
        self.sectors: dict[int, tuple[bytes, int]] = {}
        self.length = 0
        #: The exclusive or of the digests of all sectors that are not zero.
        self.digest = 0
        self.put(0, content)

    def copy(self) -> _Content:
        twin = _Content()
        twin.sectors, twin.length, twin.digest = self.sectors.copy(), self.length, self.digest
        return twin

    def put(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, SECTOR)
            part = data[done : done + SECTOR - start]
            old, _ = self.sectors.get(number, (self.ZERO, 0))
            self._set(number, part if len(part) == SECTOR else old[:start] + part + old[start + len(part) :])
            done += len(part)
        self.length = max(self.length, offset + len(data))

    def resize(self, length: int) -> None:
        for number in [number for number in self.sectors if number >= length // SECTOR]:
            kept = max(0, length - number * SECTOR)
            self._set(number, self.sectors[number][0][:kept].ljust(SECTOR, b"\0"))
        self.length = length

    def _set(self, number: int, sector: bytes) -> None:
        _, was = self.sectors.pop(number, (b"", 0))
        self.digest ^= was
        if sector != self.ZERO:
            seal = hashlib.blake2b(sector, digest_size=16, salt=number.to_bytes(16, "little")).digest()
            self.sectors[number] = sector, int.from_bytes(seal, "little")
            self.digest ^= self.sectors[number][1]

    def __bytes__(self) -> bytes:
        whole = bytearray(-(-self.length // SECTOR) * SECTOR)
        for number, (sector, _) in self.sectors.items():
            whole[number * SECTOR : (number + 1) * SECTOR] = sector
        return bytes(whole[: self.length])


# Which sectors of a write (0, 1, …) reach the disk; None for all of them.
_Kept = frozenset[int] | None
_NOTHING: _Kept = frozenset()


@dataclass(frozen=True)
class _Write:
    """A change to a file's content; ``data`` None sets its length to ``offset``."""

    file: int
    call: int
    offset: int
    data: bytes | None
    #: It went through O_SYNC, so that it is safe by itself, though earlier writes may not be.
    synced: bool

    def sectors(self) -> int:
        if self.data is None:
            return 1
        return (self.offset + len(self.data) - 1) // SECTOR - self.offset // SECTOR + 1

    def apply(self, content: _Content, kept: _Kept = None) -> None:
        if self.data is None:
            if kept is None or kept:
                content.resize(self.offset)
        elif kept is None:
            content.put(self.offset, self.data)
        else:
            first = self.offset // SECTOR
            for sector in kept:
                start = max(0, (first + sector) * SECTOR - self.offset)
                end = (first + sector + 1) * SECTOR - self.offset
                content.put(self.offset + start, self.data[start:end])


@dataclass(frozen=True)
class _Entry:
    """A change to the names: ``old`` goes, ``new`` comes (either may be empty)."""

    call: int
    file: int
    old: str
    new: str

    def apply(self, names: dict[str, int]) -> None:
        names.pop(self.old, None)
        if self.new:
            names[self.new] = self.file

    def within(self, folder: str) -> bool:
        return Path(self.new or self.old).parent.as_posix() == folder


class _Disk:
    """The log replayed up to some call: what is safe, and what is still on its way."""

    def __init__(self, log: Log, entries: Entries) -> None:
        self.entries = entries
        self.content: dict[int, _Content] = {}
        self.names: dict[str, int] = {}
        self.live: dict[str, int] = {}
        self.inodes: dict[int, int] = {}
        self.writes: list[_Write] = []
        self.renames: list[_Entry] = []
        self.acked: list[str] = []
        for name, content in log.before.items():
            if not _ignored(name):
                self.names[name] = self.live[name] = self._new_file(log.inodes[name], content)

    def _new_file(self, inode: int, content: bytes = b"") -> int:
        # A number of our own: file systems give the inode of a removed file to the next one.
        file = len(self.content)
        self.content[file] = _Content(content)
        self.inodes[inode] = file
        return file

    def play(self, call: Call) -> bool:
        """Take the next call in; False if it cannot matter to what is on the disk or was promised."""
        if not call.ok or _ignored(call.path):
            return False
        match call.op:
            case "ack":
                self.acked.append(call.data.decode())
            case "open" if call.created:
                self._entry(_Entry(call.index, self._new_file(call.inode), "", call.path))
            case "open" if call.emptied:
                self._write(call, None)
            case "write" if call.data:
                self._write(call, call.data)
            case "truncate":
                self._write(call, None)
            case "sync":
                self._sync(call)
            case "rename" if call.path in self.live:
                self._entry(_Entry(call.index, self.live[call.path], call.path, call.other))
            case "rename" if any(name.startswith(f"{call.path}/") for name in self.live):
                raise ValueError(f"renaming a folder ({call.path}) is not modelled")
            case "link" if call.path in self.live:
                self._entry(_Entry(call.index, self.live[call.path], "", call.other))
            case "unlink" if call.path in self.live:
                self._entry(_Entry(call.index, self.live[call.path], call.path, ""))
            case _:
                return False
        return True

    def _write(self, call: Call, data: bytes | None) -> None:
        if call.inode not in self.inodes:
            raise ValueError(f"{call.path} was written, but never seen to be made")
        self.writes.append(_Write(self.inodes[call.inode], call.index, call.offset, data, call.synced))

    def _entry(self, entry: _Entry) -> None:
        entry.apply(self.live)
        if self.entries == "kept":
            entry.apply(self.names)
        else:
            self.renames.append(entry)

    def _sync(self, call: Call) -> None:
        """Only what had finished when the sync began is safe now."""
        file = self.inodes.get(call.inode)
        late = []
        for write in self.writes:
            if write.file == file and write.call < call.began:
                write.apply(self.content[file])
            else:
                late.append(write)
        self.writes = late
        settled = [entry for entry in self.renames if entry.within(call.path) and entry.call < call.began]
        for entry in settled:
            entry.apply(self.names)
        self.renames = [entry for entry in self.renames if entry not in settled]

    def after(self, cut: _Cut) -> dict[str, _Content]:
        """What a power cut leaves now, if it spares what the cut says."""
        names = dict(self.names)
        for entry in self.renames[: cut.entries]:
            entry.apply(names)
        content: dict[int, _Content] = {}
        for write, kept in zip(self.writes, cut.kept, strict=True):
            if write.synced or kept is None or kept:
                if write.file not in content:
                    content[write.file] = self.content[write.file].copy()
                write.apply(content[write.file], None if write.synced else kept)
        return {name: content.get(file, self.content[file]) for name, file in sorted(names.items())}


@dataclass(frozen=True)
class _Cut:
    """What a power cut spares: of each unsynced write some sectors, and the first few unsynced names."""

    said: str
    kept: list[_Kept]
    entries: int


def _ignored(name: str) -> bool:
    return name.endswith("-shm")


def crash_states(
    log: Log,
    *,
    seed: int = 0,
    prefixes: int = 8,
    subsets: int = 12,
    entries: Entries = "kept",
    shard: int = 0,
    shards: int = 1,
) -> Iterator[CrashState]:
    """Every distinct crash state at each point of the log, or one shard of them.

    Of the unsynced writes survive none, all, the first few (the next one whole or torn; ``prefixes`` lengths
    where there are more), and random sectors (``subsets`` draws).
    """
    if log.mapped:
        raise ValueError(
            f"{', '.join(log.mapped)} was mapped into memory, where writes cannot be seen: PRAGMA mmap_size=0"
        )
    disk = _Disk(log, entries)
    seen: set[tuple[object, ...]] = set()
    for call in log.calls:
        if not disk.play(call):
            continue
        dice = random.Random(f"{seed}/{call.index}")
        for cut in _cuts(disk, dice, prefixes, subsets):
            left = disk.after(cut)
            key = (len(disk.acked), *((name, file.length, file.digest) for name, file in left.items()))
            if key in seen:
                continue
            if len(seen) % shards == shard:
                files = {name: bytes(content) for name, content in left.items()}
                yield CrashState(files, tuple(disk.acked), call.index + 1, cut.said)
            seen.add(key)


def _cuts(disk: _Disk, dice: random.Random, prefixes: int, subsets: int) -> Iterator[_Cut]:
    writes, names = disk.writes, len(disk.renames)
    nothing: list[_Kept] = [_NOTHING] * len(writes)
    everything: list[_Kept] = [None] * len(writes)
    yield _Cut("nothing unsynced kept", nothing, 0)
    if writes or names:
        yield _Cut("all unsynced kept", everything, names)
    for count in _some(range(names), prefixes, dice):
        yield _Cut(f"{count + 1} of {names} names kept, no write", nothing, count + 1)
        yield _Cut(f"{count} of {names} names kept, all writes", everything, count)
    for count in _some(range(len(writes)), prefixes, dice):
        some = dice.randint(0, names)
        said = f"{count} of {len(writes)} unsynced writes kept"
        yield _Cut(said, everything[:count] + nothing[count:], some)
        sectors = writes[count].sectors()
        if sectors > 1:
            torn = dice.randrange(1, sectors)
            kept = [*everything[:count], frozenset(range(torn)), *nothing[count + 1 :]]
            yield _Cut(f"{said}, then {torn} of {sectors} sectors", kept, some)
    for _ in range(subsets if writes else 0):
        likely = dice.choice((0.2, 0.5, 0.8, 0.95))
        drawn = [frozenset(sector for sector in range(write.sectors()) if dice.random() < likely) for write in writes]
        said = f"{sum(map(len, drawn))} of {sum(write.sectors() for write in writes)} unsynced sectors kept"
        yield _Cut(said, list(drawn), dice.randint(0, names))


def _some(choices: range, most: int, dice: random.Random) -> list[int]:
    return list(choices) if len(choices) <= most else sorted(dice.sample(choices, most))


def check_states(
    log: Log,
    check: Check,
    *,
    seed: int = 0,
    prefixes: int = 8,
    subsets: int = 12,
    entries: Entries = "kept",
    enough: int = 100,
    jobs: int = 2,
    folder: Path | None = None,
) -> PowerLossExplored:
    """Lay each crash state out in a folder (in memory, where possible) and call ``check(folder, acked)``.

    Every exception of the check is a violation, and the search ends when there are about ``enough`` of them.
    The folders of the first few are kept, as the cut left them.
    """
    started = time.monotonic()
    base = scratch(folder, "powerloss")

    def work(shard: int, tell: Note) -> None:
        count = broken = 0
        states = crash_states(
            log, seed=seed, prefixes=prefixes, subsets=subsets, entries=entries, shard=shard, shards=jobs
        )
        for count, state in enumerate(states, 1):
            home = base / f"state-{shard}-{count:06d}"
            why = _refused(check, state, home)
            if why is None:
                shutil.rmtree(home)
                continue
            broken += 1
            found = {"point": state.point, "state": str(state), "why": why}
            shutil.rmtree(home)
            if broken <= 2:
                state.write(home)
                found["folder"] = str(home)
            tell(found)
            if broken * jobs >= enough:
                break
        tell({"count": count, "complete": broken * jobs < enough})

    notes = in_shards(jobs, work)
    found = sorted((note for note in notes if "why" in note), key=lambda note: int(note["point"]))
    if not found:
        shutil.rmtree(base, ignore_errors=True)
    violations = tuple(
        Violation(note["state"], note["why"], Path(note["folder"]) if "folder" in note else None) for note in found
    )
    ends = [note for note in notes if "count" in note]
    states = sum(end["count"] for end in ends)
    complete = all(end["complete"] for end in ends)
    return PowerLossExplored(states, violations, time.monotonic() - started, complete)


def _refused(check: Check, state: CrashState, home: Path) -> str | None:
    state.write(home)
    try:
        check(home, state.acked)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return story_of(error)
    return None


def explore_power_loss(
    scenario: Body,
    check: Check,
    *,
    setup: Body | None = None,
    seed: int = 0,
    prefixes: int = 8,
    subsets: int = 12,
    entries: Entries = "kept",
    jobs: int = 2,
    timeout: float = 60.0,
    folder: Path | None = None,
) -> PowerLossExplored:
    """Trace the scenario once, then check every state a power cut could have left. Raises CrashTestFailed.

    The scenario calls ``ack("…")`` where a caller would be told that something is kept; the check gets the
    folder after the cut and what had been acknowledged.
    """
    started = time.monotonic()
    base = scratch(folder, "traced")
    if setup is not None:
        ended = Child(lambda note: setup(base)).wait(timeout)
        if ended.code:
            raise CrashTestFailed(f"the set-up failed\n\n{ended.why}", stage="set-up", folder=base)
    log = trace(scenario, base, timeout=timeout)
    if log.code:
        raise CrashTestFailed(f"the scenario failed with no power cut\n\n{log.error}", folder=base)
    shutil.rmtree(base, ignore_errors=True)
    result = check_states(
        log, check, seed=seed, prefixes=prefixes, subsets=subsets, entries=entries, jobs=jobs, folder=folder
    )
    if result.violations:
        first = result.violations[0]
        raise CrashTestFailed(
            f"{result}\n\nthe first: {first.state}\n\n{first.why.rstrip()}\n\nkept: {first.folder}",
            where=first.state,
            stage="power loss",
            folder=first.folder,
        )
    return replace(result, seconds=time.monotonic() - started)
