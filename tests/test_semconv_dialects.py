"""One run, written in the dialects of which no recording is at hand: what comes out is the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.model import Span
from monitor.prefix import derive
from monitor.semconv import EXACT, RawEvent, RawLog, RawSpan, normalise, wanted, wanted_of_event
from monitor.semconv.events import EVENT_KEYS, NAMES
from monitor.semconv.limits import SPAN_LIMIT
from monitor.semconv.logs import normalise_logs
from monitor.story import final_answer, steps, user_request

TRACE = "ab" * 16
ASKED = "Is KB-77 in stock, and what is TCK-1?"
SYSTEM = "Answer only from tool results."
CALLS = [
    ("c1", "get_item", {"sku": "KB-77"}, {"sku": "KB-77", "in_stock": 4}),
    ("c2", "get_ticket", {"ticket": "TCK-1", "depth": 2}, [{"status": "open"}]),
]
ANSWER = "4 are in stock; TCK-1 is open."


class Spans:
    """Spans of one trace, children in the order in which they are made."""

    def __init__(self) -> None:
        self.found: list[RawSpan] = []
        self._ids = itertools.count(1)

    def add(self, name: str, attributes: dict[str, Any], **more: Any) -> str:
        number = next(self._ids)
        span_id = f"{number:016x}"
        kept = {key: value for key, value in attributes.items() if wanted(key)}
        events = tuple(
            RawEvent(event.name, {k: v for k, v in event.attributes.items() if wanted_of_event(k)})
            for event in more.pop("events", ())
        )
        start = number * 1000
        more.setdefault("end", start + 900)
        self.found.append(
            RawSpan(TRACE, span_id, name=name, start=start, attributes=kept, events=events, **more)
        )
        return span_id

    def known(self) -> dict[str, Span]:
        return {span.span_id: span for span in map(normalise, self.found)}


def j(value: Any) -> str:
    return json.dumps(value)


def genai_messages(*, result: str = "response", blocks: bool = False) -> list[dict]:
    """The history before the answer, as the current conventions have it."""
    asked = [{"type": "tool_call", "id": i, "name": n, "arguments": a} for i, n, a, _ in CALLS]
    given = [
        {"type": "tool_call_response", "id": i, result: [{"text": j(r)}] if blocks else r}
        for i, _, _, r in CALLS
    ]
    return [
        {"role": "user", "parts": [{"type": "text", "content": ASKED}]},
        {"role": "assistant", "parts": asked},
        {"role": "tool", "parts": given},
    ]


def said(text: str) -> list[dict]:
    return [{"role": "assistant", "parts": [{"type": "text", "content": text}]}]


def langsmith() -> Spans:
    def lc(kind: str, **kwargs: Any) -> dict:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "m", kind], "kwargs": kwargs}

    history = [lc("SystemMessage", content=SYSTEM), lc("HumanMessage", content=ASKED)]
    asks = lc(
        "AIMessage",
        content="",
        tool_calls=[{"name": n, "args": a, "id": i} for i, n, a, _ in CALLS],
    )
    results = [
        lc("ToolMessage", content=j(r), tool_call_id=i, name=n, status="success")
        for i, n, _, r in CALLS
    ]
    answers = lc("AIMessage", content=ANSWER, tool_calls=[])
    agent = {"langsmith.metadata.lc_agent_name": "desk", "langsmith.metadata.thread_id": "t-1"}
    spans = Spans()
    root = spans.add(
        "desk",
        {
            "langsmith.span.kind": "chain",
            "langsmith.trace.name": "desk",
            "gen_ai.prompt": j({"messages": [{"role": "user", "content": ASKED}]}),
            "gen_ai.completion": j({"messages": [*history, asks, *results, answers]}),
            **agent,
        },
        end=90_000,
    )

    def llm(inputs: list, output: dict) -> None:
        spans.add(
            "ChatOpenAI",
            {
                "langsmith.span.kind": "llm",
                "gen_ai.operation.name": "chat",
                "gen_ai.prompt": j({"messages": [inputs]}),
                "gen_ai.completion": j({"generations": [[{"text": "", "message": output}]]}),
                **agent,
            },
            parent=root,
        )

    llm(history, asks)
    for (call_id, tool, arguments, _), result in zip(CALLS, results, strict=True):
        spans.add(
            tool,
            {
                "langsmith.span.kind": "tool",
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": call_id,
                "gen_ai.prompt": j({"input": str(arguments)}),
                "gen_ai.completion": j({"output": result}),
                **agent,
            },
            parent=root,
        )
    llm([*history, asks, *results], answers)
    return spans


def strands_latest() -> Spans:
    def details(**attributes: Any) -> RawEvent:
        told = {f"gen_ai.{key.replace('_', '.')}": j(value) for key, value in attributes.items()}
        return RawEvent("gen_ai.client.inference.operation.details", told)

    spans = Spans()
    root = spans.add(
        "invoke_agent desk",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"},
        end=90_000,
        events=[
            details(input_messages=genai_messages()[:1]),
            details(output_messages=said(ANSWER + "\n")),
        ],
    )
    history = genai_messages(blocks=True)
    spans.add(
        "chat",
        {"gen_ai.operation.name": "chat"},
        parent=root,
        events=[
            details(input_messages=history[:1]),
            details(output_messages=history[1:2]),
        ],
    )
    for call_id, tool, arguments, result in CALLS:
        call = {"type": "tool_call", "id": call_id, "name": tool, "arguments": arguments}
        given = {"type": "tool_call_response", "id": call_id, "response": [{"text": j(result)}]}
        spans.add(
            f"execute_tool {tool}",
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": call_id,
                "gen_ai.tool.status": "success",
            },
            parent=root,
            events=[
                details(input_messages=[{"role": "tool", "parts": [call]}]),
                details(output_messages=[{"role": "tool", "parts": [given]}]),
            ],
        )
    spans.add(
        "chat",
        {"gen_ai.operation.name": "chat"},
        parent=root,
        events=[details(input_messages=history), details(output_messages=said(ANSWER))],
    )
    return spans


def adk_legacy() -> Spans:
    def gemini(role: str, *parts: dict) -> dict:
        return {"role": role, "parts": list(parts)}

    asked = gemini("user", {"text": ASKED})
    calls = gemini(
        "model",
        *({"function_call": {"id": i, "name": n, "args": a}} for i, n, a, _ in CALLS),
    )
    given = gemini(
        "user",
        *(
            {"function_response": {"id": i, "name": n, "response": {"result": r}}}
            for i, n, _, r in CALLS
        ),
    )
    spans = Spans()
    root = spans.add("invocation", {}, scope="gcp.vertex.agent", end=90_000)
    agent = spans.add("agent_run [desk]", {}, scope="gcp.vertex.agent", parent=root, end=89_000)

    def llm(contents: list, output: dict) -> str:
        return spans.add(
            "call_llm",
            {
                "gen_ai.system": "gcp.vertex.agent",
                "gcp.vertex.agent.session_id": "s-1",
                "gcp.vertex.agent.llm_request": j(
                    {"model": "m", "config": {"system_instruction": SYSTEM}, "contents": contents}
                ),
                "gcp.vertex.agent.llm_response": j({"content": output, "finish_reason": "STOP"}),
            },
            parent=agent,
            scope="gcp.vertex.agent",
            end=80_000,
        )

    model = llm([asked], calls)
    for call_id, tool, arguments, result in CALLS:
        wrapped = result if isinstance(result, dict) else {"result": result}
        spans.add(
            f"execute_tool {tool}",
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": call_id,
                "gcp.vertex.agent.tool_call_args": j(arguments),
                "gcp.vertex.agent.tool_response": j(wrapped),
            },
            parent=model,
            scope="gcp.vertex.agent",
        )
    spans.add(
        "execute_tool (merged tools)",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "(merged tools)",
            "gcp.vertex.agent.tool_response": "{}",
        },
        parent=model,
        scope="gcp.vertex.agent",
    )
    llm(
        [asked, calls, given],
        gemini("model", {"text": "thinking", "thought": True}, {"text": ANSWER}),
    )
    return spans


def current(*, version: str) -> Spans:
    """The current conventions: AI SDK 7, and pydantic-ai of formats 2 and 3."""
    spans = Spans()
    old = version == "pydantic-ai 2"
    scope = "pydantic-ai" if version.startswith("pydantic") else "ai"
    history = genai_messages(result="result" if scope == "pydantic-ai" else "response")
    root_attributes: dict[str, Any] = {"gen_ai.operation.name": "invoke_agent"}
    if scope == "pydantic-ai":
        root_attributes = {
            "agent_name": "desk",
            "model_name": "m",
            "final_result": ANSWER,
            "pydantic_ai.all_messages": j([*history, *said(ANSWER)]),
        }
    else:
        root_attributes["gen_ai.agent.name"] = "desk"
    root = spans.add("agent run", root_attributes, scope=scope, end=90_000)
    system = j([{"type": "text", "content": SYSTEM}])

    def llm(inputs: list, outputs: list) -> None:
        spans.add(
            "chat m",
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.system_instructions": system,
                "gen_ai.input.messages": j(inputs),
                "gen_ai.output.messages": j(outputs),
            },
            scope=scope,
            parent=root,
        )

    llm(history[:1], history[1:2])
    for call_id, tool, arguments, result in CALLS:
        keys = (
            ("tool_arguments", "tool_response")
            if old
            else ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
        )
        attributes = {
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call_id,
            keys[0]: j(arguments),
            keys[1]: j(result),
        }
        if not old:
            attributes["gen_ai.operation.name"] = "execute_tool"
        spans.add(
            "running tool" if old else f"execute_tool {tool}", attributes, scope=scope, parent=root
        )
    llm(history, said(ANSWER))
    return spans


def langfuse() -> Spans:
    history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    asks = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": n, "arguments": j(a)}}
            for i, n, a, _ in CALLS
        ],
    }
    results = [{"role": "tool", "tool_call_id": i, "content": j(r)} for i, _, _, r in CALLS]
    spans = Spans()
    kind = "langfuse.observation.type"
    root = spans.add(
        "desk",
        {
            kind: "agent",
            "session.id": "s",
            "langfuse.observation.input": j({"args": [], "kwargs": {"question": ASKED}}),
            "langfuse.observation.output": ANSWER,
        },
        end=90_000,
    )

    def llm(inputs: list, output: Any) -> None:
        spans.add(
            "openai",
            {
                kind: "generation",
                "langfuse.observation.input": j({"messages": inputs}),
                "langfuse.observation.output": j(output),
            },
            parent=root,
        )

    llm(history, asks)
    for _, tool, arguments, result in CALLS:
        spans.add(
            tool,
            {
                kind: "tool",
                "langfuse.observation.input": j({"args": [], "kwargs": arguments}),
                "langfuse.observation.output": j(result),
            },
            parent=root,
        )
    llm([*history, asks, *results], {"role": "assistant", "content": ANSWER})
    return spans


def span_events(*, azure: bool) -> Spans:
    """Conventions up to 1.36, one event a message; Azure keeps each as JSON."""
    spans = Spans()

    def event(name: str, body: dict) -> RawEvent:
        if azure:
            return RawEvent(name, {"gen_ai.event.content": j(body)})
        told = body.get("message", body)
        flat = {k: v if isinstance(v, str) else j(v) for k, v in told.items()}
        return RawEvent(name, flat)

    asked = [
        event("gen_ai.system.message", {"role": "system", "content": SYSTEM}),
        event("gen_ai.user.message", {"content": ASKED}),
    ]
    tool_calls = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": j(a)}}
        for i, n, a, _ in CALLS
    ]
    results = [
        event("gen_ai.tool.message", {"role": "tool", "id": i, "content": j(r)})
        for i, _, _, r in CALLS
    ]

    def choice(message: dict) -> RawEvent:
        return event("gen_ai.choice", {"message": message, "finish_reason": "stop", "index": 0})

    root = spans.add(
        "invoke_agent desk",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"},
        end=90_000,
    )
    chat = {"gen_ai.operation.name": "chat", "gen_ai.system": "az.ai.inference"}
    spans.add("chat m", chat, parent=root, events=[*asked, choice({"tool_calls": tool_calls})])
    for call_id, tool, _, _ in CALLS:
        spans.add(
            f"execute_tool {tool}",
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": call_id,
            },
            parent=root,
        )
    spans.add(
        "chat m",
        chat,
        parent=root,
        events=[
            *asked,
            event("gen_ai.assistant.message", {"tool_calls": tool_calls}),
            *results,
            choice({"content": ANSWER}),
        ],
    )
    return spans


RUNS = {
    "LangSmith": langsmith,
    "Strands latest": strands_latest,
    "Google ADK legacy": adk_legacy,
    "AI SDK 7": lambda: current(version="AI SDK 7"),
    "pydantic-ai 2": lambda: current(version="pydantic-ai 2"),
    "pydantic-ai 3": lambda: current(version="pydantic-ai 3"),
    "Langfuse": langfuse,
    "events on spans": lambda: span_events(azure=False),
    "events on spans, as JSON": lambda: span_events(azure=True),
}


@pytest.mark.parametrize("dialect", RUNS)
def test_a_run_is_the_same_in_every_dialect(dialect):
    prefix = derive(RUNS[dialect]().known())
    assert user_request(prefix) == ASKED
    assert final_answer(prefix) == ANSWER
    called = [step for step in steps(prefix) if step.type == "tool_call"]
    assert [(s.call_id, s.tool, s.arguments, s.result) for s in called] == CALLS
    assert {(s.agent, s.error, s.requested_only) for s in called} == {("desk", None, False)}
    assert (len(prefix.roots), prefix.missing, prefix.gaps) == (1, set(), 0)
    assert not any(turn.hidden for turn in prefix.turns)


def test_claude_code_shows_its_tools_and_hides_what_the_model_said():
    spans = Spans()
    root = spans.add(
        "claude_code.interaction",
        {"user_prompt": ASKED, "session.id": "s-1"},
        end=90_000,
    )
    spans.add("claude_code.llm_request", {"gen_ai.system": "anthropic"}, parent=root)
    tool = spans.add(
        "claude_code.tool",
        {"tool_name": "Bash", "tool_use_id": "toolu_1", "full_command": "ls -a"},
        parent=root,
        end=80_000,
        events=[RawEvent("tool.output", {"output": "a b"})],
    )
    spans.add("claude_code.tool.blocked_on_user", {"decision": "accept"}, parent=tool)
    spans.add(
        "claude_code.tool.execution",
        {"success": False, "error": "exit 1", "tool_use_id": "toolu_1"},
        parent=tool,
    )
    known = spans.known()
    prefix = derive(known)
    (call,) = prefix.calls
    assert (call.tool, call.call_id, call.result, call.error) == (
        "Bash",
        "toolu_1",
        "a b",
        "exit 1",
    )
    assert (call.arguments, call.arguments_unseen) == ('{"command":"ls -a"}', "content_truncated")
    assert prefix.turns[0].hidden == "content_hidden"
    assert {span.conversation_id for span in known.values() if span.kind == "agent"} == {"s-1"}


def test_an_execution_without_its_tool_is_no_call():
    spans = Spans()
    spans.add("claude_code.tool.execution", {"success": True, "tool_use_id": "c"}, parent="f" * 16)
    assert derive(spans.known()).calls == []


@pytest.mark.parametrize("named", [True, False])
def test_mcp_layers_are_one_call(named):
    spans = Spans()
    root = spans.add(
        "invoke_agent desk",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"},
        end=90_000,
    )
    method = {"mcp.method.name": "tools/call"} | ({"gen_ai.tool.name": "get"} if named else {})
    client = spans.add("tools/call get", method, parent=root, end=80_000)
    send = spans.add(
        "MCP send tools/call get", {"mcp.method.name": "tools/call"}, parent=client, end=70_000
    )
    spans.add("tools/call get", method, parent=send, flags=0x300, kind=2)
    spans.add("tools/list", {"mcp.method.name": "tools/list"}, parent=root)
    (call,) = derive(spans.known()).calls
    assert (call.tool, call.executed, len(call.spans)) == ("get", True, 2)


def test_langsmith_reports_failures_beside_a_status_of_ok():
    spans = Spans()
    root = spans.add("desk", {"langsmith.span.kind": "chain"}, end=90_000)
    spans.add(
        "get",
        {
            "langsmith.span.kind": "tool",
            "gen_ai.tool.name": "get",
            "gen_ai.prompt": j({"input": "KB-99"}),
            "gen_ai.completion": "{}",
        },
        parent=root,
        status=1,
        events=[RawEvent("exception", {"exception.message": "no item KB-99"})],
    )
    (call,) = derive(spans.known()).calls
    assert (call.arguments, call.result, call.error) == ("KB-99", None, "no item KB-99")


def test_langsmith_hides_inputs_and_outputs_as_empty_objects():
    def tool(prompt: str) -> Span:
        told = {"langsmith.span.kind": "tool", "gen_ai.prompt": prompt, "gen_ai.completion": "{}"}
        return normalise(RawSpan(TRACE, "1" * 16, name="get", attributes=told))

    hidden, empty = tool("{}"), tool('{"input": "{}"}')
    assert (hidden.arguments, hidden.unseen) == (None, {"arguments": "content_hidden"})
    assert (empty.arguments, empty.unseen) == ("{}", {})
    assert hidden.result is None


def test_adk_legacy_hides_arguments_and_results_as_empty_objects():
    def tool(arguments: str, response: str) -> Span:
        return normalise(
            RawSpan(
                TRACE,
                "1" * 16,
                scope="gcp.vertex.agent",
                attributes={
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "get",
                    "gcp.vertex.agent.tool_call_args": arguments,
                    "gcp.vertex.agent.tool_response": response,
                },
            )
        )

    hidden, empty = tool("{}", "{}"), tool("{}", '{"ok": true}')
    assert (hidden.arguments, hidden.result) == (None, None)
    assert (empty.arguments, empty.result) == ("{}", '{"ok":true}')


def adk_agent(request: str, response: str, **more: Any) -> Span:
    """The span of an agent of Google ADK 2, onto which OpenInference writes each of its model calls."""
    told = {
        "openinference.span.kind": "LLM",
        "gen_ai.operation.name": "generate_content",
        "llm.output_messages.0.message.role": "model",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "left_over",
        "input.value": request,
        "output.value": response,
    }
    scope = "gcp.vertex.agent"
    raw = RawSpan(TRACE, "1" * 16, "2" * 16, "invoke_agent desk", scope=scope, attributes=told)
    return normalise(msgspec.structs.replace(raw, **more))


def test_adk_2_under_openinference_tells_an_agents_run_by_its_last_request_and_response():
    def said(role: str, **part: Any) -> dict[str, Any]:
        return {"role": role, "parts": [part]}

    request = {
        "contents": [
            said("user", text="an earlier question"),
            said("model", text="an earlier answer"),
            said("user", text=ASKED),
            said("model", function_call={"id": "c1", "name": "get_item", "args": {"sku": "KB-77"}}),
            said("user", function_response={"id": "c1", "name": "get_item", "response": {"n": 4}}),
        ]
    }
    response = {"content": said("model", text=ANSWER), "finish_reason": "STOP"}
    span = adk_agent(json.dumps(request), json.dumps(response))
    assert (span.kind, span.agent, span.unseen) == ("agent", "desk", {})
    assert [message.text for message in span.inputs] == [ASKED]
    assert [c.call_id for message in span.outputs for c in message.calls] == ["c1"]
    assert span.outputs[-1].text == ANSWER


@pytest.mark.parametrize(
    ("request_", "response", "more", "why"),
    [
        ("__REDACTED__", "__REDACTED__", {}, "content_hidden"),
        ("{}", "{}", {"dropped": 1}, "attributes_dropped"),
    ],
)
def test_adk_2_under_openinference_hides_what_its_agents_said(request_, response, more, why):
    span = adk_agent(request_, response, **more)
    assert (span.kind, span.agent, span.outputs) == ("llm", "desk", ())
    assert span.unseen == {"input": why, "output": why}


def test_a_call_that_the_provider_ran_is_executed_and_its_message_answers():
    spans = Spans()
    parts = [
        {
            "type": "server_tool_call",
            "id": "srv_1",
            "name": "web_search",
            "server_tool_call": {"type": "web_search", "query": "KB-77"},
        },
        {
            "type": "server_tool_call_response",
            "id": "srv_1",
            "server_tool_call_response": {"type": "web_search", "hits": 4},
        },
        {"type": "text", "content": ANSWER},
    ]
    spans.add(
        "chat m",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": j(genai_messages()[:1]),
            "gen_ai.output.messages": j([{"role": "assistant", "parts": parts}]),
        },
    )
    prefix = derive(spans.known())
    (call,) = prefix.calls
    assert (call.tool, call.call_id, call.executed) == ("web_search", "srv_1", True)
    assert json.loads(call.arguments) == {"type": "web_search", "query": "KB-77"}
    assert json.loads(call.result) == {"type": "web_search", "hits": 4}
    assert final_answer(prefix) == ANSWER
    assert prefix.answered


def test_steps_of_several_runs_name_their_run():
    spans = Spans()
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": j(genai_messages()[:1]),
        "gen_ai.output.messages": j(said(ANSWER)),
    }
    roots = [spans.add("chat m", chat), spans.add("chat m", chat)]
    told = steps(derive(spans.known()))
    assert [step.run for step in told if step.type == "answer"] == roots
    only = steps(derive({roots[0]: spans.known()[roots[0]]}))
    assert {step.run for step in only} == {None}


def test_a_pending_span_of_any_dialect_is_no_step():
    spans = Spans()
    pending = {
        "logfire.span_type": "pending_span",
        "openinference.span.kind": "TOOL",
        "tool.name": "get",
    }
    spans.add("get", pending, parent="f" * 16)
    assert derive(spans.known()).calls == []


FLAT = [
    "llm.input_messages.0.message.role",
    "llm.input_messages.0.message.contents.0.message_content.text",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name",
    "llm.output_messages.0.message.tool_calls.x.tool_call",
    "llm.output_messages.99999999.message.content",
    "gen_ai.prompt.0.role",
    "gen_ai.prompt.0.content",
    "gen_ai.completion.0.tool_calls.0.name",
    "gen_ai.completion.0",
    "gen_ai.completion.0.content",
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
shaped = st.sampled_from(
    [
        j(genai_messages()),
        j({"messages": [[{"lc": 1, "id": ["AIMessage"], "kwargs": {"content": 7}}]]}),
        j([{"message": {"message": {"message": {"message": {"message": 1}}}}}]),
        j({"output": {"output": {"tool_call_id": [], "content": {"content": []}}}}),
        j({"args": 7, "kwargs": []}),
        "{'a': (1, [2, {'b': None",
        "[" * 200,
        '{"a":' * 150,
    ]
)
told_values = (
    anything
    | shaped
    | st.sampled_from(["LLM", "TOOL", "AGENT", "llm", "tool", "chain", "generation"])
)


@settings(max_examples=600, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*sorted(EXACT), *FLAT]), told_values, max_size=9),
    st.sampled_from(
        ["", "claude_code.tool", "claude_code.interaction", "agent_run [x]", "tools/call x"]
    ),
    st.sampled_from(
        ["", "gcp.vertex.agent", "pydantic-ai", "openinference.instrumentation.smolagents"]
    ),
    st.lists(
        st.builds(
            RawEvent,
            st.sampled_from(sorted(NAMES)),
            st.dictionaries(st.sampled_from(sorted(EVENT_KEYS)), told_values, max_size=4),
        ),
        max_size=3,
    ),
    st.integers(0, 2),
)
def test_no_span_of_any_dialect_makes_normalising_fail(attributes, name, scope, events, dropped):
    raw = RawSpan(
        TRACE,
        "1" * 16,
        parent="2" * 16,
        name=name,
        scope=scope,
        attributes=attributes,
        events=tuple(events),
        dropped=dropped,
    )
    found = normalise(raw)
    encoded = msgspec.msgpack.encode(found)
    assert len(encoded) <= SPAN_LIMIT
    assert msgspec.msgpack.decode(encoded, type=Span) == found
    derive({found.span_id: found})


def test_calls_with_empty_ids_are_told_apart_by_their_order():
    """As the Gemini client is instrumented by OpenLLMetry: an empty id is none."""
    calls = [
        {"type": "tool_call", "id": "", "name": "get_order", "arguments": {"order_id": order}}
        for order in ("ORD-1", "ORD-2")
    ]
    given = [
        {"type": "tool_call_response", "id": "", "response": text} for text in ("first", "second")
    ]
    asked = {"role": "user", "parts": [{"type": "text", "content": ASKED}]}
    turn = {"role": "assistant", "parts": calls}
    chat = {"gen_ai.operation.name": "chat"}
    spans = Spans()
    root = spans.add("invoke_agent a", {"gen_ai.operation.name": "invoke_agent"})
    spans.add(
        "chat",
        {**chat, "gen_ai.input.messages": j([asked]), "gen_ai.output.messages": j([turn])},
        parent=root,
    )
    history = [asked, turn, {"role": "user", "parts": given}]
    spans.add(
        "chat",
        {**chat, "gen_ai.input.messages": j(history), "gen_ai.output.messages": j(said(ANSWER))},
        parent=root,
    )
    found = [step for step in steps(derive(spans.known())) if step.type == "tool_call"]
    assert [(step.arguments, step.result) for step in found] == [
        ({"order_id": "ORD-1"}, "first"),
        ({"order_id": "ORD-2"}, "second"),
    ]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([{"type": "text", "text": '{"n": 1}', "id": "lc_1"}], {"n": 1}),
        ([{"block_type": "text", "text": "4 left"}], "4 left"),
        ([{"id": "7", "text": "a comment"}], [{"id": "7", "text": "a comment"}]),
    ],
)
def test_text_blocks_are_taken_off_and_records_are_not(told, expected):
    spans = Spans()
    spans.add(
        "execute_tool t",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "t",
            "gen_ai.tool.call.result": j(told),
        },
    )
    (step,) = steps(derive(spans.known()))
    assert step.result == expected


TOOL_OUTPUT = {
    "blocks": [{"block_type": "text", "text": "4 left"}],
    "tool_name": "get_item",
    "raw_input": {"args": [], "kwargs": {"sku": "KB-77"}},
    "raw_output": "4 left",
}


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("openinference", [False, True])
def test_tools_of_llama_index(openinference, failed):
    output = {**TOOL_OUTPUT, "is_error": failed}
    spans = Spans()
    if openinference:
        spans.add(
            "FunctionTool.acall",
            {
                "openinference.span.kind": "TOOL",
                "tool.name": "get_item",
                "input.value": j({"kwargs": {"sku": "KB-77"}}),
                "output.value": j(output),
            },
            scope="openinference.instrumentation.llama_index",
        )
    else:
        event = {"tool_name": "get_item", "tool_id": "c1", "tool_output": output}
        spans.add(
            "BaseWorkflowAgent.task",
            {
                "traceloop.span.kind": "task",
                "traceloop.entity.name": "BaseWorkflowAgent.task",
                "tool.name": "get_item",
                "tool.arguments": j({"sku": "KB-77"}),
                "traceloop.entity.output": j(event),
            },
        )
    (step,) = steps(derive(spans.known()))
    assert (step.tool, step.arguments) == ("get_item", {"sku": "KB-77"})
    assert (step.error or step.result) == "4 left"
    assert (step.error is not None) is failed
    assert step.call_id == (None if openinference else "c1")


def test_making_a_request_ready_asks_no_model():
    """LlamaIndex under OpenInference: such a span is of kind LLM, and shows no output."""
    attributes = {"openinference.span.kind": "LLM", "output.value": j({"messages": ["a"]})}
    name = "OpenAI._prepare_chat_with_tools"
    spans = Spans()
    spans.add(name, attributes, scope="openinference.instrumentation.llama_index")
    spans.add(name, attributes, scope="another")
    assert [span.kind for span in spans.known().values()] == ["other", "llm"]


def test_a_client_that_ran_its_tools_itself_hides_what_the_model_asked_for():
    """Gemini's client under OpenInference: one span, of which the messages tell only the end."""
    output = {
        "automatic_function_calling_history": [{"role": "user", "parts": [{"text": ASKED}]}],
    }
    spans = Spans()
    spans.add(
        "GenerateContent",
        {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": ASKED,
            "llm.output_messages.0.message.role": "model",
            "llm.output_messages.0.message.content": ANSWER,
            "output.value": json.dumps(output, separators=(",", ":")),
        },
        scope="openinference.instrumentation.google_genai",
    )
    (span,) = spans.known().values()
    assert span.unseen["output"] == "content_hidden"
    assert final_answer(derive(spans.known())) == ANSWER


@pytest.mark.parametrize(("told", "failed"), [("no such item", True), ("found elsewhere", False)])
def test_a_failure_below_that_the_outer_layer_gives_as_result_is_one(told, failed):
    """AutoGen's own tool span fails; OpenInference's around it shows the text that is told."""
    spans = Spans()
    outer = spans.add(
        "desk.get_item",
        {"openinference.span.kind": "TOOL", "tool.name": "get_item", "output.value": told},
    )
    spans.add(
        "execute_tool get_item",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "get_item",
            "error.type": "no such item",
        },
        parent=outer,
    )
    (step,) = steps(derive(spans.known()))
    assert step.error == ("no such item" if failed else None)


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("gen_ai.user.message", j({"role": "user", "content": ASKED}), ASKED),
        ("gen_ai.user.message", j({"sku": "KB-77"}), j({"sku": "KB-77"})),
        ("gen_ai.user.message", "{not JSON", "{not JSON"),
        ("gen_ai.choice", j({"message": {"content": ANSWER}, "finish_reason": "stop"}), ANSWER),
    ],
)
def test_a_log_record_whose_body_is_a_message_as_json(name, body, text):
    """Semantic Kernel writes it so; any other text is what was said."""
    (span,) = normalise_logs([RawLog(TRACE, "1" * 16, name, body=body)])
    (message,) = span.outputs or span.inputs
    assert (message.text, message.role) == (text, "assistant" if span.outputs else "user")
