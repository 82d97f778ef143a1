"""Named numbers: every limit and default of the local log and its formats."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20

SEGMENT_BYTES = 64 * MIB
SEGMENT_BYTES_MIN = 64 * KIB
SEGMENT_BYTES_MAX = 1 << 31
SEGMENT_BYTES_STEP = 8
"""The alignment in bytes of frames and of a segment's end."""
BLOCK_BYTES_MAX = MIB
"""The most bytes of a merged block. A larger client batch is sealed alone."""
ENTRY_BYTES_MAX = MIB
KEY_BYTES_MAX = 64 * KIB
BODY_BYTES_MAX = 16 * MIB
BATCH_ENTRIES_MAX = 65_536
TRANSACTION_BYTES_MAX = BODY_BYTES_MAX - 4 * KIB
"""The most bytes of a transaction, with what its block stores for each entry, since one block holds the whole
transaction."""
BODIES_IN_FLIGHT_BYTES_MAX = 64 * MIB
QUEUE_ENTRIES_MAX = 262_144
QUEUE_BYTES_MAX = 64 * MIB
QUEUE_BYTES_MIN = 64 * KIB
QUEUE_SHED_FRACTION = 0.9
RING_BYTES_MAX = 32 * MIB
UNSYNCED_BYTES_MAX = 16 * MIB
GROUP_BYTES_MAX = 4 * MIB
"""The approximate limit on the bytes that the writer writes and syncs at once."""
FLUSH_BYTES = 1 * MIB
"""Appends that do not wait for a write are written once this many bytes wait, or after the flush interval."""
FLUSH_INTERVAL_S = 0.1
SYNC_INTERVAL_S = 1.0
"""The longest time in seconds that writes may stay unsynced."""
NODE_SYNC_INTERVAL_S = 0.1
"""The same in a node of a group, where readers wait for a majority's sync."""
SLOW_SYNC_S = 0.1
SLOW_SYNCS_MAX = 100
SLOW_SYNCS_WINDOW_S = 60.0
"""The window in which a number of slow syncs makes the log roll to a new segment."""
STALLED_SYNC_S = 10.0
"""A single sync that takes this long also rolls the segment."""
CHECKPOINT_BYTES = 64 * MIB
CHECKPOINT_BYTES_MIN = 4 * KIB
"""More than a checkpoint itself writes, since otherwise one checkpoint would cause the next, for ever."""
CHECKPOINT_PERIOD_S = 60.0
IDLE_END_S = 1.0
INDEX_STRIDE = 10
INDEX_MAPPING_BYTES_MIN = 4 * KIB
INDEX_MAX_DISTANCE_BYTES = 100_000
INDEX_MAX_MAPPINGS = 1_000
INDEX_MAP_BYTES = 4 << 30
STATE_MAP_BYTES = 1 << 30
STATE_FREE_BYTES_MIN = 2 * MIB
"""The free bytes below which checkpoints and the idle end wait, since a transaction without disk space would end the
process."""
RETRY_S_MIN = 0.1
RETRY_S_MAX = 10.0
"""The longest pause before failing background work is retried. The first pause is ``RETRY_S_MIN``, and each further
pause is twice as long, up to ``RETRY_S_MAX``."""
WAITING_MAX = 32
"""The most background jobs that may be failing at once. Above that the oldest is given up."""
FREE_BYTES_MIN = 16 * MIB
"""The free bytes below which appends are refused (``NoSpace``) and no segment is made."""
HOLD_BYTES_MAX = 16 << 30
"""A hold is dropped if it blocks a segment that retention would remove, and is more than this many bytes behind."""
PRODUCERS_AT_LEVEL_1 = 4_096
"""The producers that a log knows while its group is at level 1. Above that the producer with the oldest append is
forgotten. This limit and those on remembered submissions are the same on every node, since otherwise the nodes' tables
would differ. So another number would be another format."""
PRODUCERS_DEFAULT = 65_536
"""The same limit from level 2 on, if the group has set no other number (``Settings.producers``)."""
PRODUCERS_MIN = 64
PRODUCERS_MAX = 131_072
"""The highest limit that can be set. The whole table of that many producers, 53 MB, is sent in one answer to a node
that restores its log."""
PRODUCERS_RECENT = 4_096
"""The recent producers, which have the newest submissions. For each of them, ``PRODUCER_REMEMBERED_MAX`` submissions
are remembered."""
PRODUCER_REMEMBERED_MAX = 256
"""The remembered submissions of a recent producer, which it may send again."""
PRODUCER_REMEMBERED_LEAST = 8
"""The remembered submissions of any other producer."""
PRODUCERS_CHANGED_MAX = 131_072
"""The most producers recorded as changed since a checkpoint. Above that, the next checkpoint writes the whole table."""
HANDLES_MAX = 16_384
"""The transactions whose handles a log knows. After as many further commits, the outcome of a transaction is
forgotten."""
PRODUCER_SILENT_VLSNS = 100_000_000
"""VLSNs of silence after which a producer is forgotten."""
SMALL_STATE_NAMES_MAX = 4_096
"""The most names in the small state of a log. The limits of the small state are the same on every node, too."""
SMALL_STATE_NAME_BYTES_MAX = 256
SMALL_STATE_VALUE_BYTES_MAX = 4 * KIB
SMALL_STATE_BYTES_MAX = MIB
"""The most bytes of all names and values together, since a checkpoint writes all of them. Tokens do not count."""
TOKENS_MAX = 1_024
"""The most tokens of a group. They have a share of the small state that no other name can fill."""
TOKENS_BYTES_MAX = 512 * KIB
"""The most bytes of all tokens together."""
DESTINATIONS_MAX = 256
"""The most destinations of a group. This limit and the next three are the same on every node, too."""
ACK_INTERVALS_MAX = 65_536
"""The most intervals of acknowledged VLSNs of a destination. At the limit, nothing is delivered until a gap closes."""
TRIES_KEPT_MAX = 65_536
"""The most messages of a destination whose second and later deliveries are still counted after a change of master."""
DEAD_LETTERS_MAX = 4_096
"""The most dead messages of a destination that can be tried again. Above that the oldest cannot."""
DESTINATION_KEY_BYTES_MAX = 512
"""The most bytes of a destination's prefix, and of the key of its dead letters."""
ACK_TIMEOUT_S_MAX = 86_400.0
ATTEMPTS_MAX = 1_000
REDELIVERY_DELAY_S_MAX = 86_400.0
"""The longest delay before a message is delivered again."""
REDELIVERY_FACTOR_MAX = 100.0
OUT_MAX = ACK_INTERVALS_MAX
"""The highest ``max_out`` of a destination, since each message that is out may need an interval of its own."""
CLEANING_PERIOD_S = 5.0
CLOCK_DIFFERENCE_MAX_S = 60.0
"""The difference of members' clocks above which no segment is removed for its age."""
RESTORES_MAX = 2
"""The most peers that fetch a log from one node at once."""
RESTORE_RANGE_BYTES = 4 * MIB
"""The bytes that a restoring node requests at once, unless one frame is larger."""
RESTORE_RANGE_BYTES_MAX = BODY_BYTES_MAX + 2 * MIB
RESTORE_IDLE_S = 30.0
"""A provider gives up a restore, with its hold, if the restore requests nothing for this many seconds."""
RESTORE_LAG_VLSNS_MAX = 50_000
"""A node restores only from a peer whose durable end is at most this many VLSNs behind the best peer's."""
MENDED_KEPT_MAX = 16
"""The most files of damaged bytes that are kept when blocks are mended. Those of the oldest segments are removed
first."""
SCRUB_BYTES_PER_S = 8 * MIB
SCRUB_PERIOD_S = 86_400.0
"""The seconds from the end of one scrub of all sealed segments to the beginning of the next."""
SCAN_BYTES_PER_S = 64 * MIB
"""The bytes of segments that a node sends in a second to all readers of its files together: audits and scans."""
SCAN_BYTES_PER_S_MIN = MIB
"""With less than one piece a second, waiting readers would take the node for dead."""
PAGE_BYTES = 10 * MIB
"""A page of a destination gets no further record above this size. A larger record has a page of its own."""
PAGE_BYTES_MIN = 16 * KIB
"""A smaller page size would make a file for every few messages. The largest that can be set is
``PAGES_CACHE_BYTES_MAX``."""
PAGING_WINDOW_BYTES = MIB
"""The bytes of log that the pager reads at once. The wanted entries in them make a record."""
PAGING_STRIDE_BYTES = 32 * MIB
"""The approximate bytes of log that the pager reads before its writes are synced and counted."""
PAGES_CACHE_BYTES_MAX = 64 * MIB
"""The memory for pages that were read, for all destinations of a node. The page read last is kept whatever its size."""
PAGES_FREE_BYTES_LOW = 32 * MIB
"""The free bytes below which paging stops."""
PAGES_FREE_BYTES_HIGH = 64 * MIB
"""The free bytes from which on paging starts again."""
