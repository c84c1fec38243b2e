"""The graph of a pipeline: operators, names and traversal."""
