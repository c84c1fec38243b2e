"""Rehearsals of the recipes on local services: `python -m examples.rehearsals.json_records`."""
