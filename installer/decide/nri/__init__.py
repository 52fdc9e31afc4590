"""NRI: what a plugin says to an engine, and which containers get which CDI devices."""
