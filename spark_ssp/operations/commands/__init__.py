"""The command `spark-ssp`: one module per command."""
