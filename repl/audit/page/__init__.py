"""The report as one HTML file that one looks at: no script, nothing from outside, light and dark."""

from repl.audit.page.page import page_of

__all__ = ["page_of"]
