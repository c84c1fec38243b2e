"""Versioned JSON documents and files that are written once."""
