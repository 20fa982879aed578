"""One family kept equal to what is desired in nftables mode."""
