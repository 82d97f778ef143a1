"""The commit of batches: how one exporter owns a target (the place that it writes to), and what happens to an
interrupted batch.

    1  tasks write staged files                     stopped here: the next start removes them
    2  staged files and their names are synced
    3  manifest N is created, unless it exists       ── the commit point
    4  each staged file gets its name, synced       stopped here: the next start continues with 4

1. Before manifest N is created, all files of manifest N - 1 have their final names. So only files of the last manifest
   may still be without their final names.
2. Each start of an exporter claims the next number. An exporter that still runs elsewhere has then lost that number and
   every later one. The other exporter raises ``Fenced`` at step 3, and its staged files can be removed.
3. File names contain the VLSNs of their rows, and each VLSN is in one batch. So no file of a target is ever replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from repl.export.manifest import (
    FOLDER,
    BadTarget,
    DataFile,
    Fenced,
    Gap,
    Kind,
    Manifest,
    Mark,
    Settings,
    decode,
    encode,
    name_of,
    number_of,
)
from repl.export.objects import Target
from repl.export.target import LOCK, PART, STAGED

CLAIMS_MAX: Final = 20
"""The most attempts of a start to claim a number while other exporters commit."""
FILES_MAX: Final = 100_000
"""The most files of a batch. The limit exists because every start reads a whole manifest."""
_OURS: Final = (FOLDER, LOCK, STAGED)


class Committer:
    """Commits batches to ``target`` under the name ``exporter``, which is unique to this start. ``wall_us`` returns the
    time in µs since the epoch. A ``Committer`` is not thread-safe."""

    def __init__(self, target: Target, exporter: str, wall_us: Callable[[], int]) -> None:
        self._target = target
        self._exporter = exporter
        self._wall_us = wall_us
        self.last: Manifest | None = None
        """The last manifest that this exporter has read or written, or None in a target without a manifest."""

    def begun(self) -> bool:
        """Returns whether the target has a manifest; changes nothing. Raises ``BadTarget`` if the target has other
        files and no manifest."""
        if any(map(number_of, self._target.names(FOLDER))):
            return True
        other = [name for name in self._target.names() if name not in _OURS and not name.endswith(PART)]
        if other:
            raise BadTarget(
                f"{self._target.text} holds {other[0]} and no manifest of an export: choose an empty or a new --to"
            )
        return False

    def open(self) -> Manifest | None:
        """Locks the target, and gives committed files their final names. Returns the last manifest. Raises ``Fenced``
        if another exporter holds the target, and ``BadTarget`` if the target has other contents."""
        self.begun()  # the target is checked before the lock is taken, because the lock itself is a file
        self._target.lock()
        try:
            self._catch_up()
            if self.last is None:
                self.begun()
        except BaseException:
            self._target.close()
            raise
        return self.last

    def close(self) -> None:
        self._target.close()

    def claim(self, settings: Settings, begin: int) -> Manifest:
        """Claims the next number and removes the staged files of other exporters. In a new target, ``begin`` is the
        first VLSN to export. Raises ``Fenced`` if other exporters still commit."""
        for _ in range(CLAIMS_MAX):
            own: dict[str, Any] = {"kind": Kind.CLAIM, "exporter": self._exporter, "time_us": self._wall_us()}
            if (last := self.last) is None:
                claim = Manifest(number=1, settings=settings, first=begin, last=begin - 1, mark=None, **own)
            else:
                claim = replace(last, number=last.number + 1, first=last.last + 1, rows=0, gap=None, files=(), **own)
            if self._create(claim):
                for staged in self._target.staged():
                    self._target.remove(staged)
                return claim
            self._catch_up()
        raise Fenced(f"{self._target.text}: other exports go on writing there; stop them first")

    def commit(
        self, first: int, last: int, mark: Mark, files: Sequence[DataFile], *, gap: Gap | None = None
    ) -> Manifest:
        """Commits VLSN ``first`` to ``last`` (inclusive) with its ``files``, and gives the files their final names. The
        batch is durable and visible on return. After an error the next start finds out whether it was committed. Raises
        ``Fenced``."""
        before = self.last
        assert before is not None, "claimed first"
        due = (gap.last if gap is not None else before.last) + 1
        assert first == due or (before.mark is None and first > due), (before.last, first)
        if len(files) > FILES_MAX:
            raise BadTarget(f"a batch of {len(files)} files; at most {FILES_MAX}: make batches or partitions smaller")
        files = sorted(files, key=lambda file: (file.first, file.name))
        rows = sum(file.rows for file in files)
        manifest = Manifest(
            number=before.number + 1,
            kind=Kind.BATCH,
            exporter=self._exporter,
            settings=before.settings,
            first=first,
            last=last,
            mark=mark,
            rows=rows,
            rows_total=before.rows_total + rows,
            gap=gap,
            files=tuple(files),
            time_us=self._wall_us(),
        )
        for file in files:
            if (size := self._target.size(file.staged)) != file.bytes:
                self.check_not_fenced()
                raise BadTarget(
                    f"{self._target.text}/{file.staged} has {size} bytes here, and had {file.bytes} where a task wrote "
                    "it: is --to a directory that all Spark workers share?"
                )
        self._target.sync(*(file.staged for file in files))
        if not self._create(manifest):
            self._raise_fenced(manifest.number)
        self._publish(manifest)
        return manifest

    def check_not_fenced(self) -> None:
        """Raises ``Fenced`` if another exporter has committed or claimed a number, because it has removed this
        exporter's staged files."""
        following = (self.last.number if self.last is not None else 0) + 1
        if any(number_of(name) >= following for name in self._target.names(FOLDER)):
            self._raise_fenced(following)

    def _create(self, manifest: Manifest) -> bool:
        name, data = name_of(manifest.number), encode(manifest)
        if not self._target.create(name, data) and self._target.read(name) != data:
            return False  # the manifest cannot be ours: the store would have created it and lost its answer
        self.last = manifest
        return True

    def _catch_up(self) -> None:
        numbers = sorted(filter(None, map(number_of, self._target.names(FOLDER))))
        if not numbers:
            return
        name = name_of(numbers[-1])
        self.last = decode(self._target.read(name), name)
        self._publish(self.last)

    def _publish(self, manifest: Manifest) -> None:
        for file in manifest.files:
            try:
                self._target.publish(file.staged, file.name)
            except FileNotFoundError:
                raise BadTarget(
                    f"{self._target.text}/{file.name}: {name_of(manifest.number)} names this file, and it is gone"
                ) from None
        if manifest.files:
            self._target.sync(*(file.name for file in manifest.files))

    def _raise_fenced(self, number: int) -> None:
        name = name_of(number)
        try:
            by = f"export {decode(self._target.read(name), name).exporter} "
        except (BadTarget, OSError):
            by = "another one "
        raise Fenced(f"{self._target.text}: {by}has taken over at {name}; this export has ended")


def difference(held: Settings, asked: Settings) -> str:
    """Lists the settings in which a request differs from the target; "" if all are equal. If the request has no
    beginning, the target's beginning is accepted."""
    options = {"format": "--format", "partition_by": "--partition-by", "key_prefix": "--key-prefix", "begin": "--from"}
    have, want = msgspec.to_builtins(held), msgspec.to_builtins(asked)
    found = [
        f"{option} {have[field] or '(none)'}, not {want[field] or '(none)'}"
        for field, option in options.items()
        if have[field] != want[field] and (field != "begin" or want[field])
    ]
    return "; ".join(found)
