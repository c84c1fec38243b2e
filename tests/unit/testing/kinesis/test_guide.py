"""The examples of the embedded service's guide run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
GUIDE = ROOT / "docs" / "guide" / "embedded-kinesis.md"


def test_the_guides_examples_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    example = tmp_path / "test_example.py"
    example.write_text("\n\n".join(blocks))
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(example)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(re.findall('def test_', example.read_text()))} passed" in found.stdout
