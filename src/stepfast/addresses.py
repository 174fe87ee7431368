"""Agent addresses: ``agent://org/workspace/name``, and the shorter ways people write them."""

from __future__ import annotations

_SCHEME = "agent://"


def bare(address: str) -> str:
    """An address without its scheme."""
    return address.removeprefix(_SCHEME).strip("/")


def last_name(address: str) -> str:
    """The agent's own name: the last segment."""
    return bare(address).rpartition("/")[2]


def same_agent(one: str, other: str) -> bool:
    """Whether two ways to write an address mean the same agent of a workspace.

    A bare name means the agent of that name wherever it is; two full addresses must be equal.
    """
    left, right = bare(one), bare(other)
    if left == right:
        return bool(left)
    return ("/" not in left and left == last_name(right)) or ("/" not in right and right == last_name(left))
