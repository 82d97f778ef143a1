"""The certificate that a node shows, and the authorities that it trusts, as TLS handshakes show them from outside."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

PROBE_S: Final = 3.0


async def shown(url: str) -> bytes:
    """Returns the certificate that the node shows, in DER; empty without a handshake."""
    return (await _asked(url, None))[0]


async def trusts(url: str, authority: Path, name: str) -> bool | None:
    """Says whether the node trusts ``authority``, by a certificate of ``name`` in its directory. None if the node does
    not answer a call without a certificate either."""
    if (await _asked(url, (authority / f"{name}.pem", authority / f"{name}.key")))[1]:
        return True
    return False if (await _asked(url, None))[1] else None


async def _asked(url: str, own: tuple[Path, Path] | None) -> tuple[bytes, bool]:
    """Asks for the node's health. Returns its certificate, and whether it answered: by TLS 1.3 a client's certificate
    is refused after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(*own)
    target, writer, found, answered = urlsplit(url), None, b"", False
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(target.hostname, target.port, ssl=context)
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: {target.netloc}\r\nConnection: close\r\n\r\n".encode())
            answered = (await reader.readline()).startswith(b"HTTP/1.1 ")
    except (OSError, EOFError, ValueError):
        pass
    finally:
        if writer is not None:
            writer.transport.abort()
    return found, answered
