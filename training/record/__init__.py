"""What is remembered of a retraining: in numbers, in pictures, and where its data came from."""
