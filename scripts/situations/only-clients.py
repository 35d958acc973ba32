"""Every line of NGINX's logs names a client, and none has a header in it. Arguments: the clients' addresses.

The logs of the last boot and of the one before it.
"""

import sys
from pathlib import Path

# A header of version 2, of which NGINX skips the empty lines at its begin; and one of version 1.
HEADERS = (r'"\x00', '"PROXY ')
lines = [line for log in Path("/var/log/nginx").glob("*.log*") for line in log.read_text().splitlines()]
raw = [line for line in lines if any(header in line for header in HEADERS)]
named = [line for line in lines if " - - [" in line]
wrong = [line for line in named if line.split()[0] not in sys.argv[1:]]
print(f"{len(named)} requests; {len(raw)} raw headers, {len(wrong)} of no client")
print("\n".join([*raw[:3], *wrong[:3]]))
sys.exit(bool(raw or wrong or not named))
