"""Retraining: metric history in, a registered challenger out."""
