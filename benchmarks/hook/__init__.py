"""What the plugin adds to a step of the engine, measured against stock vLLM."""
