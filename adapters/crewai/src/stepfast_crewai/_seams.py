"""The places in CrewAI that are replaced, once in a process; outside of a durable run they do what they did."""

from __future__ import annotations

from stepfast.adapters import Seam, install, within

from . import _callbacks, _memory, _methods, _models, _streams, _tasks, _tools
from ._place import here

VERSIONS = ("1.15.20", "1.16")


def seams() -> list[Seam]:
    """Return the seams; `install` refuses to begin where CrewAI does not have one of them."""
    llm, tool, structured = (
        "crewai.llms.base_llm:BaseLLM",
        "crewai.tools.base_tool:BaseTool",
        "crewai.tools.structured_tool:CrewStructuredTool",
    )
    task, agent, crew = "crewai.task:Task", "crewai.agent.core:Agent", "crewai.crew:Crew"
    flow = "crewai.flow.flow:Flow"
    artifacts = "crewai.utilities.tool_result_artifacts:ToolResultArtifactStore"
    deferring = [Seam(artifacts, "store", within(here, _tools.store_result))] if _tools.DEFERS else []
    streaming = "crewai.utilities.streaming"
    memory, knowledge = "crewai.memory.unified_memory:Memory", "crewai.knowledge.knowledge:Knowledge"
    return [
        *deferring,
        Seam(llm, "call", within(here, _models.call), subclasses=True),
        Seam(llm, "acall", within(here, _models.acall), subclasses=True),
        Seam(llm, "_track_token_usage_internal", within(_models.counting, _models.track), subclasses=True),
        Seam(tool, "run", within(here, _tools.run), subclasses=True),
        Seam(tool, "arun", within(here, _tools.arun), subclasses=True),
        Seam(structured, "invoke", within(here, _tools.invoke)),
        Seam(structured, "ainvoke", within(here, _tools.ainvoke)),
        Seam(task, "_execute_core", within(here, _tasks.execute_core), subclasses=True),
        Seam(task, "_aexecute_core", within(here, _tasks.aexecute_core), subclasses=True),
        Seam(task, "_execute_task_async", within(here, _tasks.execute_in_thread)),
        Seam(task, "_invoke_guardrail_function", within(here, _callbacks.guardrail)),
        Seam(task, "_ainvoke_guardrail_function", within(here, _callbacks.guardrail_async)),
        Seam(agent, "execute_task", within(here, _tasks.execute_task)),
        Seam(agent, "aexecute_task", within(here, _tasks.aexecute_task)),
        Seam(agent, "_handle_execution_error", within(here, _tasks.begin_again)),
        Seam(agent, "_handle_execution_error_async", within(here, _tasks.abegin_again)),
        Seam(crew, "kickoff", within(here, _tasks.kickoff)),
        Seam(crew, "akickoff", within(here, _tasks.akickoff)),
        Seam(flow, "kickoff_async", within(here, _methods.kickoff_async)),
        Seam(flow, "_execute_method", within(here, _methods.execute_method)),
        Seam(flow, "_request_human_feedback", within(here, _methods.request_feedback)),
        Seam(flow, "_collapse_to_outcome", within(here, _methods.collapse)),
        Seam(flow, "ask", within(here, _methods.ask)),
        Seam(streaming, "_create_stream_chunk", within(here, _streams.marked)),
        Seam(streaming, "stream_frame_from_event", within(here, _streams.marked)),
        Seam(memory, "recall", within(here, _memory.recall)),
        Seam(memory, "_submit_save", within(here, _memory.submit_save)),
        Seam(memory, "_encode_batch", within(here, _memory.encode_batch)),
        Seam(knowledge, "query", within(here, _memory.query)),
        Seam(knowledge, "aquery", within(here, _memory.aquery)),
    ]


def install_seams() -> None:
    install("crewai", VERSIONS, seams())
