/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Which sockets are meant where the command line names a cgroup. A socket belongs to the cgroup that opened its
 * listener. A restart makes a unit's cgroup anew, under its old name and with another number. Programs know
 * numbers only, but those never fall (kernfs_new_node gives them in turn). So where a socket's way from the root
 * leaves the named one, by a cgroup that is younger than the attachment, the named one was made anew there.
 *
 * Only the backstop can ask for a listener's cgroup. It meets each SYN, and notes the answer in its embryo. */
#pragma once
#include "layout.h"

/* More than any hierarchy of a service manager or container engine has. */
#define CGROUP_LEVELS 32

/* The cgroups from below the root to the named one, and the youngest that there was; set when the program is
 * loaded. No level: the root, which has all sockets. */
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
