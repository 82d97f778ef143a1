"""SQL over an export, with DuckDB: the view shows complete batches only.

    python lake_sql.py /srv/lake "select date, count(*) from entries group by date order by date"

Manifests are read in their order, up to the first one whose files are not all in place yet.
"""

import json
import sys
from pathlib import Path

import duckdb


def committed(lake: Path) -> list[str]:
    """Returns the files of every batch that is complete."""
    files: list[str] = []
    for manifest in sorted((lake / "_manifests").glob("*.json")):
        batch = [str(lake / file["name"]) for file in json.loads(manifest.read_text())["files"]]
        if not all(Path(file).exists() for file in batch):
            break  # a batch committed a moment ago, whose files the export moves into place
        files += batch
    return files


def main(lake: str, query: str) -> None:
    with duckdb.connect() as database:
        database.read_parquet(committed(Path(lake)), hive_partitioning=True).create_view("entries")
        for row in database.sql(query).fetchall():
            print(*row, sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
