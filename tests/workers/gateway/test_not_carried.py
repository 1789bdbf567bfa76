"""What chat completions cannot carry is refused by the name of its field, or marked and counted."""

import json

import pytest

from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import Role
from orchard.workers.gateway import recording
from orchard.workers.gateway.anthropic import ANTHROPIC
from orchard.workers.gateway.chat import CHAT
from orchard.workers.gateway.completions import COMPLETIONS
from orchard.workers.gateway.gemini import GEMINI
from orchard.workers.gateway.responses import RESPONSES
from orchard.workers.gateway.wire_types import SUMMARIZE, BadProgramRequest, ProgramMessage
from tests.workers.gateway.test_gateway_server import HELLO, TOOL, program  # noqa: F401 (a fixture)
from tests.workers.gateway.test_gateway_wires import ask

ITEMS = [{"role": "user", "content": "hi"}]
CONTENTS = [{"role": "user", "parts": [{"text": "hi"}]}]
NEEDED = {
    "chat": ["messages"],
    "completions": ["prompt"],
    "responses": ["input"],
    "anthropic": ["messages"],
    "gemini": ["contents"],
}
SUMMARY = "The test fails in parse() of shop/sums.py, line 12, since the total is a text."


@pytest.mark.parametrize(
    ("wire", "field", "value"),
    [
        (CHAT, "functions", [TOOL]),
        (CHAT, "function_call", {"name": "bash"}),
        (CHAT, "fallbacks", ["other"]),
        (CHAT, "thread", {"id": "t"}),
        (CHAT, "conversation", "c"),
        (RESPONSES, "previous_response_id", "r"),
        (RESPONSES, "conversation", {"id": "c"}),
        (RESPONSES, "prompt", {"id": "p"}),
        (RESPONSES, "background", True),
        (RESPONSES, "context_management", [{"type": "compaction", "compact_threshold": 1000}]),
        (ANTHROPIC, "thread", {"type": "create"}),
        (ANTHROPIC, "fallbacks", [{"model": "other"}]),
        (ANTHROPIC, "container", "c"),
        (ANTHROPIC, "mcp_servers", [{"type": "url", "url": "http://x", "name": "x"}]),
        (ANTHROPIC, "context_management", {"edits": [{"type": "compact_20260112"}]}),
        (GEMINI, "cachedContent", "cachedContents/1"),
        (GEMINI, "cached_content", "cachedContents/1"),
        (GEMINI, "generationConfig", {"candidateCount": 2}),
        (GEMINI, "generationConfig", {"responseModalities": ["AUDIO"]}),
    ],
)
def test_what_only_a_vendors_server_has_is_refused_by_name(wire, field, value):
    body = {"messages": HELLO, "input": ITEMS, "contents": CONTENTS}
    known = "|".join([field, *(value if field == "generationConfig" else ())])
    with pytest.raises(BadProgramRequest, match=f"({known}|cachedContent)"):
        ask(wire, **body, **{field: value})
    empty = type(value)() if isinstance(value, list) else None
    assert ask(wire, **body, **{field: empty}).messages


def test_the_default_of_claudes_fallbacks_is_the_one_model():
    assert ask(ANTHROPIC, messages=HELLO, fallbacks="default").messages


CALL = {"id": "c", "name": "f", "type": "function", "function": {"name": "f", "arguments": "{}"}}
UNSEEN = [
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
    (CHAT, {"messages": [*HELLO, {"role": "assistant", "audio": {"id": "a"}}]}, "audio"),
    (RESPONSES, {"input": [*ITEMS, {"type": "web_search_call", "id": "w"}]}, "web_search_call"),
    (RESPONSES, {"input": [*ITEMS, {"type": "compaction", "encrypted_content": "xx"}]}, "compaction"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input_file"),
    (RESPONSES, {"input": [*ITEMS, {"type": ["list"]}]}, "part"),
    (
        ANTHROPIC,
        {"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]},
        "container_upload",
    ),
    (ANTHROPIC, {"messages": HELLO, "system": [{"type": "tool_addition"}]}, "tool_addition"),
    (
        ANTHROPIC,
        {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
        "server_tool_use",
    ),
    (
        GEMINI,
        {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "x"}}]}]},
        "inlineData",
    ),
    (
        GEMINI,
        {"contents": [*CONTENTS, {"role": "model", "parts": [{"executableCode": {}}]}]},
        "executableCode",
    ),
]


@pytest.mark.parametrize(("wire", "body", "kind"), UNSEEN)
def test_an_unknown_item_or_part_leaves_a_mark_and_is_counted(wire, body, kind):
    asked = ask(wire, **body)
    (said,) = [said for said in asked.messages if said.not_shown]
    assert f"[{kind}: not shown]" in said.text
    assert said.not_shown == (kind,)


@pytest.mark.parametrize(
    ("wire", "body", "kind"),
    [
        (
            RESPONSES,
            {"input": [*ITEMS, {"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "encrypted_reasoning",
        ),
        (
            ANTHROPIC,
            {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "redacted_thinking"}]}]},
            "redacted_thinking",
        ),
    ],
)
def test_hidden_reasoning_is_counted(wire, body, kind):
    assert [kind for said in ask(wire, **body).messages for kind in said.not_shown] == [kind]


CONFIG = {"seed": 3, "topK": 40, "presence_penalty": 1.5, "frequencyPenalty": -1, "temperature": 0.5}
ODD = [
    (CHAT, {"seed": 3, "logit_bias": {"1": 2}, "reasoning_effort": "low"}, None),
    (COMPLETIONS, {"seed": 0, "presence_penalty": 1}, None),
    (
        RESPONSES,
        {"top_logprobs": 3, "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}},
        "verbosity",
    ),
    (ANTHROPIC, {"top_k": 5, "output_config": {"effort": "low"}}, "effort"),
    (
        GEMINI,
        {"safetySettings": [{}], "toolConfig": {"retrievalConfig": {"languageCode": "en"}}},
        "retrievalConfig",
    ),
    (GEMINI, {"generationConfig": CONFIG}, ("seed", "topK", "presencePenalty", "frequencyPenalty")),
]


@pytest.mark.parametrize(("wire", "fields", "inside"), ODD)
@pytest.mark.parametrize("later", [{}, {"laterField": 1, "nothing": None, "off": False, "empty": []}])
def test_a_field_without_effect_is_counted_by_name(wire, fields, inside, later):
    body = {"messages": HELLO, "input": ITEMS, "contents": CONTENTS, "prompt": "hi"}
    body = {name: body[name] for name in NEEDED[wire.name]}
    parents = {"text", "output_config", "toolConfig", "generationConfig"}
    inner = (inside,) if isinstance(inside, str) else inside or ()
    expected = [*(fields.keys() - parents), *inner, *(["laterField"] if later else [])]
    asked = ask(wire, **body, **fields, **later, user="u", metadata={"a": "b"}, model="m")
    assert sorted(asked.left_out) == sorted(name for name in expected)


def test_what_can_be_read_is_not_marked():
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "read me"}}
    failed = {"type": "tool_result", "tool_use_id": "c", "is_error": True}
    messages = [{"role": "user", "content": [document]}, {"role": "user", "content": [failed]}]
    asked = ask(ANTHROPIC, messages=messages, context_management={"edits": [{"type": "x", "keep": "all"}]})
    assert [said.text for said in asked.messages] == ["read me", "[error]"]
    assert not asked.left_out and not any(said.not_shown for said in asked.messages)
    refused = ask(CHAT, messages=[*HELLO, {"role": "assistant", "content": None, "refusal": "No."}])
    older = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    asked = ask(CHAT, messages=[*HELLO, older, {"role": "function", "name": "f", "content": "a"}])
    assert refused.messages[1].text == "No."
    assert asked.messages[1].tool_calls[0].id == asked.messages[2].tool_call_id == "f"


async def test_a_call_has_the_number_of_what_its_model_could_not_read(program, endpoint, monkeypatch):  # noqa: F811
    monkeypatch.setattr(recording, "_MOST_TYPES", 2)
    endpoint.says("ok")
    parts = [{"type": kind} for kind in ("document", "document", "video", "video", "smell", "taste")]
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    async with program() as mine:
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 9}
        await mine.http.post(f"{mine.door.url}/v1/messages", json=body)
        await mine.http.post(f"{mine.door.url}/v1/messages", json={"messages": HELLO, "tools": tools})
        await mine.says()
    assert [call.not_shown for call in mine.calls] == [
        {"document": 2, "video": 2, "other": 2},
        {"web_search_20250305": 1},
        None,
    ]
    assert mine.nodes[0].content.count("not shown") == 6


# --- conversations that are made shorter -----------------------------------------------------------


async def test_responses_compacts_to_the_users_messages_and_a_summary(program, endpoint):  # noqa: F811
    endpoint.says("I look.")
    endpoint.says(SUMMARY)
    endpoint.says("done")
    asked = {"model": "m", "instructions": "be good"}
    tool = {"type": "function", **TOOL}
    async with program() as mine:
        found = await mine.openai.responses.create(**asked, input=ITEMS, tools=[tool])
        history = [*ITEMS, *(item.model_dump(exclude_none=True) for item in found.output)]
        short = await mine.openai.responses.compact(**asked, input=history)
        assert [item.type for item in short.output] == ["message", "compaction"]
        assert (short.object, short.usage.output_tokens) == ("response.compaction", 2)
        kept = [item.model_dump(exclude_none=True) for item in short.output]
        more = [*kept, {"role": "user", "content": "go on"}]
        await mine.openai.responses.create(**asked, input=more, tools=[tool])
    first, second, third = endpoint.requests
    assert second["messages"][:3] == [*first["messages"], {"role": "assistant", "content": "I look."}]
    assert second["messages"][3] == {"role": "user", "content": SUMMARIZE}
    assert [message["content"] for message in third["messages"]] == ["be good", "hi", SUMMARY, "go on"]
    kinds = [call.call_kind for call in mine.calls]
    assert kinds == [CallKind.MAIN, CallKind.COMPACTION, CallKind.COMPACTION]
    assert mine.calls[2].derived_from == mine.calls[1].node


async def test_a_trigger_among_the_items_compacts_too(program, endpoint):  # noqa: F811
    endpoint.says(SUMMARY)
    async with program() as mine:
        items = [*ITEMS, {"type": "compaction_trigger"}]
        async with mine.openai.responses.stream(model="m", input=items) as stream:
            (item,) = (await stream.get_final_response()).output
    assert item.type == "compaction" and SUMMARY in item.encrypted_content
    assert mine.calls[0].call_kind is CallKind.COMPACTION


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_claude_gets_its_compaction_as_a_block_that_it_sends_back_first(program, endpoint, streamed):  # noqa: F811
    endpoint.says(SUMMARY)
    endpoint.says("done")
    asked = {"model": "m", "max_tokens": 99}
    told = {"compaction": {"type": "summarize", "instructions": "Sum up."}}
    async with program() as mine:
        client = mine.claude.beta.messages
        if streamed:
            async with client.stream(**asked, messages=HELLO, **told) as stream:
                found = await stream.get_final_message()
        else:
            found = await client.create(**asked, messages=HELLO, **told)
        (block,) = found.content
        assert (block.type, block.content, found.stop_reason) == ("compaction", SUMMARY, "compaction")
        said = {"role": "assistant", "content": [block.model_dump(exclude_none=True)]}
        await client.create(**asked, messages=[said, {"role": "user", "content": "go on"}])
    assert [message["content"] for message in endpoint.requests[0]["messages"]] == ["hi", "Sum up."]
    assert endpoint.requests[1]["messages"] == [
        {"role": "user", "content": SUMMARY},
        {"role": "user", "content": "go on"},
    ]


async def test_tokens_are_counted_without_a_call(program, endpoint):  # noqa: F811
    async with program() as mine:
        counted = await mine.openai.responses.input_tokens.count(model="m", input="u" * 400)
        assert 100 <= counted.input_tokens <= 110
        url = f"{mine.door.url}/v1beta/models/m:countTokens"
        body = {"generateContentRequest": {"contents": [{"parts": [{"text": "u" * 400}]}]}}
        assert (await mine.http.post(url, json=body)).json() == {"totalTokens": counted.input_tokens}
    assert endpoint.requests == mine.published == []


def test_a_conversation_of_nothing_is_not_compacted():
    with pytest.raises(BadProgramRequest, match="input must not be empty"):
        ask(RESPONSES, input=[{"type": "compaction_trigger"}])


def test_the_names_of_a_mark_are_short():
    asked = ask(RESPONSES, input=json.loads('[{"type": "' + "x" * 99 + '"}]'))
    assert asked.messages == (
        ProgramMessage(role=Role.USER, text=f"[{'x' * 60}: not shown]", not_shown=("x" * 60,)),
    )
