/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether a socket belongs to the cgroup that --cgroup or --unit names. A socket belongs to the cgroup
 * that opened its listener.
 *
 * `systemctl restart` makes a unit's cgroup anew: same name, new number. Programs see only numbers, but
 * numbers only grow (kernfs_new_node()). So the path of numbers from the root to the socket's cgroup is
 * compared with the named path. At the first difference, a number above all that existed at attach time is
 * taken for the named cgroup, made anew; a lower number is another cgroup.
 *
 * Only the backstop is given the listener of a SYN. It notes the result in the SYN's pending connection. */
#pragma once
#include "attach/layout.h"

/* Service managers and container engines use less than half of this. */
#define CGROUP_LEVELS 32

/* The numbers from the first level below the root to the named cgroup, and the highest number at attach
 * time; set when the program is loaded. named_levels 0: the root is named, to which all sockets belong. */
const volatile __u64 named_cgroups[CGROUP_LEVELS] = {};
const volatile __u32 named_levels = 0;
const volatile __u64 youngest_cgroup = 0;

static __always_inline int is_outside(struct bpf_sock *sk)
{
	for (__u32 level = 0; level < CGROUP_LEVELS && level < named_levels; level++) {
		__u64 number = bpf_sk_ancestor_cgroup_id(sk, level + 1);

		if (number != named_cgroups[level])
			return number <= youngest_cgroup;
	}
	return 0;
}
