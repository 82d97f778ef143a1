"""The consumers that are part of vlsnlog. Each is a class of the same interface as users' consumers.

    consumer = "jsonl"       json_lines.py     lines of JSON in files that rotate
    consumer = "parquet"     parquet.py        Parquet files

The consumers run in child processes. A node imports nothing from this package.
"""
