"""The status page: one HTML page for people, and the JSON that it shows."""
