"""Writing a lock out in one place: a conda prefix, a venv, an image."""
