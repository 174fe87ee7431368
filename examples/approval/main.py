"""The whole story in one go: ask, die while waiting, be answered meanwhile, come back, deploy."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-approval-") as folder:
        store = f"sqlite:///{folder}/approval.db"
        agent = [sys.executable, str(HERE / "agent.py"), store]
        person = [sys.executable, str(HERE / "person.py"), store]

        print("--- the agent starts, asks, and is killed while it waits")
        with subprocess.Popen(agent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            for line in first.stdout:
                print(line, end="")
                if line.startswith("waiting"):
                    break
            assert first.stderr is not None
            print(first.stderr.readline(), end="")  # Stepfast's own log line: the question is in the store
            first.kill()

        print("--- the person answers while no agent is running")
        listed = subprocess.run([*person, "list"], capture_output=True, text=True, check=True).stdout
        print(listed, end="")
        answered = subprocess.run([*person, "approve", "looks good"], capture_output=True, text=True, check=True)
        print(answered.stdout, end="")

        print("--- the agent is started again")
        second = subprocess.run(agent, capture_output=True, text=True, check=True).stdout
        print(second, end="")

        asked = "Deploy app-1.4.tar.gz" in listed
        return 0 if asked and "building" not in second and second.count("deploying") == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
