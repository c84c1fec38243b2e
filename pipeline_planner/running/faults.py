"""What goes wrong when a pipeline runs. The cause stays with the error as its `__cause__`: its text
is Spark's, and may hold data of records, so no more of it is quoted than its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ssp_common.errors import SspError

_TEXT: Final = r"(?:(?!\\n)[^\n])+"
"""Within a line, also one of a text that was quoted with its line breaks as `\\n`."""
_FAULT: Final = rf"{_TEXT}?: found {_TEXT}?; expected {_TEXT}?\. Next step: {_TEXT}"
"""What an error says behind its kind, as `SspError` writes it."""
_FAULTS: Final = rf"(?:{_TEXT}: )?\d+ problems[^\n]*:(?:\n  \d+\. {_FAULT})+"
"""The same where it lists several, as `InvalidOptionsError` and `InvalidPipelineError` do."""


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
    condition = getattr(error, "getCondition", None)
    known = condition() if callable(condition) else None
    # What follows is the query's plan, where all texts of this package stand.
    own = _own_words(str(error).partition("=== Streaming Query ===")[0])
    told = f"{name} ({known})" if known else name
    return f"{told}: {own}" if own else told


def _own_words(text: str) -> str | None:
    """The last error of this project that `text` quotes whole, in one line: those hold no data. The
    last, since Python shows an error after its cause. Anything else in brackets may be data."""
    kinds = "|".join(sorted({re.escape(cls.kind) for cls in _subclasses(SspError)}))
    found = re.findall(rf"\[(?:{kinds})\] (?:{_FAULTS}|{_FAULT})", text)
    return " ".join(found[-1].split()) if found else None


def _subclasses(cls: type[SspError]) -> Iterator[type[SspError]]:
    """Those that this process has imported: with a source, all that it raises."""
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def start_failed(pipeline: str, stage: str, error: BaseException) -> PipelineStageError:
    """Spark refused to start a stage's query."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found=f"a query that does not start, {kind_of(error)}",
        expected="a query that Spark can run",
        next_step="see the cause; output_modes={stage: mode} chooses a stage's output mode",
    )


def stage_failed(pipeline: str, stage: str, error: BaseException) -> PipelineStageError:
    """A stage's query ended with an error."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found=f"a query that failed, {kind_of(error)}; all other stages were stopped",
        expected="queries that run until they are stopped or have read everything",
        next_step="mend the cause and run the pipeline again under the same root",
    )


def ended_by_itself(pipeline: str, stage: str) -> PipelineStageError:
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
