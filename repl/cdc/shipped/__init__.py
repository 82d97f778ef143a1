"""Consumers that come with vlsnlog, each a class of the interface that users' own have.

    consumer = "jsonl"       json_lines.py     lines of JSON in files that rotate
    consumer = "parquet"     parquet.py        Parquet files

They run in child processes: nothing here is imported by a node.
"""
