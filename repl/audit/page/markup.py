"""Makes the elements of a page. Text is escaped when it is inserted; only results of this module are inserted as
markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"br", "meta", "rect", "line", "path", "use", "col"})
_UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control characters, and invisible characters that change the direction of the text beside them or hide it."""


class Markup(str):
    """Text that is markup already; all other text is escaped before it is inserted into a page."""

    __slots__ = ()


Node = Markup | str | int | float | None
Children = Node | Iterable["Children"]


def tag(name: str, /, *children: Children, **attributes: Node) -> Markup:
    """Makes an element. In an attribute's name, ``_`` becomes ``-``, and a final ``_`` is dropped. An attribute whose
    value is None is omitted."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{named}/>")
    return Markup(f"<{name}{named}>{joined(children)}</{name}>")


def joined(children: Children) -> Markup:
    """Joins children, which may be nested."""
    if children is None:
        return Markup("")
    if isinstance(children, str | int | float):
        return text(children)
    return Markup("".join(map(joined, children)))


def text(value: Node) -> Markup:
    """Escapes text for content and attributes; invisible characters are replaced by their codes."""
    if isinstance(value, Markup):
        return value
    shown = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))
    return Markup(escape(shown, quote=True))
