/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Counting. Each family of programs has a per-CPU array of counters, and an enum of their places. */
#pragma once
#include "lib/base.h"

static __always_inline void count_in(void *counters, __u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(counters, &counter);

	if (value)
		*value += 1;
}

static __always_inline int drop_in(void *counters, __u32 reason)
{
	count_in(counters, reason);
	return DROP;
}
