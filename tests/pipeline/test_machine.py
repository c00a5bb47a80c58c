"""What the computer says of itself is usable as it is."""

from __future__ import annotations

import os

import pytest

from pipeline import FirstlookError
from pipeline.machine import (
    choose_threads,
    memory_bytes,
    physical_cores,
    processor_name,
    require_memory,
)


def test_threads_default_to_the_cores_this_process_may_use():
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)
    assert choose_threads(0) == physical_cores()
    assert choose_threads(3) == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity to set")
def test_a_restricted_process_counts_only_its_own_cores():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert physical_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_processor_has_a_name():
    assert processor_name().strip()


def test_too_little_memory_is_told_before_it_is_taken():
    installed, available = memory_bytes()
    assert 0 < available <= installed
    require_memory(0, "Nothing")
    with pytest.raises(FirstlookError, match="The text encoder needs"):
        require_memory(2 * installed, "The text encoder")
