#!/bin/bash
# Mounts /sys with the root of the cgroups and a file system of pins, and a /run/netns, for use.py. In a mount namespace of the caller's.
set -euo pipefail
umount -lR /sys
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
