"""What it costs: each module is one command, `python -m benchmarks.<name>`."""
