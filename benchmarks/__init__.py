"""Every number the project promises, measured beside its limit in one run."""
