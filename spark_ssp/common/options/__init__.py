"""Declares, parses and validates options; shared by both sources."""
