"""Plain runs for the crash matrix: steps, one-shots, an approval, work side by side."""

from __future__ import annotations

import asyncio
from typing import Any

from stepfast import AsyncStepfast, Stepfast
from stepfast.testing import Stage, scene


def model(stage: Stage, name: str, *request: Any) -> str:
    with stage.model(name, request) as receipt:
        return receipt


@scene(once=["charge", "mail"])
def order(stage: Stage) -> Any:
    with Stepfast(stage.url) as sf, sf.run(stage.run_id, on_wait="suspend", max_delivery_attempts=20) as run:
        plan = run.options(kind="model", name="plan", inputs=()).step(model, stage, "plan")
        charged = run.options(name="charge", inputs=()).once(stage.effect, "charge")
        approved = bool(run.ask("Ship it?"))
        shipped = run.options(name="ship", inputs=()).step(stage.effect, "ship")
        run.options(kind="model", name="sum", inputs=()).step(model, stage, "sum", plan, charged, shipped)
        mailed = run.options(name="mail", inputs=()).once(stage.effect, "mail")
        done = [charged, approved, shipped, mailed]
        run.complete(done)
        return done


@scene(once=["charge"], at_once=3)
def side_by_side(stage: Stage) -> Any:
    async def effect(name: str) -> str:
        await asyncio.sleep(0)
        return stage.effect(name)

    async def main() -> Any:
        async with (
            AsyncStepfast(stage.url) as sf,
            sf.run(stage.run_id, on_wait="suspend", max_delivery_attempts=20) as run,
        ):
            done = await asyncio.gather(
                *(run.options(key=name, name=name, inputs=()).step(effect, name) for name in ("left", "right")),
                run.options(name="charge", inputs=()).once(effect, "charge"),
            )
            run.complete(done)
            return done

    return asyncio.run(main())
