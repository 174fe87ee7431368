"""The kit that adapters for frameworks are built on. ``docs/adapter-kit.md`` shows how the parts go together."""

import typing

if typing.TYPE_CHECKING:
    from stepfast.adapters.attempts import Attempt, Doubt, Stopped, adrive, drive
    from stepfast.adapters.calls import (
        STOPPED,
        Conversation,
        ask_all,
        check_leftover,
        model_call,
        pack_output,
        probing,
        then,
        tool_call,
        unpack_output,
    )
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
    from stepfast.adapters.reading import value_of
    from stepfast.adapters.replay import mark_replayed, replayed
    from stepfast.adapters.seams import Seam, install, uninstall, within
    from stepfast.adapters.serving import input_from, serve
    from stepfast.adapters.settings import OnWait, RunName, Settings, choice, flag, naming, run_name
    from stepfast.adapters.standing import Standing, apart, apart_async, carried
    from stepfast.adapters.stores import (
        LazyStore,
        OpenStore,
        StoreLike,
        StoreOwner,
        check_store,
        close_shared,
        open_any,
    )
    from stepfast.adapters.usage import Meter, Price, Prices, Usage, usage_of

__all__ = [
    "ASK",
    "COMPOSITE",
    "FAIL",
    "ONCE",
    "RETRY",
    "STOPPED",
    "Attempt",
    "ContextKeeper",
    "Conversation",
    "Digests",
    "Doubt",
    "LazyStore",
    "Meter",
    "Occurrences",
    "OnDrift",
    "OnError",
    "OnInDoubt",
    "OnWait",
    "OpenStore",
    "Ordinals",
    "Policies",
    "Policy",
    "PolicyLike",
    "Price",
    "Prices",
    "Request",
    "RunName",
    "Seam",
    "Settings",
    "Standing",
    "Stopped",
    "StoreLike",
    "StoreOwner",
    "Usage",
    "adrive",
    "apart",
    "apart_async",
    "ask_all",
    "carried",
    "check_leftover",
    "check_store",
    "choice",
    "close_shared",
    "compare",
    "composite",
    "declared",
    "differences",
    "digest",
    "drive",
    "flag",
    "hinted",
    "idempotent",
    "input_from",
    "install",
    "items_of",
    "mark",
    "mark_replayed",
    "model_call",
    "naming",
    "once",
    "once_policy",
    "open_any",
    "pack_output",
    "plain",
    "policy_from",
    "probing",
    "replayed",
    "run_name",
    "serve",
    "shorten",
    "then",
    "tool_call",
    "uninstall",
    "unpack_output",
    "usage_of",
    "value_of",
    "within",
]

# Each name is loaded from its module when it is first used: an adapter pays for what it uses.
_HOMES = {
    "attempts": "Attempt Doubt Stopped adrive drive",
    "calls": "STOPPED Conversation ask_all check_leftover model_call pack_output probing then tool_call unpack_output",
    "context": "ContextKeeper",
    "drift": "Digests OnDrift Request compare differences digest items_of plain shorten",
    "identity": "Occurrences Ordinals",
    "policies": (
        "ASK COMPOSITE FAIL ONCE RETRY OnError OnInDoubt Policies Policy PolicyLike composite declared hinted "
        "idempotent mark once once_policy policy_from"
    ),
    "reading": "value_of",
    "replay": "mark_replayed replayed",
    "seams": "Seam install uninstall within",
    "serving": "input_from serve",
    "settings": "OnWait RunName Settings choice flag naming run_name",
    "standing": "Standing apart apart_async carried",
    "stores": "LazyStore OpenStore StoreLike StoreOwner check_store close_shared open_any",
    "usage": "Meter Price Prices Usage usage_of",
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
