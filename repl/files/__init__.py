"""Files that are complete as soon as they have their final names, for CDC consumers and for exports.

``directory`` has the durable steps, ``parquet`` the columns of entries in a Parquet file.
"""
