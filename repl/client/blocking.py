"""Makes blocking functions from the asynchronous client's functions, with the same name, arguments, types and
docstring.

    class SyncSinks(Blocking[Sinks]):
        get = waited(Sinks.get)

    sinks.get("orders")     runs ``Sinks.get("orders")`` on the client's loop, and waits in the calling thread

Each function in this module takes a function of the asynchronous client and returns a blocking function for threads.
The object with the blocking functions has two attributes. ``_inner`` is the asynchronous object. ``_run`` runs a
coroutine on the event loop and waits for the result.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from repl.client.codec import Codec, CodecName, codec_of
from repl.client.page import Page
from vlsn.format.block import Entry

K = TypeVar("K", covariant=True)
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
PageT = TypeVar("PageT", bound=Page)


class Runner(Protocol):
    """A client that runs an event loop of its own."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` on the client's event loop, and waits for the result in the calling thread."""
        ...


class Blocking(Generic[K]):
    """A wrapper through which threads use the part ``inner`` of the asynchronous client."""

    __slots__ = ("_client", "_inner")

    def __init__(self, client: Runner, inner: K) -> None:
        self._client = client
        self._inner = inner

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._client.run(work)


def inner_of(blocking: Blocking[K]) -> K:
    """Returns the part of the asynchronous client that ``blocking`` wraps."""
    return blocking._inner


def waited(call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Makes a blocking function, which runs the coroutine ``call`` and waits for its result."""

    @wraps(call)
    def called(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        return cast("T", self._run(call(self._inner, *args, **named)))

    return called


def on_loop(call: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Makes a blocking function, which runs the plain function ``call`` on the client's event loop."""

    @wraps(call)
    def called(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        async def done() -> T:
            return call(self._inner, *args, **named)

        return cast("T", self._run(done()))

    return called


def encoding_one(call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Makes a blocking function as ``waited`` does, for a ``call`` that takes a value and a key. The calling thread
    encodes the value and the key."""
    untyped: Callable[..., Any] = call

    @wraps(call)
    def called(self: Any, value: Any, *, key: Any = None, codec: CodecName | None = None, **named: Any) -> Any:
        given = _codec_of(self, codec)
        return self._run(untyped(self._inner, given.value(value), key=given.key(key), codec="bytes", **named))

    return cast("Callable[Concatenate[Any, P], T]", called)


def encoding_many(call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Makes a blocking function as ``waited`` does, for a ``call`` that takes many values and keys. The calling
    thread iterates over them and encodes them, because an iterator may be slow or may append entries itself."""
    untyped: Callable[..., Any] = call

    @wraps(call)
    def called(self: Any, values: Any, *, keys: Any = None, codec: CodecName | None = None, **named: Any) -> Any:
        given = _codec_of(self, codec)
        return self._run(untyped(self._inner, given.values(values), keys=given.keys(keys), codec="bytes", **named))

    return cast("Callable[Concatenate[Any, P], T]", called)


def _codec_of(blocking: Any, codec: CodecName | None) -> Codec:
    return cast("Codec", blocking._inner.codec) if codec is None else codec_of(codec)


def paged(
    call: Callable[Concatenate[S, P], AsyncGenerator[PageT, None]], *, ahead: bool = False
) -> Callable[Concatenate[Any, P], Generator[PageT, None]]:
    """Makes a blocking generator of the pages of ``call``. With ``ahead`` the next page is requested while the
    caller uses the current page."""

    @wraps(call)
    def called(self: Any, /, *args: P.args, **named: P.kwargs) -> Generator[PageT, None]:
        pages = call(self._inner, *args, **named)
        return cast("Generator[PageT, None]", self._ahead(pages) if ahead else self._pages(pages))

    return _generating(called)


def entries_of(
    pages: Callable[Concatenate[Any, P], Generator[Page, None]],
    call: Callable[Concatenate[S, P], AsyncGenerator[Entry, None]],
) -> Callable[Concatenate[Any, P], Generator[Entry, None]]:
    """Makes a blocking generator of the entries that ``call`` yields. The generator iterates over ``pages``, so a
    thread waits once for each page, not for each entry."""

    @wraps(call)
    def called(self: Any, /, *args: P.args, **named: P.kwargs) -> Generator[Entry, None]:
        return (entry for page in pages(self, *args, **named) for entry in page.entries)

    return _generating(called)


def _generating(called: Callable[P, T]) -> Callable[P, T]:
    """Corrects the return type of ``called``: a generator of the items that the wrapped function yields."""
    yields = called.__annotations__["return"].removeprefix("AsyncGenerator[").removesuffix(", None]")
    signature = inspect.signature(called)
    called.__signature__ = signature.replace(return_annotation=f"Generator[{yields}, None]")  # type: ignore[attr-defined]
    returned = Generator[yields, None]  # type: ignore[valid-type]  # named as the model's module names it
    called.__annotations__ = {**called.__annotations__, "return": returned}
    return called
