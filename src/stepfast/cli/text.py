"""Text that others wrote, made fit for a terminal. Pure.

An agent's title, reason or payload may hold anything. On a screen it must not move the cursor, set the window's
title, write to the clipboard, turn the reading direction round, or hide characters in a command that somebody copies.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any

# Sequences that terminals act upon, whole: CSI, then the strings (DCS, SOS, OSC, PM, APC) up to their end, then
# the two-character ones. In their 7-bit form after ESC and as the C1 characters.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# Not "Cf", but as good as invisible, or a blank that is none.
_HIDDEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SHOWN = frozenset("\n\t")


def clean(text: str, *, lines: bool = False) -> str:
    """The text without what a terminal would act upon; what would be invisible stands as ``<U+202E>``.

    Line ends and tabs stay where ``lines`` is true, and are blanks elsewhere.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCES.sub("", text)
    return "".join(map(_line_character if lines else _character, text))


def _line_character(character: str) -> str:
    return character if character in _SHOWN else _character(character)


def _character(character: str) -> str:
    if character in _SHOWN:
        return " "
    if unicodedata.category(character) in _UNSEEN or character in _HIDDEN or _is_selector(character):
        return f"<U+{ord(character):04X}>"
    return character


# Control (also ESC and C1 outside of a sequence), format (bidi, zero-width, tags), surrogates, private use, not
# assigned, line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def _is_selector(character: str) -> bool:
    """Variation selectors: invisible, and a known way to hide whole messages in a text."""
    return "\ufe00" <= character <= "\ufe0e" or "\U000e0100" <= character <= "\U000e01ef"


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without a password, and without the query, which may hold one."""
    return re.sub(r"(://[^/@:]*):[^/]*@", r"\1:***@", url).partition("?")[0]


def short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def plain(value: Any) -> Any:
    """A value as JSON can say it; what it cannot is ``{"$opaque": "<what it is>"}``."""
    kind = type(value)
    if value is None or kind in (str, bool):
        return value
    if kind is int:
        return value if value.bit_length() <= 4096 else {"$opaque": "int"}
    if kind is float:
        return value if math.isfinite(value) else {"$opaque": str(value)}
    if isinstance(value, dict):
        return {name if type(name) is str else repr(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, str):  # an enumeration of texts
        return str(value)
    return {"$opaque": f"{kind.__qualname__}: {short(repr(value), 200)}"}


def to_json(value: Any, *, indent: int | None = None) -> str:
    """ASCII only, so that nothing in it can act on a terminal."""
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False, indent=indent)


def as_text(value: Any, width: int = 100) -> str:
    """A value on one line, for a table."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    return short(clean(text), width)
