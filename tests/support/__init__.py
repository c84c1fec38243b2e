"""Helpers, fakes and servers that tests share."""
