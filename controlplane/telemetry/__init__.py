"""Per-class signals out of Prometheus."""
