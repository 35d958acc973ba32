#!/bin/sh
# Fails unless this process is in a new network namespace. Each script that makes devices, addresses or mounts calls this
# first, in the namespaces that it has made. On the machine itself they would remain and hide networks: a test network
# hid the package registries once.
# Argument: what makes the namespaces, for the message.
set -eu
# In a new namespace nothing is up, not even lo. Other devices may be there: some modules add theirs to each namespace.
up=$(PATH=$PATH:/usr/sbin:/sbin ip -o link show up)
[ -z "$up" ] || {
  echo "not in a new network namespace, this would change the machine itself. Start it by ${1:-unshare --mount --net}" >&2
  exit 1
}
