"""An agent as users of the axme SDK write it: the published SDK, unmodified, in a process of its own.

    python sdk_agent.py URL KEY ADDRESS MODE LOG

Each delivery and each answer is a line in LOG. MODE says what its handler does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from axme import AxmeClient, AxmeClientConfig  # type: ignore[import-untyped]


def main(url: str, key: str, address: str, mode: str, log: str) -> None:
    client = AxmeClient(AxmeClientConfig(base_url=url, api_key=key))
    with open(log, "a", buffering=1) as out:  # noqa: PTH123

        def note(what: str, **more: Any) -> None:
            out.write(json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more}) + "\n")

        note("listening")
        for delivery in client.listen(address, wait_seconds=2):
            intent_id = delivery["intent_id"]
            note("delivered", intent_id=intent_id, attempt=delivery["delivery_attempt"], status=delivery["status"])
            handle(client, client.get_intent(intent_id)["intent"], mode, note)


def handle(client: Any, intent: dict[str, Any], mode: str, note: Any) -> None:
    intent_id = intent["intent_id"]
    if mode == "hang":
        time.sleep(600)
    if mode == "forget":
        return
    if mode == "steps":  # keeps its place in the controls, and reads it from there
        done = intent["controls"].get("checkpoint", {}).get("done", 0)
        for step in range(done, 4):
            note("step", intent_id=intent_id, step=step)
            client.update_intent_controls(intent_id, {"controls_patch": {"checkpoint": {"done": step + 1}}})
            if step == 1 and done == 0:
                time.sleep(600)
    else:
        time.sleep(float(mode))
    client.resume_intent(intent_id, {"action": "complete", "echo": intent["payload"]})
    note("answered", intent_id=intent_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
