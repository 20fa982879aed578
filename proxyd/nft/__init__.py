"""nftables mode, pure: from forwarding to objects, from objects to a transaction, from a transaction to text."""
