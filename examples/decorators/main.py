"""@durable, @step and @once: an order that survives its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from decimal import Decimal

from stepfast import durable, once, step

PRICES = {"tea": Decimal("4.20"), "cake": Decimal("3.60")}


@step
def price(item: str) -> Decimal:
    print(f"  price of {item}", flush=True)
    return PRICES[item]


@step(retry=3)
def reserve(item: str) -> str:
    print(f"  reserve {item}", flush=True)
    return f"{item}-reserved"


@once
def send_invoice(customer: str, total: Decimal) -> str:
    print(f"  invoice over {total} to {customer}", flush=True)
    return f"invoice-{customer}"


@durable(run_id="order-{customer}")
def order(customer: str, items: list[str]) -> dict[str, str]:
    total = sum((price(item) for item in items), Decimal(0))
    if "die" in sys.argv:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    for item in items:
        reserve(item)
    return {"invoice": send_invoice(customer, total), "total": str(total)}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-decorators-") as folder:
        environment = {**os.environ, "STEPFAST_URL": f"sqlite:///{folder}/orders.db"}
        heard = []
        for title, flags in (("first life, killed", ["die"]), ("second life", []), ("asked once more", [])):
            command = [sys.executable, __file__, "order", *flags]
            life = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            print(f"{title}:\n{life.stdout}", end="")
            heard.append(life.stdout)
        first, second, third = heard
        good = first.count("price") == 2 and "price" not in second and second.count("invoice over") == 1
        return 0 if good and third.splitlines() == second.splitlines()[-1:] else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(order("ada", ["tea", "cake"]), flush=True)
    else:
        sys.exit(main())
