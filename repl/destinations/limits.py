"""The limits of destinations at a master."""

from __future__ import annotations

from typing import Final

MESSAGES_MAX: Final = 10_000
"""The most messages of one answer, and the most VLSNs of one call that acknowledges."""
MESSAGES: Final = 100
"""The messages of an answer if the call names no number."""
WAITERS_MAX: Final = 1_024
"""The most calls that may wait for messages of one destination."""
GATHER_S: Final = 0.001
"""Acknowledgements are gathered for at least this many seconds."""
NOTE_S: Final = 0.02
"""At most one note is made in this many seconds."""
NOTE_ACKS: Final = 4_096
"""A note is made at once when this many acknowledgements are gathered. A note has no more intervals than this."""
NOTE_ACKS_SOON: Final = 256
"""With this many acknowledgements a note is made sooner, if no other note is under way. Its COMMIT takes at most a byte
for each acknowledgement."""
NOTE_SOON_S: Final = 0.002
"""The shortest time in seconds between two such notes."""
NOTES_UNDER_WAY_MAX: Final = 16
"""The most notes that may wait to become durable. Later acknowledgements wait for the next note."""
SKIPPED_NOTED: Final = 4_096
"""The number of skipped VLSNs from which on a note is made even without an acknowledgement."""
WINDOW_BYTES: Final = 1_048_576
"""The bytes of blocks whose messages are kept in memory for a destination that is in use."""
WINDOWS_KEPT: Final = 2
"""The number of windows that are kept for one destination."""
LOOK_S: Final = 2.0
"""The least number of seconds that one answer looks for messages while there is more of the log to read. An answer that
may wait looks longer."""
BLOCKED: Final = 1_000
"""One search ends after this many messages, or twice as many as were requested, whose keys have earlier messages
out."""
BLOCKED_S: Final = 0.02
"""Seconds that a call then waits for an acknowledgement."""
BLOCKED_MAX: Final = 1_000_000
"""Other messages are searched for in at most this many VLSNs after the first waiting message. These VLSNs are read
again when the waiting message may be delivered."""
TRIES_MAX: Final = 131_072
"""The most messages of a destination whose attempts are counted in memory. Beyond it the oldest counts are
forgotten."""
PACE_S: Final = 2.0
"""Seconds over which the rate of messages is measured."""
REASON_BYTES_MAX: Final = 1_024
"""The most bytes of the reason of a dead letter."""
