"""The kit that adapters for frameworks are built on. ``docs/adapter-kit.md`` shows how the parts go together."""

import typing

if typing.TYPE_CHECKING:
    from stepfast.adapters.context import ContextKeeper
    from stepfast.adapters.drift import (
        Digests,
        OnDrift,
        Request,
        compare,
        differences,
        digest,
        items_of,
        plain,
        shorten,
    )
    from stepfast.adapters.identity import Occurrences, Ordinals
    from stepfast.adapters.policies import (
        ASK,
        COMPOSITE,
        FAIL,
        ONCE,
        RETRY,
        OnError,
        OnInDoubt,
        Policies,
        Policy,
        PolicyLike,
        composite,
        declared,
        hinted,
        idempotent,
        mark,
        once,
        once_policy,
        policy_from,
    )
    from stepfast.adapters.replay import mark_replayed, replayed
    from stepfast.adapters.seams import Seam, install, uninstall, within
    from stepfast.adapters.standing import Standing, apart, apart_async, carried
    from stepfast.adapters.stores import OpenStore, StoreLike, choice, close_shared, open_any

__all__ = [
    "ASK",
    "COMPOSITE",
    "FAIL",
    "ONCE",
    "RETRY",
    "ContextKeeper",
    "Digests",
    "Occurrences",
    "OnDrift",
    "OnError",
    "OnInDoubt",
    "OpenStore",
    "Ordinals",
    "Policies",
    "Policy",
    "PolicyLike",
    "Request",
    "Seam",
    "Standing",
    "StoreLike",
    "apart",
    "apart_async",
    "carried",
    "choice",
    "close_shared",
    "compare",
    "composite",
    "declared",
    "differences",
    "digest",
    "hinted",
    "idempotent",
    "install",
    "items_of",
    "mark",
    "mark_replayed",
    "once",
    "once_policy",
    "open_any",
    "plain",
    "policy_from",
    "replayed",
    "shorten",
    "uninstall",
    "within",
]

# Each name is loaded from its module when it is first used: an adapter pays for what it uses.
_HOMES = {
    "context": "ContextKeeper",
    "drift": "Digests OnDrift Request compare differences digest items_of plain shorten",
    "identity": "Occurrences Ordinals",
    "policies": (
        "ASK COMPOSITE FAIL ONCE RETRY OnError OnInDoubt Policies Policy PolicyLike composite declared hinted "
        "idempotent mark once once_policy policy_from"
    ),
    "replay": "mark_replayed replayed",
    "seams": "Seam install uninstall within",
    "standing": "Standing apart apart_async carried",
    "stores": "OpenStore StoreLike choice close_shared open_any",
}
_HOME = {name: f"stepfast.adapters.{module}" for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
