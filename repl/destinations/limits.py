"""Numbers with names: the limits of destinations at a master."""

from __future__ import annotations

from typing import Final

MESSAGES_MAX: Final = 10_000
"""Messages of one answer, and VLSNs of one call that acknowledges."""
MESSAGES: Final = 100
"""Messages of an answer where the call names no number."""
WAITERS_MAX: Final = 1_024
"""Calls that wait for messages of one destination."""
GATHER_S: Final = 0.001
"""Seconds in which acknowledgements are gathered at least …"""
NOTE_S: Final = 0.02
"""… and in which one note is made at most …"""
NOTE_ACKS: Final = 4_096
"""… or until there are so many; a note has no more intervals."""
NOTE_ACKS_SOON: Final = 256
"""Acknowledgements of which a note is made as soon as none is under way: its COMMIT is a byte or less of each …"""
NOTE_SOON_S: Final = 0.002
"""… and the last one was made so long ago."""
NOTES_UNDER_WAY_MAX: Final = 16
"""Notes that are not durable yet; acknowledgements that come meanwhile wait for the next one."""
SKIPPED_NOTED: Final = 4_096
"""VLSNs without a message from which on a note says that they were passed over, though nothing is acknowledged."""
WINDOW_BYTES: Final = 1_048_576
"""Bytes of blocks whose messages are kept in memory, of a destination that is asked for messages."""
WINDOWS_KEPT: Final = 2
"""Windows of one destination that are kept."""
LOOK_S: Final = 2.0
"""Seconds that one answer looks for messages at least, where there is log to look through; longer where it may wait."""
BLOCKED: Final = 1_000
"""Messages that one look passes over because earlier ones of their keys are out, or twice as many as are asked for …"""
BLOCKED_S: Final = 0.02
"""… before it waits so long for an acknowledgement."""
BLOCKED_MAX: Final = 1_000_000
"""VLSNs behind the first of these up to which others are looked for: they are read again when it may go out."""
TRIES_MAX: Final = 131_072
"""Messages of a destination whose deliveries are counted in memory; past it those of long ago count anew."""
PACE_S: Final = 2.0
"""Seconds over which messages a second are counted."""
REASON_BYTES_MAX: Final = 1_024
"""Bytes of the reason of a dead letter."""
