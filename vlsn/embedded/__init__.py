"""The embedded log, ``vlsn.Log``: a log in one directory, without a cluster. It is blocking and thread-safe."""
