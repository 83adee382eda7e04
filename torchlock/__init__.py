"""A pinned PyTorch environment, and the proof that a machine really has it."""
