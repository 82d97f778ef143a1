"""Sockets: the only place that knows aiohttp.  Adapters without decisions; see ``repl/web`` for those."""

from repl.net.network import AiohttpNetwork

__all__ = ["AiohttpNetwork"]
