"""``vlsn.Log``: a log in one directory, without a cluster; blocking and thread-safe."""
