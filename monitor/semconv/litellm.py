"""LiteLLM's own spans (its callback `otel`), beside the conventions that they follow.

https://docs.litellm.ai/docs/observability/opentelemetry_integration. Not what it seems:

- Where a span is current when a model is called, LiteLLM opens none of its own: it writes its
  attributes onto that one, each call over the one before (unless USE_OTEL_LITELLM_REQUEST_SPAN is
  set). Such a span, of another scope, tells of the last call alone.
- Below either it writes a `raw_gen_ai_request` with the provider's request and response, one
  attribute `llm.<provider>.<key>` for each key, values as Python's `repr` has them. It shows no
  response that was streamed.
- What a model asked for stands as `gen_ai.completion.N.function_call.*`, a number being a call,
  without ids and not in the output's messages.
"""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.model import Message, RequestedCall
from monitor.semconv import genai, payload
from monitor.semconv.content import shown
from monitor.semconv.dialect import Content
from monitor.semconv.flat import FlatHistory, Tree
from monitor.semconv.limits import name
from monitor.semconv.messages import read as read_message
from monitor.semconv.raw import RawSpan, Value, label
from monitor.semconv.wrapped import arguments

_CALL: Final = "litellm.call_id"
_SCOPE: Final = "litellm"
_REQUEST: Final = "litellm_request"
_RAW: Final = "raw_gen_ai_request"
_STREAMS: Final = "llm.is_streaming"
"""Not written where the latest conventions are asked for; raw spans then are not either."""
_COMPLETIONS: Final = "gen_ai.completion."
_FUNCTION: Final = "function_call"
_PROVIDERS: Final = (
    *("openai", "text-completion-openai", "custom_openai", "openai_like", "azure", "azure_ai"),
    *("azure_text", "anthropic", "anthropic_text", "bedrock", "bedrock_converse", "sagemaker"),
    *("sagemaker_chat", "vertex_ai", "vertex_ai_beta", "gemini", "palm", "groq", "mistral"),
    *("codestral", "cohere", "cohere_chat", "ollama", "ollama_chat", "openrouter", "together_ai"),
    *("fireworks_ai", "deepseek", "deepinfra", "xai", "perplexity", "huggingface", "replicate"),
    *("vllm", "hosted_vllm", "llamafile", "lm_studio", "databricks", "watsonx", "nvidia_nim"),
    *("cerebras", "sambanova", "github", "github_copilot", "litellm_proxy", "moonshot", "novita"),
    *("ai21", "ai21_chat", "volcengine", "dashscope", "snowflake", "cloudflare", "Unknown"),
)
_ASKED: Final = ("system", "system_instruction", "instructions", "messages", "contents", "input")
_SAID: Final = ("choices", "candidates", "output", "message", "role", "content")
_PAYLOAD: Final = {
    f"llm.{provider}.{key}": key for provider in _PROVIDERS for key in (*_ASKED, *_SAID)
}
_OWN: Final = {genai.OPERATION, genai.INPUT, genai.OUTPUT, genai.INSTRUCTIONS}
"""What LiteLLM writes over what a span says of itself."""

KEYS: frozenset[str] = frozenset({_CALL, _STREAMS, *_PAYLOAD})
PREFIXES: tuple[str, ...] = (_COMPLETIONS,)
MARKS: frozenset[str] = frozenset({_CALL})
TELLS: frozenset[str] = frozenset({_CALL, *_PAYLOAD})


def read(raw: RawSpan) -> Content | None:
    if _CALL not in raw.attributes:
        return _raw_request(raw) if raw.scope == _SCOPE or raw.name == _RAW else None
    if raw.scope == _SCOPE or raw.name == _REQUEST:
        return _request(raw)
    return _written_over(raw)


def _request(raw: RawSpan) -> Content:
    """A model call in a span of its own."""
    content = genai.read(raw) or Content("llm")
    if content.kind == "llm" and not any(message.calls for message in content.outputs):
        calls = _calls(raw)
        if calls:
            said = content.outputs[-1] if content.outputs else Message("assistant")
            content.outputs = (*content.outputs[:-1], msgspec.structs.replace(said, calls=calls))
            if content.unseen.get("output") == "content_hidden":
                del content.unseen["output"]
    if content.kind == "llm" and not content.outputs:
        content.miss("output", "content_hidden")
    return content


def _calls(raw: RawSpan) -> tuple[RequestedCall, ...]:
    """The calls that are flattened into attributes, one a number."""
    found: list[RequestedCall] = []

    def take(tree: Tree) -> Tree:
        function = tree.get(_FUNCTION)
        if isinstance(function, dict) and (tool := label(function.get("name"))) is not None:
            found.append(RequestedCall(name(tool), None, arguments(function.get("arguments"))[0]))
        return tree

    history = FlatHistory(raw.attributes, _COMPLETIONS, take)
    for index in range(len(history)):
        history.role(index)
    return tuple(found)


def _written_over(raw: RawSpan) -> Content:
    """A span of the application's, or of another instrumentation, with the last model call on it.

    One that has raw requests below it says nothing itself, so that those are the model calls; where
    the latest conventions are asked for there are none, and the last call is all that is known.
    """
    kept = {key: value for key, value in raw.attributes.items() if key not in _OWN}
    for word in ("execute_tool ", "invoke_agent "):
        if raw.name.startswith(word):
            kept[genai.OPERATION] = word.strip()
            there = genai.read(msgspec.structs.replace(raw, attributes=kept))
            return there or Content("other")
    content = genai.read(raw) or Content("llm")
    if content.kind == "llm":
        if _STREAMS in raw.attributes:
            content.outputs = ()
        content.unseen["output"] = "content_hidden"
    return content


def _raw_request(raw: RawSpan) -> Content | None:
    """The provider's request and response, taken apart by their keys."""
    values: dict[str, msgspec.Raw] = {}
    content = Content("llm")
    for key, value in raw.attributes.items():
        part = _PAYLOAD.get(key)
        if part is None:
            continue
        text, why = shown(value, raw.cut.get(key))
        content.miss("output" if part in _SAID else "input", why)
        if text is not None:
            values[part] = msgspec.Raw(_json(text))
    if not values:
        return None
    asked = {key: value for key, value in values.items() if key in _ASKED}
    said = {key: value for key, value in values.items() if key in _SAID}
    found, _ = payload.requested(_object(asked))
    payload.take_history(content, raw, found, None)
    answers, _ = payload.responded(_object(said))
    content.take_outputs([read_message(item) for item in answers])
    if not content.outputs:
        content.miss("output", "content_hidden")
    return content


def _json(text: str) -> bytes:
    """The JSON that a value is, or the JSON string of any other text."""
    if text[:1] in ("{", "[") and payload.parsed(text) is not None:
        return text.encode("utf-8", "replace")
    return msgspec.json.encode(text)


def _object(values: dict[str, msgspec.Raw]) -> Value:
    return msgspec.json.encode(values).decode("utf-8", "replace") if values else None
