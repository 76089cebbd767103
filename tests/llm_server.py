"""A scripted OpenAI-compatible server: real HTTP, answers as a test wants them.

A script is called with each chat completion request and gives a `web.Response`, or a list of items
for a good answer. `read_well` extracts what a good model would of the answers that tests use.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

Asked = dict[str, Any]
Script = Callable[[Asked], Any]

_DATA = re.compile(r'<data id="([0-9a-f]+)">\n(.*?)\n</data>', re.DOTALL)


def data(asked: Asked) -> dict[str, dict[str, Any]]:
    """Steps of a request by id."""
    user = asked["messages"][1]["content"]
    return {name: json.loads(body) for name, body in _DATA.findall(user)}


def claim(words: str, evidence: Any = None, **more: Any) -> dict[str, Any]:
    return {"kind": "other", "subject": "it", "value": words, "words": words,
            "evidence": evidence, "confidence": 0.8, **more}  # fmt: skip


def read_well(asked: Asked) -> list[dict[str, Any]]:
    """One claim an answer: all of its words, without evidence."""
    return [
        {"id": name, "claims": [claim(body["answer"][:500])]}
        if "answer" in body
        else {"id": name, "entities": [], "facts": [{"subject": "it", "value": "x", "path": "$"}]}
        for name, body in data(asked).items()
    ]


def completion(content: Any, **more: Any) -> web.Response:
    """A chat completion that says `content` (JSON unless it is text)."""
    text = content if isinstance(content, str) else json.dumps(content)
    body = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "scripted-1.2",
        "choices": [{"index": 0, "finish_reason": more.pop("finish", "stop"),
                     "message": {"role": "assistant", "content": text, **more.pop("message", {})}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}, **more,
    }  # fmt: skip
    return web.json_response(body)


def refusal(status: int, message: str = "no", **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response({"error": {"message": message}}, status=status, headers=named)


class LlmServer:
    """Use as `async with LlmServer(script) as server`; `server.url` is the base URL."""

    def __init__(self, script: Script = read_well) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.url = ""
        self._port = 0
        self.active = self.most = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{self._port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            said = self.script(asked)
            if isinstance(said, Awaitable):
                said = await said
        finally:
            self.active -= 1
        return completion({"items": said}) if isinstance(said, list) else said


async def never(_: Asked) -> Any:
    """Accepts and never answers."""
    await asyncio.Event().wait()


class ServerThread:
    """The server in a thread of its own, for tests of other processes. It can die and return."""

    def __init__(self, script: Script = read_well) -> None:
        self.server = LlmServer(script)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self.server.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return self.server.url

    def die(self) -> None:
        self._run(self.server.__aexit__())

    def come_back(self) -> None:
        self._run(self.server.__aenter__())

    def _run(self, doing: Any) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(30)
