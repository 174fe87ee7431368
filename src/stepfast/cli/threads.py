"""``stepfast threads``: which threads a store holds, and the end of those that may go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.cli.failures import Usage
from stepfast.cli.inputs import moment, pairs, span
from stepfast.cli.out import age, block, note, say, show_json, table
from stepfast.cli.setup import Setup, command

if TYPE_CHECKING:
    from stepfast.threads import Threads

group = typer.Typer(help="The threads of graphs and agents: list, look at, delete, expire.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", help="name=value in the metadata; a value that is JSON counts as such. May be given again."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@contextmanager
def _threads(at: Setup) -> Iterator[Threads]:
    from stepfast.cli.reach import open_client
    from stepfast.threads import Threads

    with open_client(at) as sf:
        yield Threads(sf.store)


@command(group, "list")
def list_threads(
    at: Setup,
    where: Where = None,
    prefix: Annotated[str, typer.Option(help="Only those whose id begins with this.")] = "",
    updated_after: Annotated[str | None, typer.Option(help="Only those active since this time (RFC 3339).")] = None,
    updated_before: Annotated[str | None, typer.Option(help="Only those silent since this time (RFC 3339).")] = None,
    status: Annotated[str | None, typer.Option(help="Only those that are interrupted, or in error.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
    cursor: Annotated[str, typer.Option(help="Where the page before ended.")] = "",
) -> None:
    """Threads with the newest activity first."""
    wanted = _wanted(where)
    with _threads(at) as threads:
        if status is not None:
            if prefix or updated_after or updated_before or cursor:
                raise Usage("--status goes with --where and --limit only.")
            found, following = threads.search(wanted, status=status, limit=limit), ""  # type: ignore[arg-type]
        else:
            found, following = threads.page(
                wanted,
                prefix=prefix,
                updated_after=None if updated_after is None else moment("--updated-after", updated_after),
                updated_before=None if updated_before is None else moment("--updated-before", updated_before),
                limit=limit,
                cursor=cursor,
            )
    told = [each.as_dict() for each in found]
    if at.as_json:
        show_json({"threads": told, "next_cursor": following or None})
        return
    rows = [
        (
            each["thread_id"],
            each["status"],
            age(each["updated_at"]),
            each["checkpoints"],
            _size(each["size_bytes"]),
            each["expires_at"],
            _kept(each["metadata"]),
        )
        for each in told
    ]
    columns = ("THREAD", "STATUS", "ACTIVE", "CHECKPOINTS", "SIZE", "EXPIRES", "METADATA")
    table(at, columns, rows, empty="There are no such threads.")
    if following:
        note(f"There are more: --cursor {following}")


@command(group, "get")
def get(at: Setup, thread_id: Id) -> None:
    """One thread: its size, its last activity, what it waits for. No value of it is read."""
    with _threads(at) as threads:
        found = threads.get(thread_id).as_dict()
    if at.as_json:
        show_json(found)
        return
    block(
        at,
        [
            ("Thread", found["thread_id"]),
            ("Status", found["status"]),
            ("Checkpoints", found["checkpoints"]),
            ("Size", _size(found["size_bytes"])),
            ("Created", found["created_at"]),
            ("Active", found["updated_at"]),
            ("Expires", found["expires_at"]),
            ("Checkpoint", found["checkpoint_id"]),
            ("Metadata", found["metadata"]),
        ],
    )


@command(group, "delete")
def delete(
    at: Setup,
    thread_ids: Annotated[list[str], typer.Argument(metavar="THREAD…", help="The threads' ids.")],
    yes: Yes = False,
) -> None:
    """Delete threads with all their checkpoints."""
    if not yes:
        if at.as_json:
            raise Usage("deleting with --json needs --yes, since nobody can be asked.")
        typer.confirm(f"Delete {len(thread_ids)} thread(s) with all checkpoints?", abort=True, err=True)
    with _threads(at) as threads:
        gone = [each for each in thread_ids if threads.delete(each)]
    missing = [each for each in thread_ids if each not in gone]
    if at.as_json:
        show_json({"deleted": gone, "not_found": missing})
    else:
        for each in missing:
            note(f"There was no thread {each}.")
        say(f"{len(gone)} deleted.")
    if missing and not gone:
        raise typer.Exit(3)


@command(group, "expire")
def expire(
    at: Setup,
    thread_id: Annotated[
        str | None, typer.Option("--thread", help="Set when this one expires, and delete none.")
    ] = None,
    ttl: Annotated[str | None, typer.Option(help="With --thread: from now on it lives this long, such as 30d.")] = None,
    never: Annotated[bool, typer.Option("--never", help="With --thread: it lives for ever.")] = False,
) -> None:
    """Delete the threads whose time is over, each whole; or say when one expires."""
    if (thread_id is None) != (ttl is None and not never) or (ttl is not None and never):
        raise Usage("give --thread with either --ttl or --never, or none of them to delete what has expired.")
    with _threads(at) as threads:
        if thread_id is None:
            gone = threads.expire()
            told: dict[str, Any] = {"deleted": gone}
            line = f"{gone} deleted."
        else:
            threads.set_ttl(thread_id, None if ttl is None else span("--ttl", ttl))
            told = threads.get(thread_id).as_dict()
            line = f"{thread_id} expires {told['expires_at'] or 'never'}."
    if at.as_json:
        show_json(told)
    else:
        say(line)


def _wanted(given: list[str] | None) -> dict[str, Any]:
    import json

    wanted: dict[str, Any] = {}
    for name, text in pairs("--where", given or ()).items():
        try:
            wanted[name] = json.loads(text)
        except ValueError:
            wanted[name] = text
    return wanted


def _kept(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """What people look for; the rest is in `get`."""
    return {name: value for name, value in metadata.items() if name not in ("parents", "counters_since_delta_snapshot")}


def _size(number: int) -> str:
    size = float(number)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
