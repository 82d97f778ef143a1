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
"""The most bytes of a block that is merged from several batches. A larger client batch is sealed in a block of its
own."""
ENTRY_BYTES_MAX = MIB
KEY_BYTES_MAX = 64 * KIB
BODY_BYTES_MAX = 16 * MIB
BATCH_ENTRIES_MAX = 65_536
TRANSACTION_BYTES_MAX = BODY_BYTES_MAX - 4 * KIB
"""The most bytes of a transaction, including its overhead in a block for each entry. The whole transaction must fit one
block."""
BODIES_IN_FLIGHT_BYTES_MAX = 64 * MIB
QUEUE_ENTRIES_MAX = 262_144
QUEUE_BYTES_MAX = 64 * MIB
QUEUE_BYTES_MIN = 64 * KIB
QUEUE_SHED_FRACTION = 0.9
RING_BYTES_MAX = 32 * MIB
UNSYNCED_BYTES_MAX = 16 * MIB
GROUP_BYTES_MAX = 4 * MIB
"""The approximate limit on the bytes that are written and synced at once."""
FLUSH_BYTES = 1 * MIB
"""Appends that do not wait for a write are written once this many bytes of them wait, or after the flush interval."""
FLUSH_INTERVAL_S = 0.1
SYNC_INTERVAL_S = 1.0
"""The longest time in seconds that writes may stay unsynced."""
NODE_SYNC_INTERVAL_S = 0.1
"""The longest time in seconds that writes may stay unsynced in a node of a group. A node's limit is shorter than an
embedded log's, since readers wait for a majority's sync."""
SLOW_SYNC_S = 0.1
SLOW_SYNCS_MAX = 100
SLOW_SYNCS_WINDOW_S = 60.0
"""The period in which a number of slow syncs makes the log change to a new segment."""
STALLED_SYNC_S = 10.0
"""A single sync that takes this long makes the log change to a new segment."""
CHECKPOINT_BYTES = 64 * MIB
CHECKPOINT_BYTES_MIN = 4 * KIB
"""The lowest setting for the bytes between two checkpoints. A lower setting would be less than a checkpoint itself
writes, so that each checkpoint would cause the next."""
CHECKPOINT_PERIOD_S = 60.0
IDLE_END_S = 1.0
INDEX_STRIDE = 10
INDEX_MAPPING_BYTES_MIN = 4 * KIB
INDEX_MAX_DISTANCE_BYTES = 100_000
INDEX_MAX_MAPPINGS = 1_000
INDEX_MAP_BYTES = 4 << 30
STATE_MAP_BYTES = 1 << 30
STATE_FREE_BYTES_MIN = 2 * MIB
"""The free bytes of disk below which checkpoints and the idle end wait. A transaction without disk space would end the
process."""
RETRY_S_MIN = 0.1
RETRY_S_MAX = 10.0
"""The longest pause before failing background work is retried. The first pause before a retry is ``RETRY_S_MIN``, and
each further pause is twice as long, up to ``RETRY_S_MAX``."""
WAITING_MAX = 32
"""The most background jobs that may be failing at once. If more fail, the oldest job is given up."""
FREE_BYTES_MIN = 16 * MIB
"""The free bytes of disk below which appends are refused (``NoSpace``) and no segment is made."""
HOLD_BYTES_MAX = 16 << 30
"""A hold is dropped if it blocks a segment that retention wants to remove, and is more than this many bytes behind the
log's end."""
PRODUCERS_AT_LEVEL_1 = 4_096
"""The most producers that a log remembers while its group is at level 1. If there are more, the producer with the
oldest append is forgotten. The limits on producers and on remembered submissions must be the same on every node;
otherwise the nodes' tables would differ. So a change of one of these limits would be a change of the format."""
PRODUCERS_DEFAULT = 65_536
"""The most producers that a log remembers from level 2 on, if the group has set no other number
(``Settings.producers``)."""
PRODUCERS_MIN = 64
PRODUCERS_MAX = 131_072
"""The highest limit on producers that can be set. With that many producers the whole table has 53 MB, which are sent in
one answer to a node that restores its log."""
PRODUCERS_RECENT = 4_096
"""The number of recent producers: those with the newest submissions. For each recent producer,
``PRODUCER_REMEMBERED_MAX`` submissions are remembered."""
PRODUCER_REMEMBERED_MAX = 256
"""The number of remembered submissions of a recent producer. The producer may send a remembered submission again."""
PRODUCER_REMEMBERED_LEAST = 8
"""The number of remembered submissions of a producer that is not a recent one."""
PRODUCERS_CHANGED_MAX = 131_072
"""The most producers recorded as changed since a checkpoint. If there are more, the next checkpoint writes the whole
table."""
HANDLES_MAX = 16_384
"""The most transactions with handles that a log remembers. If there are more, the outcome of the oldest transaction is
forgotten."""
PRODUCER_SILENT_VLSNS = 100_000_000
"""A producer is forgotten if this many VLSNs were logged after its last submission."""
SMALL_STATE_NAMES_MAX = 4_096
"""The most names in the small state (the log's table of names and values). The limits of the small state must be the
same on every node."""
SMALL_STATE_NAME_BYTES_MAX = 256
SMALL_STATE_VALUE_BYTES_MAX = 4 * KIB
SMALL_STATE_BYTES_MAX = MIB
"""The most bytes of all names and values in the small state together, since a checkpoint writes all of them. Tokens
do not count."""
TOKENS_MAX = 1_024
"""The most tokens of a group. They have a share of the small state that no other name can fill."""
TOKENS_BYTES_MAX = 512 * KIB
"""The most bytes of all tokens together."""
DESTINATIONS_MAX = 256
"""The most destinations of a group. ``DESTINATIONS_MAX`` and the next three limits must be the same on every node."""
ACK_INTERVALS_MAX = 65_536
"""The most intervals of acknowledged VLSNs of a destination. At the limit, nothing is delivered until some gap between
intervals is acknowledged."""
TRIES_KEPT_MAX = 65_536
"""The most messages of a destination whose number of deliveries is still known after a change of master. Only second
and later deliveries are counted."""
DEAD_LETTERS_MAX = 4_096
"""The most dead messages (delivered too often) of a destination that can be delivered again. Of more dead messages, the
oldest cannot be."""
DESTINATION_KEY_BYTES_MAX = 512
"""The most bytes of a destination's prefix, and of the key of its dead letters."""
ACK_TIMEOUT_S_MAX = 86_400.0
ATTEMPTS_MAX = 1_000
REDELIVERY_DELAY_S_MAX = 86_400.0
"""The longest delay, in seconds, before a message is delivered again."""
REDELIVERY_FACTOR_MAX = 100.0
OUT_MAX = ACK_INTERVALS_MAX
"""The highest ``max_out`` (limit on delivered but unacknowledged messages) of a destination. Each such message may need
an interval of its own."""
CLEANING_PERIOD_S = 5.0
CLOCK_DIFFERENCE_MAX_S = 60.0
"""The difference between members' clocks, in seconds, above which no segment is removed for its age."""
RESTORES_MAX = 2
"""The most peers that fetch a log from one node at once."""
RESTORE_RANGE_BYTES = 4 * MIB
"""The bytes that a restoring node requests at once, unless a single frame is larger."""
RESTORE_RANGE_BYTES_MAX = BODY_BYTES_MAX + 2 * MIB
RESTORE_IDLE_S = 30.0
"""A provider gives up a restore, and the restore's hold, if the restoring node requests nothing for this many
seconds."""
RESTORE_LAG_VLSNS_MAX = 50_000
"""A node restores only from a peer whose durable end is at most this many VLSNs behind the best peer's."""
MENDED_KEPT_MAX = 16
"""The most files of damaged bytes that are kept after blocks were mended. The files of the oldest segments are removed
first."""
SCRUB_BYTES_PER_S = 8 * MIB
SCRUB_PERIOD_S = 86_400.0
"""The seconds from the end of one scrub (a slow read of all sealed segments) to the beginning of the next."""
SCAN_BYTES_PER_S = 64 * MIB
"""The bytes of segments that a node sends in a second to all audits and scans together."""
SCAN_BYTES_PER_S_MIN = MIB
"""The lowest setting for the bytes that a node sends in a second to audits and scans. With less than one piece a
second, waiting readers would give the node up as dead."""
PAGE_BYTES = 10 * MIB
"""The size from which on a page file of a destination gets no further record. A record that is larger than
``PAGE_BYTES`` has a page of its own."""
PAGE_BYTES_MIN = 16 * KIB
"""The smallest page size that can be set, since a smaller one would make a file for every few messages. The largest is
``PAGES_CACHE_BYTES_MAX``."""
PAGING_WINDOW_BYTES = MIB
"""The bytes of log that the pager reads at once. The entries in these bytes that a destination wants become one
record."""
PAGING_STRIDE_BYTES = 32 * MIB
"""The approximate bytes of log that the pager reads before it syncs its records and enters them in the page table."""
PAGES_CACHE_BYTES_MAX = 64 * MIB
"""The memory for pages that were read, for all destinations of a node together. The page that was read last is kept
whatever its size."""
PAGES_FREE_BYTES_LOW = 32 * MIB
"""The free bytes of disk below which no more messages are written to pages."""
PAGES_FREE_BYTES_HIGH = 64 * MIB
"""The free bytes of disk from which on messages are written to pages again."""
