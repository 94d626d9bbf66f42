"""The vLLM scheduler plugin: applies weight snapshots inside the engine."""
