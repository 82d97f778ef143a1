"""The consumers that are part of vlsnlog. Each is a class with the same interface as a user's consumer.

    consumer = "jsonl"       json_lines.py     lines of JSON in files that rotate
    consumer = "parquet"     parquet.py        Parquet files

The consumers of this package run in child processes. The node's own process imports nothing from this package.
"""
