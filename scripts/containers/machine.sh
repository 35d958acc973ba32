#!/bin/bash
# A further machine of machines.sh, in the namespaces that it has made: machine.sh NAME TOKEN. It lasts until it is killed.
set -eu
scripts/new-network.sh machine_up
hostname "$1"
mount -t proc proc /proc
umount -lR /sys
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
umount -lR /run
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock /run/node/home/.config/containers
mount -t tmpfs -o mode=755 tmpfs /var/log
mount --make-rshared /
sysctl -qw net.ipv4.ip_forward=1
ip link set lo up
touch /run/node/up
trap "exit 0" TERM
while :; do sleep 1000 & wait $!; done
