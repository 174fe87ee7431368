"""A thread's rows in a dict, so that values can be written and read with no store."""

from __future__ import annotations

from typing import Any

from stepfast import Codec
from stepfast.threads import Piece, Span
from stepfast_langgraph._types import make_codec
from stepfast_langgraph._values import History, Lanes, Ref, Written


class Rows:
    """What a store would hold of one namespace, and the ways in and out of it."""

    def __init__(self, codec: Codec | None = None, home: str = "home") -> None:
        self.codec = codec or make_codec()
        self.home = home
        self.pieces: dict[tuple[str, int], Piece] = {}
        self.lanes = self.process()

    def process(self) -> Lanes:
        """A process that knows nothing of the thread yet."""
        tips: dict[str, int] = {}
        for piece in self.pieces.values():
            tips[piece.lane] = max(tips.get(piece.lane, 0), piece.n + piece.count)
        return Lanes(self.codec, "tenant", self.home, "", tips)

    def put(self, values: dict[str, Any], parent: dict[str, Ref] | None = None, lanes: Lanes | None = None) -> Written:
        lanes = lanes or self.lanes
        written = lanes.write(values, values.keys(), parent or {})
        for piece in written.pieces:
            tip = max((p.n + p.count for p in self.pieces.values() if p.lane == piece.lane), default=0)
            assert piece.n == tip, "a piece must follow the lane's last"
            self.pieces[piece.lane, piece.n] = piece
        lanes.accept(written)
        return written

    def covering(self, spans: list[Span]) -> list[Piece]:
        return [
            piece
            for piece in self.pieces.values()
            if any(s.lane == piece.lane and piece.n < s.end and s.start < piece.n + piece.count for s in spans)
        ]

    def get(self, written: Written, lanes: Lanes | None = None) -> dict[str, Any]:
        return (lanes or self.process()).read(written.refs, self.covering(written.spans))

    def history(self) -> History:
        history = History(self.codec, "tenant", self.home, "")
        history.add(self.pieces.values())
        return history

    @property
    def size(self) -> int:
        return sum(len(piece.data) for piece in self.pieces.values())
