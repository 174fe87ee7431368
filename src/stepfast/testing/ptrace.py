"""The tracer beneath `syscalls`: ptrace by ctypes, so that no program has to be installed for it."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fnmatch
import functools
import os
import platform
import signal
import struct
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stepfast.testing.processes import Body, Child, Effects, Note, Unsupported

Fault = Literal["EIO", "ENOSPC", "EDQUOT", "EROFS", "kill-before", "kill-after"]
Op = Literal["open", "close", "dup", "write", "truncate", "sync", "rename", "unlink", "link", "mkdir", "map", "ack"]


@dataclass(frozen=True)
class Call:
    """One finished call on a file of the folder; paths are relative to it, and the folder itself is ``.``."""

    index: int
    tid: int
    op: str
    syscall: str
    path: str
    result: int
    inode: int = 0
    #: Where a write landed, or the new length of a truncated file.
    offset: int = 0
    data: bytes = b""
    #: The new name, of a rename or link.
    other: str = ""
    #: How many calls had finished when this one began: a sync covers those and no later ones.
    began: int = 0
    #: The ``open`` made the file, or emptied it.
    created: bool = False
    emptied: bool = False
    #: The file was open with O_SYNC or O_DSYNC, so that the write is its own sync.
    synced: bool = False
    #: The failure is ours.
    injected: bool = False

    @property
    def ok(self) -> bool:
        return self.result >= 0


@dataclass(frozen=True)
class Inject:
    """Let the ``nth`` matching call fail with an errno, or kill the process before or after it.

    ``ops`` are names from ``Call.op`` or system calls' own; ``path`` is a pattern for the file's name. The
    witness file of ``Effects`` is never hit. With ``sticky`` every later matching call fails too, as on a
    full disk.
    """

    fault: Fault
    nth: int
    ops: tuple[str, ...] = ("write", "truncate", "sync", "rename", "unlink", "link")
    path: str = "*"
    sticky: bool = False

    def matches(self, call: Call) -> bool:
        name = Path(call.path).name
        named = call.op in self.ops or call.syscall in self.ops
        return named and call.op != "ack" and name != Effects.NAME and fnmatch.fnmatchcase(name, self.path)


_ack_fd: int | None = None


def ack(text: str) -> None:
    """Say that something is now promised. Seen by ``trace``; elsewhere it does nothing."""
    if _ack_fd is not None:
        os.write(_ack_fd, text.encode())


_CALLS: dict[str, tuple[Op, str]] = {
    "open": ("open", "px"),
    "openat": ("open", "dpx"),
    "creat": ("open", "p"),
    "close": ("close", "f"),
    "dup": ("dup", "f"),
    "dup2": ("dup", "f"),
    "dup3": ("dup", "f"),
    "write": ("write", "fbn"),
    "pwrite64": ("write", "fbno"),
    "writev": ("write", "fvn"),
    "pwritev": ("write", "fvno"),
    "pwritev2": ("write", "fvno"),
    "sendfile": ("write", "f"),
    "copy_file_range": ("write", "__fq"),
    "ftruncate": ("truncate", "fo"),
    "truncate": ("truncate", "po"),
    "fallocate": ("truncate", "fxon"),
    "fsync": ("sync", "f"),
    "fdatasync": ("sync", "f"),
    "rename": ("rename", "pp"),
    "renameat": ("rename", "dpdp"),
    "renameat2": ("rename", "dpdp"),
    "unlink": ("unlink", "p"),
    "unlinkat": ("unlink", "dp"),
    "link": ("link", "pp"),
    "linkat": ("link", "dpdp"),
    "mkdir": ("mkdir", "p"),
    "mkdirat": ("mkdir", "dp"),
    "mmap": ("map", "___xf"),
}

# fmt: off
_X86_64 = {
    "write": 1, "open": 2, "close": 3, "mmap": 9, "pwrite64": 18, "writev": 20, "dup": 32, "dup2": 33,
    "sendfile": 40, "fsync": 74, "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83,
    "creat": 85, "link": 86, "unlink": 87, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264,
    "linkat": 265, "fallocate": 285, "dup3": 292, "pwritev": 296, "renameat2": 316, "copy_file_range": 326,
    "pwritev2": 328,
}
_AARCH64 = {
    "dup": 23, "dup3": 24, "mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "truncate": 45,
    "ftruncate": 46, "fallocate": 47, "openat": 56, "close": 57, "write": 64, "writev": 66, "pwrite64": 68,
    "pwritev": 70, "sendfile": 71, "fsync": 82, "fdatasync": 83, "mmap": 222, "renameat2": 276,
    "copy_file_range": 285, "pwritev2": 287,
}
# fmt: on

_TRACEME, _RESUME, _GETREGS, _SETREGS = 0, 24, 12, 13
_SETOPTIONS, _GETREGSET, _SETREGSET, _SYSCALL_INFO = 0x4200, 0x4204, 0x4205, 0x420E
# Mark syscall stops; follow fork, vfork, clone and exec; take the tracees down with the tracer.
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000
_ENTERING, _LEAVING = 1, 2
_WALL = 0x40000000
_AT_FDCWD = -100
_MAP_SHARED = 0x01
_O_DSYNC = 0o10000


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return libc


def _ptrace(request: int, tid: int, address: Any = None, data: Any = None) -> int:
    result = int(_libc().ptrace(request, tid, address, data))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request:#x}: {os.strerror(number)}")
    return result


class _Arch:
    """What differs between processors: the calls' numbers, and the registers that skip or answer a call."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.names = {number: name for name, number in numbers.items()}

    def skip(self, tid: int) -> None:
        raise NotImplementedError

    def answer(self, tid: int, value: int) -> None:
        raise NotImplementedError


class _Intel(_Arch):
    _RAX, _ORIG_RAX = 10, 15

    def skip(self, tid: int) -> None:
        self._set(tid, self._ORIG_RAX, -1)

    def answer(self, tid: int, value: int) -> None:
        self._set(tid, self._RAX, value)

    def _set(self, tid: int, register: int, value: int) -> None:
        registers = (ctypes.c_int64 * 27)()
        _ptrace(_GETREGS, tid, None, ctypes.addressof(registers))
        registers[register] = value
        _ptrace(_SETREGS, tid, None, ctypes.addressof(registers))


class _Arm(_Arch):
    _PRSTATUS, _SYSTEM_CALL = 1, 0x404

    def skip(self, tid: int) -> None:
        number = ctypes.c_int32(-1)
        self._move(_SETREGSET, tid, self._SYSTEM_CALL, number)

    def answer(self, tid: int, value: int) -> None:
        registers = (ctypes.c_int64 * 34)()
        self._move(_GETREGSET, tid, self._PRSTATUS, registers)
        registers[0] = value
        self._move(_SETREGSET, tid, self._PRSTATUS, registers)

    def _move(self, request: int, tid: int, kind: int, value: Any) -> None:
        vector = (ctypes.c_uint64 * 2)(ctypes.addressof(value), ctypes.sizeof(value))
        _ptrace(request, tid, kind, ctypes.addressof(vector))


def this_arch() -> _Arch:
    machine = platform.machine().lower()
    if sys.platform.startswith("linux"):
        if machine in ("x86_64", "amd64"):
            return _Intel(_X86_64)
        if machine in ("aarch64", "arm64"):
            return _Arm(_AARCH64)
    raise Unsupported(f"tracing system calls needs Linux on x86-64 or arm64, not {sys.platform} on {machine}")


# The tracer


@dataclass
class _Entered:
    """A call that has begun: what it names, and what must be looked at when it is done."""

    call: Call
    fd: int = -1
    fails_with: int = 0
    kill_after: bool = False
    #: Data that the kernel copies from file to file is read back from the target.
    read_back: bool = False


def _descriptor(tid: int, fd: int) -> Path:
    return Path(f"/proc/{tid}/fd/{fd}")


class Tracer:
    def __init__(self, arch: _Arch, folder: Path, inject: Inject | None) -> None:
        self.arch, self.root, self.inject = arch, str(folder), inject
        self.calls: list[Call] = []
        self.matched = 0
        self.entered: dict[int, _Entered] = {}
        self.memory: dict[int, int] = {}
        self.info = ctypes.create_string_buffer(96)
        self.acks = os.memfd_create("stepfast-acks")
        self.ack_inode = os.fstat(self.acks).st_ino
        self.late = False

    def run(self, scenario: Body, note: Note, timeout: float) -> None:
        folder = Path(self.root)

        def tracee(_: Note) -> None:
            global _ack_fd
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            _ack_fd = self.acks
            scenario(folder)

        child = Child(tracee)
        _, status = os.waitpid(child.pid, _WALL)
        if not os.WIFSTOPPED(status):
            note({"unsupported": f"ptrace is not permitted here: {child.ended(status).why}"})
            return
        try:
            _ptrace(_SETOPTIONS, child.pid, None, _OPTIONS)
            _ptrace(_SYSCALL_INFO, child.pid, len(self.info), ctypes.addressof(self.info))
        except OSError as error:
            child.kill()
            note({"unsupported": f"tracing system calls needs Linux 5.3 or newer: {error}"})
            return

        def late(*_: object) -> None:
            self.late = True
            child.kill()

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        self._resume(child.pid)
        try:
            ended = child.ended(self._follow(child.pid))
        except (Unsupported, PermissionError) as error:
            note({"unsupported": f"this run cannot be traced: {error}"})
            return
        for call in self.calls:
            note(asdict(call) | {"data": base64.b64encode(call.data).decode()})
        why = f"still running after {timeout:g} s" if self.late else ended.error
        note({"code": ended.code, "error": why, "late": self.late})

    def _follow(self, leader: int) -> int:
        """Let the scenario run, call by call, until it and whatever it started are gone; its exit status."""
        known = {leader}
        outcome = -1
        while known:
            try:
                tid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                break
            if not os.WIFSTOPPED(status):
                known.discard(tid)
                self._forget(tid)
                if tid == leader:
                    outcome = status
                    for other in known:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(other, signal.SIGKILL)
                continue
            stop, event = os.WSTOPSIG(status), status >> 16
            deliver = 0
            if stop == signal.SIGTRAP | 0x80:
                try:
                    self._at_syscall(tid)
                except OSError as error:
                    # It was killed meanwhile, or named what does not exist: nothing to log.
                    if error.errno not in (errno.ESRCH, errno.ENOENT, errno.EIO):
                        raise
            elif event:
                self._forget(tid)  # after exec its memory is another
            elif tid in known:
                deliver = stop
            known.add(tid)
            with contextlib.suppress(ProcessLookupError):
                self._resume(tid, deliver)
        return outcome

    def _resume(self, tid: int, deliver: int = 0) -> None:
        _ptrace(_RESUME, tid, None, deliver)

    def _forget(self, tid: int) -> None:
        self.entered.pop(tid, None)
        memory = self.memory.pop(tid, None)
        if memory is not None:
            os.close(memory)

    def _at_syscall(self, tid: int) -> None:
        _ptrace(_SYSCALL_INFO, tid, len(self.info), ctypes.addressof(self.info))
        kind = self.info.raw[0]
        if kind == _ENTERING:
            number, *arguments = struct.unpack_from("<7Q", self.info, 24)
            name = self.arch.names.get(number)
            if name is not None:
                entered = self._enter(tid, name, arguments)
                if entered is not None:
                    self.entered[tid] = entered
                    self._maybe_inject(tid, entered)
        elif kind == _LEAVING and tid in self.entered:
            (result,) = struct.unpack_from("<q", self.info, 24)
            self._leave(tid, self.entered.pop(tid), result)

    def _maybe_inject(self, tid: int, entered: _Entered) -> None:
        plan = self.inject
        if plan is None or not plan.matches(entered.call):
            return
        self.matched += 1
        if self.matched != plan.nth and not (plan.sticky and self.matched > plan.nth):
            return
        entered.call = replace(entered.call, injected=True)
        if plan.fault == "kill-after":
            entered.kill_after = True
        elif plan.fault == "kill-before":
            self.arch.skip(tid)
            self.calls.append(replace(entered.call, index=len(self.calls), result=-errno.EINTR))
            os.kill(tid, signal.SIGKILL)
        else:
            self.arch.skip(tid)
            entered.fails_with = int(getattr(errno, plan.fault))

    def _enter(self, tid: int, name: str, arguments: list[int]) -> _Entered | None:
        """Look at a call that begins; None if it is no business of the folder."""
        op, places = _CALLS[name]
        call = Call(0, tid, op, name, "", 0, began=len(self.calls))
        if "p" in places:
            return self._enter_by_path(tid, call, places, arguments)
        given = dict(zip(places, arguments, strict=False))
        fd = ctypes.c_int32(given["f"]).value
        if op == "map" and (fd < 0 or not given["x"] & _MAP_SHARED):
            return None
        path, inode = self._file(tid, fd)
        if not path and (inode != self.ack_inode or op != "write"):
            return None
        if op == "map" and path.endswith("-shm"):
            return None
        entered = _Entered(replace(call, op=op if path else "ack", path=path, inode=inode), fd)
        if op == "write":
            self._look_at_write(tid, entered, given)
        elif name == "ftruncate":
            entered.call = replace(entered.call, offset=given["o"])
        elif name == "fallocate":
            if given["x"]:
                raise Unsupported(f"fallocate with flags {given['x']:#x} (of {path}) is not modelled")
            length = _descriptor(tid, fd).stat().st_size
            entered.call = replace(entered.call, offset=max(length, given["o"] + given["n"]))
        return entered

    def _enter_by_path(self, tid: int, call: Call, places: str, arguments: list[int]) -> _Entered | None:
        base = _AT_FDCWD
        paths: list[str | None] = []
        for place, argument in zip(places, arguments, strict=False):
            if place == "d":
                base = ctypes.c_int32(argument).value
            elif place == "p":
                paths.append(self._path(tid, base, argument))
                base = _AT_FDCWD
        if all(path is None for path in paths):
            return None
        if None in paths:
            raise Unsupported(f"{call.syscall} into or out of the watched folder is not modelled")
        whole = Path(self.root, paths[0] or "")
        try:
            inode = whole.lstat().st_ino
        except OSError:
            inode = 0
        call = replace(call, path=paths[0] or "", other=paths[1] or "" if len(paths) > 1 else "", inode=inode)
        entered = _Entered(call)
        if call.syscall == "truncate":
            entered.call = replace(call, offset=arguments[1])
        elif call.op == "open":
            flags = os.O_CREAT | os.O_TRUNC if call.syscall == "creat" else arguments[places.index("x")]
            created, emptied = not inode and flags & os.O_CREAT, inode and flags & os.O_TRUNC
            entered.call = replace(call, created=bool(created), emptied=bool(emptied))
        return entered

    def _look_at_write(self, tid: int, entered: _Entered, given: dict[str, int]) -> None:
        position, flags = self._position(tid, entered.fd)
        offset = given.get("o", position)
        if given.get("q"):
            (offset,) = struct.unpack("<Q", self._read(tid, given["q"], 8))
        if flags & os.O_APPEND:
            offset = _descriptor(tid, entered.fd).stat().st_size
        data = b""
        if "b" in given:
            data = self._read(tid, given["b"], given["n"])
        elif "v" in given:
            vector = struct.unpack(f"<{2 * given['n']}Q", self._read(tid, given["v"], 16 * given["n"]))
            data = b"".join(self._read(tid, vector[i], vector[i + 1]) for i in range(0, len(vector), 2))
        else:
            entered.read_back = True
        entered.call = replace(entered.call, offset=offset, data=data, synced=bool(flags & _O_DSYNC))

    def _leave(self, tid: int, entered: _Entered, result: int) -> None:
        if entered.fails_with:
            result = -entered.fails_with
            self.arch.answer(tid, result)
        call = replace(entered.call, index=len(self.calls), result=result)
        if call.op in ("write", "ack") and result > 0:
            if entered.read_back:
                with _descriptor(tid, entered.fd).open("rb") as file:
                    call = replace(call, data=os.pread(file.fileno(), result, call.offset))
            call = replace(call, data=call.data[:result])
        elif call.op in ("write", "ack"):
            call = replace(call, data=b"")
        if call.op == "open" and call.ok:
            call = replace(call, inode=_descriptor(tid, result).stat().st_ino)
        self.calls.append(call)
        if entered.kill_after:
            os.kill(tid, signal.SIGKILL)

    def _file(self, tid: int, fd: int) -> tuple[str, int]:
        """The watched file behind a descriptor, and its inode; no path if it is not watched."""
        try:
            path = str(_descriptor(tid, fd).readlink())
        except OSError:
            return "", 0
        if path.startswith("/memfd:stepfast-acks"):
            return "", self.ack_inode
        inside = self._inside(path.removesuffix(" (deleted)"))
        return ("", 0) if inside is None else (inside, _descriptor(tid, fd).stat().st_ino)

    def _inside(self, path: str) -> str | None:
        if path == self.root:
            return "."
        return path[len(self.root) + 1 :] if path.startswith(self.root + "/") else None

    def _path(self, tid: int, base: int, address: int) -> str | None:
        path = Path(self._text(tid, address))
        if not path.is_absolute():
            at = Path(f"/proc/{tid}/cwd") if base == _AT_FDCWD else _descriptor(tid, base)
            path = at.readlink() / path
        path = Path(os.path.normpath(path))
        # The last part is not followed: a call on a symbolic link's name may mean the link.
        return self._inside(str(path.parent.resolve() / path.name))

    def _position(self, tid: int, fd: int) -> tuple[int, int]:
        fields = Path(f"/proc/{tid}/fdinfo/{fd}").read_text().split()
        return int(fields[1]), int(fields[3], 8)

    def _read(self, tid: int, address: int, length: int) -> bytes:
        if tid not in self.memory:
            self.memory[tid] = os.open(f"/proc/{tid}/mem", os.O_RDONLY)
        return os.pread(self.memory[tid], length, address)

    def _text(self, tid: int, address: int) -> str:
        text = b""
        while b"\0" not in text:
            # Not beyond the page, which may be the last one.
            part = self._read(tid, address + len(text), 4096 - (address + len(text)) % 4096)
            if not part:
                raise ProcessLookupError(errno.ESRCH, "the process is gone")
            text += part
        return os.fsdecode(text.partition(b"\0")[0])
