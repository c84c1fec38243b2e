"""Environments of other versions of PySpark and Python, with the project's wheel."""
