"""iptables as data, pure: kube-proxy's layout of chains and rules, which rules are its, and input of iptables-restore."""
