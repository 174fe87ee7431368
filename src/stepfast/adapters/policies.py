"""What happens to a tool call that was started and never confirmed, because its process died inside it.

**A tool that says nothing is "ask"**: the run waits, and a person decides. The alternative, to call it again, is right
for a look-up and charges a card twice for the next tool. Nothing in a function tells the two apart, the damage of a
wrong "retry" cannot be undone, and a wrong "ask" costs one answer or one word: `idempotent` on the tool,
``policies={"search_*": "retry"}`` or ``on_in_doubt="retry"``. One warning line at the first run names the tools.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple, TypeVar, overload

from stepfast.errors import InvalidInput
from stepfast.inputs import choice

__all__ = [
    "ASK",
    "COMPOSITE",
    "FAIL",
    "ONCE",
    "RETRY",
    "OnError",
    "OnInDoubt",
    "Policies",
    "Policy",
    "PolicyLike",
    "composite",
    "declared",
    "hinted",
    "idempotent",
    "mark",
    "once",
    "once_policy",
    "policy_from",
]

log = logging.getLogger("stepfast")

T = TypeVar("T")
OnInDoubt = Literal["ask", "retry", "fail"] | Callable[..., Any]
OnError = Literal["ask", "show"]

_MARK = "_stepfast_policy"


class Policy(NamedTuple):
    """How a tool call is treated.

    ``kind``: *ask* a person, *retry*, *fail* (the model is told that the outcome is unknown), *probe*, or *composite*
    for a tool that runs agents: it is entered again, and what is finished inside it is answered from the journal.
    ``on_error``: *show* treats an exception of the tool as the framework does, *ask* leaves the call in doubt.
    """

    kind: Literal["ask", "retry", "fail", "probe", "composite"] = "ask"
    probe: Callable[..., Any] | None = None
    on_error: OnError = "show"


PolicyLike = Literal["ask", "once", "retry", "idempotent", "fail", "composite"] | Callable[..., Any] | Policy

ASK = Policy()
ONCE = Policy(on_error="ask")
RETRY = Policy("retry")
FAIL = Policy("fail")
COMPOSITE = Policy("composite")

_WORDS: dict[str, Policy] = {
    "ask": ASK,
    "once": ONCE,
    "retry": RETRY,
    "idempotent": RETRY,
    "fail": FAIL,
    "composite": COMPOSITE,
}


def policy_from(option: str, given: Any, allowed: tuple[str, ...] = tuple(_WORDS)) -> Policy:
    """Return the policy that a user named by a word or a probe; ``option`` is named in the error for other values."""
    if isinstance(given, Policy):
        return given
    if callable(given):
        return Policy("probe", given)
    return _WORDS[choice(option, given, allowed, also="a probe")]


# --- what a tool says of itself ------------------------------------------------------------------


def mark(tool: T, policy: Policy) -> T:
    """Return a copy of a tool or a function that carries a policy. The original stays as it is."""
    marked: Any
    if isinstance(tool, MethodType):
        return MethodType(mark(tool.__func__, policy), tool.__self__)  # type: ignore[return-value]
    marked = _copy_function(tool) if isinstance(tool, FunctionType) else copy.copy(tool)
    try:
        object.__setattr__(marked, _MARK, policy)
    except AttributeError:
        raise InvalidInput(
            f"tool: a {type(tool).__name__} cannot carry a policy; name it in policies={{…}} instead."
        ) from None
    return marked  # type: ignore[no-any-return]


def _copy_function(function: FunctionType) -> FunctionType:
    """A real copy and no wrapper: frameworks read a function's code, signature and source."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(made, name, getattr(function, name))
    return made


def declared(tool: Any) -> Policy | None:
    """Return the policy that `once`, `idempotent`, `composite` or `mark` gave a tool; None if there is none."""
    found = getattr(tool, _MARK, None)
    return found if isinstance(found, Policy) else None


def hinted(tool: Any) -> Policy | None:
    """Return the policy that follows from a tool's MCP annotations, wherever its framework keeps them.

    ``readOnlyHint`` and ``idempotentHint`` make it *retry*; ``destructiveHint`` makes it *ask*, whatever else is said.
    They are the word of the tool's server: where that is not to be trusted, name the tool in ``policies``.
    """
    for about in (tool, *(getattr(tool, name, None) for name in ("annotations", "mcp_annotations", "metadata"))):
        if _says(about, "destructiveHint", "destructive_hint"):
            return ASK
        if _says(about, "readOnlyHint", "read_only_hint", "idempotentHint", "idempotent_hint"):
            return RETRY
    return None


def _says(about: Any, *hints: str) -> bool:
    """Whether one of the hints is set; versions of MCP's own package spell them in two ways."""
    if isinstance(about, Mapping):
        return any(about.get(hint) is True for hint in hints)
    return any(getattr(about, hint, None) is True for hint in hints)


def once_policy(reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> Policy:
    """Return the policy of a one-shot tool; `once` has the meaning of the arguments."""
    choice("on_error", on_error, ("ask", "show"))
    if reconcile is not None and not callable(reconcile):
        raise InvalidInput(f"reconcile: must be a function of the tool's arguments, not {reconcile!r}.")
    return Policy("ask" if reconcile is None else "probe", reconcile, on_error)


@overload
def once(tool: T, /, *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> T: ...
@overload
def once(*, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> Callable[[T], T]: ...
def once(tool: Any = None, /, *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> Any:
    """Return a copy of a tool whose effect must not happen twice: started and unconfirmed, it waits for a decision.

    ``reconcile`` is a probe: called with the tool's arguments, it returns ``Happened(output)``, ``DID_NOT_HAPPEN``, or
    anything else to ask a person. An exception of the tool leaves the call in doubt, because a model that sees one
    calls again; with ``on_error="show"`` it is treated as the framework treats it.
    """
    policy = once_policy(reconcile, on_error)
    return (lambda given: mark(given, policy)) if tool is None else mark(tool, policy)


def idempotent(tool: T, /) -> T:
    """Return a copy of a tool that is safe to repeat: cut short, it is called again with the same
    ``idempotency_key()``. It costs one commit a call instead of two."""
    return mark(tool, RETRY)


def composite(tool: T, /) -> T:
    """Return a copy of a tool that runs agents or durable steps: it is entered again on resume, and what is finished
    inside it is answered from the journal."""
    return mark(tool, COMPOSITE)


# --- looking one up ------------------------------------------------------------------------------


class Policies:
    """The policies of one user: by tool name or pattern, and ``on_in_doubt`` for tools that say nothing.

    The first of these counts: the tool's own name in ``policies``; its mark (`once`, …); what the adapter knows of its
    kind; the pattern in ``policies`` with the most letters that matches; its MCP hints; ``on_in_doubt``.
    """

    def __init__(
        self, policies: Mapping[str, PolicyLike] | None = None, on_in_doubt: OnInDoubt | Policy = "ask"
    ) -> None:
        if policies is not None and not isinstance(policies, Mapping):
            raise InvalidInput(f"policies: must map names or patterns of tools to policies, not {policies!r}.")
        self._default = policy_from("on_in_doubt", on_in_doubt, ("ask", "retry", "fail"))
        self._named: dict[str, Policy] = {}
        patterns: list[tuple[str, Policy]] = []
        for name, given in (policies or {}).items():
            if not name:
                raise InvalidInput("policies: the name of a tool must not be empty.")
            policy = policy_from(f"policies[{name!r}]", given)
            if any(letter in name for letter in "*?["):
                patterns.append((name, policy))
            else:
                self._named[name] = policy
        self._patterns = sorted(patterns, key=lambda each: sum(letter not in "*?" for letter in each[0]), reverse=True)

    def of(self, name: str, tool: Any = None, fallback: Policy | None = None) -> Policy:
        """Return the policy of a tool; ``fallback`` is what the adapter knows of its kind, such as `COMPOSITE`."""
        return self._found(name, tool, fallback) or self._default

    def _found(self, name: str, tool: Any, fallback: Policy | None) -> Policy | None:
        known = self._named.get(name) or declared(tool) or fallback
        if known is not None:
            return known
        matching = (policy for pattern, policy in self._patterns if fnmatchcase(name, pattern))
        return next(matching, None) or hinted(tool)

    def announce(self, tools: Iterable[tuple[str, Any, Policy | None]]) -> None:
        """Warn about tools (name, tool, fallback) for which nothing is said and a person will be asked.

        Each tool is named once in a process; adapters call this as soon as they know the tools of a run.
        """
        if self._default != ASK:
            return
        unknown = [each for each in tools if each[0] not in _announced]
        new = list(dict.fromkeys(name for name, tool, kind in unknown if self._found(name, tool, kind) is None))
        if new:
            _announced.update(new)
            log.warning(
                "tools without a policy: %s. If the process dies inside one of them, the run waits until a person says "
                "whether it happened. Mark those that are safe to repeat with idempotent(tool), or pass "
                "policies={'search_*': 'retry'}; policies={'*': 'ask'} keeps it so without this line.",
                ", ".join(new),
            )


_announced: set[str] = set()
