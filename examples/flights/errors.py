"""The error that stops the demo."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot start or continue; the text contains the reason."""
