"""Reads planned ranges in the tasks: fetches, filters, decodes and checks for data loss."""
