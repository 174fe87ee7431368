"""The tables: plain text for a terminal, Markdown for the documentation, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tests.bench.sections import Figure, Scale
from tests.bench.targets import Bound, Verdict

BEGIN = "<!-- bench: begin (written by `make bench ARGS=--markdown`; do not edit by hand) -->"
END = "<!-- bench: end -->"

_TITLES = {
    "lone": "One run, one caller: time per step",
    "many": "Runs side by side, each opened and ended: time per step",
    "reopen": "Reopening a run: open it, and every call is answered from the journal",
    "map": "run.map with a function that does nothing",
    "claim": "Taking the next intent of an address (median of single claims)",
    "ceilings": "Ceilings: a very long run and a very large value",
    "remote": "Through a server: one run, one caller, time per step",
    "remote_many": "Through a server: runs side by side, each opened and ended, time per step",
    "handover": "kill -9 of a worker until another one runs its handler",
    "listeners": "Idle agents' streams on one server process",
    "blocked": "A handler that blocks its event loop",
    "chat": "LangGraph: a chat that grows by one 500-byte message a superstep, one invocation",
    "chat_bytes": "LangGraph: what that chat takes on the disk, for each thread",
    "chat_read": "LangGraph: get_state at the end of that chat",
    "chat_history": "LangGraph: the whole get_state_history of that chat",
    "small": "LangGraph: a superstep of a state that stays small",
    "agent_turn": "OpenAI Agents: a turn of a run with a model that takes no time",
    "agent_added": "OpenAI Agents: what durability adds to a call, from the turns above",
    "agent_kills": "OpenAI Agents: killed at each boundary and started again, what was done twice over all kills",
    "agent_resume": "OpenAI Agents: a long run resumed, beside the same run in the bare SDK",
    "crew": "CrewAI: a turn of a crew with an LLM that takes no time",
    "crew_added": "CrewAI: what durability adds to a call and to a run, from the runs above",
    "crew_stored": "CrewAI: what a run leaves on the disk",
    "crew_kills": "CrewAI: killed at each boundary and started again, what was done twice over all kills",
    "team": "AutoGen: a turn of a team with a model that takes no time",
    "team_added": "AutoGen: what durability adds to a call, from the turns above",
    "team_replay": "AutoGen: a long run that was interrupted goes on, beside the same run of a bare team",
    "pair": "LangGraph: put and put_writes alone, each caller on a thread of its own",
}
Row = list[str]


class Document(NamedTuple):
    """All that a run found out."""

    facts: dict[str, str]
    scale: Scale
    figures: list[Figure]


def as_json(document: Document, verdicts: Sequence[Verdict]) -> str:
    targets = [{**asdict(v), "limit": None if math.isinf(v.limit) else v.limit, "met": v.met} for v in verdicts]
    whole = {
        "machine": document.facts,
        "scale": asdict(document.scale),
        "targets": targets,
        "figures": [asdict(f) for f in document.figures],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str) -> Document:
    whole = json.loads(text)
    return Document(whole["machine"], Scale(**whole["scale"]), [Figure(**f) for f in whole["figures"]])


def as_text(document: Document, verdicts: Sequence[Verdict]) -> str:
    parts = ["\n".join(f"{name:<22} {value}" for name, value in document.facts.items())]
    parts += [f"{title}\n{_plain(rows)}" for title, rows in _tables(document.figures, verdicts)]
    return "\n\n".join([*parts, _sum(verdicts)]) + "\n"


def as_markdown(document: Document, verdicts: Sequence[Verdict]) -> str:
    lines = [f"- {name}: {value}" for name, value in document.facts.items()]
    for title, rows in _tables(document.figures, verdicts):
        head, *body = rows
        lines += ["", f"### {title}", "", _pipes(head), _pipes(["---"] * len(head)), *map(_pipes, body)]
    return "\n".join([*lines, "", _sum(verdicts)]) + "\n"


def put_between_markers(path: Path, markdown: str) -> None:
    """Replace what stands between the markers of a file; the rest of it stays as it is."""
    text = path.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{path}: must hold these two lines once, in this order:\n{BEGIN}\n{END}")
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{markdown}\n{END}{rest.partition(END)[2]}", "utf-8")


def _tables(figures: Sequence[Figure], verdicts: Sequence[Verdict]) -> list[tuple[str, list[Row]]]:
    tables = [("Targets, judged on disk", _target_rows(verdicts))]
    for section, title in _TITLES.items():
        mine = [f for f in figures if f.section == section]
        if mine:
            tables.append((title, _figure_rows(section, mine)))
    return tables


def _target_rows(verdicts: Sequence[Verdict]) -> list[Row]:
    rows: list[Row] = [["", "target", "wanted", "disk", "tmpfs", "unit", "remark"]]
    for verdict in verdicts:
        bound = "no ceiling" if math.isinf(verdict.limit) else f"{verdict.bound} {verdict.limit:,g}"
        rows.append(
            [
                verdict.word,
                verdict.target,
                bound,
                _number(verdict.value, verdict.bound),
                _number(verdict.on_tmpfs, verdict.bound),
                verdict.unit,
                verdict.remark,
            ]
        )
    return rows


def _figure_rows(section: str, figures: Sequence[Figure]) -> list[Row]:
    """Only the columns that this section has something for."""
    base = next((f.base for f in figures if f.base), "")
    columns: dict[str, Callable[[Figure], str]] = {
        "where": lambda f: f.medium,
        "store": lambda f: f.store,
        "what": lambda f: f.contender,
        "median": lambda f: _shown(f.value, f.unit),
        "rounds": lambda f: str(len(f.rounds)) if len(f.rounds) > 1 else "",
        "fastest": lambda f: _shown(min(f.rounds), f.unit) if len(f.rounds) > 1 else "",
        "slowest": lambda f: _shown(max(f.rounds), f.unit) if len(f.rounds) > 1 else "",
        "processor": lambda f: "" if f.processor is None else _shown(f.processor, "s"),
        "a second": lambda f: _number(1 / f.value) if section in ("many", "remote_many") else "",
        f"x {base}": lambda f: "" if f.ratio is None else f"{f.ratio:.2f}",
        "DBOS takes": lambda f: "" if f.dbos is None else f"{f.dbos:.1f} x",
        "note": lambda f: f.note,
    }
    cells = {head: [show(f) for f in figures] for head, show in columns.items()}
    kept = {head: column for head, column in cells.items() if any(column)}
    return [list(kept), *map(list, zip(*kept.values(), strict=True))]


def _sum(verdicts: Sequence[Verdict]) -> str:
    counts = [sum(v.met is wanted for v in verdicts) for wanted in (True, False, None)]
    return f"{counts[0]} targets met, {counts[1]} missed, {counts[2]} not measured."


def _shown(value: float, unit: str) -> str:
    if unit != "s":
        return f"{_number(value)} {unit}"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def _number(value: float | None, bound: Bound | None = None) -> str:
    """Rounded; with a bound, always to the side that is worse for us."""
    if value is None:
        return "-"
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    if bound is not None:
        shift = 10**digits
        value = (math.ceil if bound == "<=" else math.floor)(value * shift) / shift
    return f"{value:,.{digits}f}"


def _plain(rows: list[Row]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _pipes(row: Row) -> str:
    return "| " + " | ".join(row) + " |"
