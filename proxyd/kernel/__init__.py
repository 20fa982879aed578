"""The only code that touches the machine: rules, settings, addresses and features of this network namespace."""
