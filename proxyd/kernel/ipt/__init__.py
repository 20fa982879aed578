"""iptables of a network namespace: written, read, listened to."""
