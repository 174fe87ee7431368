"""The benchmarks: ``python -m tests.bench.run [--quick] [--only NAME] [--json FILE] [--markdown [FILE]]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench import places, report
from tests.bench.agents import AGENT_SECTIONS
from tests.bench.crews import CREW_SECTIONS
from tests.bench.peers import SETTINGS, dbos_version
from tests.bench.places import Medium, StoreName
from tests.bench.remote import REMOTE_SECTIONS
from tests.bench.savers import SAVER_SECTIONS
from tests.bench.sections import CORE_SECTIONS, FULL, QUICK, SMOKE, Figure, Scale, Workshop
from tests.bench.targets import judge
from tests.bench.teams import TEAM_SECTIONS

STORES: tuple[StoreName, ...] = ("SQLite", "PostgreSQL")
DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"
# The second look, in memory, shows the software's own cost; what it cannot show is left out there.
_ON_DISK_ONLY = ("ceilings", "handover", "listeners", "blocked", *SAVER_SECTIONS, "agent_kills", "agent_resume")
_ON_DISK_ONLY += ("crew_stored", "crew_kills", "team_replay")
_WITH_DBOS = ("lone", "many", "reopen", "remote", "agent_turn", "agent_kills")
SECTIONS = {**CORE_SECTIONS, **REMOTE_SECTIONS, **SAVER_SECTIONS, **AGENT_SECTIONS, **CREW_SECTIONS, **TEAM_SECTIONS}


class Progress:
    """One line that says what is being done; a line per section where nobody looks on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()
        self.where = ""

    def section(self, where: str) -> None:
        self.where = where
        if not self._live:
            print(f"[{self.seconds()} s] {where}", file=sys.stderr, flush=True)

    def tell(self, what: str) -> None:
        if self._live:
            print(f"\r\x1b[K[{self.seconds()} s] {self.where}: {what}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def seconds(self) -> int:
        return int(time.monotonic() - self._began)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.run", description="Measure Stepfast side by side.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        nargs="?",
        const=DOCUMENT,
        help="write the tables between the markers of FILE (docs/benchmarks.md)",
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: show what --json wrote before")
    parser.add_argument("--quick", action="store_true", help="a look in about a minute; no figures to quote")
    parser.add_argument("--smoke", action="store_true", help="only whether it runs at all")
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--store", action="append", choices=STORES, help="leave the other store out")
    parser.add_argument("--medium", action="append", choices=("disk", "tmpfs"), help="leave the other medium out")
    parser.add_argument("--no-dbos", action="store_true", help="leave DBOS out")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to be measured")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args(arguments)


def open_media(chosen: argparse.Namespace) -> list[Medium]:
    media = []
    if chosen.medium is None or "disk" in chosen.medium:
        media.append(Medium("disk", chosen.folder / "stepfast-bench" if chosen.folder else places.folder_on_disk()))
        media[0].folder.mkdir(parents=True, exist_ok=True)
    in_memory = places.folder_in_memory() if chosen.medium is None or "tmpfs" in chosen.medium else None
    if in_memory is not None:
        media.append(Medium("tmpfs", in_memory))
    return media


def measure(
    chosen: argparse.Namespace, scale: Scale, media: list[Medium], dbos: bool, progress: Progress
) -> list[Figure]:
    figures: list[Figure] = []
    for name, section in SECTIONS.items():
        if chosen.only and name not in chosen.only:
            continue
        for medium in media:
            if medium.name == "tmpfs" and name in _ON_DISK_ONLY:
                continue
            for store in chosen.store or STORES:
                progress.section(f"{name} · {store} on {medium.name}")
                peer = medium.dbos(store) if dbos and name in _WITH_DBOS else None
                with Workshop(medium.place(store), scale, peer, progress.tell) as shop:
                    figures += section(shop)
    return figures


def carry_out(chosen: argparse.Namespace) -> report.Document:
    version = None if chosen.no_dbos else dbos_version()
    scale = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    progress = Progress()
    media = open_media(chosen)
    facts = {"scale": scale.name, **places.machine(), "load at the start": places.load()}
    try:
        for medium in media:
            cost = places.flush_cost(medium.folder) * 1e6
            facts[medium.name] = f"{places.filesystem_of(medium.folder)}, 4 KiB and fsync {cost:.0f} µs at the start"
        figures = measure(chosen, scale, media, version is not None, progress)
        for medium in media:
            facts[medium.name] += f", {places.flush_cost(medium.folder) * 1e6:.0f} µs at the end"
            if medium.server_facts:
                settings = ", ".join(f"{k} {v}" for k, v in medium.server_facts.items() if k != "server_version")
                facts["postgresql"] = f"{medium.server_facts['server_version']}; {settings}"
    finally:
        progress.close()
        for medium in media:
            medium.close()
    facts["load at the end"] = places.load()
    facts["took"] = f"{progress.seconds()} s"
    facts["durability"] = "SQLite WAL with synchronous=FULL and PostgreSQL with fsync, for every contender"
    facts["dbos"] = "left out" if version is None else f"{version}; {SETTINGS}"
    return report.Document(facts, scale, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    document = report.from_json(chosen.show.read_text("utf-8")) if chosen.show else carry_out(chosen)
    verdicts = judge(document.figures, document.scale)
    if chosen.only or chosen.store or chosen.medium:
        verdicts = [v for v in verdicts if (v.value, v.on_tmpfs) != (None, None)]
    print(report.as_text(document, verdicts), end="")
    if chosen.json:
        chosen.json.write_text(report.as_json(document, verdicts), "utf-8")
    if chosen.markdown:
        report.put_between_markers(chosen.markdown, report.as_markdown(document, verdicts))
    return 1 if chosen.strict and any(v.met is False for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
