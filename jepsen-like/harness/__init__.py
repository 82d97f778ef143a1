"""The harness: real node processes under faults, and checks of their answers.

The command line starts a *cluster* of processes.  *Writers* append through the client and note each outcome in a
*history* as ok, refused or unknown, while *faults* happen.  Then every node's log is read and compared with the
history.  No module here imports the log or the node: the harness uses processes, HTTP and the client, as a user does.
"""
