"""An urgent request meets an engine whose slots are all taken by long work."""
