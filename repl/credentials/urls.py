"""URLs of nodes, as settings and options name them."""

from __future__ import annotations

from urllib.parse import urlsplit

from vlsn.errors import BadArgument


def check_url(key: str, url: str) -> None:
    """Checks that a URL is ``http://HOST:PORT`` or ``https://HOST:PORT`` without a path."""
    example = "write it as http://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadArgument(f"{key}: {url!r} is no URL; {example}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadArgument(f"{key}: {url!r} is no http URL; {example}")
    if not port:
        raise BadArgument(f"{key}: {url!r} names no port; {example}")
    if parts.path or parts.query or parts.fragment or parts.username:
        raise BadArgument(f"{key}: {url!r} has more than host and port; {example}")


def split_urls(text: str) -> list[str]:
    """Splits a comma-separated list of URLs, in order. Removes repeated URLs and trailing slashes."""
    urls = list(dict.fromkeys(part.strip().rstrip("/") for part in text.split(",") if part.strip()))
    if not urls:
        raise BadArgument("url: empty; give at least one http://HOST:PORT")
    for url in urls:
        check_url("url", url)
    return urls
