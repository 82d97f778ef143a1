"""Options: every bad one is refused by name, and the others are taken as written."""

from __future__ import annotations

import pytest

from repl.spark.options import PARTITION_BYTES, Mode, Place, Use, read_options
from vlsn.errors import BadArgument


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "vlsnlog needs a source: .load('URL,URL') or .load('DIR')"),
        ({"path": " , "}, "vlsnlog needs a source: .load('URL,URL') or .load('DIR')"),
        ({"form": "1"}, "vlsnlog has no option 'form'; did you mean 'from'?"),
        ({"startingvlsn": "1"}, "vlsnlog has no option 'startingvlsn'; there are: mode, from"),
        ({"partitionbyte": "1"}, "vlsnlog has no option 'partitionbyte'; did you mean 'partitionBytes'?"),
        ({"from": "0"}, "option 'from' is '0'; it must be a VLSN from 1 on, or start, or end"),
        ({"from": "-1"}, "option 'from' is '-1'; it must be a VLSN from 1 on, or start, or end"),
        ({"from": "٣"}, "it must be a VLSN"),
        ({"to": "9" * 19}, "it must be a VLSN"),
        ({"to": "9" * 5000}, "it must be a VLSN"),
        ({"from": "10", "to": "9"}, "option 'to' is 9, before 'from', 10"),
        ({"since": "yesterday"}, "option 'since' is 'yesterday'; it must be a time such as 2026-01-31T12:00:00Z"),
        ({"since": "2026-01-02", "until": "2026-01-01"}, "option 'until' is before 'since'"),
        ({"from": "3", "since": "2026-01-02"}, "options 'from' and 'since': only one of them"),
        ({"to": "3", "until": "2026-01-02"}, "options 'to' and 'until': only one of them"),
        ({"keyprefix": "k" * 65_537}, "at most 65536 bytes, as every key"),
        ({"partitionbytes": "1"}, "option 'partitionBytes' is '1'; it must be bytes, 65536 to"),
        ({"partitionbytes": "1ib"}, "it must be bytes"),
        ({"failontrim": "no"}, "option 'failOnTrim' is 'no'; it must be true or false"),
        ({"mode": "Physical"}, "option 'mode' is 'Physical'; it must be visible or physical"),
        ({"mode": "physical", "from": "1"}, "option 'from' is for mode=visible"),
        ({"mode": "physical", "atLeast": "1"}, "option 'atLeast' is for mode=visible"),
        ({"atleast": "0"}, "option 'atLeast' is '0'; it must be a whole number, 1 to"),
        ({"path": "http://a", "lagmaxseconds": "soon"}, "option 'lagMaxSeconds' is 'soon'; it must be a whole number"),
        ({"path": "http://a,d", "lagMaxSeconds": "1"}, "option 'lagMaxSeconds' is asked of running nodes"),
        (
            {"TOKEN": "secret"},
            "option 'token' would be shown in plans and logs: put the token into a file of mode 0600",
        ),
        (
            {"tokenfile": "token"},
            "option 'tokenFile' is 'token'; it must be an absolute path, of a file on each executor",
        ),
        ({"paths": "7"}, "option 'paths' is '7'; it must be a list of sources"),
        ({"path": ",".join(f"http://h{n}" for n in range(65))}, "65 sources; one group has at most 64"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadArgument) as refused:
        read_options({"path": "d", **given} if given and "path" not in given else given, Use.BATCH)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_an_option_that_has_its_place_elsewhere_says_where() -> None:
    with pytest.raises(BadArgument, match=r"option 'to' is for spark\.read, not for spark\.readStream"):
        read_options({"path": "d", "to": "3"}, Use.STREAM)
    for name in ("atLeast", "lagMaxSeconds"):
        with pytest.raises(BadArgument, match=f"option '{name}' is asked of running nodes"):
            read_options({"path": "d", name: "3"}, Use.STREAM)


def test_what_was_written_is_taken() -> None:
    given = {
        "path": "http://a, http://b",
        "paths": '["http://c", "http://a"]',
        "FROM": "7",
        "until": "1970-01-01T00:00:01",
        "keyPrefix": "order-é",
        "partitionBytes": "1MiB",
        "failOnTrim": "False",
        "pushdown": "true",
    }
    options = read_options(given, Use.BATCH)
    assert options.sources == ("http://a", "http://b", "http://c")
    assert (options.from_vlsn, options.to_vlsn) == (7, Place.END)
    assert (options.since_us, options.until_us) == (None, 1_000_000)
    assert (options.key_prefix, options.partition_bytes) == ("order-é".encode(), 1 << 20)
    assert (options.fail_on_trim, options.pushdown, options.mode) == (False, True, Mode.VISIBLE)


def test_what_was_left_out_has_its_default() -> None:
    options = read_options({"path": "d"}, Use.BATCH)
    assert (options.from_vlsn, options.to_vlsn, options.fail_on_trim) == (Place.START, Place.END, True)
    assert (options.mode, options.partition_bytes) == (Mode.VISIBLE, PARTITION_BYTES)
