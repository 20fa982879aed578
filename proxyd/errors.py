"""The two kinds of error that end the daemon: each is shown as its text alone, without a traceback."""


class UserError(Exception):
    """What the user gave (configuration, kubeconfig, manifests) is wrong: exit status 2, restarting does not help."""


class CannotWorkHereError(Exception):
    """This machine lacks something (nftables, privileges, a free namespace): exit status 1."""
