"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# Nobody speaks TLS here, and each of a thousand servers would read all certificates of the system.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "kit/nobody.pem")

# A busy computer fails no property. A test that needs more examples says so; sweeps are long.
settings.register_profile("parley", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parley")
