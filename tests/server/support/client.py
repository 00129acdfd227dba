"""An in-process client: no socket, no thread; each call drives the ASGI application to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.config.server import ServerConfig
from headrace.server import make_app
from headrace.server.limits import Limits
from tests.server.support.fakes import FakeLLM

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Answer:
    """Status, headers and body of one answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        body = self.json
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
        return body["error"]

    @property
    def data(self) -> list[str]:
        """The events of a stream."""
        assert self.headers["content-type"].startswith("text/event-stream")
        return [
            event.removeprefix("data: ")
            for event in self.body.decode().split("\n\n")
            if event and not event.startswith(":")
        ]

    @property
    def chunks(self) -> list[Any]:
        """The events before `[DONE]`, parsed."""
        assert self.data[-1] == "[DONE]"
        return [json.loads(event) for event in self.data[:-1]]


class Client:
    """Calls an application made over `llm`. `leave_after` is how many body messages to read before hanging up."""

    def __init__(self, llm: FakeLLM | None = None, limits: Limits | None = None, root_path: str = "") -> None:
        self.llm = llm or FakeLLM()
        config = ServerConfig(root_path=root_path)
        if limits is None:
            self.app = make_app(self.llm, config)
        else:
            from headrace.server.app import make_app as make_limited

            self.app = make_limited(self.llm, config, limits)

    def get(self, path: str, **options: Any) -> Answer:
        return asyncio.run(self.call("GET", path, None, **options))

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        """`body` is bytes as they are, or something to encode."""
        return asyncio.run(self.call("POST", path, body, **options))

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        leave_after: int | None = None,
        leave_when: Callable[[], bool] | None = None,
    ) -> Answer:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} | (headers or {})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in sent.items() if v],
            "server": ("testserver", 80),
            "client": ("testclient", 1),
        }
        received = [{"type": "http.request", "body": raw, "more_body": False}]
        gone = asyncio.Event()
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if received:
                return received.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)
            num_bodies = sum(m["type"] == "http.response.body" for m in messages)
            if leave_after is not None and num_bodies >= leave_after:
                gone.set()
            await asyncio.sleep(0)

        async def leave() -> None:
            while leave_when is not None and not leave_when():
                await asyncio.sleep(0.001)
            if leave_when is not None:
                gone.set()

        async with asyncio.timeout(TIMEOUT_S):
            leaving = asyncio.ensure_future(leave())
            await self.app(scope, receive, send)
            leaving.cancel()
            await asyncio.sleep(0.01)
        if not messages:
            return Answer(0, {}, b"")
        start = messages[0]
        return Answer(
            start["status"],
            {k.decode(): v.decode() for k, v in start["headers"]},
            b"".join(m.get("body", b"") for m in messages[1:]),
        )


def complete(client: Client, **body: Any) -> Answer:
    """POST /v1/completions with a short greedy default."""
    return client.post("/v1/completions", {"prompt": "hello", "max_tokens": 5, "temperature": 0} | body)


def chat(client: Client, **body: Any) -> Answer:
    """POST /v1/chat/completions with a short greedy default."""
    messages = [{"role": "user", "content": "Hi"}]
    return client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 5, "temperature": 0} | body)


def encoded(body: Any) -> bytes:
    return msgspec.json.encode(body)
