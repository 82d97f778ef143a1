"""`vlsn.Log`: one directory, no cluster; blocking and thread-safe."""
