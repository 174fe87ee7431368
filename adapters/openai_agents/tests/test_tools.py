"""The tools that run here besides functions, and tools from MCP servers: each recorded effect happens once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    AsyncComputer,
    ComputerTool,
    LocalShellTool,
    ShellTool,
    ToolGuardrailFunctionOutput,
    function_tool,
)
from agents.editor import ApplyPatchResult
from agents.mcp import MCPServer
from agents.tool_guardrails import ToolInputGuardrail, ToolOutputGuardrail
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool
from openai.types.responses import ResponseApplyPatchToolCall, ResponseComputerToolCall, ResponseFunctionShellToolCall
from openai.types.responses.response_computer_tool_call import ActionClick
from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, Stepfast
from stepfast_openai_agents import DurableRunner, Suspended, once


class Boom(Exception):
    """What a user's code raises."""


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


def then_text(*first: Any) -> Any:
    """One batch of calls, and an answer in words once there is any output."""

    def script(items: list[Any], _: str | None) -> list[Any]:
        done = any(isinstance(i, dict) and str(i.get("type")).endswith("_output") for i in items)
        return [text("done")] if done else [make() for make in first]

    return script


class Failing(Scripted):
    """A model that fails at its second call, once."""

    failed = False

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls == 1 and not self.failed:
            self.failed = True
            raise Boom
        return await super().get_response(*args, **kwargs)


async def twice(agent: Agent[Any], url: str) -> Any:
    """The run is cut short after its tools, and goes on."""
    with pytest.raises(Boom):
        await DurableRunner.run(agent, "go", run_id="r", store=url)
    return await DurableRunner.run(agent, "go", run_id="r", store=url)


async def test_a_shell_command_runs_once(url: str) -> None:
    ran: list[Any] = []

    def shell() -> LocalShellCall:
        action = LocalShellCallAction(type="exec", command=["ls"], env={})
        return LocalShellCall(
            id=uuid.uuid4().hex, call_id=uuid.uuid4().hex, action=action, status="completed", type="local_shell_call"
        )

    async def executor(request: Any) -> str:
        ran.append(request.data.action.command)
        return "a b c"

    agent = Agent(name="a", model=Failing(then_text(shell)), tools=[LocalShellTool(executor=executor)])
    assert (await twice(agent, url)).final_output == "done"
    assert ran == [["ls"]]


async def test_a_command_that_fails_is_shown_to_the_model_and_not_run_again(url: str) -> None:
    ran: list[Any] = []

    def shell() -> LocalShellCall:
        action = LocalShellCallAction(type="exec", command=["rm"], env={})
        ids = {"id": uuid.uuid4().hex, "call_id": uuid.uuid4().hex}
        return LocalShellCall(**ids, action=action, status="completed", type="local_shell_call")

    async def executor(request: Any) -> str:
        ran.append(1)
        raise RuntimeError("no such file")

    model = Scripted(then_text(shell))
    agent = Agent(name="a", model=model, tools=[LocalShellTool(executor=executor)])
    for _ in range(2):
        try:
            await DurableRunner.run(agent, "go", run_id="r", store=url)
        except RuntimeError:  # older versions let it end the run
            assert model.calls == 1
    assert ran == [1]


async def test_a_command_of_the_shell_tool_runs_once(url: str) -> None:
    ran: list[Any] = []

    def shell() -> Any:
        action = {"commands": ["ls"], "max_output_length": None, "timeout_ms": None}
        item = {"id": uuid.uuid4().hex, "call_id": uuid.uuid4().hex, "action": action, "status": "completed"}
        return ResponseFunctionShellToolCall.model_validate({**item, "type": "shell_call", "environment": None})

    async def executor(request: Any) -> str:
        ran.append(request.data.action.commands)
        return "a b c"

    agent = Agent(name="a", model=Failing(then_text(shell)), tools=[ShellTool(executor=executor)])
    assert (await twice(agent, url)).final_output == "done"
    assert ran == [["ls"]]


async def test_a_patch_is_applied_once(url: str) -> None:
    applied: list[str] = []

    class Editor:
        def create_file(self, operation: Any) -> Any:
            applied.append(operation.path)
            return ApplyPatchResult(status="completed", output="created")

        def update_file(self, operation: Any) -> Any:
            raise NotImplementedError

        def delete_file(self, operation: Any) -> Any:
            raise NotImplementedError

    def patch() -> Any:
        operation = {"type": "create_file", "path": "a.txt", "diff": "+hello"}
        item = {"id": uuid.uuid4().hex, "call_id": uuid.uuid4().hex, "status": "completed"}
        made = {**item, "type": "apply_patch_call", "operation": operation}
        return ResponseApplyPatchToolCall.model_validate(made)

    agent = Agent(name="a", model=Failing(then_text(patch)), tools=[ApplyPatchTool(editor=Editor())])
    assert (await twice(agent, url)).final_output == "done"
    assert applied == ["a.txt"]


class Screen(AsyncComputer):
    def __init__(self) -> None:
        self.clicks: list[tuple[int, int]] = []

    @property
    def environment(self) -> Any:
        return "browser"

    @property
    def dimensions(self) -> tuple[int, int]:
        return (800, 600)

    async def screenshot(self) -> str:
        return "cGljdHVyZQ=="

    async def click(self, x: int, y: int, button: Any) -> None:
        self.clicks.append((x, y))

    async def double_click(self, x: int, y: int) -> None: ...
    async def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None: ...
    async def type(self, text: str) -> None: ...
    async def wait(self) -> None: ...
    async def move(self, x: int, y: int) -> None: ...
    async def keypress(self, keys: list[str]) -> None: ...
    async def drag(self, path: list[tuple[int, int]]) -> None: ...


async def test_a_click_happens_once(url: str) -> None:
    def click() -> ResponseComputerToolCall:
        return ResponseComputerToolCall(
            id=uuid.uuid4().hex,
            call_id=uuid.uuid4().hex,
            action=ActionClick(type="click", x=3, y=4, button="left"),
            pending_safety_checks=[],
            status="completed",
            type="computer_call",
        )

    screen = Screen()
    agent = Agent(name="a", model=Failing(then_text(click)), tools=[ComputerTool(computer=screen)])
    assert (await twice(agent, url)).final_output == "done"
    assert screen.clicks == [(3, 4)]
    async with AsyncStepfast(url) as sf:
        names = [s["name"] for s in await sf.steps("r") if s["kind"] != "model"]
    assert names[0].endswith(".click")


class Files(MCPServer):
    """A local MCP server with one tool."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[Any] = []

    @property
    def name(self) -> str:
        return "files"

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        return [McpTool.model_validate({"name": "delete_file", "description": "Delete", "inputSchema": schema})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        self.deleted.append(arguments["path"])
        if arguments["path"] == "broken":
            raise Boom
        return CallToolResult(content=[TextContent(type="text", text="deleted")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


async def test_a_tool_of_an_mcp_server_runs_once(url: str) -> None:
    server = Files()
    model = Failing(in_turns([call("delete_file", path="a")], summing))
    agent = Agent(name="a", model=model, mcp_servers=[server])
    assert "deleted" in (await twice(agent, url)).final_output
    assert server.deleted == ["a"]


async def test_a_tool_of_an_mcp_server_is_made_one_shot_by_its_name(url: str) -> None:
    server = Files()
    model = Scripted(in_turns([call("delete_file", path="broken")], summing))
    agent = Agent(name="a", model=model, mcp_servers=[server])
    with pytest.raises(Suspended):
        await DurableRunner.run(agent, "go", run_id="r", store=url, policies={"delete_file": "once"})
    with Stepfast(url) as sf:
        sf.answer("r", "done", value="gone")
    result = await DurableRunner.run(agent, "go", run_id="r", store=url, policies={"delete_file": "once"})
    assert result.final_output == "Sum: gone"
    assert server.deleted == ["broken"]


async def test_tool_guardrails_see_replayed_outputs_too(url: str) -> None:
    seen: list[str] = []
    ran: list[int] = []

    async def check_input(data: Any) -> ToolGuardrailFunctionOutput:
        seen.append("input")
        return ToolGuardrailFunctionOutput.allow()

    async def check_output(data: Any) -> ToolGuardrailFunctionOutput:
        seen.append(str(data.output))
        return ToolGuardrailFunctionOutput.reject_content("hidden")

    @function_tool
    def secret() -> str:
        ran.append(1)
        return "42"

    secret.tool_input_guardrails = [ToolInputGuardrail(guardrail_function=check_input)]
    secret.tool_output_guardrails = [ToolOutputGuardrail(guardrail_function=check_output)]
    agent = Agent(name="a", model=Failing(in_turns([call("secret")], summing)), tools=[secret])
    assert (await twice(agent, url)).final_output == "Sum: hidden"
    assert seen == ["input", "42"] * 2
    assert ran == [1]


async def test_an_approval_policy_of_a_function_is_asked_as_in_the_bare_sdk(url: str) -> None:
    asked: list[Any] = []

    async def needs(ctx: Any, params: dict[str, Any], call_id: str) -> bool:
        asked.append(params)
        return bool(params["amount"] > 100)

    @once
    @function_tool(needs_approval=needs)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    model = Scripted(in_turns([call("pay", amount=5), call("pay", amount=500)], summing))
    agent = Agent(name="a", model=model, tools=[pay])
    result = await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert len(result.interruptions) == 1
    assert {"amount": 5} in asked
    with Stepfast(url) as sf:
        sf.answer("r", "approved")
    result = await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert result.final_output == "Sum: paid 5, paid 500"
