"""A web application with aiohttp: it takes orders, and streams them to browsers as they become durable.

VLSNLOG_URL=http://127.0.0.1:7701,http://127.0.0.1:7702 python aiohttp_app.py 8080
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from vlsnlog import Client, Trimmed, VlsnLogError, connect

LOG: web.AppKey[Client[Any]] = web.AppKey("log", Client)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def log_of(app: web.Application) -> AsyncIterator[None]:
    """Opens the client on the application's event loop, and closes it after the last request."""
    async with connect(os.environ["VLSNLOG_URL"], codec="json", timeout_s=5) as log:
        app[LOG] = log
        yield


@web.middleware
async def told(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ValueError as error:  # the body is no JSON, or the VLSN is no number
        return web.json_response({"error": str(error)}, status=400)
    except Trimmed as error:
        return web.json_response({"error": str(error), "first": error.first}, status=410)
    except VlsnLogError as error:
        # The client has tried until its deadline. If retry_safe, nothing was logged; else read before sending again.
        said = {"error": str(error), "retry_safe": error.retry_safe}
        return web.json_response(said, status=503 if error.retry_safe else 504)


async def take(request: web.Request) -> web.Response:
    vlsn = await request.app[LOG].append(await request.json(), key="order")
    return web.json_response({"vlsn": vlsn}, status=201)


async def stream(request: web.Request) -> web.StreamResponse:
    """Streams entries as server-sent events; a browser that connects again sends the last id that it received."""
    last = int(request.headers.get("Last-Event-ID", "0"))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    async for entry in request.app[LOG].tail(last + 1 if last else None):
        if entry.key == b"order":
            await response.write(f"id: {entry.vlsn}\ndata: {json.dumps(entry.json())}\n\n".encode())
    return response


def application() -> web.Application:
    app = web.Application(middlewares=[told])
    app.cleanup_ctx.append(log_of)
    app.add_routes([web.post("/orders", take), web.get("/orders", stream)])
    return app


if __name__ == "__main__":
    # SIGTERM ends it: requests under way have two seconds, streams are cut, and the browser connects to another one.
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), shutdown_timeout=2)
