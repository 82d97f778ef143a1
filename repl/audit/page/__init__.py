"""Writes the report as one HTML page for people: without scripts or outside files, in light and dark."""

from repl.audit.page.page import page_of

__all__ = ["page_of"]
