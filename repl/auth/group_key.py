"""The group's key file: the secrets with which the members of a group sign what they say to each other.

    k3f9 8c1d…64 hex digits…      one key in each line, ID and 32 bytes; the first key signs
    k2aa 07b2…                    every key is accepted, so a new one can be brought to all nodes before it signs

    made       temporary file, synced ─► link (commit point): the second of two makers reads the first one's key
    changed    temporary file, synced ─► rename (commit point) ─► directory synced

The file belongs to its owner alone (0600), or to root with a group that may read it (0640). A changed file
keeps its owner, its group and its mode. Only the keys' IDs are ever shown or logged.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import PurePath

from vlsn.errors import BadArgument, VlsnLogError, said_of
from vlsn.seams import Disk, File, Random

KEYS_MAX = 8
"""Keys of one file. A rotation needs two."""
SECRET_BYTES = 32
FILE_BYTES_MAX = 4_096
_LINE = re.compile(r"([a-z0-9]{1,16})[ \t]+([0-9a-f]{64})\Z")
_ID = re.compile(r"[a-z0-9]{1,16}\Z")


@dataclass(frozen=True, slots=True)
class Key:
    """One secret and the ID by which messages and people name it."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one file, from 1 to ``KEYS_MAX``. The first one signs."""

    keys: tuple[Key, ...]

    @property
    def signing(self) -> Key:
        return self.keys[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs in the file's order, so the first one is of the key that signs."""
        return tuple(key.id for key in self.keys)

    def of(self, id: str) -> Key | None:
        """Returns the accepted key with that ID."""
        return next((key for key in self.keys if key.id == id), None)

    def with_key(self, key: Key) -> GroupKeys:
        """Adds a key that is accepted and does not sign. Raises ``BadArgument``."""
        if self.of(key.id) is not None:
            raise BadArgument(f"key: {key.id} is in the file already")
        if len(self.keys) == KEYS_MAX:
            raise BadArgument(f"key: the file has {KEYS_MAX} keys, the most there may be; drop one first")
        return GroupKeys((*self.keys, key))

    def signing_with(self, id: str) -> GroupKeys:
        """Makes the key ``id`` the one that signs. Raises ``BadArgument``."""
        key = self._required(id)
        return GroupKeys((key, *(each for each in self.keys if each.id != id)))

    def without(self, id: str) -> GroupKeys:
        """Drops the key ``id``. Raises ``BadArgument`` for the key that signs."""
        if self._required(id) is self.signing:
            raise BadArgument(f"key: {id} signs; let another key sign first: `vlsnlog key use ID FILE`")
        return GroupKeys(tuple(each for each in self.keys if each.id != id))

    def _required(self, id: str) -> Key:
        key = self.of(id)
        if key is None:
            raise BadArgument(f"key: there is no key {id[:40]!r}; the file has {', '.join(self.ids)}")
        return key


def check_id(id: str) -> str:
    """Returns ``id``. Raises ``BadArgument`` unless it is an ID."""
    if not _ID.match(id):
        raise BadArgument(f"key: {id[:40]!r} is no ID; use 1 to 16 of a-z 0-9")
    return id


def new_key(random: Random, id: str = "") -> Key:
    """Makes a key from 256 random bits; without an ``id`` that is random, too."""
    secret = b"".join(random.u64().to_bytes(8, "big") for _ in range(SECRET_BYTES // 8))
    return Key(check_id(id) if id else f"k{random.u32():08x}", secret)


def encode(keys: GroupKeys) -> bytes:
    """Returns the bytes of the file."""
    return "".join(f"{key.id} {key.secret.hex()}\n" for key in keys.keys).encode("ascii")


def decode(data: bytes, path: str) -> GroupKeys:
    """Reads the bytes of the file at ``path``. Raises ``BadArgument``, which never shows a line's content."""
    if len(data) > FILE_BYTES_MAX:
        raise BadArgument(f"group_key: {path} has more than {FILE_BYTES_MAX} bytes, and is no key file")
    keys: list[Key] = []
    for number, line in enumerate(data.decode("ascii", "replace").splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.match(line.strip())
        if match is None:
            raise BadArgument(f"group_key: line {number} of {path} is not an ID and 64 hex digits")
        keys.append(Key(match[1], bytes.fromhex(match[2])))
    if not keys:
        raise BadArgument(f"group_key: {path} has no key; make one with: `vlsnlog key create FILE`")
    if len(keys) > KEYS_MAX or len({key.id for key in keys}) < len(keys):
        raise BadArgument(f"group_key: {path} must have at most {KEYS_MAX} keys, each with an ID of its own")
    return GroupKeys(tuple(keys))


def read(disk: Disk, path: str) -> GroupKeys:
    """Reads the key file. Raises ``BadArgument`` if it is missing, unreadable, or open to others."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise BadArgument(
            f"group_key: there is no file {path}; copy the group's key there, or make one: `vlsnlog key create FILE`"
        ) from None
    except (OSError, VlsnLogError) as error:
        raise BadArgument(f"group_key: {path} cannot be read: {said_of(error)}") from None
    try:
        check_protection(path, *file.protection()[:2])
        return decode(file.read(0, FILE_BYTES_MAX + 1), path)
    except OSError as error:
        raise BadArgument(f"group_key: {path} cannot be read: {said_of(error)}") from None
    finally:
        file.close()


def check_protection(path: str, mode: int, owner: int) -> None:
    """Checks that the file is 0600, or 0640 and root's. Raises ``BadArgument``."""
    allowed = 0o640 if owner == 0 else 0o600
    if stat.S_IMODE(mode) & ~allowed:
        raise BadArgument(
            f"group_key: {path} has mode {stat.S_IMODE(mode):04o}, so others can use or change the key; run: "
            f"chmod 600 {path}"
        )


def make(disk: Disk, path: str, random: Random, *, id: str = "") -> GroupKeys:
    """Makes the file with one new key, and returns its keys. If there is a file already, or another process makes it
    meanwhile, returns that file's keys. Durable on return. Raises ``BadArgument``."""
    if disk.exists(path):
        return _found(disk, path)
    keys = GroupKeys((new_key(random, id),))
    temporary = _write_temporary(disk, path, keys, random)
    try:
        disk.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise BadArgument(f"group_key: {path} cannot be made: {said_of(error)}") from None
    finally:
        disk.remove(temporary)
    return _found(disk, path)


def _found(disk: Disk, path: str) -> GroupKeys:
    """Reads the file, whose maker may have ended before the name was durable."""
    keys = read(disk, path)
    disk.sync_directory(_parent(path))
    return keys


def replace(disk: Disk, path: str, keys: GroupKeys, random: Random) -> None:
    """Puts ``keys`` in the place of the file's. The file keeps its owner, its group and its mode. Durable on return.
    Raises ``BadArgument``."""
    try:
        like = _protection(disk, path)
        temporary = _write_temporary(disk, path, keys, random, like)
        disk.rename(temporary, path)
        disk.sync_directory(_parent(path))
    except OSError as error:
        raise BadArgument(f"group_key: {path} cannot be written: {said_of(error)}") from None


def _protection(disk: Disk, path: str) -> tuple[int, int, int] | None:
    """Returns mode, owner and group of the file; None without a file. Raises ``BadArgument`` if it is open to
    others."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        found = file.protection()
    finally:
        file.close()
    check_protection(path, *found[:2])
    return found


def _write_temporary(
    disk: Disk, path: str, keys: GroupKeys, random: Random, like: tuple[int, int, int] | None = None
) -> str:
    """Writes ``keys`` to a synced file beside ``path``, and returns its path. The file is its owner's alone, or has the
    mode, owner and group of ``like``. No file is left after an error."""
    temporary = f"{path}.{random.u64():016x}.tmp"
    try:
        disk.make_directory(_parent(path))
        file = disk.open(temporary, create=True, private=True)
        try:
            if like is not None:
                _protect(file, path, like)
            file.write(0, [encode(keys)])
            file.sync()
        except (OSError, BadArgument):
            disk.remove(temporary)
            raise
        finally:
            file.close()
    except OSError as error:
        raise BadArgument(f"group_key: {path} cannot be written: {said_of(error)}") from None
    return temporary


def _protect(file: File, path: str, like: tuple[int, int, int]) -> None:
    """Gives a new file the mode, owner and group of ``like``. If this user may not set the group, and the mode allows
    the group nothing, the group stays as it is. Raises ``BadArgument``."""
    mode, owner, _ = like
    _, mine, group = file.protection()
    try:
        file.protect(*like)
    except PermissionError:
        if owner != mine or mode & stat.S_IRWXG:
            raise BadArgument(
                f"group_key: {path} belongs to user {owner}, and must stay so: run this as that user or root"
            ) from None
        file.protect(mode, mine, group)


def _parent(path: str) -> str:
    return str(PurePath(path).parent)
