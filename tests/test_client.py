"""Requests that are tried again: what Retry-After says, and the waits where it says nothing."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from nextlong.client import Client, UnansweredError, _retry_after_s


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("2.5", 2.5),
        ("-1", 0.0),
        ("99999", 600.0),
        ("soon", 9.0),
        ("nan", 9.0),
        (None, 9.0),
    ],
)
def test_retry_after_in_seconds(header, wait_s):
    assert _retry_after_s(header, default=9.0) == wait_s


def test_retry_after_as_a_date():
    moment = (datetime.now(UTC) + timedelta(seconds=100)).replace(microsecond=0)
    before = datetime.now(UTC)
    wait_s = _retry_after_s(format_datetime(moment, usegmt=True), default=-1.0)
    assert (
        (moment - datetime.now(UTC)).total_seconds()
        <= wait_s
        <= (moment - before).total_seconds()
    )


def test_waits_double_up_to_a_minute_with_jitter(monkeypatch):
    monkeypatch.setattr("nextlong.client.time.sleep", lambda seconds: None)
    waits = []
    with pytest.raises(UnansweredError, match="12 attempts.*ConnectionRefusedError"):
        Client("NO_KEY", 12, 1.0).post(
            "http://127.0.0.1:9/v1",
            {},
            lambda trouble, wait_s, left: waits.append(wait_s),
        )
    longest = [min(0.5 * 2**attempt, 60.0) for attempt in range(11)]
    assert all(
        most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True)
    )
    assert len({wait / most for wait, most in zip(waits, longest, strict=True)}) > 1
