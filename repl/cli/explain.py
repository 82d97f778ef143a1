"""``vlsnlog explain``: prints the entry of an error's slug."""

from __future__ import annotations

import click

from repl.cli.options import Command


@click.command(cls=Command)
@click.argument("slug", required=False)
def explain(slug: str | None) -> None:
    """Explain an error: what happened, what to do, and which calls raise it.

    SLUG is `type` of an HTTP answer, or `error.slug` in Python. The name of an error class is accepted, too. Without
    SLUG all slugs are listed.
    """
    from repl.web import explained, problem

    if slug is not None:
        click.echo(explained.entry(slug))
        return
    size = max(map(len, explained.slugs()))
    for each in explained.slugs():
        click.echo(f"{each.ljust(size)}  {problem.title_of(each)}")
