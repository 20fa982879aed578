"""What proxyd shows over HTTP: metrics, health, mode."""
