"""Files that are whole from the moment their names are there: those of CDC consumers, and of exports.

``directory`` is the place and its durable steps, ``parquet`` the columns of entries.
"""
