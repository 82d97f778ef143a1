"""The identity of the node in a directory: the node file, and the new incarnation if the node file is lost.

    readable, its term at or above the log's      that incarnation continues
    missing, or neither slot readable             a new incarnation, however full the log
    its term below that of a block in the log     an old image of the file (a vote may be lost): a new incarnation

The stored term of a new incarnation starts at the highest term found in the log. The log's terms include those of cut
bytes and of blocks that were rolled back. So a new incarnation never seals a block with a term and VLSN that were used
before. A node file that could not be used is kept under another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from vlsn.errors import Damaged, WrongDirectory
from vlsn.format import scan
from vlsn.format.frame import FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.recover.torn_tail import block_names
from vlsn.seams import Disk, Seams
from vlsn.segments.cut_bytes import cut_bytes, free_name
from vlsn.segments.directory import SegmentInfo
from vlsn.segments.reader import SegmentFile
from vlsn.segments.visible_blocks import whole_frames
from vlsn.state import node_file
from vlsn.state.node_file import NodeFile, NodeRecord

NODE_FILE_NAME = "node.id"


def open_node_file(seams: Seams, directory: str, notes: list[str]) -> NodeFile | None:
    """Returns the node file, read from the medium and not from the page cache. Returns None if the file is lost;
    ``new_identity`` then makes another."""
    path = f"{directory}/{NODE_FILE_NAME}"
    try:
        return NodeFile.open(seams.disk, path)
    except FileNotFoundError:
        return None
    except Damaged:
        notes.append("neither slot of the node file could be read: this store is a new incarnation")
        _set_aside(seams, directory, path, ".damaged")
        return None


def check_identity(node_file: NodeFile | None, directory: str, *, group: str, node: str) -> None:
    """Raises ``WrongDirectory`` if the node file names another group or node."""
    if node_file is None:
        return
    record = node_file.record
    if record.group != group or record.node != node:
        raise WrongDirectory(
            f"{directory} belongs to node {record.node} of group {record.group}, not to {node} of {group}"
        )


def drop_old_image(
    seams: Seams, directory: str, node_file: NodeFile, known_term: int, notes: list[str]
) -> NodeFile | None:
    """Sets the node file aside if it is older than its log, and then returns None. An old file has a lower term than
    some block: a block is written only after its term was stored and synced in the node file."""
    term = node_file.record.term
    if term >= known_term:
        return node_file
    notes.append(
        f"the node file is of term {term}, but the log has blocks of term {known_term}: an older image of it came "
        "back, and this store is a new incarnation"
    )
    node_file.close()
    _set_aside(seams, directory, f"{directory}/{NODE_FILE_NAME}", ".old")
    return None


def highest_term(disk: Disk, directory: str, segments: Sequence[SegmentInfo]) -> int:
    """Finds the highest term of all valid frames, and of the block headers in cut bytes that were kept aside. The
    segments are read in windows, at the speed of the disk."""
    highest = 0
    for info in segments:
        if not info.active:
            continue
        with closing(SegmentFile(disk, directory, info.number)) as segment:
            for buf, base, found in whole_frames(segment, FIRST_FRAME, info.size):
                blocks = found.offsets[found.headers["kind"] == FrameKind.BLOCK]
                terms = scan.block_headers(buf, base, blocks)["term"]
                highest = max(highest, int(terms.max()) if len(terms) else 0)
    for _, data in cut_bytes(disk, directory):
        highest = max([highest, *(name.term for name in block_names(data))])
    return highest


def new_identity(seams: Seams, directory: str, *, group: str, node: str, term: int) -> NodeFile:
    """Makes the node file of a new incarnation. The file is durable on return."""
    incarnation = seams.random.u64() or 1
    fresh = NodeRecord(group=group, node=node, incarnation=incarnation, term=term)
    return node_file.create(seams.disk, f"{directory}/{NODE_FILE_NAME}", fresh)


def _set_aside(seams: Seams, directory: str, path: str, suffix: str) -> None:
    seams.disk.rename(path, free_name(seams.disk, path + suffix))
    seams.disk.sync_directory(directory)
