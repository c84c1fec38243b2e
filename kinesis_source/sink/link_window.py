"""The limit on the bytes in flight of a task, from the time that its requests take to leave.

All tasks of a machine share its link, and none knows the others. Requests that are larger or more
than the link carries within a time-out all fail together, and are sent again for nothing. So a
window limits the bytes in flight of each task, as the congestion window of TCP does: it starts
small, doubles with each round of requests while these leave fast, then grows by a step in each
round, and shrinks by a factor when they take longer than `TARGET_S`. Then the requests of all tasks
together need about that time, whatever their number and the rate of the link.

Only a window that is in use grows: requests that a shard's rate limits say nothing about the link.
It is in use if half of it is in flight, or if it left out records of a request that is alone: a
service that is close answers each request before the next is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

TARGET_S: Final = 2.0
"""The longest time in which a request should leave. It is short in comparison with `readTimeout`
(30 s) and with the five minutes for which a signature is valid, and long in comparison with round
trips, which leave the link unused."""
_FAST_S: Final = TARGET_S / 4
"""Requests that leave in half of it let the window double; in more, let it grow by less, so that
the last doubling does not go far beyond."""
_LEAST: Final = 32 << 10
"""The first and the least window, in bytes of data and keys. A process sends its first request by
botocore, for which `readTimeout` is a limit on the whole of it."""
_STEP: Final = 32 << 10
"""The growth of the window in each round of requests."""
_SHARP: Final = 0.25
_GENTLE: Final = (0.5, 0.9)
"""The factors of the window after a lost request; the least and the most after a slow one."""
_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A request that was sent, of `size` bytes, at the monotonic time `began`. `in_flight` are the
    bytes of the task's requests at that time, its own included."""

    began: float
    size: int
    in_flight: int
    seconds: float
    """The time that it took to leave."""
    is_measured: bool
    """False: `seconds` includes the time that the service took to answer."""
    is_cut: bool = False
    """True: `request_bytes` left out records that were waiting."""
    is_lost: bool = False
    """True: the connection broke, or nothing left or came for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkWindow:
    """The most bytes in flight of one task."""

    size: int = _LEAST
    reduced_at: float = _NEVER
    """The time of the last reduction: a request that was sent before is no reason for another."""

    @property
    def request_bytes(self) -> int:
        """The most bytes of a request: half of the window, so that one leaves while another is
        answered. A larger record is sent alone."""
        return self.size // 2

    def allows_request(self, in_flight: int) -> bool:
        """Return whether another request may be sent, with these bytes in flight."""
        return in_flight == 0 or in_flight + self.request_bytes <= self.size

    def after(self, upload: Upload, now: float) -> LinkWindow:
        """Return the window after a request was answered, or lost."""
        is_slow = upload.is_lost or upload.seconds > TARGET_S
        if is_slow:
            if not (upload.is_lost or upload.is_measured) or upload.began < self.reduced_at:
                return self
            least, most = _GENTLE
            left = _SHARP if upload.is_lost else min(most, max(least, TARGET_S / upload.seconds))
            return LinkWindow(size=max(_LEAST, int(self.size * left)), reduced_at=now)
        is_alone = upload.in_flight == upload.size
        if upload.in_flight * 2 < self.size and not (is_alone and upload.is_cut):
            return self
        step = _STEP / self.size
        doubling = 2 * (1 - upload.seconds / _FAST_S)
        growth = int(upload.size * min(1.0, max(step, doubling)))
        return replace(self, size=self.size + growth)
