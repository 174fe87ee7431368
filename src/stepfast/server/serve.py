"""Running a server in the foreground: sockets, TLS, keys, and an end that loses nobody's work."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from types import FrameType

import msgspec
import uvicorn

from stepfast.errors import InvalidInput
from stepfast.server.app import App, build_app
from stepfast.server.keys import LOCAL, create_key, list_keys
from stepfast.server.logs import configure_logs
from stepfast.server.pepper import find_pepper, pepper_id
from stepfast.server.protocol import protocol_for
from stepfast.server.settings import Settings
from stepfast.stores import AsyncStore, open_store

log = logging.getLogger("stepfast.server")


class Server(uvicorn.Server):
    """uvicorn's server, which tells the streams to end before it closes connections."""

    def __init__(self, config: uvicorn.Config, app: App, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._stepfast = app
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stepfast.platform.close_streams()
        await super().shutdown(sockets)


def run(settings: Settings, say: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. ``say`` is given the lines for whoever started it.

    Raises InvalidInput where the settings would leave the server open, or cannot be served.
    """
    tell = say or _print
    configure_logs(settings.log_format, settings.log_level)
    listener = bind(settings.host, settings.port)
    with listener:
        exposed = check_exposure(settings, listener)
        if exposed:
            # Whatever happens to the keys later, nobody is let in without one.
            settings = msgspec.structs.replace(settings, require_keys=True)
        with open_store(settings.store) as store:
            token = asyncio.run(check_keys(AsyncStore(store), settings, exposed=exposed))
            app = build_app(store, settings)
            server = Server(_config(app, settings), app, lambda: _announce(tell, settings, listener, token, app))
            restore = _take_signals()
            try:
                server.run([listener])
            finally:
                restore()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; a port of 0 is any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol named, asyncio knows it for TCP and sends small answers at once.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise InvalidInput(f"host: {host!r} is no address of this machine: {error.strerror}.") from None
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_dead_peers(listener)
        listener.bind(address)
        listener.listen(2048)  # already: of two servers for one port the second is told at once
    except OSError as error:
        listener.close()
        raise InvalidInput(f"port: cannot listen on {host}:{port}: {error.strerror}. Choose another port.") from None
    return listener


def _notice_dead_peers(listener: socket.socket) -> None:
    """A host that vanishes without a word is noticed within about a lease; accepted sockets inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        option = getattr(socket, name, None)  # not every system has them all
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def check_exposure(settings: Settings, listener: socket.socket) -> bool:
    """Whether others than the programs of this machine can come here; then keys must not travel in the clear."""
    _check_certificate(settings)
    outside = not ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    if outside and settings.tls_cert is None and not settings.behind_proxy:
        raise InvalidInput(
            f"host: {settings.host} can be reached from other machines, so keys would travel in the clear. Give a "
            "certificate and its key, or say behind_proxy if a proxy in front of this server does TLS; or listen on "
            "127.0.0.1."
        )
    return outside or settings.behind_proxy


def _check_certificate(settings: Settings) -> None:
    cert, key = settings.tls_cert, settings.tls_key
    if (cert is None) != (key is None):
        raise InvalidInput("tls_cert, tls_key: give both files, or neither.")
    if cert is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, settings.tls_key_password or "")
    except OSError as error:  # an SSLError is one, too
        raise InvalidInput(f"tls_cert, tls_key: cannot be used: {error.strerror or error}.") from None


async def check_keys(store: AsyncStore, settings: Settings, *, exposed: bool = False) -> str | None:
    """Where keys are needed there must be one that works; gives the token of the first, if it had to be made."""
    now = store.store.clock.now_us()
    keys = await list_keys(store)
    live = [key for key in keys if key.live(now)]
    if live:
        pepper = await find_pepper(store, settings.pepper, create=False)
        mine = None if pepper is None else pepper_id(pepper)
        foreign = sum(key.pepper_id != mine for key in live)
        if foreign == len(live):
            raise InvalidInput(
                "pepper: it is not the one with which the keys were made, so none of them can be checked. Set "
                "STEPFAST_PEPPER as it was then, or bring back the file beside the store."
            )
        if foreign:
            log.warning("%d keys were made with another pepper and open nothing here", foreign)
        return None
    if not settings.require_keys:
        return None
    if exposed:
        raise InvalidInput(
            "keys: there is none that works, and without one this server is for its own machine only. Create one "
            "first: stepfast keys create. Or listen on 127.0.0.1."
        )
    if keys:
        raise InvalidInput("keys: every key is revoked or expired. Create one first: stepfast keys create.")
    _, token = await create_key(store, LOCAL, LOCAL, pepper=settings.pepper, created_by="first start")
    return token


def _config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_for(settings.limits),
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(settings.keep_alive_seconds),
        timeout_graceful_shutdown=int(settings.shutdown_seconds),
        limit_concurrency=settings.limits.connections,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_keyfile_password=settings.tls_key_password,
    )


def url_of(settings: Settings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_cert else 'http'}://{shown}:{port}"


def _announce(
    tell: Callable[[str], None], settings: Settings, listener: socket.socket, token: str | None, app: App
) -> None:
    tell(f"Stepfast is at {url_of(settings, listener)}")
    if token is not None:
        tell(f"Key (shown once, for the workspace {LOCAL}/{LOCAL}): {token}")
    elif not app.platform.keys.required:
        tell("Key: any (none is configured, so every program on this machine may use it)")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _take_signals() -> Callable[[], None]:
    """uvicorn raises a signal again after its shutdown, which must not end the process before the store is closed."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None

    def ignore(_signal: int, _frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
