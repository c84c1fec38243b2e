"""The health of a query as HTML: the verdict, its reasons and remedies, delays and ages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from spark_ssp.common.times import clock_text, date_text, duration_text
from spark_ssp.operations.health import Behind, Health, Verdict
from spark_ssp.operations.live_page.svg import count_text, html_text
from spark_ssp.operations.observed_queries import ObservedQuery

Assessed = tuple[ObservedQuery, Health]


def gravest_first(queries: Sequence[Assessed]) -> list[Assessed]:
    """Return running queries, the gravest first, then those that failed and those that ended, the
    last first."""

    def order(one: Assessed) -> tuple[int, int, str]:
        query, health = one
        if query.ended_ms is None:
            return 0, -health.verdict.gravity, query.label
        return (1 if query.failure is not None else 2), -query.ended_ms, query.label

    return sorted(queries, key=order)


def worst_of(queries: Sequence[Assessed]) -> Verdict | None:
    """Return the gravest verdict; None without queries. Queries that ended by themselves do not
    count."""
    found = [
        health.verdict for query, health in queries if query.is_running or query.failure is not None
    ]
    return max(found, key=lambda one: one.gravity, default=None)


def overview(queries: Sequence[Assessed], now_ms: int) -> str:
    """Return the number of queries by verdict, and the time."""
    running = [health.verdict for query, health in queries if query.is_running]
    chips = [
        _chip(verdict.lower(), f"{running.count(verdict)} {verdict}")
        for verdict in reversed(Verdict)
        if verdict in running
    ]
    failed = sum(query.failure is not None for query, _ in queries)
    if failed:
        chips.append(_chip(Verdict.FAILED.lower(), f"{failed} failed"))
    ended = len(queries) - len(running) - failed
    if ended:
        chips.append(_chip("ended", f"{ended} ended"))
    now = f"{date_text(now_ms)} {clock_text(now_ms, seconds=True)}"
    return f'<p class="chips">{"".join(chips)}<span class="dim">{now} UTC</span></p>'


def _chip(kind: str, text: str) -> str:
    return f'<span class="verdict {kind}">{text}</span> '


def banner(query: ObservedQuery, health: Health) -> str:
    """Return the banner of a running query."""
    verdict = health.verdict
    return "\n".join(
        [
            f'<div class="banner {verdict.lower()}">',
            f"<h2>{_chip(verdict.lower(), verdict)}{html_text(query.label)}</h2>",
            *_findings(health),
            f'<dl class="facts">{"".join(_facts(query, health))}</dl>',
            f'<p class="dim">{html_text(_identity(query))}</p>',
            "</div>",
        ]
    )


def ended_banner(query: ObservedQuery) -> str:
    """Return the banner of a query that has failed or ended."""
    if query.failure is None:
        return f'<span class="verdict ended">ended</span> {html_text(query.label)}{_when(query)}'
    return (
        f'<span class="verdict failed">{Verdict.FAILED}</span> {html_text(query.label)}: '
        f"<strong>{html_text(query.failure)}</strong>{_when(query)}"
    )


def _identity(query: ObservedQuery) -> str:
    batch = "" if query.snapshot is None else f"batch {query.snapshot.batch_id}, "
    return f"{batch}query {query.query_id}"


def _when(query: ObservedQuery) -> str:
    if query.ended_ms is None:
        return ""
    moment = f"{date_text(query.ended_ms)} {clock_text(query.ended_ms, seconds=True)}"
    return f' <span class="dim">{moment} UTC</span>'


def _findings(health: Health) -> Iterator[str]:
    if not health.findings:
        return
    yield '<ul class="findings">'
    for finding in health.findings:
        mark = ""
        if finding.verdict is not health.verdict:
            mark = f'<span class="verdict {finding.verdict.lower()}">{finding.verdict}</span> '
        yield (
            f"<li>{mark}{html_text(finding.reason)}"
            f'<p class="remedy">{html_text(finding.remedy)}</p></li>'
        )
    yield "</ul>"


def _facts(query: ObservedQuery, health: Health) -> Iterator[str]:
    where = f" in its {' or its '.join(health.stuck_in)}" if health.stuck_in else ""
    yield _fact("state", f"{health.state}{where}")
    yield _fact("committed delay", _delay(health.committed))
    yield _fact("planned delay", _delay(health.planned))
    yield _fact("last trigger", _ago(health.trigger_age_ms))
    yield _fact("last commit", _ago(health.commit_age_ms))
    caught_up = health.outlook.until_caught_up_ms
    if caught_up:
        yield _fact("catches up", _until(caught_up))
    expiry = health.outlook.until_expiry_ms
    if expiry is not None and caught_up:
        yield _fact("records expire", _until(expiry))


def _fact(name: str, text: str) -> str:
    return f"<div><dt>{name}</dt><dd>{html_text(text)}</dd></div>"


def _delay(behind: Behind) -> str:
    """Return a delay, which is an upper bound."""
    time = "unknown" if behind.ms is None else f"≤ {duration_text(behind.ms)}"
    return time if behind.offsets is None else f"{time} ({count_text(behind.offsets)} offsets)"


def _ago(age_ms: int | None) -> str:
    return "none yet" if age_ms is None else f"{duration_text(age_ms)} ago"


def _until(length_ms: float) -> str:
    if length_ms == math.inf:
        return "never"
    return f"in {duration_text(round(length_ms))}" if length_ms > 0 else "now"
