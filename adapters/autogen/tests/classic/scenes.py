"""Scenes for the crash matrix: chats as users write them, with scripted models."""

import asyncio
from dataclasses import replace
from typing import Any

from adapters.autogen.tests.classic.kit import (
    AssistantAgent,
    ConversableAgent,
    GroupChat,
    GroupChatManager,
    UserProxyAgent,
    call,
    ends,
    function_call,
    llm,
    register,
    text,
)
from stepfast import Stepfast, idempotency_key
from stepfast.testing import Stage, scene
from stepfast.testing.scenes import approved_or_by_effect, recorded
from stepfast_autogen.classic import chat_worker, composite, durable, idempotent, once

QUIET: dict[str, Any] = {"human_input_mode": "NEVER", "code_execution_config": False, "is_termination_msg": ends}


def play(stage: Stage, agents: Any, *args: Any, **chat: Any) -> Any:
    """Drive a chat in the way that the matrix chose."""
    way = stage.options.get("way", "initiate_chat")
    with durable(agents, run_id=stage.run_id, store=stage.url, max_delivery_attempts=20) as runs:
        if not way.startswith("a_"):
            return getattr(runs, way)(*args, **chat)
        return asyncio.run(getattr(runs, way)(*args, **chat))


def shown(result: Any) -> list[Any]:
    """What is compared of a result: the transcript without the receipts of model calls, and what was used."""
    said = [str(each.get("content")) for each in result.chat_history]
    return [said, result.summary, result.cost["usage_including_cached_inference"], result.human_input]


def model(stage: Stage, name: str, script: Any) -> dict[str, Any]:
    def answered(messages: list[dict[str, Any]]) -> Any:
        # AutoGen's summary is a call of the agent that began the chat, with the model of the other.
        with stage.model("user" if "Summarize" in text(messages) else name, messages) as receipt:
            return script(text(messages), receipt)

    return llm(name, answered)


def tools_of(stage: Stage) -> dict[str, Any]:
    def effect(name: str) -> str:
        return stage.effect(name, key=idempotency_key())

    @idempotent
    def look_up_price(thing: str) -> str:
        """Look a price up."""
        return effect("look_up_price")

    @idempotent
    async def look_up_tax(thing: str) -> str:
        """Look a tax up."""
        return effect("look_up_tax")

    @once
    def charge(amount: int) -> str:
        """Charge a card."""
        return effect("charge")

    def mail(to: str) -> str:
        """Send a mail."""
        return effect("mail")

    @idempotent
    def reserve(thing: str) -> str:
        """Reserve a thing."""
        effect("reserve")
        raise ValueError("reserve done, but none is left")

    return {each.__name__: each for each in (look_up_price, look_up_tax, charge, mail, reserve)}


@scene(once=["charge", "mail"], at_once=2)
def order(stage: Stage) -> Any:
    """Two agents: two tools at once, one of them async; a one-shot tool; a tool that fails; a summary by the model."""

    def clerk(said: str, receipt: str) -> Any:
        if "Summarize" in said:
            return "ordered"
        if "look_up_tax done" not in said:
            return call(("look_up_price", {"thing": "lamp"}), ("look_up_tax", {"thing": "lamp"}), receipt=receipt)
        if "charge done" not in said:
            if stage.options.get("older"):
                return function_call("charge", {"amount": 42})
            return call(("charge", {"amount": 42}), receipt=receipt)
        if "mail done" not in said:
            return call(("mail", {"to": "ada"}), ("reserve", {"thing": "lamp"}), receipt=receipt)
        return f"{said.count('look_up_price done')} {said.count('charge done')} {said.count('Error: res')} TERMINATE"

    assistant = AssistantAgent("clerk", llm_config=model(stage, "clerk", clerk))
    user = UserProxyAgent("user", **QUIET)
    for tool in tools_of(stage).values():
        register(tool, assistant, user)
    found = play(stage, user, assistant, message="A lamp.", summary_method="reflection_with_llm", silent=True)
    return shown(found)


@scene(once=["charge"], answer=lambda stage, question: chosen(stage, question))
def group(stage: Stage) -> Any:
    """A group chat; the next speaker is chosen in turn, by a model that must be asked twice, at random, or by hand."""

    def writer(said: str, receipt: str) -> Any:
        return "draft" if "draft" not in said else "draft two"

    def critic(said: str, receipt: str) -> Any:
        if "charge done" not in said and "draft" in said:
            return call(("charge", {"amount": 1}), receipt=receipt)
        return "good TERMINATE" if "two" in said else "again"

    def select(said: str, receipt: str) -> Any:
        if "You didn't choose" not in said:  # what AutoGen says after an answer without a name
            return "nobody"
        last = said.partition("You didn't choose")[0]
        return "critic" if last.count("draft") > last.count("again") else "writer"

    user = UserProxyAgent("user", **QUIET)
    agents = [
        user,
        *(AssistantAgent(each.__name__, llm_config=model(stage, each.__name__, each)) for each in (writer, critic)),
    ]
    register(tools_of(stage)["charge"], agents[2], user)
    chat = GroupChat(agents, messages=[], max_round=8, speaker_selection_method=stage.options["by"])
    chat.max_retries_for_selecting_speaker = 1
    manager = GroupChatManager(
        chat, llm_config=model(stage, "speaker_selection_agent", select), is_termination_msg=ends, silent=True
    )
    found = play(stage, [user, manager], message="Write.", silent=True)
    return [[f"{each.get('name')}: {each.get('content')}" for each in chat.messages], len(found.chat_history)]


def chosen(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    if "auto" in question["outcomes"]:
        number = question["evidence"]["messages"]
        return {"outcome": question["outcomes"][number % (len(question["outcomes"]) - 1)]}
    return approved_or_by_effect(stage, question)


def by_key(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    """Says of a call in doubt that it is done if the effect with its key has happened: two have the same name."""
    key = f"{question['intent_id']}/{question['key'].removeprefix('in-doubt:').rpartition(':')[0]}"
    happened = next((line["answer"] for line in stage.story() if line.get("key") == key), None)
    return {"outcome": "retry"} if happened is None else {"outcome": "done", "value": happened}


@scene(once=["charge"], answer=by_key)
def nested(stage: Stage) -> Any:
    """An agent whose answers come from chats inside its own, one of which calls a tool that begins a chat itself."""

    def inner_writer(said: str, receipt: str) -> Any:
        return "a text TERMINATE"

    def inner_critic(said: str, receipt: str) -> Any:
        if "charge done" not in said:
            return call(("charge", {"amount": 1}), receipt=receipt)
        return "a good text TERMINATE" if "verified" in said else call(("verify", {"text": "a text"}), receipt=receipt)

    def expert(said: str, receipt: str) -> Any:
        return "verified TERMINATE"

    user = UserProxyAgent("user", **QUIET)
    writer = ConversableAgent("writer", llm_config=False, **QUIET)
    agents = {
        each.__name__: AssistantAgent(each.__name__, llm_config=model(stage, each.__name__, each), **QUIET)
        for each in (inner_writer, inner_critic, expert)
    }

    @composite
    def verify(text: str) -> str:
        """Have a text verified."""
        return str(writer.initiate_chat(agents["expert"], message=f"Is it true: {text}", silent=True).summary)

    register(tools_of(stage)["charge"], agents["inner_critic"], writer)
    register(verify, agents["inner_critic"], writer)
    writer.register_nested_chats(
        [
            {"recipient": agents["inner_writer"], "summary_method": "last_msg", "silent": True},
            {
                "recipient": agents["inner_critic"],
                "message": "Criticize it.",
                "summary_method": "last_msg",
                "silent": True,
            },
        ],
        trigger=user,
    )
    found = play(stage, [user, writer], message="Write.", max_turns=2, silent=True)
    return [shown(found)[0], len(writer.chat_messages[agents["expert"]])]


@scene(answer=lambda stage, question: said(stage, question))
def reviewed(stage: Stage) -> Any:
    """A person answers each message (ALWAYS), or those after which a chat would end; the process ends each time."""

    def author(said: str, receipt: str) -> Any:
        return "long text TERMINATE" if "shorter" in said else "very long text"

    assistant = AssistantAgent("author", llm_config=model(stage, "author", author))
    mode = stage.options["mode"]
    user = UserProxyAgent("user", code_execution_config=False, human_input_mode=mode, is_termination_msg=ends)
    if mode == "TERMINATE":
        user.update_max_consecutive_auto_reply(0, assistant)
    return shown(play(stage, user, assistant, silent=True))


def said(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    heard = str(question["evidence"].get("message"))
    if heard == "None":
        return {"outcome": "approved", "comment": "Write."}
    return {"outcome": "approved", "value": "Make it shorter."} if "very" in heard else {"outcome": "rejected"}


@scene(once=["execute_code_blocks"])
def coded(stage: Stage) -> Any:
    """A model writes code; it is executed once, by an executor object or in the older way."""
    from autogen.coding import LocalCommandLineCodeExecutor

    def coder(said: str, receipt: str) -> Any:
        if "exitcode: " in said:
            return f"{said.count('execute_code_blocks done')} {said.count('(execution succeeded)')} TERMINATE"
        return f"Run this, {receipt}:\n```python\nprint('execute_code_blocks ' + 'done')\n```"

    class Local(LocalCommandLineCodeExecutor):  # type: ignore[misc]
        def execute_code_blocks(self, code_blocks: Any) -> Any:
            stage.effect("execute_code_blocks")
            return super().execute_code_blocks(code_blocks)

    class Older(UserProxyAgent):  # type: ignore[misc]
        def run_code(self, code: str, **kwargs: Any) -> Any:
            stage.effect("execute_code_blocks")
            return super().run_code(code, **kwargs)

    work = stage.folder / "work"
    work.mkdir(exist_ok=True)
    user: Any
    if stage.options.get("older"):
        user = Older("user", **QUIET | {"code_execution_config": {"work_dir": str(work), "use_docker": False}})
    else:
        user = UserProxyAgent("user", **QUIET | {"code_execution_config": {"executor": Local(work_dir=work)}})
    assistant = AssistantAgent("coder", llm_config=model(stage, "coder", coder))
    return shown(play(stage, user, assistant, message="Compute.", silent=True))[0][-1]


@scene(once=["charge"])
def called_back(stage: Stage) -> Any:
    """Hooks, reply functions, and functions that make a message, a summary and a choice: each is done once."""

    def clerk(said: str, receipt: str) -> Any:
        if "charge done" not in said:
            return call(("charge", {"amount": 1}), receipt=receipt)
        return f"{said.count('[seen]')} {said.count('[all]')} {said.count('stamped')} TERMINATE"

    def seen(content: Any) -> Any:
        return f"{content} [seen]" if stage.effect("seen") else content

    def everything(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        stage.effect("everything")
        messages[0]["content"] += " [all]"  # in place: AutoGen goes on with it
        return messages

    def stamp(sender: Any, message: Any, recipient: Any, silent: bool) -> Any:
        stage.effect("stamp")
        return {**message, "content": f"stamped {message['content']}"} if isinstance(message, dict) else message

    def watch(recipient: Any, messages: Any = None, sender: Any = None, config: Any = None) -> tuple[bool, Any]:
        stage.effect("watch")
        return False, None

    def begin(sender: Any, recipient: Any, context: Any) -> str:
        stage.effect("begin")
        return "Go."

    def conclude(sender: Any, recipient: Any, options: Any) -> str:
        stage.effect("conclude")
        return f"after {len(sender.chat_messages[recipient])}"

    assistant = AssistantAgent("clerk", llm_config=model(stage, "clerk", clerk))
    user = UserProxyAgent("user", **QUIET)
    register(tools_of(stage)["charge"], assistant, user)
    assistant.register_hook("process_last_received_message", seen)
    assistant.register_hook("process_all_messages_before_reply", everything)
    user.register_hook("process_message_before_send", stamp)
    assistant.register_reply(UserProxyAgent, watch, position=0)
    found = play(stage, user, assistant, message=begin, summary_method=conclude, silent=True)
    return [
        *shown(found)[:2],
        assistant._reply_func_list[0]["reply_func"] is watch,
        assistant.hook_lists["process_last_received_message"] == [seen],
    ]


@scene(once=["charge", "mail"], at_once=4)
def queue(stage: Stage) -> Any:
    """Three chats of one agent in one run; side by side where the matrix chose the async way, the third after both."""

    def worker(done: str, tool: str, **arguments: Any) -> Any:
        def script(said: str, receipt: str) -> Any:
            return f"{tool} finished TERMINATE" if done in said else call((tool, arguments), receipt=receipt)

        return script

    def closer(said: str, receipt: str) -> Any:
        return f"closed after {said.count('finished')} TERMINATE"

    scripts = {
        "payer": worker("charge done", "charge", amount=1),
        "finder": worker("look_up_price done", "look_up_price", thing="lamp"),
        "closer": closer,
    }
    user = UserProxyAgent("user", **QUIET)
    agents = {name: AssistantAgent(name, llm_config=model(stage, name, script)) for name, script in scripts.items()}
    tools = tools_of(stage)
    register(tools["charge"], agents["payer"], user)
    register(tools["look_up_price"], agents["finder"], user)
    chats: list[dict[str, Any]] = [
        {
            "chat_id": number,
            "recipient": agent,
            "message": f"Do {agent.name}.",
            "silent": True,
            "summary_method": "last_msg",
        }
        for number, agent in enumerate(agents.values(), 1)
    ]
    chats[2]["prerequisites"] = [1, 2]
    found = play(stage, user, chats)
    results = found if isinstance(found, list) else [found[number] for number in sorted(found)]
    return [shown(each)[:2] for each in results]


# --- delivered to a worker ---------------------------------------------------------------------------


def sent(stage: Stage, client: Stepfast) -> str:
    """Send the order; the same in each life."""
    intent = {"intent_type": "order.v1", "to_agent": f"agent://{stage.run_id}", "max_delivery_attempts": 20}
    return client.send_intent({**intent, "payload": {"message": "A lamp."}}, idempotency_key=stage.run_id)


def delivered_calls(stage: Stage) -> list[str]:
    with Stepfast(stage.url) as client:
        intent_id = sent(stage, client)
    return recorded(replace(stage, run_id=intent_id))


@scene(once=["charge"], finished=delivered_calls)
def delivered(stage: Stage) -> Any:
    """Agents as a worker of an address: the process that is killed is the worker's."""
    tools = tools_of(stage)

    def clerk(said: str, receipt: str) -> Any:
        if "look_up_price done" not in said:
            return call(("look_up_price", {"thing": "lamp"}), receipt=receipt)
        return "ordered TERMINATE" if "charge done" in said else call(("charge", {"amount": 42}), receipt=receipt)

    def agents(payload: Any) -> list[Any]:
        assistant = AssistantAgent("clerk", llm_config=model(stage, "clerk", clerk))
        user = UserProxyAgent("user", **QUIET)
        for name in ("look_up_price", "charge"):
            register(tools[name], assistant, user)
        return [user, assistant]

    with Stepfast(stage.url) as client:
        intent_id = sent(stage, client)
        worker = chat_worker(client, f"agent://{stage.run_id}", agents, chat={"silent": True})
        worker.start()
        for event in client.observe(intent_id):
            if event["status"] == "WAITING":  # a person, meanwhile
                for question in client.decisions(intent_id):
                    client.answer(intent_id, key=question["key"], **approved_or_by_effect(stage, question))
        worker.stop()
        return client.get_intent(intent_id)["result"]
