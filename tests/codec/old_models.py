"""Models of pydantic 1, as old code has them; imported only where pydantic.v1 works."""

from typing import Any, ClassVar

from pydantic.v1 import BaseModel, PrivateAttr


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    __init_calls__: ClassVar[int] = 0

    id: int
    lines: list[Line] = []
    _seen: Any = PrivateAttr(default=None)

    class Config:
        extra = "allow"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        Order.__init_calls__ += 1
