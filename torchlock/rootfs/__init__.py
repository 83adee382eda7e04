"""The root file system of the image: its lock, and Debian packages made into files."""
