"""The harness: real node processes under faults, and the judgement of their answers.

A *cluster* of processes is started by the command line; *writers* append through the client and note each
outcome in a *history* as ok, refused or unknown; a *fault* happens; then every node's log is read and
judged against the history.  Nothing here imports the log or the node: it knows processes, HTTP and the
client, as a user does.
"""
