"""`calls`: what a node, a tool or a task of a graph does at most once, with the three methods that a run has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from stepfast import Retry
from stepfast.adapters import StoreLike
from stepfast.steps import OnDrift, OnInDoubt, StepOptions, step_options

from ._calls import Call, perform

P = ParamSpec("P")
T = TypeVar("T")


class NodeCalls:
    """Calls that are journaled by the task they are made in: ``calls.step``, ``calls.once``, ``calls.options``.

    All arguments belong to the function. With a coroutine function the result is awaited.
    """

    def __init__(self, chosen: StepOptions | None = None, store: StoreLike = None, asks: bool = False) -> None:
        self._chosen = chosen or step_options()
        self._store = store
        self._asks = asks  # on_in_doubt was given

    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function``; when the node is run again, a finished call returns its recorded result."""
        chosen = self._chosen.for_step()
        options = {"retry": chosen.retry, "record_errors": chosen.record_errors, "on_drift": chosen.on_drift}
        return self._perform(function, args, kwargs, False, options)  # type: ignore[no-any-return]

    def once(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` at most once. If it started and was never confirmed, the graph is interrupted and asks.

        Answer with ``Command(resume={interrupt.id: "done" | "retry" | "fail"})``, or by ``stepfast tasks``.
        """
        chosen = self._chosen.for_once()
        options = {"retry_on": chosen.retry_on, "on_drift": chosen.on_drift}
        return self._perform(function, args, kwargs, True, options)  # type: ignore[no-any-return]

    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        inputs: Any = None,
        retry: Retry | int | None = None,
        record_errors: bool | tuple[type[Exception], ...] = False,
        on_drift: OnDrift | None = None,
        on_in_doubt: OnInDoubt | None = None,
        retry_on: tuple[type[Exception], ...] = (),
        store: StoreLike = None,
    ) -> NodeCalls:
        """Return calls with these options: ``calls.options(key="k1").once(charge, order)``.

        Calls are told apart by name and order; ``key`` names one yourself. ``name`` is shown instead of the function's,
        ``inputs`` stands for the arguments. For ``step``: ``retry``, ``record_errors``. For ``once``: ``on_in_doubt``
        (*ask*, *retry*, *fail* or a probe; by default what ``durable`` was given, else *ask*) and ``retry_on``, errors
        that say nothing happened. The journal is on ``store``, the graph's StepfastSaver, or the default store.
        """
        chosen = step_options(
            key=key,
            name=name,
            inputs=inputs,
            retry=retry,
            record_errors=record_errors,
            on_drift=on_drift,
            on_in_doubt="ask" if on_in_doubt is None else on_in_doubt,
            retry_on=retry_on,
        )
        return NodeCalls(chosen, store, on_in_doubt is not None)

    def _perform(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], once: bool, options: dict[str, Any]
    ) -> Any:
        chosen = self._chosen
        policy = chosen.on_in_doubt if self._asks else None
        name = chosen.name or _name_of(function)
        call = Call(function, args, kwargs, once, name, chosen.key, chosen.inputs, policy, self._store, options)
        return perform(call)


calls = NodeCalls()


def _name_of(function: Any) -> str:
    while hasattr(function, "func") and hasattr(function, "keywords"):  # a partial
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)
