"""The demo: a year of departures through a Kinesis stream that is split and merged.

`python -m examples.flights` runs it; docs/guide/demo.md explains its output.
"""


class DemoError(Exception):
    """The demo cannot start or continue; the text contains the reason."""
