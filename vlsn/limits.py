"""Numbers with names: every limit and default of the local log and its formats."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20

SEGMENT_BYTES = 64 * MIB
SEGMENT_BYTES_MIN = 64 * KIB
SEGMENT_BYTES_MAX = 1 << 31
SEGMENT_BYTES_STEP = 8
"""Frames are aligned to so much, and so is a segment's end."""
BLOCK_BYTES_MAX = MIB
"""Merged blocks stay at or under this; one client batch that is larger is sealed alone."""
ENTRY_BYTES_MAX = MIB
KEY_BYTES_MAX = 64 * KIB
BODY_BYTES_MAX = 16 * MIB
BATCH_ENTRIES_MAX = 65_536
TRANSACTION_BYTES_MAX = BODY_BYTES_MAX - 4 * KIB
"""Bytes of a transaction, with what its block keeps beside each entry: it is one block, which is whole or not there."""
BODIES_IN_FLIGHT_BYTES_MAX = 64 * MIB
QUEUE_ENTRIES_MAX = 262_144
QUEUE_BYTES_MAX = 64 * MIB
QUEUE_BYTES_MIN = 64 * KIB
QUEUE_SHED_FRACTION = 0.9
RING_BYTES_MAX = 32 * MIB
UNSYNCED_BYTES_MAX = 16 * MIB
GROUP_BYTES_MAX = 4 * MIB
"""One write and sync of the writer takes at most about this much."""
FLUSH_BYTES = 1 * MIB
"""Appends that wait for no write are written once so much of them waits, or after the flush interval."""
FLUSH_INTERVAL_S = 0.1
SYNC_INTERVAL_S = 1.0
"""The longest that unsynced writes may stay so."""
NODE_SYNC_INTERVAL_S = 0.1
"""… in a node of a group, whose readers wait for a majority's sync."""
SLOW_SYNC_S = 0.1
SLOW_SYNCS_MAX = 100
SLOW_SYNCS_WINDOW_S = 60.0
"""The window in which so many slow syncs roll the segment."""
STALLED_SYNC_S = 10.0
"""… and so does one sync that took this long."""
CHECKPOINT_BYTES = 64 * MIB
CHECKPOINT_BYTES_MIN = 4 * KIB
"""More than a checkpoint itself writes: it would be followed by another one for ever."""
CHECKPOINT_PERIOD_S = 60.0
IDLE_END_S = 1.0
INDEX_STRIDE = 10
INDEX_MAPPING_BYTES_MIN = 4 * KIB
INDEX_MAX_DISTANCE_BYTES = 100_000
INDEX_MAX_MAPPINGS = 1_000
INDEX_MAP_BYTES = 4 << 30
STATE_MAP_BYTES = 1 << 30
STATE_FREE_BYTES_MIN = 2 * MIB
"""The free bytes below which checkpoints and the idle end wait: a transaction without room would end the process."""
RETRY_S_MIN = 0.1
RETRY_S_MAX = 10.0
"""The longest pause of background work that fails. It is tried again after the first of these, then twice as long each
time, up to the second."""
WAITING_MAX = 32
"""Places in which background work may fail; past that the oldest is given up."""
FREE_BYTES_MIN = 16 * MIB
"""The free bytes below which appends are refused (``NoSpace``), and no segment is made."""
HOLD_BYTES_MAX = 16 << 30
"""A hold that keeps back what retention wants gone, and lies further behind than this, is dropped."""
PRODUCERS_AT_LEVEL_1 = 4_096
"""Producers that a log knows while its group is at level 1; beyond that the one with the oldest append is forgotten.
These and what is remembered of each are the same on every node, or nodes would not agree: another number is another
format."""
PRODUCERS_DEFAULT = 65_536
"""… and from level 2 on, where the group has set no other number (``Settings.producers``)."""
PRODUCERS_MIN = 64
PRODUCERS_MAX = 131_072
"""The most that can be set: all that is remembered of them, 53 MB, goes with one answer to who restores its log."""
PRODUCERS_RECENT = 4_096
"""The producers heard of last, of each of whom ``PRODUCER_REMEMBERED_MAX`` submissions are remembered …"""
PRODUCER_REMEMBERED_MAX = 256
"""… which it may send again …"""
PRODUCER_REMEMBERED_LEAST = 8
"""… and of any other this many."""
PRODUCERS_CHANGED_MAX = 131_072
"""Producers noted as changed since a checkpoint; of more it writes all of the table."""
HANDLES_MAX = 16_384
"""Transactions whose handles a log knows: as many commits later it is forgotten what became of one."""
PRODUCER_SILENT_VLSNS = 100_000_000
"""VLSNs of silence after which a producer is forgotten."""
SMALL_STATE_NAMES_MAX = 4_096
"""Names that the small state of a log has at most.  These four are the same on every node, too."""
SMALL_STATE_NAME_BYTES_MAX = 256
SMALL_STATE_VALUE_BYTES_MAX = 4 * KIB
SMALL_STATE_BYTES_MAX = MIB
"""All names and values together: a checkpoint writes them."""
DESTINATIONS_MAX = 256
"""Destinations of a group.  These four are the same on every node, too."""
ACK_INTERVALS_MAX = 65_536
"""Intervals of acknowledged VLSNs that are kept of a destination: past that nothing is delivered until a gap closes."""
TRIES_KEPT_MAX = 65_536
"""Messages of a destination whose second and later deliveries are counted through a change of master."""
DEAD_LETTERS_MAX = 4_096
"""Dead messages of a destination that can be tried again; of more the oldest cannot."""
DESTINATION_KEY_BYTES_MAX = 512
"""Bytes of a destination's prefix, and of the key of its dead letters."""
ACK_TIMEOUT_S_MAX = 86_400.0
ATTEMPTS_MAX = 1_000
REDELIVERY_DELAY_S_MAX = 86_400.0
"""The longest that a message waits after one delivery for the next."""
REDELIVERY_FACTOR_MAX = 100.0
OUT_MAX = ACK_INTERVALS_MAX
"""The most that ``max_out`` of a destination can say: what is out has its own interval."""
CLEANING_PERIOD_S = 5.0
CLOCK_DIFFERENCE_MAX_S = 60.0
"""The difference of members' clocks past which nothing goes for its age."""
RESTORES_MAX = 2
"""Peers that fetch a log from one node at once."""
RESTORE_RANGE_BYTES = 4 * MIB
"""Bytes that a restoring node asks for at once, unless one frame is larger."""
RESTORE_RANGE_BYTES_MAX = BODY_BYTES_MAX + 2 * MIB
RESTORE_IDLE_S = 30.0
"""A restore that asks for nothing for so long is given up by its provider, and its hold with it."""
RESTORE_LAG_VLSNS_MAX = 50_000
"""A peer is fresh enough to restore from while its durable end is no further behind the best one's."""
MENDED_KEPT_MAX = 16
"""Files of damaged bytes kept aside when blocks are mended; those of the oldest segments go first."""
SCRUB_BYTES_PER_S = 8 * MIB
SCRUB_PERIOD_S = 86_400.0
"""Seconds from the end of one look at every sealed segment to the beginning of the next."""
SCAN_BYTES_PER_S = 64 * MIB
"""Bytes of segments that a node gives in a second to all who read its files: audits and scans."""
SCAN_BYTES_PER_S_MIN = MIB
"""Less than a piece a second, and those who wait for theirs would take the node for dead."""
PAGE_BYTES = 10 * MIB
"""A page of a destination takes no further record past this; one that is larger has a page of its own."""
PAGE_BYTES_MIN = 16 * KIB
"""Less would be a file for every few messages; the most that can be set is ``PAGES_CACHE_BYTES_MAX``."""
PAGING_WINDOW_BYTES = MIB
"""Bytes of log that a pass of the pager reads at once: a record holds what is wanted of them."""
PAGING_STRIDE_BYTES = 32 * MIB
"""Bytes of log that a pass of the pager looks at, about, before what it has written is synced and counts."""
PAGES_CACHE_BYTES_MAX = 64 * MIB
"""Memory for pages that were read, of all destinations of a node; the one read last stays whatever its size."""
PAGES_FREE_BYTES_LOW = 32 * MIB
"""The free bytes below which nothing is paged …"""
PAGES_FREE_BYTES_HIGH = 64 * MIB
"""… until so many are free again."""
