"""In the server's distribution the parts of the client are modules of ``repl`` and ``vlsn``."""

PLACE = ""
