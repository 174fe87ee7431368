"""Four branches at once on an event loop, killed in the middle, started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from stepfast import AsyncRun, AsyncStepfast

TOPICS = ["wind", "solar", "tides", "heat"]
CALLS_BEFORE_DEATH = 9


class Model:
    """A scripted model that writes down each answer it gives, and may pull the plug."""

    def __init__(self, folder: Path, *, die: bool) -> None:
        self.book = folder / "calls.txt"
        self.die = die

    def calls(self) -> list[str]:
        return self.book.read_text().splitlines() if self.book.exists() else []

    async def ask(self, prompt: str) -> str:
        await asyncio.sleep(0.01 + len(prompt) % 3 / 100)
        if self.die and len(self.calls()) >= CALLS_BEFORE_DEATH:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        with self.book.open("a") as file:
            file.write(prompt + "\n")
        return prompt.upper()


async def research(run: AsyncRun, model: Model, topic: str) -> str:
    scope = run.scope(topic)  # opened inside the branch: its calls are told apart by their order
    facts = await scope.step(model.ask, f"facts about {topic}")
    doubts = await scope.step(model.ask, f"doubts about {topic}")
    return await scope.step(model.ask, f"{facts} but {doubts}")


async def agent(folder: Path, *, die: bool) -> None:
    model = Model(folder, die=die)
    async with AsyncStepfast(f"sqlite:///{folder}/fan.db") as sf, sf.run("report") as run:
        intro, outline = await asyncio.gather(run.step(model.ask, "an introduction"), run.step(model.ask, "an outline"))
        found = await asyncio.gather(*(research(run, model, topic) for topic in TOPICS))
        run.complete({"title": intro, "outline": outline, "chapters": found})


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-fan-") as name:
        folder = Path(name)
        book = Model(folder, die=False)
        first = subprocess.run([sys.executable, __file__, name, "die"], check=False)
        before = len(book.calls())
        print(f"first life:  exit code {first.returncode} after {before} model calls")
        subprocess.run([sys.executable, __file__, name], check=True)
        calls = Counter(book.calls())
        print(f"second life: {sum(calls.values()) - before} model calls")
        for prompt, count in sorted(calls.items()):
            print(f"  {count} x {prompt}")
        # A call that had been answered and not yet recorded may come twice; with one process at most one a branch.
        repeated = sum(calls.values()) - len(calls)
        print(f"answers asked for again: {repeated}")
        return 0 if len(calls) == 2 + 3 * len(TOPICS) and repeated <= len(TOPICS) and first.returncode else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(agent(Path(sys.argv[1]), die="die" in sys.argv))
    else:
        sys.exit(main())
