"""The real parts, started as child processes: engine, Prometheus, control plane."""
