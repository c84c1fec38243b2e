"""Builds a pipeline from user code."""
