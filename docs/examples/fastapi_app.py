"""A web application with FastAPI: it answers once an order is on the disks of a majority, and streams orders.

VLSNLOG_URL=http://127.0.0.1:7701,http://127.0.0.1:7702 uvicorn fastapi_app:app --port 8080
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse

from vlsnlog import Client, Trimmed, VlsnLogError, connect


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """Opens one client for each worker process, on its event loop, and closes it after the last request."""
    async with connect(os.environ["VLSNLOG_URL"], codec="json", timeout_s=5) as log:
        yield {"log": log}


app = FastAPI(lifespan=lifespan)


def log_of(request: Request) -> Client[Any]:
    log: Client[Any] = request.state.log
    return log


@app.post("/orders", status_code=201)
async def take(request: Request, order: Annotated[dict[str, Any], Body()]) -> dict[str, int]:
    return {"vlsn": await log_of(request).append(order, key="order")}


@app.get("/orders")
async def stream(request: Request, last_event_id: Annotated[int, Header(ge=0)] = 0) -> StreamingResponse:
    """Streams entries as server-sent events; a browser that connects again sends the last id that it received."""

    async def events() -> AsyncIterator[str]:
        async for entry in log_of(request).tail(last_event_id + 1 if last_event_id else None):
            if entry.key == b"order":
                yield f"id: {entry.vlsn}\ndata: {json.dumps(entry.json())}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@app.exception_handler(VlsnLogError)
async def not_done(request: Request, error: VlsnLogError) -> JSONResponse:
    # The client has tried until its deadline. If retry_safe, nothing was logged; else read before sending again.
    status = 410 if isinstance(error, Trimmed) else 503 if error.retry_safe else 504
    return JSONResponse({"error": str(error), "retry_safe": error.retry_safe}, status)
