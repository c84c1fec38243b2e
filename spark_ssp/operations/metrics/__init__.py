"""Metrics of running queries: a listener, and outputs for Prometheus, OpenTelemetry, CloudWatch."""
