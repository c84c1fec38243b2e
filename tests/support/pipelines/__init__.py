"""Pipelines that tests plan and run."""
