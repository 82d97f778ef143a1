"""Keys that wait, held against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from repl.destinations.waiting_keys import WaitingKeys

KEYS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["add", "release", "keep_below"]), KEYS, st.integers(1, 60)), max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_key_waits_from_its_first_message_until_it_is_released_or_met_again(
    steps: list[tuple[str, list[int], int]],
) -> None:
    waiting, model = WaitingKeys(), dict[int, int]()
    for step, keys, vlsn in steps:
        hashes = np.array(keys, np.uint64)
        if step == "add":
            waiting.add(hashes, np.arange(vlsn, vlsn + len(keys)))
            for at, key in enumerate(keys):
                model.setdefault(key, vlsn + at)
        elif step == "release":
            assert waiting.release(hashes) == min((model.pop(key) for key in set(keys) & set(model)), default=None)
        else:
            waiting.keep_below(vlsn)
            model = {key: at for key, at in model.items() if at < vlsn}
        assert len(waiting) == len(model)
        assert not model or waiting.first == min(model.values())
        assert waiting.first_but(hashes) == min((at for key, at in model.items() if key not in keys), default=None)
