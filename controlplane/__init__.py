"""The control plane: Prometheus window in, weight snapshot out, every tick."""
