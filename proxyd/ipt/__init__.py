"""iptables mode, pure: the classic layout of chains and rules, and the text that iptables-restore reads."""
