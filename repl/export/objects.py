"""Object stores as targets, through fsspec: ``s3://bucket/lake``, ``gs://…``, ``memory://…``.

A store must provide three things:

1. An object appears completely or not at all, and a list names every object that was stored before the list began.
2. *Create*: an object is stored only if its name is free (S3: ``If-None-Match: *``). If fsspec has no call for *create*
   in the store, two simultaneous exports cannot be told apart. For such a store the caller must confirm that only one
   export runs.
3. A copy within the store. Stores cannot rename: a staged object is copied to its final name, then removed.
"""

from __future__ import annotations

import inspect
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from repl.export.manifest import MANIFEST_BYTES_MAX, BadTarget
from repl.export.target import PART, STAGED, LocalTarget
from vlsn.seams import Buffer

if TYPE_CHECKING:
    from repl.files.parquet import Output

NEEDS_FSSPEC: Final = "--to with a URL needs fsspec; install it with: pip install 'vlsnlog[spark]'"
BLOCK_BYTES: Final = 8 << 20
"""The bytes of a file that one request writes."""


def target_of(text: str, *, one_exporter: bool = False) -> Target:
    """Returns the target that ``--to`` names: a directory, or a prefix of an object store. Nothing is opened yet.
    Raises ``BadTarget`` for a path that is no directory, a missing package (fsspec, or the store's), or a store that
    refuses. A store without *create* also raises ``BadTarget``, unless ``one_exporter`` is set."""
    if "://" not in text or text.startswith("file://"):
        path = os.path.abspath(text.removeprefix("file://"))
        if os.path.lexists(path) and not os.path.isdir(path):
            raise BadTarget(f"{text}: is no directory")
        return LocalTarget(path, text)
    if find_spec("fsspec") is None:
        raise BadTarget(NEEDS_FSSPEC)
    target = ObjectTarget(text)
    if not one_exporter and not _creates(target.store):
        raise BadTarget(
            f"{text}: this store cannot create an object only where there is none, so two exports at once would spoil "
            "each other's work; if there is only this one, say so with --one-exporter"
        )
    return target


class ObjectTarget:
    """A prefix of an object store. Each process opens the store for itself."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._store: Any = None
        self._root = ""

    def __reduce__(self) -> tuple[type[ObjectTarget], tuple[str]]:
        return ObjectTarget, (self.text,)

    @property
    def store(self) -> Any:
        if self._store is None:
            from fsspec.core import url_to_fs

            try:
                self._store, root = url_to_fs(self.text, use_listings_cache=False)
            except (ValueError, ImportError, TypeError) as error:
                raise BadTarget(f"{self.text}: {' '.join(str(error).split())}") from None
            self._root = root.rstrip("/")
            if not self._root.strip("/"):
                raise BadTarget(f"{self.text}: names no bucket or folder")
        return self._store

    def lock(self) -> None:
        """Does nothing. In an object store, the claim of a number keeps other exporters out."""

    def close(self) -> None: ...

    def names(self, folder: str = "") -> list[str]:
        self.store.invalidate_cache()
        try:
            found = self.store.ls(self._of(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def read(self, name: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        data: bytes = self.store.cat_file(self._of(name), end=bytes_max)
        return data

    def create(self, name: str, data: bytes) -> bool:
        try:
            if not self.store.exists(parent := self._of(name.rpartition("/")[0])):
                self.store.makedirs(parent, exist_ok=True)  # a store without folders ignores this call
            self.store.pipe_file(self._of(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError:
            self.store.invalidate_cache()
            if not self.store.exists(self._of(name)):
                raise
            return False  # the caller reads the existing object to find its owner
        return True

    def staged_name(self, directory: str, exporter: str, unique: str) -> str:
        return f"{STAGED}/{exporter}/{unique}{PART}"

    def new_file(self, name: str) -> Output:
        self.store.makedirs(self._of(name.rpartition("/")[0]), exist_ok=True)
        return _ObjectOutput(self.store, self._of(name))

    def sync(self, *names: str) -> None:
        """Does nothing: a stored object is durable."""

    def size(self, name: str) -> int | None:
        self.store.invalidate_cache()
        try:
            size: int = self.store.info(self._of(name))["size"]
        except FileNotFoundError:
            return None
        return size

    def publish(self, staged: str, name: str) -> None:
        parent = self._of(name.rpartition("/")[0])
        self.store.makedirs(parent, exist_ok=True)
        try:
            self.store.cp_file(self._of(staged), self._of(name))
        except FileNotFoundError:
            if self.size(name) is None:
                raise
            return
        self.remove(staged)

    def staged(self) -> list[str]:
        self.store.invalidate_cache()
        try:
            found = self.store.find(self._of(STAGED))
        except FileNotFoundError:
            return []
        return [str(path)[len(self._root) + 1 :] for path in found]

    def remove(self, name: str) -> None:
        try:
            self.store.rm_file(self._of(name))
        except FileNotFoundError:
            pass

    def _of(self, name: str) -> str:
        self.store  # noqa: B018  # the root is known once it is open
        return f"{self._root}/{name}" if name else self._root


class _ObjectOutput:
    def __init__(self, store: Any, path: str) -> None:
        self._store, self._path = store, path
        self._file = store.open(path, "wb", block_size=BLOCK_BYTES)

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        if hasattr(self._file, "discard"):
            self._file.discard()  # ends a multipart upload without storing the object
        try:
            self._store.rm_file(self._path)
        except (OSError, NotImplementedError):
            pass  # the object was never created, or the next start removes it


Target = LocalTarget | ObjectTarget


def _creates(store: Any) -> bool:
    """Returns whether the store itself refuses to overwrite an object. A check by fsspec before the write would be a
    race."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    for name in ("_pipe_file", "pipe_file"):
        for kind in type(store).__mro__:
            if name in vars(kind):
                if kind not in (AbstractFileSystem, AsyncFileSystem):
                    return "mode" in inspect.signature(vars(kind)[name]).parameters
                break
    return False
