"""The guides, and the code that they show."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = ROOT / "docs" / "guide"
PAGES: Final = (ROOT / "README.md", *sorted(GUIDE.glob("*.md")))


def blocks(page: Path, languages: str) -> list[str]:
    """The page's code in these languages, a regular expression."""
    found = re.findall(
        rf"^ *```(?:{languages})\n(.*?)^ *```",
        page.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    return [textwrap.dedent(block) for block in found]
