"""Files that are whole as soon as their names exist: for CDC consumers and for exports.

``directory`` has the durable steps, ``parquet`` the columns of entries.
"""
