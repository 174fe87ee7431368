"""A graph for workers in processes of their own: ``stepfast worker served_graph:agent``. The folder is in EFFECTS."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from adapters.langgraph.tests.durable_kit import World, chain
from stepfast_langgraph import durable

world = World(Path(os.environ["EFFECTS"]), "unused")
agent = durable(chain(world, None, "one", "two", "three", dies="two"))


def main() -> None:
    """Start or resume a run by name: ``python served_graph.py URL RUN``."""
    url, run_id = sys.argv[1:]
    made = durable(chain(world, None, "one", "two", "three", dies="two"), store=url)
    print(made.run({"log": ["in"]}, run_id)["log"])


if __name__ == "__main__":
    main()
