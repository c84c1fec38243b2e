"""What goes wrong when a pipeline runs. The cause stays with the error as its `__cause__`: its text
is Spark's, and may hold data of records, so no more of it is quoted than its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ssp_common.errors import SspError

_HEAD: Final = re.compile(r"(?:^|: )\d+ problems")
"""What an error that lists several problems says of them first, as `InvalidOptionsError` does."""
_NUMBER: Final = re.compile(r"\n  \d+\. ")
"""What comes before each of them."""


class PipelineStageError(SspError):
    """A stage failed, and with it the pipeline: mend the cause and run again under the same root,
    where every stage goes on from its checkpoint."""

    kind = "pipeline-stage"

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return self.subject.removeprefix("stage ").partition(" ")[0]


class SessionSettingError(SspError):
    """The Spark session, or the Python environment, lacks what the pipeline's queries need."""

    kind = "session-setting"


def kind_of(error: BaseException) -> str:
    """An error's kind without its text: the type, Spark's condition if it has one, and the words of
    an error of this project that it quotes."""
    name = type(error).__name__
    try:
        condition = getattr(error, "getCondition", None)
        known = condition() if callable(condition) else None
        text = str(error)
    except Exception:  # noqa: BLE001 - the JVM that is asked for it may be gone
        return name
    # What follows is the query's plan, where all texts of this package stand.
    own = _own_words(text.partition("=== Streaming Query ===")[0])
    told = f"{name} ({known})" if known else name
    return f"{told}: {own}" if own else told


def _own_words(text: str) -> str | None:
    """The last error of this project that `text` quotes whole, in one line: those hold no data. The
    last, since Python shows an error after its cause. Anything else in brackets may be data."""
    kinds = "|".join(sorted({re.escape(cls.kind) for cls in _subclasses(SspError)}))
    found, end = "", 0
    for kind in re.finditer(rf"\[(?:{kinds})\] ", text):
        if kind.start() >= end:
            behind = _end_of_faults(text, kind.end()) or _end_of_fault(text, kind.end())
            if behind is not None:
                found, end = text[kind.start() : behind], behind
    return " ".join(found.split()) or None


def _end_of_fault(text: str, begin: int) -> int | None:
    """Where the line ends that says at `begin` what `SspError` writes behind its kind; None when it
    says something else. By plain search: a text of Spark's may be long, and hold anything."""
    # Also of a text that was quoted, with its line breaks as two characters.
    ends = (text.find("\n", begin), text.find("\\n", begin), len(text))
    end = min(place for place in ends if place >= 0)
    place = begin
    for word in (": found ", "; expected ", ". Next step: "):
        place = text.find(word, place + 1, end)
        if place < 0:
            return None
        place += len(word)
    return end if place < end else None


def _end_of_faults(text: str, begin: int) -> int | None:
    """The same where it lists several."""
    end = text.find("\n", begin)
    head = _HEAD.search(text[begin:end]) if end >= 0 and text[end - 1] == ":" else None
    if head is None or "\\n" in text[begin : begin + head.start()]:
        return None
    last = None
    while (number := _NUMBER.match(text, end)) is not None:
        behind = _end_of_fault(text, number.end())
        if behind is None:
            break
        last = end = behind
    return last


def _subclasses(cls: type[SspError]) -> Iterator[type[SspError]]:
    """Those that this process has imported: with a source, all that it raises."""
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def start_failure(pipeline: str, stage: str, error: BaseException) -> PipelineStageError:
    """Spark refused to start a stage's query."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found=f"a query that does not start, {kind_of(error)}",
        expected="a query that Spark can run",
        next_step="see the cause; output_modes={stage: mode} chooses a stage's output mode",
    )


def stage_failure(pipeline: str, stage: str, error: BaseException) -> PipelineStageError:
    """A stage's query ended with an error."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found=f"a query that failed, {kind_of(error)}; all other stages were stopped",
        expected="queries that run until they are stopped or have read everything",
        next_step="mend the cause and run the pipeline again under the same root",
    )


def ended_normally(pipeline: str, stage: str) -> PipelineStageError:
    """A stage's query ended without an error, though nobody stopped the pipeline."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found="a query that was stopped from outside; all other stages were stopped",
        expected="a pipeline that is stopped as a whole",
        next_step="stop it by RunningPipeline.stop(), or run it again under the same root",
    )


def _subject(pipeline: str, stage: str) -> str:
    # Names hold no blanks.
    return f"stage {stage} of pipeline {pipeline}"
