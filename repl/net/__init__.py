"""Sockets: the only place that imports aiohttp. These adapters take no decisions; ``repl/web`` does."""
