"""Reports, sessions and helper processes of the benchmarks."""
