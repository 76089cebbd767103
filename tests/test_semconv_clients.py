"""Model clients and what they write in ways of their own: LiteLLM, Bedrock, DSPy, streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.model import Span
from monitor.prefix import Prefix, derive
from monitor.semconv import RawEvent, RawSpan, normalise, wanted_among
from monitor.story import final_answer, steps, user_request

TRACE = "ab" * 16
ASKED = "Compare orders A and B."
ORDERS = [("c1", {"order": "A"}, "delivered"), ("c2", {"order": "B"}, "in transit")]
ANSWER = "A is delivered; B is in transit."


def span(number: int, name: str, attributes: dict[str, Any], **more: Any) -> Span:
    """A span as a transport hands it over; `number` is its id and its start."""
    kept = {key: attributes[key] for key in wanted_among(list(attributes))}
    more.setdefault("end", number * 1000 + 900)
    return normalise(
        RawSpan(TRACE, f"{number:016x}", name=name, start=number * 1000, attributes=kept, **more)
    )


def told(*spans: Span) -> Prefix:
    return derive({one.span_id: one for one in spans})


def calls(prefix: Prefix) -> list[tuple[str | None, Any, Any]]:
    return [
        (step.tool, step.arguments, step.result)
        for step in steps(prefix)
        if step.type == "tool_call"
    ]


EXPECTED = [("get_order", args, result) for _, args, result in ORDERS]
CHAT = [
    {"role": "user", "content": ASKED},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "get_order", "arguments": repr(a)}}
            for i, a, _ in ORDERS
        ],
    },
    *({"role": "tool", "tool_call_id": i, "content": text} for i, _, text in ORDERS),
]
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": ASKED}]},
    {**CHAT[1], "content": None, "parts": [{"type": "text", "content": ""}]},
    *(
        {"role": "tool", "tool_call_id": i, "parts": [{"type": "text", "content": text}]}
        for i, _, text in ORDERS
    ),
]
for message in PARTS:
    message.pop("content", None)
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": ANSWER}]}]
ASKS = {
    "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": []}]),
    **{
        f"gen_ai.completion.{n}.function_call.{key}": value
        for n, (_, args, _) in enumerate(ORDERS)
        for key, value in (("name", "get_order"), ("arguments", json.dumps(args)))
    },
}


def request(**more: Any) -> dict[str, Any]:
    """A model call in a span of LiteLLM's own."""
    return {"litellm.call_id": "x", "gen_ai.operation.name": "chat", **more}


def raws(parent: str) -> list[Span]:
    """What LiteLLM sent to a provider and got back, as `repr` writes it."""
    first = {"index": 0, "finish_reason": "tool_calls", "message": CHAT[1]}
    last = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": ANSWER},
    }
    return [
        span(
            2 + n,
            "raw_gen_ai_request",
            {"llm.openai.messages": repr(history), "llm.openai.choices": repr([choice])},
            scope="litellm",
            parent=parent,
        )
        for n, (history, choice) in enumerate(((CHAT[:1], first), (CHAT, last)))
    ]


def written_over(**more: Any) -> Span:
    last = {"gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": json.dumps(SAID)}
    return span(1, "support_desk", request(**last, **more), scope="app", end=9000)


def test_calls_that_litellm_flattens_without_ids_are_requested():
    root = span(1, "desk", {}, end=9000)
    found = told(
        root,
        span(
            2,
            "litellm_request",
            request(**ASKS, **{"gen_ai.input.messages": json.dumps(PARTS[:1])}),
            scope="litellm",
            parent=root.span_id,
        ),
        span(
            3,
            "litellm_request",
            request(
                **{
                    "gen_ai.input.messages": json.dumps(PARTS),
                    "gen_ai.output.messages": json.dumps(SAID),
                }
            ),
            scope="litellm",
            parent=root.span_id,
        ),
    )
    assert calls(found) == EXPECTED
    assert user_request(found) == ASKED
    assert final_answer(found) == ANSWER


def test_raw_requests_tell_the_calls_where_litellm_wrote_them_over_each_other():
    root = written_over(**{"llm.is_streaming": False})
    found = told(root, *raws(root.span_id))
    assert calls(found) == EXPECTED
    assert user_request(found) == ASKED
    assert final_answer(found) == ANSWER


def test_a_span_that_litellm_wrote_over_alone_hides_the_calls_before_the_last():
    root = written_over()
    assert (root.kind, root.unseen["output"]) == ("llm", "content_hidden")
    assert final_answer(told(root)) == ANSWER


def test_a_tool_that_litellm_wrote_over_stays_a_tool():
    own = {"gen_ai.tool.name": "ask", "gen_ai.tool.call.arguments": '{"q": 1}'}
    last = {"gen_ai.output.messages": json.dumps(SAID)}
    found = span(1, "execute_tool ask", request(**own, **last), scope="framework")
    assert (found.kind, found.tool, found.arguments) == ("tool", "ask", '{"q":1}')


@pytest.mark.parametrize(
    ("provider", "attributes"),
    [
        ("anthropic", {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}),
        ("bedrock", {"output": {"message": {"role": "assistant", "content": [{"text": ANSWER}]}}}),
        ("gemini", {"candidates": [{"content": {"role": "model", "parts": [{"text": ANSWER}]}}]}),
    ],
)
def test_raw_responses_of_providers(provider, attributes):
    found = span(
        1,
        "raw_gen_ai_request",
        {f"llm.{provider}.{key}": str(value) for key, value in attributes.items()},
        scope="litellm",
    )
    assert [message.text for message in found.outputs] == [ANSWER]


def test_json_blocks_of_a_result_are_taken_off():
    """As Bedrock has results."""
    block = {"toolResult": {"toolUseId": "c1", "content": [{"json": {"n": 1}}]}}
    body = {"role": "user", "content": json.dumps([block])}
    found = span(
        1,
        "chat",
        {"gen_ai.operation.name": "chat"},
        events=(RawEvent("gen_ai.user.message", body),),
    )
    assert [r.result for message in found.inputs for r in message.results] == ['{"n":1}']


def test_a_result_that_is_quoted_without_its_content_tells_that_the_call_ran():
    chat = {"gen_ai.operation.name": "chat"}
    asked = '[{"id": "c1", "type": "function", "function": {"name": "get_order"}}]'
    choice = RawEvent("gen_ai.choice", {"message": f'{{"tool_calls": {asked}}}'})
    history = (
        RawEvent("gen_ai.assistant.message", {"tool_calls": asked}),
        RawEvent("gen_ai.tool.message", {"id": "c1"}),
    )
    root = span(1, "desk", {}, end=9000)
    found = told(
        root,
        span(2, "chat", chat, events=(choice,), parent=root.span_id),
        span(3, "chat", chat, events=history, parent=root.span_id),
    )
    (call,) = found.calls
    assert (call.returned, call.result, call.result_unseen) == (True, None, "content_hidden")


def test_one_id_less_call_is_named_by_one_id_of_the_histories():
    """Three turns ask for the same without ids; each later history quotes what came before."""
    user = {"role": "user", "content": ASKED}
    poll = {"type": "tool_call", "name": "poll", "arguments": {}}
    history: list[dict[str, Any]] = [user]
    spans = [span(1, "desk", {}, end=9000)]
    for n in range(3):
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(history),
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [poll]}]),
        }
        spans.append(span(2 + n, "chat", attributes, parent=spans[0].span_id))
        function = {"name": "poll", "arguments": "{}"}
        history += [
            {"role": "assistant", "tool_calls": [{"id": f"c{n}", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"state {n}"},
        ]
    last = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(history),
        "gen_ai.output.messages": json.dumps(SAID),
    }
    spans.append(span(6, "chat", last, parent=spans[0].span_id))
    assert [result for _, _, result in calls(told(*spans))] == ["state 0", "state 1", "state 2"]


DSPY = "openinference.instrumentation.dspy"
WANTED = "\n\nRespond with the corresponding output fields, starting with `[[ ## answer ## ]]`."


def model_call(number: int, asked: str, said: str) -> Span:
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "You look things up.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.content": "[[ ## question ## ]]\nAn example?",
        "llm.input_messages.2.message.role": "assistant",
        "llm.input_messages.2.message.content": "[[ ## answer ## ]]\nAn example.",
        "llm.input_messages.3.message.role": "user",
        "llm.input_messages.3.message.content": asked,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": said,
    }
    return span(number, "LM.__call__", attributes, scope=DSPY, parent=f"{1:016x}")


def dspy_tool(number: int, name: str, given: Any, result: str) -> Span:
    attributes = {
        "openinference.span.kind": "TOOL",
        "input.value": json.dumps({"kwargs": given}),
        "output.value": result,
    }
    return span(number, f"{name}.__call__", attributes, scope=DSPY, parent=f"{1:016x}")


def call_text(tool: str, given: Any) -> str:
    fields = {
        "next_thought": "I look.",
        "next_tool_name": tool,
        "next_tool_args": json.dumps(given),
    }
    return "\n\n".join(f"[[ ## {key} ## ]]\n{value}" for key, value in fields.items())


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_of_dspy(as_json):
    asked = f"[[ ## question ## ]]\n{ASKED}\n\n[[ ## trajectory ## ]]\n{WANTED}"
    args = {"order": "A"}
    call = call_text("get_order", args)
    answer = f"[[ ## reasoning ## ]]\nSo.\n\n[[ ## answer ## ]]\n{ANSWER}\n\n[[ ## completed ## ]]"
    if as_json:
        call = json.dumps({"next_tool_name": "get_order", "next_tool_args": args})
        answer = json.dumps({"reasoning": "So.", "answer": ANSWER})
    found = told(
        span(1, "ReAct.forward", {"openinference.span.kind": "CHAIN"}, scope=DSPY, end=9000),
        model_call(2, asked, call),
        dspy_tool(3, "get_order", args, "delivered"),
        model_call(4, asked, call_text("finish", {})),
        dspy_tool(5, "finish", {}, "Completed."),
        model_call(6, asked, answer),
    )
    assert calls(found) == [("get_order", args, "delivered")]
    assert [step.type for step in steps(found)] == ["user_request", "tool_call", "answer"]
    assert user_request(found) == ASKED
    assert final_answer(found) == ANSWER
    assert found.gaps == 0  # examples are no turns of this run


@pytest.mark.parametrize("shown", ["<groq.Stream object at 0x7f915f44de50>", "<coroutine at 0x1f>"])
def test_pythons_text_for_an_object_hides_what_was_said(shown):
    found = span(1, "chat", {"openinference.span.kind": "LLM", "output.value": shown})
    assert found.outputs == ()
    assert found.unseen["output"] == "content_hidden"


HAYSTACK = [
    {"role": "user", "content": [{"text": ASKED}]},
    {
        "role": "assistant",
        "content": [
            {"tool_call": {"tool_name": "get_order", "arguments": args, "id": call_id}}
            for call_id, args, _ in ORDERS
        ],
    },
    *(
        {
            "role": "tool",
            "content": [
                {
                    "tool_call_result": {
                        "result": result,
                        "origin": {"tool_name": "get_order", "arguments": args, "id": call_id},
                        "error": call_id == "c2",
                    }
                }
            ],
        }
        for call_id, args, result in ORDERS
    ),
]


def component(number: int, kind: str, given: Any, output: Any) -> Span:
    attributes = {
        "haystack.component.type": kind,
        "haystack.component.name": kind.lower(),
        "haystack.component.input": json.dumps(given),
        "haystack.component.output": json.dumps(output),
    }
    return span(number, "haystack.component.run", attributes, parent=f"{1:016x}")


def test_a_run_of_haystack():
    said = {"role": "assistant", "content": [{"text": ANSWER}]}
    found = told(
        span(1, "haystack.agent.run", {"haystack.agent.max_steps": 100}, end=9000),
        component(2, "OpenAIChatGenerator", {"messages": HAYSTACK[:1]}, {"replies": [HAYSTACK[1]]}),
        component(3, "ToolInvoker", {"messages": HAYSTACK[1:2]}, {"tool_messages": HAYSTACK[2:]}),
        component(4, "OpenAIChatGenerator", {"messages": HAYSTACK}, {"replies": [said]}),
    )
    assert calls(found) == EXPECTED
    assert [step.error for step in steps(found) if step.type == "tool_call"] == [None, "in transit"]
    assert user_request(found) == ASKED
    assert final_answer(found) == ANSWER


def test_a_generator_of_haystack_that_shows_nothing_hides_what_it_said():
    found = span(1, "haystack.component.run", {"haystack.component.type": "OpenAIGenerator"})
    assert (found.kind, found.unseen) == ("llm", {"output": "content_hidden"})


@pytest.mark.parametrize(
    ("printed", "result", "error"),
    [
        ("status='success' result={'n': 1} error=None updated_session_state=None", '{"n":1}', None),
        ("status='success' result='4 left' error=None updated_session_state=None", "4 left", None),
        (
            "status='failure' result=None error=\"no 'X'\" updated_session_state=None",
            "None",
            "no 'X'",
        ),
        ("status of result= unknown", "status of result= unknown", None),
    ],
)
def test_a_result_that_agno_prints(printed, result, error):
    attributes = {
        "traceloop.span.kind": "tool",
        "gen_ai.tool.name": "count",
        "traceloop.entity.input": '{"of": "x"}',
        "traceloop.entity.output": printed,
    }
    found = span(1, "count.tool", attributes, scope="opentelemetry.instrumentation.agno")
    assert (found.tool, found.arguments) == ("count", '{"of":"x"}')
    assert found.error == error
    if error is None:
        assert found.result == result


BLOCK = "TextContent(type='text', text='{\"n\": 1}', annotations=None, meta=None)"


@pytest.mark.parametrize(
    ("printed", "result", "failed"),
    [
        (f"meta=None content=[{BLOCK}] structured_content=None is_error=False", '{"n":1}', False),
        (f"meta=None content=[{BLOCK}] isError=True", '{"n":1}', True),
        (f"CallToolResult(meta=None, content=[{BLOCK}], isError=False)", '{"n":1}', False),
        (f"[{BLOCK}]", '{"n":1}', False),
        (f"[{BLOCK}, {BLOCK}]", '{"n": 1}\n{"n": 1}', False),
        (f"[{BLOCK}, ImageContent(data='x')]", None, False),
        ("meta=None and no content", None, False),
    ],
)
def test_a_result_of_mcp_that_python_printed(printed, result, failed):
    attributes = {"openinference.span.kind": "TOOL", "tool.name": "t", "output.value": printed}
    found = span(1, "t", attributes)
    assert found.result == (printed if result is None else result)
    assert (found.error is not None) == failed


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"name": "count", "arguments": '{"of": "x"}'}, '{"of":"x"}'),
        ({"name": "another", "arguments": "{}"}, '{"name":"another","arguments":"{}"}'),
        ({"name": "count", "arguments": "{}", "more": 1}, None),
    ],
)
def test_arguments_within_the_call_that_asks_for_the_tool(given, arguments):
    attributes = {
        "openinference.span.kind": "TOOL",
        "tool.name": "count",
        "input.value": json.dumps(given),
        "output.value": '[false, {"name": "count", "role": "function", "content": "none left"}]',
    }
    found = span(1, "count", attributes)
    assert found.arguments == (arguments or json.dumps(given, separators=(",", ":")))
    assert (found.result, found.error) == ("none left", "none left")


SMOL = "openinference.instrumentation.smolagents"


def code_turn(number: int, said: str) -> Span:
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": f"New task:\n{ASKED}",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": said,
    }
    return span(number, "LiteLLMModel.generate", attributes, scope=SMOL, parent=f"{1:016x}")


def code_agent() -> Span:
    attributes = {"openinference.span.kind": "AGENT", "output.value": ANSWER}
    return span(1, "CodeAgent.run", attributes, scope=SMOL, end=9000)


def test_code_that_an_agent_has_run_is_no_answer():
    acts = code_turn(2, "I look.\n<code>\nprint(get_order('A'))\n</code>")
    ends = code_turn(4, f"<code>\nfinal_answer({ANSWER!r})\n</code>")
    found = told(code_agent(), acts, ends)
    assert [answer.text for answer in found.answers] == [ANSWER]


def test_an_answer_that_is_computed_is_the_one_that_the_agent_tells():
    found = told(code_agent(), code_turn(2, "```py\nfinal_answer(f'{n} left')\n```"))
    assert [answer.text for answer in found.answers] == [ANSWER]
    assert user_request(found) == ASKED


@pytest.mark.parametrize(("names", "matched"), [(("a", "b"), True), (("a",), False)])
def test_results_that_name_calls_otherwise_where_no_history_is_repeated(names, matched):
    """As OpenLLMetry has OpenAI's Responses with `previous_response_id`: calls by item, results by
    call."""
    asked = [
        {"type": "tool_call", "id": f"fc_{i}", "name": "get_order", "arguments": args}
        for i, args, _ in ORDERS
    ]
    given = [
        {"type": "tool_call_response", "id": i, "response": text}
        for i, (_, _, text) in zip(names, ORDERS, strict=False)
    ]
    turns = [
        (PARTS[:1], [{"role": "assistant", "parts": asked}]),
        ([{"role": "tool", "parts": given}], SAID),
    ]
    root = span(1, "desk", {}, end=9000)
    spans = [
        span(
            2 + n,
            "openai.response",
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": json.dumps(before),
                "gen_ai.output.messages": json.dumps(after),
            },
            parent=root.span_id,
        )
        for n, (before, after) in enumerate(turns)
    ]
    found = calls(told(root, *spans))
    assert found == (EXPECTED if matched else [(tool, args, None) for tool, args, _ in EXPECTED])
