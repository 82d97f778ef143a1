"""The limits of destinations at a master."""

from __future__ import annotations

from typing import Final

MESSAGES_MAX: Final = 10_000
"""The most messages in one answer, and the most VLSNs in one call that acknowledges."""
MESSAGES: Final = 100
"""The number of messages in an answer if the request names no number."""
WAITERS_MAX: Final = 1_024
"""The most calls that may wait for messages of one destination."""
GATHER_S: Final = 0.001
"""Acknowledgements are collected for at least this many seconds before a COMMIT records them."""
NOTE_S: Final = 0.02
"""Normally at most one note (a COMMIT that records acknowledgements) is made in this many seconds."""
NOTE_ACKS: Final = 4_096
"""This many collected acknowledgements are noted at once. No note has more intervals than this."""
NOTE_ACKS_SOON: Final = 256
"""This many collected acknowledgements are noted early, if no other note waits to become durable. The COMMIT takes
at most a byte for each acknowledgement."""
NOTE_SOON_S: Final = 0.002
"""The shortest time in seconds between two notes of at least ``NOTE_ACKS_SOON`` acknowledgements."""
NOTES_UNDER_WAY_MAX: Final = 16
"""The most notes that may wait to become durable. At this limit, further acknowledgements wait until another note
(COMMIT) can be made."""
SKIPPED_NOTED: Final = 4_096
"""This many skipped VLSNs (no messages of the destination) are logged even if no acknowledgement waits to be logged."""
WINDOW_BYTES: Final = 1_048_576
"""The approximate bytes of one window. A window is a group of blocks whose messages are kept in memory for a
destination in use."""
WINDOWS_KEPT: Final = 2
"""The number of windows that are kept in memory for one destination."""
LOOK_S: Final = 2.0
"""A search for messages continues for at least this many seconds if more of the log can be read. A call that may wait
for messages searches longer."""
BLOCKED: Final = 1_000
"""A search ends after it has found this many messages that wait for their keys, or twice the requested number. A
message waits for its key while an earlier message of the key is out."""
BLOCKED_S: Final = 0.02
"""After a search that ended at ``BLOCKED`` messages, a call waits this many seconds for an acknowledgement."""
BLOCKED_MAX: Final = 1_000_000
"""A search goes at most this many VLSNs past the first message that waits for its key. These VLSNs are read again
once that message may be delivered."""
TRIES_MAX: Final = 131_072
"""The most messages of a destination whose attempts are counted in memory. If there are more messages, the oldest
counts are forgotten."""
PACE_S: Final = 2.0
"""The period in seconds over which the rate of messages is measured."""
REASON_BYTES_MAX: Final = 1_024
"""The most bytes of the reason that is stored with a dead letter."""
