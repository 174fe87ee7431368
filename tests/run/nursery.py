"""A process that has imported what children need and forks them on request, so that a start costs milliseconds.

``python -m tests.run.nursery SOCKET``: each datagram on the socket asks for one child, ``[function, url, folder,
arguments]``, and brings its standard streams and a pipe on which to tell its pid, its stops and its end; or it is
the pid of a child to kill. The nursery ends when its standard input does, and takes its children along.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

from tests.run import children


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tellers: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([0, requests.fileno(), woken], [], [])
        if 0 in ready:
            for pid in tellers:
                os.kill(pid, signal.SIGKILL)
            return
        if woken in ready:
            os.read(woken, 4096)
            tell_what_became_of(tellers)
        if requests.fileno() in ready:
            message, streams, _, _ = socket.recv_fds(requests, 1 << 16, 4)
            asked = json.loads(message)
            if isinstance(asked, int):
                if asked in tellers:  # else it has ended, and the number may be another's by now
                    os.kill(asked, signal.SIGKILL)
                continue
            pid = give_birth(asked, streams[:3], [requests.fileno(), streams[3], *tellers.values()])
            for stream in streams[:3]:
                os.close(stream)
            tellers[pid] = streams[3]
            os.write(streams[3], f"{pid}\n".encode())


def tell_what_became_of(tellers: dict[int, int]) -> None:
    while tellers:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            os.write(tellers[pid], b"stopped\n")
            continue
        teller = tellers.pop(pid)
        try:
            os.write(teller, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except BrokenPipeError:  # the test is over
            pass
        os.close(teller)


def give_birth(asked: list[Any], streams: list[int], not_theirs: list[int]) -> int:
    function, url, folder, arguments = asked
    if url.startswith("postgres"):
        importlib.import_module("stepfast.stores.postgres")
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for other in (*streams, *not_theirs):
            os.close(other)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        children.start(function, url, folder, arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
