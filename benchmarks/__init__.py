"""Load, engines and results: what the demo and the benchmarks are made of."""
