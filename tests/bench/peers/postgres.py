"""PostgreSQL with two streaming standbys, a commit waiting for any one of them (``ANY 1``).

``synchronous_commit = on``: the standby has flushed the commit record to disk, as ours has.  The table is
a log's: a sequence and a value.  Driven by pgbench over TCP, one prepared INSERT a transaction.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np

from tests.bench.peers.peer import VALUE, Figure, Peer, Work, free_ports, run

USER = "postgres"
CLIENT = "pgbench -M prepared, one INSERT a transaction, TCP"

_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = '{sockets}'
port = {port}
max_connections = 300
shared_buffers = 256MB
wal_level = replica
max_wal_senders = 10
max_wal_size = 4GB
hot_standby = on
synchronous_commit = on
autovacuum = on
log_min_messages = warning
"""


class Postgres(Peer):
    name = "PostgreSQL"
    stops_by = signal.SIGINT

    def missing(self) -> str | None:
        if not _tool("postgres") or not _tool("pgbench"):
            return "apt-get install postgresql"
        if os.geteuid() == 0:
            try:
                pwd.getpwnam(USER)
            except KeyError:
                return f"a user named {USER} (PostgreSQL does not run as root)"
        return None

    async def start(self, directory: Path) -> list[Work]:
        self._directory = directory
        if os.geteuid() == 0:
            shutil.chown(directory, USER, USER)
        ports = free_ports(3)
        self.port = ports[0]
        data = [directory / f"pg{number}" for number in range(3)]
        await run(_tool("initdb"), "-D", str(data[0]), "-U", USER, "-A", "trust", "-N", user=USER)
        self._configure(data[0], ports[0])
        self._run(data[0])
        await self._until("PostgreSQL", lambda: self._answers("select 1", "1"))
        for number in (1, 2):
            await run(
                *(_tool("pg_basebackup"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-R", "-N"),
                *("-c", "fast", "-X", "stream", "-D", str(data[number])),
                user=USER,
            )
            self._configure(data[number], ports[number])
            with (data[number] / "postgresql.auto.conf").open("a") as settings:
                settings.write(
                    f"\nprimary_conninfo = 'host=127.0.0.1 port={self.port} user={USER} application_name=s{number}'\n"
                )
            self._run(data[number])
        await self._sql("create table log (vlsn bigserial primary key, value bytea not null)")
        await self._sql("alter system set synchronous_standby_names = 'ANY 1 (s1, s2)'")
        await self._sql("select pg_reload_conf()")
        streaming = "select count(*) from pg_stat_replication where sync_state = 'quorum' and state = 'streaming'"
        await self._until("a standby", lambda: self._answers(streaming, "2"))
        script = directory / "insert.sql"
        script.write_text(f"INSERT INTO log (value) VALUES ('{VALUE.decode()}');\n")
        return [
            Work("1 client", CLIENT, lambda seconds: self._pgbench(1, seconds)),
            Work("64 clients", CLIENT, lambda seconds: self._pgbench(64, seconds)),
        ]

    def _configure(self, data: Path, port: int) -> None:
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(port=port, sockets=self._directory))

    def _run(self, data: Path) -> None:
        self._serve([_tool("postgres"), "-D", str(data)], log=self._directory / f"{data.name}.log", user=USER)

    async def _sql(self, statement: str) -> str:
        port = str(self.port)
        return await run(
            *("psql", "-h", "127.0.0.1", "-p", port, "-U", USER, "-d", "postgres", "-XAtqc", statement), user=USER
        )

    async def _answers(self, statement: str, wanted: str) -> bool:
        return (await self._sql(statement)).strip() == wanted

    async def _pgbench(self, clients: int, seconds: float) -> Figure:
        with tempfile.TemporaryDirectory(dir=self._directory, prefix="pgbench-") as logs:
            if os.geteuid() == 0:
                shutil.chown(logs, USER, USER)
            output = await run(
                *(_tool("pgbench"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-n", "-M", "prepared"),
                *("-c", str(clients), "-j", "1", "-T", str(max(1, round(seconds)))),
                *("-f", str(self._directory / "insert.sql"), "-l", f"--log-prefix={logs}/log", "postgres"),
                user=USER,
            )
            lines = [np.loadtxt(path, usecols=2, ndmin=1) for path in glob.glob(f"{logs}/log*")]
        rate = re.search(r"tps = ([0-9.]+) \(without", output)
        failed = re.search(r"number of failed transactions: (\d+)", output)
        if rate is None:
            raise RuntimeError(f"pgbench said no rate: {output[-400:]}")
        p50, p99 = np.percentile(np.concatenate(lines), [50, 99]) / 1e3
        return Figure(float(rate[1]), float(p50), float(p99), int(failed[1]) if failed else 0)


def _tool(name: str) -> str:
    """Finds the newest of Debian's versions, else what is on the path, else empty."""
    versions = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), key=lambda path: int(path.split("/")[4]))
    return versions[-1] if versions else shutil.which(name) or ""
