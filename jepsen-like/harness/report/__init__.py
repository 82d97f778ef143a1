"""How a run is told: a line while it runs, a table, ``results.json``, and a page with its timeline."""
