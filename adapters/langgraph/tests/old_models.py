"""Models of pydantic 1, as old code has them; imported only where pydantic.v1 works."""

from typing import Any

from pydantic.v1 import BaseModel, PrivateAttr


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    id: int
    lines: list[Line] = []
    _seen: Any = PrivateAttr(default=None)

    class Config:
        extra = "allow"
