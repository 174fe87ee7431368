"""The places in AutoGen that are replaced, once in a process; outside of a durable run they do what they did."""

from __future__ import annotations

from importlib import metadata

from stepfast import InvalidInput
from stepfast.adapters import Seam, install, within

from . import _callbacks, _chats, _code, _models, _people, _tools
from ._place import here

VERSIONS = {"autogen": ("0.14", "0.15"), "ag2": ("0.14", "1"), "pyautogen": ("0.2.35", "0.3")}
"""The distributions that have a package called autogen, and the versions that the adapter was tested with."""

_HOOKS = {
    "process_last_received_message": "process_last_received_message",
    "process_all_messages_before_reply": "process_all_messages_before_reply",
    "_process_message_before_send": "process_message_before_send",
}
_HOOKS_OF_FORK = {
    "_process_tool_input": "safeguard_tool_inputs",
    "_process_tool_output": "safeguard_tool_outputs",
    "_process_llm_input": "safeguard_llm_inputs",
    "_process_llm_output": "safeguard_llm_outputs",
    "_process_human_input": "safeguard_human_inputs",
}


def distribution() -> str:
    """Return the name of the installed distribution that has the package."""
    for name in VERSIONS:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    raise InvalidInput(f"autogen: none of the distributions {', '.join(VERSIONS)} is installed.")


def seams(package: str) -> list[Seam]:
    """Return the seams of a distribution; `install` refuses to begin where AutoGen does not have one of them."""
    agent, group, client = (
        "autogen.agentchat.conversable_agent:ConversableAgent",
        "autogen.agentchat.groupchat:GroupChat",
        "autogen.oai.client:OpenAIWrapper",
    )
    fork = package != "pyautogen"
    hooks = _HOOKS | (_HOOKS_OF_FORK if fork else {})
    # Agents call each other in circles, so an agent's method may be called while it is under way.
    return [
        Seam(agent, "_generate_oai_reply_from_client", within(here, _models.generate, nested=True), subclasses=True),
        Seam(agent, "a_generate_oai_reply", within(here, _models.generate_in_thread, nested=True)),
        Seam(client, "create", within(_models.calling, _models.create)),
        Seam(client, "_update_usage", within(_models.counting.here, _models.update_usage)),
        Seam(agent, "execute_function", within(here, _tools.execute, nested=True), subclasses=True),
        Seam(agent, "a_execute_function", within(here, _tools.execute_async, nested=True), subclasses=True),
        Seam(agent, "execute_code_blocks", within(here, _code.execute_blocks, nested=True), subclasses=True),
        Seam(agent, "get_human_input", within(here, _people.human_input, nested=True), subclasses=True),
        Seam(agent, "a_get_human_input", within(here, _people.human_input_async, nested=True), subclasses=True),
        Seam(agent, "initiate_chat", within(here, _chats.initiate_chat, nested=True)),
        Seam(agent, "a_initiate_chat", within(here, _chats.initiate_chat_async, nested=True)),
        Seam(agent, "generate_reply", within(here, _callbacks.generate_reply, nested=True)),
        Seam(agent, "a_generate_reply", within(here, _callbacks.generate_reply_async, nested=True)),
        Seam(group, "manual_select_speaker", within(here, _people.select_speaker)),
        Seam(group, "random_select_speaker", within(here, _chats.random_speaker)),
        Seam(group, "_prepare_and_select_agents", within(here, _chats.select_agents, nested=True)),
        *(Seam(agent, name, within(here, _callbacks.hooked(which), nested=True)) for name, which in hooks.items()),
        *([Seam(agent, "_run_async_in_thread", within(here, _tools.run_in_thread, nested=True))] if fork else []),
    ]


def install_seams() -> None:
    package = distribution()
    install(package, VERSIONS[package], seams(package))
