"""The embedded log, ``vlsn.Log``: a log in one directory, without a cluster. ``vlsn.Log`` is blocking and
thread-safe."""
