"""A one-shot step is killed after its effect and before its confirmation. Nothing is charged twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stepfast import DID_NOT_HAPPEN, Happened, Stepfast, Suspended, idempotency_key

RUN_ID = "order-1001"


class Bank:
    """Somebody else's system: a file of charges, one a line."""

    def __init__(self, folder: Path) -> None:
        self.books = folder / "bank.txt"

    def charge(self, order: str, cents: int, key: str) -> str:
        """A bank that knows the key would refuse a repeat. This one does not look at it."""
        with self.books.open("a") as file:
            file.write(f"{order}\t{cents}\t{key}\n")
            file.flush()
            os.fsync(file.fileno())
        return f"receipt-{order}"

    def charges(self) -> list[list[str]]:
        return [line.split("\t") for line in self.books.read_text().splitlines()] if self.books.exists() else []


def shop(folder: Path, *, die: bool, probe: bool) -> None:
    """The agent. With ``die`` it is killed at the worst moment: the money is gone, the receipt not written down."""
    bank = Bank(folder)

    def charge_card(order: str, cents: int) -> str:
        receipt = bank.charge(order, cents, idempotency_key())
        if die:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return receipt

    def look_it_up(order: str, cents: int) -> Any:
        """The probe: asks the bank by the key that is the same in every life."""
        known = any(row[2] == idempotency_key() for row in bank.charges())
        return Happened(f"receipt-{order}") if known else DID_NOT_HAPPEN

    with Stepfast(f"sqlite:///{folder}/shop.db") as sf, sf.run(RUN_ID, on_wait="suspend") as run:
        receipt = run.options(on_in_doubt=look_it_up if probe else "ask").once(charge_card, RUN_ID, 4200)
        run.complete({"receipt": receipt})
        print(f"paid: {receipt}", flush=True)


def start(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, "shop", str(folder), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main(*flags: str) -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-doubt-") as name:
        folder = Path(name)
        first = start(folder, "die", *flags)
        print(f"first life:  exit code {first.returncode}, charges at the bank: {len(Bank(folder).charges())}")

        second = start(folder, *flags)
        print(f"second life: {second.stdout.strip()}")
        if not flags:
            with Stepfast(f"sqlite:///{folder}/shop.db") as sf:
                (decision,) = sf.decisions(RUN_ID)
                print(f"in doubt:    {decision['question']}")
                print(f"evidence:    {decision['evidence']}")
                # The person looks at the books, finds the charge, and says so with its receipt.
                found = len(Bank(folder).charges()) == 1
                print(f"the person:  {'done' if found else 'retry'}")
                sf.answer(
                    RUN_ID,
                    "done" if found else "retry",
                    value=f"receipt-{RUN_ID}" if found else None,
                    actor="maria",
                    comment="found in the bank's books",
                )
            print(f"third life:  {start(folder).stdout.strip()}")

        with Stepfast(f"sqlite:///{folder}/shop.db") as sf:
            seen = sf.get_intent(RUN_ID)
        charges = len(Bank(folder).charges())
        print(f"the end:     {seen['status']} {seen['result']}, charges at the bank: {charges}")
        good = seen["status"] == "COMPLETED" and seen["result"] == {"receipt": f"receipt-{RUN_ID}"}
        return 0 if good and charges == 1 and first.returncode != 0 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["shop"]:
        try:
            shop(Path(sys.argv[2]), die="die" in sys.argv, probe="probe" in sys.argv)
        except Suspended as waiting:
            print(f"stopped, {waiting}")
    else:
        sys.exit(main(*sys.argv[1:]))
