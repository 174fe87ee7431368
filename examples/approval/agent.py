"""An agent that asks before it deploys: python agent.py STORE"""

from __future__ import annotations

import sys

from stepfast import Stepfast


def build(version: str) -> str:
    print(f"building {version}", flush=True)
    return f"app-{version}.tar.gz"


def deploy(package: str) -> str:
    print(f"deploying {package}", flush=True)
    return f"https://app.example/{package}"


def main(store: str) -> int:
    with Stepfast(store) as sf, sf.run("release-1.4") as run:
        package = run.step(build, "1.4")
        print("waiting for a person", flush=True)
        answer = run.ask(f"Deploy {package} to production?", evidence={"package": package, "tests": "passed"})
        if answer:
            run.complete(run.once(deploy, package))
        else:
            run.complete(f"not deployed: {answer.comment}")
        print(f"{answer.outcome} by {answer.actor}: {run.result}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///approval.db"))
