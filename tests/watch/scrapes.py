"""Scrapes of real nodes, and what the rules say about them.

    GET /metrics of n1 n2 n3, once a second  ─►  series of promtool's unit tests  ─►  the alerts that fired

A situation is scraped until it is reached. Then it is *held*, because an alert waits for minutes: gauges keep their
last value, and counters and ages continue at their rate of the last seconds. ``promtool test rules`` counts time from
0, so times since the epoch are made times since the first scrape.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.watch.rules import RULES, expressions, metrics_in, promtool

JOB: Final = "orders"
PERIOD_S: Final = 1.0
HOLD_S: Final = 40 * 60
"""Longer than any alert waits, but for those that wait a day."""
TREND: Final = 6
"""The number of scrapes from which the rate of a counter is taken."""
TIMEOUT_S: Final = 3.0
_FROM_EPOCH: Final = ("process_start_time_seconds", "vlsnlog_tls_not_after_seconds")
_CLOCK: Final = "vlsnlog_time_seconds"
_COUNTERS: Final = ("_total", "_bucket", "_count", "_sum")
_AGES: Final = ("_age_seconds", "_lag_seconds")
_FIRING: Final = 'ALERTS{alertstate="firing"}'
Series = dict[str, list[float | None]]
"""The values of each series, by its name and labels; None where a scrape did not have it."""


class Scraper:
    """Scrapes the nodes at ``urls`` from a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._series: Series = {}
        self.names: set[str] = set()
        """The names of all samples that were ever scraped."""
        self._ticks = 0
        self._began_s = time.time()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)
        self._wanted = set().union(*map(metrics_in, expressions()))

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def rest(self, seconds: float) -> None:
        """Waits for as many further scrapes as fit into ``seconds``."""
        until = self._ticks + round(seconds / PERIOD_S)
        while self._ticks < until:
            time.sleep(0.05)

    def tick(self) -> None:
        """Scrapes each node at once, and between two turns of the thread."""
        with self._lock:
            read = {name: _scraped(url) for name, url in self._urls.items()}
            now = time.time()
            for name, text in read.items():
                self._note(name, text, now)
            self._ticks += 1
            for values in self._series.values():
                values += [None] * (self._ticks - len(values))

    def series(self) -> Series:
        with self._lock:
            return {key: list(values) for key, values in self._series.items()}

    def _run(self) -> None:
        while not self._ended.is_set():
            due = time.monotonic() + PERIOD_S
            self.tick()
            self._ended.wait(max(0.0, due - time.monotonic()))

    def _note(self, node: str, text: str | None, now: float) -> None:
        place = {"instance": node, "job": JOB}
        self._put("up", place, float(text is not None))
        for family in text_string_to_metric_families(text or ""):
            self.names.add(family.name)
            for sample in family.samples:
                self.names.add(sample.name)
                if sample.name in self._wanted:
                    value = sample.value
                    if sample.name == _CLOCK:
                        value += self._ticks * PERIOD_S - now
                    elif sample.name in _FROM_EPOCH:
                        value -= self._began_s
                    self._put(sample.name, sample.labels | place, value)

    def _put(self, name: str, labels: Mapping[str, str], value: float) -> None:
        values = self._series.setdefault(key_of(name, labels), [])
        values += [None] * (self._ticks - len(values))
        values.append(value)


def key_of(name: str, labels: Mapping[str, str]) -> str:
    said = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{said}}}"


def _scraped(url: str) -> str | None:
    """Returns the text of a node's metrics, or None if it does not answer in time."""
    split = urlsplit(url)
    connection = HTTPConnection(str(split.hostname), split.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        return text if answer.status == 200 else None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def check_fired(
    directory: Path,
    series: Series,
    wanted: set[str],
    *,
    perhaps: frozenset[str] = frozenset(),
    hold_s: float = HOLD_S,
    period_s: float = PERIOD_S,
) -> None:
    """Checks by promtool that exactly the alerts ``wanted`` fired at any time. Those in ``perhaps`` may fire, too."""
    ticks = max(map(len, series.values()))
    end_s = (ticks - 1) * period_s + hold_s
    found = _evaluated(directory, series, wanted, end_s, period_s)
    assert found is None or (found != wanted and found - perhaps == wanted), f"fired: {found}, wanted: {wanted}"


def _evaluated(directory: Path, series: Series, names: set[str], end_s: float, period_s: float) -> set[str] | None:
    """Returns None if exactly ``names`` fired, else the names that promtool printed."""
    file = directory / "situation.yml"
    hold = round(end_s / period_s) + 1
    seconds = round(end_s)
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{max(15, round(period_s))}s",
        "tests": [
            {
                "interval": f"{round(period_s)}s",
                "input_series": [
                    {"series": key, "values": " ".join(_written(key, values, hold, period_s))}
                    for key, values in sorted(series.items())
                ],
                "promql_expr_test": [
                    {
                        "expr": f"group by (alertname) (last_over_time({_FIRING}[{seconds + 60}s]))",
                        "eval_time": f"{seconds}s",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
                    }
                ],
            }
        ],
    }
    file.write_text(yaml.safe_dump(document, width=1 << 20))
    result = promtool("test", "rules", file)
    if result.returncode == 0:
        return None
    said = result.stdout + result.stderr
    got = [line for line in said.splitlines() if "got:" in line]
    assert got, said[-3000:]
    return {part.split('"')[1] for part in got[0].split("alertname=")[1:]}


def _written(key: str, values: Sequence[float | None], hold: int, period_s: float) -> Iterable[str]:
    """Yields a series as promtool reads it, with the hold at its end."""
    before: float | None = None
    for value in values:
        if value is not None:
            yield repr(value)
        else:
            yield "_" if before is None else "stale"
        before = value
    last = values[-1]
    left = hold - len(values)
    if last is not None and left > 0:
        slope = _slope(key.split("{")[0], values, period_s)
        yield f"{last + slope!r}{'-' if slope < 0 else '+'}{abs(slope)!r}x{left}"


def _slope(name: str, values: Sequence[float | None], period_s: float) -> float:
    """Returns how much a held series grows in a period: by its own rate if it is a counter, an age or a clock. A
    single step is no rate."""
    if name == _CLOCK:
        return period_s
    late = [value for value in values[-TREND:] if value is not None]
    rate = (late[-1] - late[0]) / (len(late) - 1) if len(late) > 1 else 0.0
    if name.endswith(_COUNTERS):
        steps = sum(one != two for one, two in itertools.pairwise(late))
        return max(0.0, rate) if steps > 1 else 0.0
    if name.endswith(_AGES) and late[-1] > 1 and 0.5 < rate / period_s < 1.5:
        return period_s
    return 0.0


def changed(series: Series, changes: Mapping[str, Sequence[float]], period_s: float) -> Series:
    """Returns constant series with the last values of ``series``, but other values where a key begins with one of
    ``changes``. Clocks go on. A key without values in ``series`` is a new series."""
    ticks = max(map(len, changes.values()))
    found: Series = {}
    for key, values in series.items():
        last = values[-1]
        if key.startswith(_CLOCK):
            found[key] = [period_s * tick for tick in range(ticks)]
        elif last is not None:
            found[key] = [last] * ticks
    for start, given in changes.items():
        named = [key for key in found if key.startswith(start)]
        for key in named or [start if start.endswith("}") else f"{start}}}"]:
            found[key] = [*given, *[given[-1]] * (ticks - len(given))]
    return found
