"""Real processes that the demo and the benchmarks start, and what they need."""
