"""Making the lock: from `environment.yml` to `conda-lock.yml`."""
