"""The pepper: a secret outside the key table, without which a stolen table proves nothing.

It comes from the operator (``STEPFAST_PEPPER``). Without that, an embedded store keeps it in a file beside
it, and a PostgreSQL store in a record that all its servers share, which is the weaker choice: whoever copies
the database has both.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import sys
from hashlib import sha256
from pathlib import Path

from stepfast.clock import new_id
from stepfast.errors import Conflict, InvalidInput
from stepfast.ops import GetRecord, PutRecord
from stepfast.stored_names import PEPPER_ID_PREFIX
from stepfast.stores.base import AsyncStore
from stepfast.stores.files import sync_folder

PLATFORM = "platform"
LEAST_LENGTH = 32
_KIND, _ID = "pepper", "pepper"


async def find_pepper(store: AsyncStore, given: str | None, *, create: bool) -> bytes | None:
    """The pepper of a store; made, once, if ``create``."""
    if given is not None:
        if len(given) < LEAST_LENGTH:
            raise InvalidInput(f"STEPFAST_PEPPER: must be at least {LEAST_LENGTH} characters of random text.")
        return given.encode()
    path = getattr(store.store, "path", None)
    if path is not None:
        return await asyncio.to_thread(_from_file, Path(f"{path}.pepper"), create)
    return await _from_record(store, create)


def pepper_id(pepper: bytes) -> str:
    """Tells one pepper from another without telling anything of it."""
    return sha256(PEPPER_ID_PREFIX + pepper).hexdigest()[:16]


async def _from_record(store: AsyncStore, create: bool) -> bytes | None:
    get = GetRecord(kind=_KIND, record_id=_ID)
    found = await store.one(get, tenant=PLATFORM)
    if found is None and create:
        fresh = secrets.token_hex(32).encode()
        put = PutRecord(kind=_KIND, record_id=_ID, body=fresh, write_id=new_id(), expected=0)
        try:
            await store.one(put, tenant=PLATFORM)
        except Conflict:
            pass  # another server was first; all use the one that is there
        found = await store.one(get, tenant=PLATFORM)
    return None if found is None else found.body


def _from_file(path: Path, create: bool) -> bytes | None:
    found = _read(path)
    if found is None and create:
        # Linked into place whole, so that no other process ever reads half of it.
        draft = path.with_name(f"{path.name}.{new_id()}")
        fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(secrets.token_hex(32).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
            sync_folder(path.parent)
        except FileExistsError:
            pass
        finally:
            draft.unlink(missing_ok=True)
        found = _read(path)
    return found


def _read(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"the pepper {path} cannot be read: {error.strerror}. Keys cannot be checked.") from None
    with os.fdopen(fd, "rb") as file:
        if sys.platform != "win32" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise InvalidInput(f"the pepper {path} is open to others; chmod 600 it, and make new keys if it was read.")
        found = file.read()
    if len(found) < LEAST_LENGTH:
        raise InvalidInput(f"the pepper {path} is damaged; restore it from a copy, or remove it and make new keys.")
    return found
