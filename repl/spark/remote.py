"""A node's directory at any URL that fsspec reads: ``s3://…``, ``gs://…``, ``file://…``, ``zip://…``.

The directory is a copy, a backup, or a mounted volume; no node runs in it. Segments are read by ranges of bytes. The
state store, some KiB, is fetched to a temporary directory, because LMDB opens local files only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any, Final

from repl.audit.directory import DirectorySource
from repl.audit.plan import Part
from repl.audit.report import Sizes
from repl.audit.source import Unreadable
from vlsn.errors import BadArgument
from vlsn.format.segment import sidecar_name
from vlsn.ids import U64_MAX
from vlsn.real.lmdb_store import LmdbStores
from vlsn.recover.recovery import STATE_NAME
from vlsn.seams import Buffer, Disk
from vlsn.segments.restore_marker import check_no_restore
from vlsn.verify.index_mappings import Mappings
from vlsn.verify.segment_chain import Stated, read_stated

DATA_FILE: Final = "data.mdb"
STATE_BYTES_MAX: Final = 1 << 30


@lru_cache(maxsize=8)
def opened(url: str) -> tuple[Any, str]:
    """Returns the file system of ``url`` and the path in it. Raises ``BadArgument``, ``Unreadable``."""
    scheme = url.partition("://")[0]
    if find_spec("fsspec") is None:
        raise BadArgument(f"{scheme}:// is read through fsspec; install it with: pip install 'vlsnlog[spark]'")
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise BadArgument(f"{url}: {error}") from None
    except ValueError as error:
        raise BadArgument(f"{url}: {error}; a source is http:// URLs, a directory, or a URL of fsspec") from None
    except Exception as error:  # each file system raises its own types of errors
        raise Unreadable(f"{url}: {_said(error)}") from error
    return files, str(path).rstrip("/")


class RemoteDisk:
    """The part of a disk's interface that is needed to read a directory. Every failure is an ``OSError``."""

    def __init__(self, url: str) -> None:
        self._files, _ = opened(url)

    def open(self, path: str) -> RemoteFile:
        return RemoteFile(self._files, path)

    def list(self, directory: str) -> list[str]:
        found = _asked(self._files.ls, directory, detail=False)
        return sorted(os.path.basename(str(each).rstrip("/")) for each in found)

    def exists(self, path: str) -> bool:
        return bool(_asked(self._files.exists, path))

    def is_locked(self, path: str) -> bool:
        return False


class RemoteFile:
    """One remote file, read by ranges of bytes."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path
        self._size = int(_asked(files.size, path) or 0)

    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self._size)
        return bytes(_asked(self._files.cat_file, self._path, start=offset, end=end)) if end > offset else b""

    def read_into(self, offset: int, into: memoryview) -> int:
        data = self.read(offset, len(into))
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass  # nothing to close: each range is read by a separate request


@dataclass(frozen=True, slots=True)
class RemoteDirectory(DirectorySource):
    """A node's directory at a URL. ``text`` is the URL, ``path`` the directory in its file system."""

    @classmethod
    def of(cls, url: str) -> RemoteDirectory:
        """Opens the directory at ``url``. Raises ``BadArgument``, ``Unreadable``."""
        _, path = opened(url)
        return cls(path, url)

    @property
    def near(self) -> bool:
        return False

    def disk(self) -> Disk:
        return RemoteDisk(self.text)  # type: ignore[return-value]

    def mappings(self, first: int = 0, last: int = U64_MAX) -> Mappings:
        return Mappings()  # LMDB opens local files only

    def modified_us(self, part: Part) -> int:
        return 0  # a file's time is not known here, because each store reports times in its own way

    def sizes(self) -> Sizes:
        return Sizes()  # the space on disk is not known here, because a store does not report disk blocks

    def stated(self, *, live: bool) -> Stated:
        disk = self.disk()
        check_no_restore(disk, self.path)
        with TemporaryDirectory(prefix="vlsnlog-state-") as copy:
            path = f"{self.path}/{STATE_NAME}/{DATA_FILE}"
            if disk.exists(path):
                file = disk.open(path)
                if file.size() > STATE_BYTES_MAX:
                    raise Unreadable(f"{self.text}/{STATE_NAME}: {file.size()} bytes are no node's state")
                os.mkdir(f"{copy}/{STATE_NAME}")
                with open(f"{copy}/{STATE_NAME}/{DATA_FILE}", "wb") as out:
                    out.write(file.read(0, file.size()))
            return read_stated(LmdbStores(), copy)

    def read(self, part: Part, start: int, end: int, into: bytearray | None = None) -> Buffer:
        try:
            return self.disk().open(f"{self.path}/{part.file}").read(start, end - start)
        except OSError as error:
            raise Unreadable(f"{self.text}/{part.file}: {_said(error)}") from error

    def sidecar(self, part: Part) -> bytes | None:
        if part.newest:
            return None
        try:
            file = self.disk().open(f"{self.path}/{sidecar_name(part.number)}")
            return file.read(0, file.size())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreadable(f"{self.text}: {_said(error)}") from error


def _asked(call: Any, *args: Any, **named: Any) -> Any:
    """Calls a function of a file system. Turns any error into ``OSError``."""
    try:
        return call(*args, **named)
    except OSError:
        raise
    except Exception as error:
        raise OSError(_said(error)) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
