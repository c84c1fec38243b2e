"""Tools for operating queries: metrics, inspection, the command `spark-ssp`, the live page."""
