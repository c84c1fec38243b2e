"""Counts habits of prose that an engineer stumbles over, in docstrings, comments, strings and docs.

`python -m website prose [PATH...]` lists every hit as `file:line: habit: excerpt`, then the hits
per 10,000 words of each habit. Without a path it reads the product, the examples, the benchmarks,
tests/support and the docs, and the identifiers of the tests. Code in backticks, fenced blocks and
addresses are not prose. `python -m website check` names the habits above `LIMIT`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
READ: Final = (
    "checkpoint",
    "kafka_source",
    "kinesis_source",
    "spark_ssp",
    "pyspark_kafka_ssp.py",
    "pyspark_kinesis_ssp.py",
    "examples",
    "benchmarks",
    "tests/support",
    "docs",
)

LIMIT: Final = 5.0
"""Hits of one habit per 10,000 words, in code and in docs each."""


class Kind(StrEnum):
    CODE = "docstrings, comments"
    DOCS = "docs"
    STRINGS = "strings"


@dataclass(frozen=True, slots=True)
class Habit:
    """A habit by its pattern. In patterns a space matches any white space, also a line break."""

    name: str
    pattern: re.Pattern[str]
    unless_after: re.Pattern[str] | None = None
    """Excuses a match if the text before it ends like this."""

    def hits(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self.pattern.finditer(text):
            before = text[max(0, match.start() - 40) : match.start()]
            if self.unless_after is None or not self.unless_after.search(before):
                yield match.span()


def _habit(name: str, pattern: str, *, unless_after: str | None = None) -> Habit:
    def compiled(text: str) -> re.Pattern[str]:
        return re.compile(text.replace(" ", r"\s+"), re.IGNORECASE)

    excuse = compiled(f"(?:{unless_after}) $") if unless_after else None
    return Habit(name, compiled(pattern), excuse)


_INDIRECT_QUESTION: Final = (
    r"\b(?:describ|explain|defin|determin|decid|document|specif|control|know|known|show|see|"
    r"understand|matter|depends? on|no matter)\w*(?: exactly)?"
)
_PEOPLE: Final = (
    r"\b(?:anyone|someone|everyone|those|one|people|users?|engineers?|readers?|operators?|"
    r"developers?|maintainers?|contributors?|reporters?|administrators?|teams?|authors?|teammates?)"
)

HABITS: Final = (
    # "what the options say": name the thing. Questions, and indirect ones after a verb, are fine.
    _habit("headless what", r"\bwhat\b(?![^.?!]*\?)", unless_after=_INDIRECT_QUESTION),
    _habit(
        "headless who",
        r"\bwhom?\b(?![^.?!]*\?)",
        unless_after=f"{_PEOPLE}|{_INDIRECT_QUESTION}",
    ),
    _habit("whoever, whatever", r"\b(?:whoever|whomever|whatever|wherever)\b"),
    _habit("somebody, nobody", r"\b(?:some|no|any|every)body\b"),
    _habit("say", r"\b(?:say|says|said|saying)\b"),
    _habit(
        "stand, lie",
        r"\b(?:stand|stands|stood|standing)\b(?!-| (?:for|still)\b)"
        r"|\b(?:lie|lies|lay|lain|lying)\b(?! between\b)",
        unless_after=r"\blong",
    ),
    _habit("tell", r"\b(?:tell|tells|told|telling)\b"),
    _habit(
        "hear, find out",
        r"\b(?:hear|hears|heard|(?:find|finds|finding|found) out|lets? (?:\w+ )?be|to be had)\b",
    ),
    _habit(
        "of its own",
        r"\bof (?:its|their|our|your|one's|his|her) own\b"
        r"|\bof (?:ours|theirs|yours|mine|his|hers)\b",
    ),
    _habit(
        "is no, none of",
        r"\b(?:is|are|was|were|be) (?:no|(?-i:none))\b"
        r"(?! longer\b| (?:more|less|later|earlier|fewer) than\b)|\bnone of\b",
        unless_after=r"\bthere",
    ),
    _habit("alone", r"\balone\b", unless_after=r"\b(?:let|leaves?|left)"),
    _habit(
        "anew, hence, besides",
        r"\b(?:anew|hence|besides|meanwhile|thence|whence|henceforth|therein|thereof|thereupon"
        r"|by and by)\b",
    ),
    _habit(
        "but for, for all that",
        r"\bbut for\b|\bfor all that\b|\ball the same\b|\bat odds\b|\bas it is\b(?! \w)",
    ),
    _habit("so many, so much", r"\bso (?:many|much|few)\b"),
    _habit("go on", r"\b(?:go|goes|going|gone|went) on\b"),
)

OPENINGS: Final = frozenset(
    ["whether", "what", "where", "how", "when", "who", "which", "why", "whose", "whom"]
)
"""No docstring begins with one of these words: "Return whether ...", "Position of ..."."""

CLAUSE: Final = re.compile(r"(?:that|to|what|whether|how|where|who)\b", re.IGNORECASE)
"""No `found=` and `expected=` of an error begins like this: they are noun phrases."""


RETIRED: Final = frozenset(
    ["asker", "coworking", "frontier", "looking", "sightings", "standing", "tip", "told"]
)
"""No identifier has one of these former words; use probe, latest record, lease agent, observed,
reported and the like."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose, with the line that it begins in."""

    path: Path
    line: int
    kind: Kind
    text: str
    docstring_of: str = ""
    """Of docstrings: function, class, module or value."""
    role: str = ""
    """Of strings: the keyword argument, if any."""


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    path: Path
    line: int
    habit: str
    excerpt: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.habit}: {self.excerpt}"


@dataclass(slots=True)
class Findings:
    """Hits of habits by kind, and of rules, which allow none."""

    words: Counter[Kind] = field(default_factory=Counter)
    habits: dict[Kind, list[Hit]] = field(default_factory=lambda: {kind: [] for kind in Kind})
    rules: list[Hit] = field(default_factory=list)

    def rate(self, kind: Kind, habit: Habit) -> float:
        """Return the hits per 10,000 words."""
        count = sum(hit.habit == habit.name for hit in self.habits[kind])
        return 10_000 * count / max(1, self.words[kind])


def judged_files() -> list[Path]:
    """Return every file whose prose is counted."""
    return sorted({*ROOT.glob("*.md"), *files_below(ROOT / name for name in READ)})


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for suffix in ("py", "md"):
                yield from path.rglob(f"*.{suffix}")  # does not follow links
        elif path.exists():
            yield path


def find(paths: Iterable[Path]) -> Findings:
    findings = Findings()
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            findings.rules.extend(_retired(path, source))
        texts = _of_markdown(path, source) if path.suffix == ".md" else _of_python(path, source)
        for text in texts:
            _count(text, findings)
    return findings


def _retired(path: Path, source: str) -> Iterator[Hit]:
    for node in ast.walk(ast.parse(source)):
        for field_name in ("id", "attr", "name", "arg", "module"):
            name = getattr(node, field_name, None)
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name) if isinstance(name, str) else []
            if {word.lower() for word in words} & RETIRED:
                yield Hit(path, getattr(node, "lineno", 1), "retired word", str(name))


def _count(text: Text, findings: Findings) -> None:
    prose = _without_code(text.text)
    findings.words[text.kind] += len(re.findall(r"[A-Za-z][A-Za-z'-]*", prose))
    for habit in HABITS:
        for start, end in habit.hits(prose):
            excerpt = " ".join(text.text[max(0, start - 40) : end + 40].split())
            line = text.line + prose.count("\n", 0, start)
            findings.habits[text.kind].append(Hit(text.path, line, habit.name, excerpt))
    findings.rules.extend(
        Hit(text.path, text.line, rule, " ".join(text.text[:80].split())) for rule in broken(text)
    )


def broken(text: Text) -> Iterator[str]:
    if text.role in {"found", "expected"} and CLAUSE.match(text.text):
        yield f"{text.role}= is a clause"
    if not text.docstring_of:
        return
    if text.text.strip().partition(" ")[0].strip(",.:").lower() in OPENINGS:
        yield f"opening of a {text.docstring_of}'s docstring"
    if re.fullmatch(r"\s*See (?:also )?(?:`[^`]+`|:\w+:`[^`]+`)\.?\s*", text.text):
        yield "only refers"
    if re.search(r"(?:^|\s)Pure\.\s*$", text.text):
        yield "ends with Pure."


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match.group())


def _without_code(text: str) -> str:
    return re.sub(r"`[^`]+`", _blank, text)


def _of_markdown(path: Path, source: str) -> Iterator[Text]:
    for pattern in (
        r"(?ms)^ *(```|~~~).*?^ *\1",
        r"(?s)<!--.*?-->",
        r"\]\([^)\s]*\)",
        r"<[^>\s]+>",
    ):
        source = re.sub(pattern, _blank, source)
    line = 1
    for part in re.split(r"(\n\s*\n)", source):
        yield Text(path, line, Kind.DOCS, part)
        line += part.count("\n")


def _of_python(path: Path, source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for owner, node, text in _docstrings(tree):
        docstrings.add(id(node))
        yield Text(path, node.lineno, Kind.CODE, text, docstring_of=owner)
    yield from _comments(path, source)
    yield from _strings(path, tree, docstrings)


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, ast.Constant, str]]:
    """Yield every string that is a statement, with its owner; attributes have some as well."""
    for parent in ast.walk(tree):
        body = getattr(parent, "body", None)
        if not isinstance(body, list):
            continue
        for position, statement in enumerate(body):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield _owner(parent) if position == 0 else "value", statement.value, text


def _owner(parent: ast.AST) -> str:
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        return "function"
    return "class" if isinstance(parent, ast.ClassDef) else "module"


_DIRECTIVE: Final = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|ruff:|mypy:|!)")


def _comments(path: Path, source: str) -> Iterator[Text]:
    """Yield the comments; those in consecutive lines are one text."""
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if block and token.start != (block[-1].start[0] + 1, block[-1].start[1]):
            yield _comment(path, block)
            block = []
        block.append(token)
    if block:
        yield _comment(path, block)


def _comment(path: Path, block: list[tokenize.TokenInfo]) -> Text:
    lines = "\n".join(token.string.lstrip("#").strip() for token in block)
    return Text(path, block[0].start[0], Kind.CODE, lines)


def _strings(path: Path, tree: ast.Module, docstrings: set[int]) -> Iterator[Text]:
    """Yield the strings that are a phrase of four words or more, and those of errors."""
    roles = {
        id(value): keyword.arg or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        for value in _branches(keyword.value)
    }
    parts = {
        id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in ast.walk(n)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings | parts:
                continue
            text = node.value
        else:
            continue
        role = roles.get(id(node), "")
        phrase = "\n" not in text and re.search(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+", text)
        if phrase or role in {"found", "expected"}:
            yield Text(path, node.lineno, Kind.STRINGS, text, role=role)


def _branches(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body)
        yield from _branches(value.orelse)
    else:
        yield value


def report(findings: Findings) -> str:
    """Return the table of rates, and the number of hits of each rule."""
    lines = [f"{'hits per 10,000 words':<24}" + "".join(f"{kind:>24}" for kind in Kind)]
    for habit in HABITS:
        rates = [findings.rate(kind, habit) for kind in Kind]
        marks = "".join(f"{rate:>22.1f} {'!' if rate > LIMIT else ' '}" for rate in rates)
        lines.append(f"{habit.name:<24}{marks}")
    lines.append(f"{'words':<24}" + "".join(f"{findings.words[kind]:>23} " for kind in Kind))
    rules = Counter(hit.habit for hit in findings.rules)
    lines += [f"{rule}: {count}" for rule, count in sorted(rules.items())]
    return "\n".join(lines)


def above_limit(findings: Findings) -> list[str]:
    """Return the lines of the habits that are too frequent, and every broken rule."""
    lines = [
        f"{habit.name}: {rate:.1f} per 10,000 words of {kind}; at most {LIMIT:g}"
        for kind in Kind
        for habit in HABITS
        if (rate := findings.rate(kind, habit)) > LIMIT
    ]
    return lines + [str(hit) for hit in sorted(findings.rules)]


def show(paths: Iterable[Path]) -> None:
    """Print every hit in `paths`, or in all files that are counted, and the table."""
    given = sorted(set(files_below(path.resolve() for path in paths)))
    findings = find(given or judged_files())
    if not given:
        for path in files_below([ROOT / "tests"]):
            findings.rules.extend(_retired(path, path.read_text(encoding="utf-8")))
    hits = [*findings.rules, *(hit for hits in findings.habits.values() for hit in hits)]
    print(*sorted(hits), report(findings), sep="\n")
