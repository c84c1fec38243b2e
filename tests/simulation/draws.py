"""What histories are drawn from."""

from __future__ import annotations

from hypothesis import strategies as st

from spark_ssp.testing.kinesis import UnusualAnswers
from tests.support.simulation.query import Stage
from tests.support.simulation.world import LONGEST_HIDDEN_MS

MINUTE_MS = 60_000

small_index = st.integers(0, 5)
starts = st.sampled_from(
    ["latest", "trim_horizon", "trim_horizon", "trim_horizon", "at a time", "by shard"]
)
limits = st.sampled_from(
    [
        {},
        {},
        {},
        {"maxRecordsPerTrigger": "1"},
        {"maxRecordsPerTrigger": "7"},
        {"maxRecordsPerTrigger": "40"},
        {"maxRecordsPerTrigger": "20000"},
        {"maxBytesPerTrigger": "1000"},
        {"maxBytesPerTrigger": "60000"},
        {"maxRecordsPerTrigger": "10", "maxBytesPerTrigger": "2000"},
    ]
)
unusual_answers = st.builds(
    UnusualAnswers,
    zero_lag=st.booleans(),
    empty_pages=st.integers(0, 2),
    late_shard_end=st.booleans(),
)
layouts = st.sampled_from(
    [
        {},
        {},
        {"slots": "1"},
        {"slots": "2"},
        {"slots": "3", "slotAssignment": "hash-range"},
        {"slots": "4"},
        {"slotAssignment": "hash-range"},
    ]
)
fetches = st.sampled_from([{}, {}, {"maxRecordsPerFetch": "3"}, {"maxBytesInFlight": "1m"}])
moments = st.one_of(
    st.integers(0, 500), st.integers(500, 15_000), st.sampled_from([MINUTE_MS, 5 * MINUTE_MS + 1])
)
stages = st.sampled_from([None, None, None, None, *Stage])
shapes: st.SearchStrategy[dict[str, int]] = st.sampled_from(
    [
        {},
        {},
        {},
        {"padding": 9_000},
        {"padding": 40_000},
        {"users": 1},
        {"users": 3},
        {"users": 3, "stray": True},
        {"users": 3, "stray": True},
        {"hidden_ms": 700},
        {"hidden_ms": LONGEST_HIDDEN_MS},
        {"shift_ms": -900},
        {"shift_ms": -40},
    ]
)
