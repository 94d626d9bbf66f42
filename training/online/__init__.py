"""What a retraining remembers of the ones before: windows, the champion, the calibration."""
