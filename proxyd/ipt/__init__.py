"""iptables as data: which rules are kube-proxy's, and the restore input that removes them. Pure."""
