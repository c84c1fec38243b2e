"""Renders plans as text, Mermaid, SVG and HTML."""
