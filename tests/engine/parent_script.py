"""A server that starts an engine, prints its pid and waits to be killed. Arguments: the model; main or thread."""

from __future__ import annotations

import asyncio
import sys
import threading

from headrace.config.engine import EngineConfig
from headrace.engine.process.child import EngineProcess
from headrace.engine.process.remote import RemoteEngine


def start(model: str, where: str) -> EngineProcess:
    started: list[EngineProcess] = []

    def spawn() -> None:
        started.append(EngineProcess.start(EngineConfig(model=model), module="tests.engine.fake_engine"))

    if where == "main":
        spawn()
    else:
        thread = threading.Thread(target=spawn)
        thread.start()
        thread.join()
    return started[0]


async def main(model: str, where: str) -> None:
    process = start(model, where)
    loading = asyncio.create_task(RemoteEngine(process).start())
    if not model.startswith("slow"):
        await loading
    print(process.pid, flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
