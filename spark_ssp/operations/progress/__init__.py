"""The progress reports of a session's queries, as snapshots."""
