"""Tools that a program runs and names without a schema: shown as functions, called in their own form."""

import json

import pytest

from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.anthropic import ANTHROPIC
from orchard.workers.gateway.chat import CHAT
from orchard.workers.gateway.responses import RESPONSES
from orchard.workers.gateway.wire_types import BadProgramRequest, ProgramMessage, ProgramReply
from orchard.workers.llm.answers import Completion
from tests.workers.gateway.test_gateway_server import HELLO, program  # noqa: F401 (a fixture)
from tests.workers.gateway.test_gateway_wires import ask

EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 99}
ANTHROPICS = [
    {"type": "bash_20250124", "name": "bash"},
    EDITOR,
    {"type": "memory_20250818", "name": "memory"},
]
NATIVE = [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
CALLS = [
    ("local_shell", {"command": ["ls", "-l"], "timeout_ms": 5}),
    ("shell", {"commands": ["ls", "pwd"], "max_output_length": None}),
    ("apply_patch", {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}),
    ("apply_patch", {"type": "delete_file", "path": "a.py"}),
]


def called(name, arguments, call_id="call-0"):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


async def test_claudes_tools_are_functions_and_their_calls_are_its_blocks(program, endpoint):  # noqa: F811
    endpoint.answer(endpoint.completion("", [called("bash", {"command": "ls"})]))
    endpoint.says("done")
    asked = {"model": "m", "max_tokens": 9, "tools": ANTHROPICS}
    async with program() as mine:
        found = await mine.claude.beta.messages.create(**asked, messages=HELLO)
        (block,) = found.content
        assert (block.type, block.name, block.input) == ("tool_use", "bash", {"command": "ls"})
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "a b"}
        said = {"role": "assistant", "content": [block.model_dump()]}
        await mine.claude.beta.messages.create(
            **asked, messages=[*HELLO, said, {"role": "user", "content": [result]}]
        )
    offered = {tool["function"]["name"]: tool["function"] for tool in endpoint.requests[0]["tools"]}
    assert [*offered] == ["bash", EDITOR["name"], "memory"]
    assert offered["bash"]["parameters"]["properties"].keys() == {"command", "restart"}
    assert "99 characters" in offered[EDITOR["name"]]["description"]
    assert "rename" in offered["memory"]["parameters"]["properties"]["command"]["enum"]
    assert [message["role"] for message in endpoint.requests[1]["messages"]] == ["user", "assistant", "tool"]
    assert [call.not_shown for call in mine.calls] == [None, None]


@pytest.mark.long
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_native_tools_of_responses_are_functions_and_items_of_their_own(program, endpoint, streamed):  # noqa: F811
    """What the client does with its own types goes up as a call and its result, on one path."""
    calls = [called(*call, f"call-{number}") for number, call in enumerate(CALLS)]
    endpoint.answer(endpoint.completion("", calls))
    endpoint.says("done")
    items = [{"role": "user", "content": "hi"}]
    async with program() as mine:
        if streamed:
            async with mine.openai.responses.stream(model="m", input=items, tools=NATIVE) as stream:
                found = await stream.get_final_response()
        else:
            found = await mine.openai.responses.create(model="m", input=items, tools=NATIVE)
        local, shell, patch, delete = found.output
        assert (local.action.command, local.action.timeout_ms, local.action.env) == (["ls", "-l"], 5, {})
        assert (shell.type, shell.action.commands) == ("shell_call", ["ls", "pwd"])
        assert (patch.operation.type, patch.operation.diff) == ("update_file", "@@\n-a\n+b")
        assert (delete.operation.type, delete.operation.path) == ("delete_file", "a.py")
        ran = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
        items += [item.model_dump(exclude_unset=True) for item in found.output]
        items += [
            {"type": "local_shell_call_output", "id": local.id, "output": "a b"},
            {"type": "shell_call_output", "call_id": shell.call_id, "output": [ran]},
            {"type": "apply_patch_call_output", "call_id": patch.call_id, "status": "failed", "output": "no"},
            {"type": "apply_patch_call_output", "call_id": delete.call_id, "status": "completed"},
        ]
        await mine.openai.responses.create(model="m", input=items, tools=NATIVE)
    names = [tool["function"]["name"] for tool in endpoint.requests[0]["tools"]]
    assert names == ["local_shell", "shell", "apply_patch"]
    sent = endpoint.requests[1]["messages"]
    assert sent[1]["tool_calls"] == calls
    assert [(message["tool_call_id"], message["content"]) for message in sent[2:]] == [
        ("call-0", "a b"),
        ("call-1", json.dumps([ran], separators=(",", ":"))),
        ("call-2", '{"status":"failed","output":"no"}'),
        ("call-3", '{"status":"completed"}'),
    ]
    assert len(mine.nodes) == 7 and mine.calls[1].parent == mine.nodes[5].node_id


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("local_shell", '{"command": "ls"}'),
        ("local_shell", '{"command": ["ls"], "shell": true}'),
        ("shell", '{"commands": '),
        ("apply_patch", '{"type": "update_file", "path": "a"}'),
        ("apply_patch", '{"type": "delete_file", "path": "a", "diff": "d"}'),
        ("patch", '{"text": "no input"}'),
    ],
)
def test_arguments_that_no_item_can_hold_go_back_as_a_functions(name, arguments):
    """So the program reads what its model wrote, and its history is still the recorded one."""
    asked = ask(RESPONSES, input="hi", tools=[*NATIVE, {"type": "custom", "name": "patch"}])
    call = ToolCall(id="c", name=name, arguments=arguments)
    reply = ProgramReply(id="1", created=5, completion=Completion(text="", tool_calls=(call,)))
    (item,) = RESPONSES.whole(asked, reply)["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", name, arguments)
    again = ask(RESPONSES, input=[{"role": "user", "content": "hi"}, item])
    assert again.messages[1].tool_calls == (call,)


def test_a_custom_tool_of_chat_is_called_with_its_text():
    tool = {"type": "custom", "custom": {"name": "patch", "description": "Patch."}}
    said = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "***"}}
    asked = ask(
        CHAT,
        messages=[*HELLO, {"role": "assistant", "tool_calls": [said]}],
        tools=[tool],
        tool_choice={"type": "custom", "custom": {"name": "patch"}},
    )
    assert asked.messages[1].tool_calls[0].arguments == '{"input":"***"}'
    assert asked.tools[0]["function"]["name"] == "patch"
    assert asked.fields["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
    completion = Completion(text="", tool_calls=asked.messages[1].tool_calls)
    reply = ProgramReply(id="1", created=5, completion=completion)
    assert CHAT.whole(asked, reply)["choices"][0]["message"]["tool_calls"] == [said]
    deltas = b"".join(CHAT.stream(asked, reply))
    assert b'"custom":{"input":"***"}' in deltas


@pytest.mark.parametrize(
    ("choice", "offered", "field"),
    [
        ({"type": "shell"}, ["f", "shell"], {"type": "function", "function": {"name": "shell"}}),
        ("required", ["f", "shell"], "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}]}, ["shell"], None),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            ["f"],
            "required",
        ),
    ],
)
def test_a_choice_among_tools_is_carried(choice, offered, field):
    tools = [{"type": "function", "name": "f"}, {"type": "shell"}]
    asked = ask(RESPONSES, input="hi", tools=tools, tool_choice=choice)
    assert [tool["function"]["name"] for tool in asked.tools] == offered
    assert asked.fields.get("tool_choice") == field


@pytest.mark.parametrize(
    ("wire", "body", "why"),
    [
        (RESPONSES, {"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "web_search"),
        (RESPONSES, {"tools": [{"type": "shell"}, {"type": "function", "name": "shell"}]}, "two are called"),
        (ANTHROPIC, {"tools": ANTHROPICS, "tool_choice": {"type": "tool", "name": "x"}}, "offered 'x'"),
    ],
)
def test_a_choice_that_cannot_be_offered_is_refused(wire, body, why):
    with pytest.raises(BadProgramRequest, match=why):
        ask(wire, input="hi", messages=HELLO, **body)


def test_tools_of_servers_are_left_out_and_counted():
    hosted = {"type": "shell", "environment": {"type": "container_auto"}}
    asked = ask(RESPONSES, input="hi", tools=[{"type": "web_search"}, hosted, {"type": "shell"}])
    assert (asked.left_out, len(asked.tools)) == (("web_search", "shell"), 1)
    asked = ask(ANTHROPIC, messages=HELLO, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert (asked.left_out, asked.tools) == (("web_search_20250305",), ())


def test_tools_that_come_with_an_item_are_offered():
    items = [{"role": "user", "content": "hi"}]
    items += [{"type": "additional_tools", "role": "developer", "tools": [{"type": "shell"}]}]
    asked = ask(RESPONSES, input=items)
    assert [tool["function"]["name"] for tool in asked.tools] == ["shell"]
    assert [said.role for said in asked.messages] == [Role.USER]
    assert asked.messages[0] == ProgramMessage(role=Role.USER, text="hi")
