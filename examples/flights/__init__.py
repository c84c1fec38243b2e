"""The demo: a year of departures through a Kinesis stream that is split and merged meanwhile.

`python -m examples.flights` runs it; docs/guide/demo.md says what there is to see.
"""
