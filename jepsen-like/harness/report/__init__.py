"""The report of a run: a line while it runs, a table, ``results.json``, and a timeline."""
