"""Writing a lock out in one place: a venv, a conda prefix, an image."""
