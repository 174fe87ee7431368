"""The keys as a running server has them: all in memory, and kept up to date."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from hashlib import sha256

from stepfast.errors import NotFound, StepfastError
from stepfast.server.caller import Caller
from stepfast.server.keys import Key, Workspace, digest_of, get_key, list_keys, list_workspaces, parse_token
from stepfast.server.pepper import find_pepper
from stepfast.server.settings import Settings
from stepfast.stores.base import AsyncStore

log = logging.getLogger("stepfast.keys")


class KeyTable:
    """Every key in memory, kept up to date, so that a request costs one look-up and no query.

    A change made through this server counts at once; one made elsewhere as soon as the store tells of it, and
    at the latest after two seconds.
    """

    REFRESH_SECONDS = 2.0
    _LEAST_GAP = 0.1

    def __init__(self, store: AsyncStore, settings: Settings, on_revoked: Callable[[str], None]) -> None:
        self.loaded = False
        self.tenants: list[str] = []
        self._store = store
        self._settings = settings
        self._on_revoked = on_revoked
        self._keys: dict[str, Key] = {}
        self._workspace_keys = False
        self._learned = 0
        self._pepper: bytes | None = None
        self._verified: dict[bytes, tuple[Key, Caller]] = {}

    @property
    def required(self) -> bool:
        """Whether a request needs a key: from the first workspace key on, for good. Revoking the last opens nothing.

        Keys of agents alone do not count, since in a local workspace an SDK may make them for its agents.
        """
        return self._settings.require_keys or self._workspace_keys

    def knows(self, token: bytes) -> bool:
        """Whether this is the token of a key that is, or was, in the table; good or not."""
        parts = parse_token(token)
        return parts is not None and parts[0] in self._keys

    def now(self) -> int:
        return self._store.store.clock.now_us()

    def check(self, token: bytes) -> Caller | None:
        """Whose token this is, if it is good now."""
        mark = sha256(token).digest()
        known = self._verified.get(mark)
        if known is None:
            known = self._verify(token)
            if known is None:
                return None
            self._verified[mark] = known
        expires = known[0].expires_at
        return known[1] if expires is None or self.now() < expires else None

    def _verify(self, token: bytes) -> tuple[Key, Caller] | None:
        parts = parse_token(token)
        if parts is None or self._pepper is None:
            return None
        key = self._keys.get(parts[0])
        digest = digest_of(self._pepper, parts[1])
        if key is None or not hmac.compare_digest(digest, key.digest) or key.revoked_at is not None:
            return None
        return key, key.caller()

    async def look_up(self, token: bytes) -> Caller | None:
        """As `check`, for a token that the table does not know: it may have been made elsewhere just now."""
        parts = parse_token(token)
        if parts is None or parts[0] in self._keys:
            return None
        try:
            key = await get_key(self._store, parts[0])
        except NotFound:
            return None
        await self.learn(key)
        return self.check(token)

    async def learn(self, key: Key) -> None:
        """A key that was made or changed through this server."""
        if self._pepper is None:
            self._pepper = await find_pepper(self._store, self._settings.pepper, create=False)
        self._learned += 1
        self._replace({**self._keys, key.key_id: key})
        if key.tenant not in self.tenants:
            self.tenants = [*self.tenants, key.tenant]

    async def load(self) -> None:
        keys: dict[str, Key] = {}
        workspaces: list[Workspace] = []
        learned = -1
        while learned != self._learned:  # what was read while a key changed here may be older than what is known
            learned = self._learned
            keys = {key.key_id: key for key in await list_keys(self._store)}
            workspaces = await list_workspaces(self._store)
        self.tenants = [each.tenant for each in workspaces]
        if self._pepper is None and (keys or self._settings.pepper):
            self._pepper = await find_pepper(self._store, self._settings.pepper, create=False)
        self._replace(keys)
        self.loaded = True

    def _replace(self, keys: dict[str, Key]) -> None:
        if keys == self._keys:
            return
        now = self.now()
        gone = [
            key_id
            for key_id, old in self._keys.items()
            if old.revoked_at is None and (key_id not in keys or not keys[key_id].live(now))
        ]
        self._keys = keys
        self._workspace_keys = any(key.role == "workspace" for key in keys.values())
        self._verified.clear()
        for key_id in gone:
            self._on_revoked(key_id)

    def _end_expired(self) -> None:
        now = self.now()
        for key in self._keys.values():
            if key.revoked_at is None and key.expires_at is not None and key.expires_at <= now:
                self._on_revoked(key.key_id)

    async def keep(self) -> None:
        """Follow the store for the life of the app."""
        with self._store.watch("record:key", "record:workspace") as watch:
            while True:
                try:
                    await self.load()
                except StepfastError as error:
                    log.warning("the keys cannot be read (%s); those known go on.", type(error).__name__)
                self._end_expired()
                await asyncio.sleep(self._LEAST_GAP)
                await watch.wait_async(self.REFRESH_SECONDS - self._LEAST_GAP)
