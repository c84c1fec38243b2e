"""Servers that tests start: emulators, brokers and their files."""
