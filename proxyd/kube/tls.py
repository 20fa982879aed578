"""Whose certificates are believed: whom kube-proxy believes, whatever the version of Python.

Python from 3.13 on, and urllib3 with it, refuses authorities and servers whose certificates lack what RFC 5280 has a CA put
into them (key usage, authority key identifier). Clusters that others made years ago have such certificates.
"""

from __future__ import annotations

import ssl
from typing import Any

from urllib3.util.ssl_ import create_urllib3_context


def tls_context(configuration: Any) -> ssl.SSLContext:
    """The context for connections of a configuration of the kubernetes package; urllib3 loads that one's files into it.

    As in Go, a certificate that is named as an authority need not be self-signed. Source: crypto/x509, Verify.
    """
    # The modes that the package asks urllib3 for.
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not configuration.ssl_ca_cert:
        # As urllib3 does for contexts that it makes itself.
        context.load_default_certs()
    return context
