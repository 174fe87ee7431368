"""Reading a scenario bundle: from the JSON people write to a plan for the engine, or to what is wrong with it."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import msgspec

from stepfast.addresses import same_agent
from stepfast.server.human_tasks import check_task

Kind = Literal["agent", "human", "delay", "timeout", "notification", "reminder", "escalation"]

END = "end"  # as ``on_success``: the scenario is complete after this step
LONGEST = 10 * 365 * 86_400.0  # seconds; longer waits are mistakes, and overflow a clock

_RUNTIME: dict[str, Kind] = {
    "human_approval": "human",
    "delay": "delay",
    "timeout": "timeout",
    "notification": "notification",
    "reminder": "reminder",
    "escalation": "escalation",
}
_TOOLS: dict[str, Kind] = {
    "tool.agent.task": "agent",
    "tool.approval.human_signoff": "human",
    "tool.notification.notify_owner": "notification",
    "tool.internal.notification": "notification",
    "tool.internal.delay": "delay",
    "tool.internal.reminder": "reminder",
    "tool.internal.escalation": "escalation",
}
_ADDRESS = re.compile(r"(agent://)?[A-Za-z0-9._~@+-]{1,128}(/[A-Za-z0-9._~@+-]{1,128}){0,2}")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_TOP = frozenset({"scenario_id", "title", "description", "idempotency_key", "agents", "humans", "workflow", "intent"})
_OLD_TOP = ("scenario", "timeouts")
_OLD_STEP = ("intent_type", "to_agent", "requires_human_approval")
_OLD_AGENT = ("agent_uri", "capabilities")


class Reminders(msgspec.Struct, frozen=True, kw_only=True):
    """When a person is reminded, in seconds from the start of the wait, and who is told after the last time."""

    after: float | None = None
    interval: float | None = None
    limit: int = 1
    escalate_to: str | None = None

    @property
    def pause(self) -> float:
        return self.interval or self.after or 0.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``task`` is what a person is asked: in the step itself, or (``gated``) before the agent's work."""

    step_id: str
    kind: Kind
    address: str | None = None
    assignee: str | None = None
    task: dict[str, Any] | None = None
    gated: bool = False
    input: Any = None
    config: dict[str, Any] = {}
    seconds: float = 0.0
    deadline: float | None = None
    on_success: str = END
    on_failure: str | None = None
    retries: int = 0
    retry_delay: float = 30.0
    reminders: Reminders = Reminders()


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    address: str
    display_name: str | None = None
    create_if_missing: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that makes sense. ``direct``: its only step is the intent itself, delivered to the agent."""

    scenario_id: str
    title: str | None
    entry: str
    steps: list[Step]
    agents: list[Agent]
    intent_type: str
    payload: dict[str, Any]
    deadline_at: str | None = None
    ttl_seconds: float | None = None
    max_delivery_attempts: int | None = None
    direct: bool = False

    def step(self, step_id: str) -> Step:
        return next(step for step in self.steps if step.step_id == step_id)


class Reading(msgspec.Struct, frozen=True):
    plan: Plan | None
    errors: list[str]
    warnings: list[str]


def read_bundle(bundle: Any) -> Reading:
    """The plan of a bundle; None where there are errors."""
    reader = _Reader()
    plan = reader.bundle(bundle)
    return Reading(None if reader.errors else plan, reader.errors, reader.warnings)


class _Reader:
    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.agents: dict[str, Agent] = {}
        self.humans: dict[str, dict[str, Any]] = {}

    # --- single values ---------------------------------------------------------------------------

    def text(
        self, where: str, holder: dict[str, Any], name: str, *, needed: bool = False, most: int = 512
    ) -> str | None:
        value = holder.get(name)
        if value is None:
            if needed:
                self.errors.append(f"{where}{name}: is missing")
            return None
        if not isinstance(value, str) or not value.strip():
            self.errors.append(f"{where}{name}: must be a text that is not empty")
            return None
        if len(value) > most or "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            self.errors.append(f"{where}{name}: must have at most {most} characters, none of them NUL or half a pair")
            return None
        return value

    def seconds(self, where: str, holder: dict[str, Any], name: str) -> float | None:
        value = holder.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
            self.errors.append(f"{where}{name}: must be a number of seconds from 0 to {int(LONGEST)}")
            return None
        return float(value) if math.isfinite(value) else None

    def count(self, where: str, holder: dict[str, Any], name: str, least: int, most: int) -> int | None:
        value = holder.get(name)
        if value is None:
            return None
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not least <= value <= most:
            self.errors.append(f"{where}{name}: must be a whole number from {least} to {most}")
            return None
        return int(value)

    def table(self, where: str, holder: dict[str, Any], name: str) -> dict[str, Any]:
        value = holder.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.errors.append(f"{where}{name}: must be an object")
            return {}
        return value

    def rows(self, where: str, holder: dict[str, Any], name: str, most: int) -> list[dict[str, Any]]:
        value = holder.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            self.errors.append(f"{where}{name}: must be a list of objects")
            return []
        if len(value) > most:
            self.errors.append(f"{where}{name}: has {len(value)} entries; {most} is the most")
            return []
        return value

    # --- the bundle ------------------------------------------------------------------------------

    def bundle(self, bundle: Any) -> Plan | None:
        if not isinstance(bundle, dict):
            self.errors.append("bundle: must be an object")
            return None
        if self._is_old(bundle):
            self.errors.append(
                "bundle: this is the old dialect (scenario, agent_uri, steps with intent_type and to_agent), which "
                "holds no intent to start. Write scenario_id, agents with role and address, workflow.steps with "
                "step_id and assigned_to, and intent with type and payload."
            )
            return None
        scenario_id = self.text("", bundle, "scenario_id", needed=True, most=255)
        title = self.text("", bundle, "title", most=255)
        self.warnings += [f"{name}: is not known and was ignored" for name in sorted(set(map(str, bundle)) - _TOP)]
        self._people(bundle)
        intent = self.table("", bundle, "intent")
        if not intent:
            self.errors.append("intent: is missing; it needs at least a type")
        intent_type = self.text("intent.", intent, "type", needed=bool(intent), most=255)
        if intent_type is not None and not _TYPE.fullmatch(intent_type):
            self.errors.append("intent.type: must be letters, digits and _.:/- such as intent.report.write.v1")
        payload = self.table("intent.", intent, "payload")
        steps, entry = self._steps(bundle, intent)
        if not steps and not self.errors:
            self.errors.append(
                "workflow.steps: there is no step, no agent and no human_task, so nobody would do anything"
            )
        if self.errors or not steps:
            return None
        single = steps[0]
        direct = (
            len(steps) == 1
            and single.kind == "agent"
            and not (single.gated or single.retries or single.on_failure or single.input is not None)
        )
        plan = Plan(
            scenario_id=scenario_id or "",
            title=title,
            entry=entry,
            steps=steps,
            agents=list(self.agents.values()),
            intent_type=intent_type or "",
            payload=payload,
            deadline_at=self.text("intent.", intent, "deadline_at", most=64),
            ttl_seconds=self.seconds("intent.", intent, "ttl_seconds"),
            max_delivery_attempts=self.count("intent.", intent, "max_delivery_attempts", 1, 1000),
            direct=direct,
        )
        if plan.deadline_at is not None and plan.ttl_seconds is not None:
            self.errors.append("intent.deadline_at, intent.ttl_seconds: give one of them, not both")
        if plan.ttl_seconds == 0:
            self.errors.append("intent.ttl_seconds: must be more than 0")
        return plan

    def _is_old(self, bundle: dict[str, Any]) -> bool:
        if "scenario_id" in bundle and "intent" in bundle:
            return False
        agents, workflow = bundle.get("agents"), bundle.get("workflow")
        steps = workflow.get("steps") if isinstance(workflow, dict) else None
        old_rows = [*_having(agents, _OLD_AGENT), *_having(steps, _OLD_STEP)]
        return bool(old_rows) or any(name in bundle for name in _OLD_TOP)

    def _people(self, bundle: dict[str, Any]) -> None:
        for number, row in enumerate(self.rows("", bundle, "agents", 200)):
            where = f"agents[{number}]."
            role, address = self.text(where, row, "role", needed=True), self.text(where, row, "address", needed=True)
            if role is None or address is None:
                continue
            if not _ADDRESS.fullmatch(address):
                self.errors.append(f"{where}address: must be an address such as agent://org/workspace/name or a name")
            if role in self.agents:
                self.errors.append(f"{where}role: {role!r} is there twice")
            display = self.text(where, row, "display_name")
            create = row.get("create_if_missing")
            if row.get("delivery_mode") not in (None, "stream", "poll", "inbox", "internal"):
                self.warnings.append(f"{where}delivery_mode: this server delivers over streams only")
            self.agents[role] = Agent(
                role=role, address=address, display_name=display, create_if_missing=create is not False
            )
        for number, row in enumerate(self.rows("", bundle, "humans", 200)):
            where = f"humans[{number}]."
            role = self.text(where, row, "role", needed=True)
            if role is not None:
                self.humans[role] = {
                    "role": role,
                    "contact": self.text(where, row, "contact"),
                    "display_name": self.text(where, row, "display_name"),
                }

    # --- steps -----------------------------------------------------------------------------------

    def _steps(self, bundle: dict[str, Any], intent: dict[str, Any]) -> tuple[list[Step], str]:
        workflow = self.table("", bundle, "workflow")
        rows = self.rows("workflow.", workflow, "steps", 500)
        if not rows:
            if workflow.get("macro_id") is not None:
                self.errors.append("workflow.macro_id: macros are not known to this server; write out the steps")
            rows = self._implied(intent)
        ids = [row.get("step_id") for row in rows]
        steps = [self._step(f"workflow.steps[{n}].", row, ids, n, intent) for n, row in enumerate(rows)]
        twice = sorted({str(i) for i in ids if isinstance(i, str) and ids.count(i) > 1})
        self.errors += [f"workflow.steps: step_id {name!r} is there twice" for name in twice]
        entry = self.text("workflow.", workflow, "entry_step") or (ids[0] if ids else None)
        if entry is not None and entry not in ids:
            self.errors.append(f"workflow.entry_step: there is no step {entry!r}")
        found = [step for step in steps if step is not None]
        if entry is not None and not self.errors:
            self._check_reach(found, str(entry))
        return found, str(entry)

    def _implied(self, intent: dict[str, Any]) -> list[dict[str, Any]]:
        """A bundle without steps means its one agent, or the person of ``intent.human_task``."""
        if intent.get("human_task") is not None:
            return [{"step_id": "human_task", "runtime_type": "human_approval"}]
        if len(self.agents) > 1:
            self.errors.append("workflow.steps: there are several agents and no steps to say who does what")
        return [{"step_id": role, "assigned_to": role} for role in list(self.agents)[:1]]

    def _step(self, where: str, row: dict[str, Any], ids: list[Any], n: int, intent: dict[str, Any]) -> Step | None:
        step_id = self.text(where, row, "step_id", needed=True, most=128)
        if step_id == END:
            self.errors.append(f"{where}step_id: {END!r} is the word for the end of a scenario; take another name")
        assigned = self.text(where, row, "assigned_to")
        agent = self._agent(assigned)
        kind = self._kind(where, row, assigned, agent)
        if kind is None or step_id is None:
            return None
        if kind == "agent" and agent is None:
            known = ", ".join(self.agents) or "none"
            what = "is missing" if assigned is None else f"there is no agent with the role {assigned!r}"
            self.errors.append(f"{where}assigned_to: {what} (roles of agents: {known})")
            return None
        gated = kind == "agent" and (row.get("requires_approval") is True or row.get("human_task") is not None)
        config = self.table(where, row, "runtime_config")
        retry = self.table(where, row, "retry")
        follow = self._target(where, row, "on_success", ids)
        if follow is None:
            follow = ids[n + 1] if n + 1 < len(ids) else END
        step = Step(
            step_id=step_id,
            kind=kind,
            address=agent.address if agent is not None and kind == "agent" else None,
            assignee=assigned if kind != "agent" else None,
            task=self._task(where, row, intent, assigned) if kind == "human" or gated else None,
            gated=gated,
            input=row.get("input"),
            config=config,
            seconds=self._wait(where, row, config) if kind in ("delay", "timeout") else 0.0,
            deadline=self.seconds(where, row, "step_deadline_seconds") or None,
            on_success=str(follow),
            on_failure=self._target(where, row, "on_failure", ids),
            retries=self.count(f"{where}retry.", retry, "max_retries", 0, 1000) or 0,
            retry_delay=_or(self.seconds(f"{where}retry.", retry, "retry_delay_seconds"), 30.0),
            reminders=self._reminders(where, row, intent, config, waits=kind == "human" or gated),
        )
        if step.retries and kind != "agent":
            self.warnings.append(f"{where}retry: only agents' steps are tried again")
        return step

    def _agent(self, assigned: str | None) -> Agent | None:
        """By role, or as people also write, by address."""
        if assigned is None:
            return None
        if assigned in self.agents:
            return self.agents[assigned]
        if assigned in self.humans:
            return None
        return next((agent for agent in self.agents.values() if same_agent(agent.address, assigned)), None)

    def _kind(self, where: str, row: dict[str, Any], assigned: str | None, agent: Agent | None) -> Kind | None:
        runtime, tool = self.text(where, row, "runtime_type"), self.text(where, row, "tool_id")
        if runtime is not None:
            if runtime in _RUNTIME:
                return _RUNTIME[runtime]
            self.errors.append(f"{where}runtime_type: {runtime!r} is not one of {', '.join(_RUNTIME)}")
            return None
        if tool is not None:
            name = tool if tool in _TOOLS else tool.rpartition(".v")[0]
            if name in _TOOLS:
                return _TOOLS[name]
            if agent is not None:  # the agent knows what its tools are
                return "agent"
            self.errors.append(f"{where}tool_id: {tool!r} is not known here, and no agent is assigned to do it")
            return None
        if agent is not None:
            return "agent"
        if assigned in self.humans or row.get("human_task") is not None or row.get("requires_approval") is True:
            return "human"
        self.errors.append(f"{where}assigned_to: nobody is; name a role of agents or humans, or give a runtime_type")
        return None

    def _target(self, where: str, row: dict[str, Any], name: str, ids: list[Any]) -> str | None:
        target = self.text(where, row, name)
        if target is None or target in ids or (target == END and name == "on_success"):
            return target
        self.errors.append(f"{where}{name}: there is no step {target!r}")
        return None

    def _wait(self, where: str, row: dict[str, Any], config: dict[str, Any]) -> float:
        for holder, place in ((config, f"{where}runtime_config."), (_table(row.get("input")), f"{where}input.")):
            for name in ("delay_seconds", "duration_seconds", "timeout_seconds", "seconds"):
                if holder.get(name) is not None:
                    return _or(self.seconds(place, holder, name), 0.0)
        self.errors.append(f"{where}runtime_config.delay_seconds: is missing")
        return 0.0

    def _reminders(
        self, where: str, row: dict[str, Any], intent: dict[str, Any], config: dict[str, Any], *, waits: bool
    ) -> Reminders:
        """A step's own, else the intent's; a step that only escalates takes the name from its settings too."""
        place, holder = where, row
        if waits and row.get("remind_after_seconds") is None and intent.get("remind_after_seconds") is not None:
            place, holder = "intent.", {**intent, **{k: v for k, v in row.items() if k == "escalate_to" and v}}
        limit = self.count(place, holder, "max_reminders", 0, 1000)
        escalate = self.text(place, holder, "escalate_to")
        if escalate is None:
            escalate = self.text(f"{where}runtime_config.", config, "escalate_to")
        return Reminders(
            after=self.seconds(place, holder, "remind_after_seconds"),
            interval=self.seconds(place, holder, "remind_interval_seconds") or None,
            limit=1 if limit is None else limit,
            escalate_to=escalate,
        )

    def _task(self, where: str, row: dict[str, Any], intent: dict[str, Any], assigned: str | None) -> dict[str, Any]:
        place, holder = (where, row) if row.get("human_task") is not None else ("intent.", intent)
        task = self.table(place, holder, "human_task")
        self.errors += check_task(f"{place}human_task", task) if task else []
        human = self.humans.get(assigned or "", {})
        filled = dict(task)
        filled.setdefault("title", f"Approve step {row.get('step_id')}")
        filled.setdefault("task_type", "approval")
        if "assignees" not in filled and (human or assigned):
            filled["assignees"] = [human.get("contact") or human.get("role") or assigned]
        return filled

    def _check_reach(self, steps: list[Step], entry: str) -> None:
        by_id = {step.step_id: step for step in steps}
        reached: set[str] = set()
        on_path: set[str] = set()
        loops: set[str] = set()
        stack: list[tuple[str, bool]] = [(entry, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                on_path.discard(name)
            elif name in on_path:
                loops.add(name)
            elif name in by_id and name not in reached:
                reached.add(name)
                on_path.add(name)
                step = by_id[name]
                stack += [(name, True), (step.on_success, False)]
                stack += [(step.on_failure, False)] if step.on_failure else []
        self.warnings += [f"workflow.steps: no way leads to step {name!r}" for name in by_id if name not in reached]
        self.warnings += [f"workflow.steps: step {n!r} can come around again; a run is cut off" for n in sorted(loops)]


def _having(rows: Any, names: tuple[str, ...]) -> list[Any]:
    rows = rows if isinstance(rows, list) else []
    return [row for row in rows if isinstance(row, dict) and any(name in row for name in names)]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
