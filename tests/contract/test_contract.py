"""The whole contract, over every store, blocking and on an event loop."""

from __future__ import annotations

from stepfast.testing.contract import StoreContract


class TestStore(StoreContract):
    pass
