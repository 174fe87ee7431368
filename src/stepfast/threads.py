"""The operations on threads, for adapters: what a framework's checkpointer is built with.

Each is executed by a store, alone or in a batch that is one durable transaction:

    store.execute([threads.PutThread(...)], tenant=store.tenant)
"""

from __future__ import annotations

from stepfast.ops.base import Op
from stepfast.ops.records import DeleteRecord, DeleteRecords, GetRecord, ListRecords, PutRecord, RecentRecords, Record
from stepfast.ops.threads import (
    Checkpoint,
    CopyThread,
    CountThreads,
    DeleteThread,
    DropCheckpoints,
    ExpireThreads,
    FindRuns,
    Item,
    ListCheckpoints,
    ListThreads,
    NewCheckpoint,
    Page,
    PagePiece,
    Piece,
    Put,
    PutThread,
    ReadPath,
    ReadPieces,
    ReadThread,
    RunRow,
    SetThreadTtl,
    Span,
    ThreadInfo,
    ThreadPage,
    View,
    Write,
    Writes,
)

__all__ = [
    "Checkpoint",
    "CopyThread",
    "CountThreads",
    "DeleteRecord",
    "DeleteRecords",
    "DeleteThread",
    "DropCheckpoints",
    "ExpireThreads",
    "FindRuns",
    "GetRecord",
    "Item",
    "ListCheckpoints",
    "ListRecords",
    "ListThreads",
    "NewCheckpoint",
    "Op",
    "Page",
    "PagePiece",
    "Piece",
    "Put",
    "PutRecord",
    "PutThread",
    "ReadPath",
    "ReadPieces",
    "ReadThread",
    "RecentRecords",
    "Record",
    "RunRow",
    "SetThreadTtl",
    "Span",
    "ThreadInfo",
    "ThreadPage",
    "View",
    "Write",
    "Writes",
]
