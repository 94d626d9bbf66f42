"""A step-level model of a vLLM engine that runs the plugin's disciplines, and what to run on it."""
