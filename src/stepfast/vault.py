"""The values of a run as its rows hold them: bound to their place, sealed, in pieces when large."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from stepfast.bindings import of_checkpoint, of_value
from stepfast.clock import new_id
from stepfast.codec import Codec
from stepfast.errors import Damaged, InvalidInput, NotFound, RunFinished, StepfastError, Suspension
from stepfast.flow import Do, Flow, do
from stepfast.intents import Intent
from stepfast.journal import Step, seal_parts
from stepfast.ops import Checkpoint, Lease, Op, PutPiece, ReadCheckpoints, ReadPiece

INLINE_LIMIT = 64 * 1024
PIECE_SIZE = 1024 * 1024
_PIECES_IN_ONE_BATCH = 4


class Vault:
    """What a run knows of itself in order to read and write its values."""

    def __init__(self, intent: Intent, lease: Lease | None, codec: Codec, tenant: str) -> None:
        self.intent = intent
        self.lease = lease
        self.codec = codec
        self.tenant = tenant
        self.poison: BaseException | None = None
        self.waits: Suspension | None = None  # the run waits, and this process only reads what it recorded

    @property
    def name(self) -> str:
        return self.intent.run_id or self.intent.intent_id

    @property
    def journal_id(self) -> str:
        return self.intent.journal_id

    def bind(self, key: str, generation: int) -> bytes:
        return of_value(self.tenant, self.journal_id, key, generation)

    def idempotency_key(self, key: str) -> str:
        """Stable over attempts, for a receiver that can tell a repeat."""
        return f"{self.journal_id}/{key}"

    def pack(self, value: Any, bind: bytes) -> tuple[bytes, str | None, list[Op[Any]]]:
        """A value as a row holds it: itself if small, else a description of its pieces beside a blob id."""
        data = self.codec.encode(value, bind=bind)
        if len(data) <= INLINE_LIMIT:
            return data, None, []
        blob_id = new_id()
        pieces: list[Op[Any]] = [
            PutPiece(journal_id=self.journal_id, blob_id=blob_id, number=n, data=data[start : start + PIECE_SIZE])
            for n, start in enumerate(range(0, len(data), PIECE_SIZE))
        ]
        return msgspec.msgpack.encode((len(pieces), len(data), _digest(data))), blob_id, pieces

    def unpack(self, data: bytes, blob_id: str | None, bind: bytes) -> Flow[Any]:
        if blob_id is None:
            return self.codec.decode(data, bind=bind)
        try:
            count, size, digest = msgspec.msgpack.decode(data, type=tuple[int, int, bytes])
        except msgspec.DecodeError:
            raise Damaged(f"the description of the stored value {blob_id} is damaged.", blob_id=blob_id) from None
        whole = bytearray()
        for number in range(count):
            whole += yield from do(ReadPiece(journal_id=self.journal_id, blob_id=blob_id, number=number))
        if len(whole) != size:
            raise Damaged(f"the stored value {blob_id} has {len(whole)} of {size} bytes.", blob_id=blob_id)
        if _digest(whole) != digest:
            raise Damaged(f"the stored value {blob_id} is damaged: its checksum does not match.", blob_id=blob_id)
        return self.codec.decode(bytes(whole), bind=bind)

    def result_of(self, step: Step) -> Flow[Any]:
        """The result that a step has recorded; `Damaged` if its seal does not match."""
        self.check_seal(step)
        return (yield from self.unpack(step.result or b"", step.blob_id, self.bind(step.key, step.generation)))

    def write(self, pieces: list[Op[Any]], *last: Op[Any]) -> Flow[list[Any]]:
        """One commit; the many pieces of a very large value go ahead of it, a few at a time."""
        size = _PIECES_IN_ONE_BATCH
        while len(pieces) > size:
            yield Do(pieces[:size])
            pieces = pieces[size:]
        results: list[Any] = yield Do([*pieces, *last])
        return results[len(pieces) :]

    def hold(self) -> Lease:
        """The lease, or the reason why this run may not go on."""
        if self.poison is not None:
            raise self.poison
        if self.waits is not None:
            raise self.waits
        if self.lease is None:
            raise RunFinished(
                f"run {self.name} is {self.intent.status} and takes no new work. Use another run id for new work.",
                intent_id=self.intent.intent_id,
            )
        return self.lease

    def sealed(self, step: Step) -> Step:
        """The same step with its seal set; only ever done to a step that nobody else has seen yet."""
        msgspec.structs.force_setattr(step, "seal", self.codec.seal(*seal_parts(step)))
        return step

    def check_seal(self, step: Step) -> None:
        if not self.codec.verify_seal(step.seal, *seal_parts(step)):
            raise Damaged(
                f"the record of step {step.key} is damaged (its seal does not match). It is not used and the step is "
                "not run again. Restore the store, or rewind the step once you know what it did.",
                key=step.key,
                intent_id=self.intent.intent_id,
            )

    def show_preview(self, step: Step) -> str:
        preview = step.preview
        if self.codec.encrypts:
            try:
                preview = self.codec.decode(preview, bind=self.bind(step.key, step.generation))
            except StepfastError as error:
                return f"<{error.code}>"
        return bytes(preview).decode("utf-8", "replace")

    def open_checkpoint(self, row: Checkpoint) -> Flow[tuple[Any, dict[str, Any]]]:
        """The state and the description of a checkpoint, if it is whole; `Damaged` otherwise."""
        if not self.codec.verify_seal(row.seal, *checkpoint_parts(row)):
            raise Damaged(f"checkpoint {row.version} is damaged: its seal does not match.", version=row.version)
        bind = of_checkpoint(self.tenant, self.journal_id, row.version)
        state = yield from self.unpack(row.state, row.blob_id, bind)
        return state, self.codec.decode(row.meta, bind=bind)

    def restore(self, which: Any) -> Flow[Any]:
        """The state of one checkpoint: by version, by pin, or *current* or *previous*."""
        if not isinstance(which, int | str) or isinstance(which, bool):
            raise InvalidInput(f"which: must be 'current', 'previous', a pin or a version, not {which!r}.")
        places = {"current": 0, "previous": 1}
        if isinstance(which, int):
            found = yield from do(ReadCheckpoints(journal_id=self.journal_id, version=which))
        elif which in places:
            found = (yield from do(ReadCheckpoints(journal_id=self.journal_id, limit=2)))[places[which] :]
        else:
            found = yield from do(ReadCheckpoints(journal_id=self.journal_id, pin=which, limit=1))
        if not found:
            raise NotFound(f"run {self.name} has no checkpoint {which!r}.", intent_id=self.intent.intent_id)
        state, _ = yield from self.open_checkpoint(found[0])
        return state


def _digest(data: bytes | bytearray) -> bytes:
    """Ties the pieces to the row that names them, and so to the row's seal."""
    return blake2b(data, digest_size=16).digest()


def checkpoint_parts(row: Checkpoint) -> tuple[bytes, ...]:
    """What a checkpoint's seal covers: all but its pin, which may move."""
    head = f"{row.journal_id}\0{row.version}\0{row.blob_id}\0{row.attempt}\0{row.at}"
    return (head.encode(), row.state, row.meta)
