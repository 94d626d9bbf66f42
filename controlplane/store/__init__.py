"""What outlives the process: snapshots, the reasons for them, and events."""
