"""What PostgreSQL's refusals mean to a caller."""

from __future__ import annotations

from stepfast.errors import Damaged, InvalidInput, StepfastError, StoreFull, StoreUnavailable
from stepfast.stores.postgres_link import Refused

# A prepared statement that is not there, is there already, or no longer fits: connections are shared by a pooler.
STALE = frozenset({"26000", "42P05", "0A000"})
# Not (or no longer) the primary: the next connection may lead to the right one.
READ_ONLY = frozenset({"25006"})
# Deadlock, serialization, a lock not had; somebody was first with a key. The next try may well go through.
PASSING = frozenset({"40001", "40P01", "55P03", "23505"}) | STALE | READ_ONLY

_INVALID = frozenset({"22021", "22P05", "22003", "22001", "54000", "54001", "22P02", "22P03"})


def explain(refused: Refused, url: str) -> StepfastError:
    error = _explain(refused, url)
    error.__cause__ = refused
    return error


def _explain(refused: Refused, url: str) -> StepfastError:
    state = refused.state
    if state == "53100":
        return StoreFull(f"{url} has no space left; nothing was written. Free some space, then go on.")
    if state in _INVALID:
        return InvalidInput(f"a value cannot be stored: {refused}. Nothing was written.")
    if state in READ_ONLY:
        return StoreUnavailable(
            f"{url} is read-only ({refused}); nothing was written. Name the primary, or all hosts of the cluster."
        )
    if state == "42501":
        return StoreUnavailable(
            f"{url}: the database user may not do that ({refused}); nothing was written. Grant it USAGE on the "
            "schema and SELECT, INSERT, UPDATE, DELETE on its tables."
        )
    if state in ("XX001", "XX002"):
        return Damaged(f"{url} is damaged ({refused}). Restore it from a backup or fail over; do not delete it.")
    if state in PASSING:
        return StoreUnavailable(f"{url} is contended ({refused}); nothing was written. Try again.")
    return StoreUnavailable(f"{url}: {refused}; nothing was written.")
